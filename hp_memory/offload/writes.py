"""Kernels of a dump whose outputs are the memory of inputs: views, in-place kernels, and updates of parameters.

A dump says neither. The indices are those of MindSpore 2.10.0's own signatures (``sig_rw.RW_WRITE``), kept to kernels
whose outputs are what they wrote; a test compares them with the installed package.
"""

from __future__ import annotations

_FIRST, _TWO, _THREE, _FOUR = (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)

WRITES_INPUTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Adam", "AdamW", "AdamWeightDecay"), _THREE),
    **dict.fromkeys(("ApplyAdaMax", "ApplyAdadelta", "ApplyAdagradDA", "ApplyAdamW", "ApplyFtrl"), _THREE),
    **dict.fromkeys(("ApplyAdamWithAmsgrad", "ApplyAdamWithAmsgradV2"), _FOUR),
    **dict.fromkeys(("ApplyAdagrad", "ApplyAdagradV2", "ApplyAddSign", "ApplyKerasMomentum"), _TWO),
    **dict.fromkeys(("ApplyMomentum", "ApplyPowerSign", "ApplyProximalAdagrad"), _TWO),
    **dict.fromkeys(("ApplyGradientDescent", "ApplyProximalGradientDescent"), _FIRST),
    **dict.fromkeys(("Assign", "AssignAdd", "AssignSub"), _FIRST),
    **dict.fromkeys(("FusedSparseAdam", "FusedSparseFtrl", "FusedSparseLazyAdam"), _THREE),
    **dict.fromkeys(("FusedSparseProximalAdagrad", "SparseApplyAdagrad", "SparseApplyAdagradV2"), _TWO),
    **dict.fromkeys(("SparseApplyAdadelta", "SparseApplyAdagradDA", "SparseApplyFtrl", "SparseApplyFtrlV2"), _THREE),
    **dict.fromkeys(("SparseApplyProximalAdagrad",), _TWO),
    **dict.fromkeys(("SparseApplyProximalGradientDescent",), _FIRST),
    **dict.fromkeys(("SparseApplyRMSProp",), _THREE),
    **dict.fromkeys(("SparseApplyCenteredRMSProp",), _FOUR),
    **dict.fromkeys(("ScatterAdd", "ScatterSub", "ScatterUpdate", "ScatterAddWithAxis"), _FIRST),
    **dict.fromkeys(("ScatterNdAdd", "ScatterNdSub", "ScatterNdUpdate"), _FIRST),
    "InplaceGroupedMatmulAdd": (3,),
    "InplaceMatmulAdd": (2,),
}
# These write without saying so in a signature: their documentation does.
UNSIGNED: dict[str, tuple[int, ...]] = {
    "ApplyCenteredRMSProp": _FOUR,
    "ApplyRMSProp": _THREE,
    "Momentum": _FIRST,
    "SGD": _FIRST,
}


def written_inputs(op: str) -> tuple[int, ...]:
    """Inputs whose memory the outputs are, in the order of the outputs."""
    if op in WRITES_INPUTS:
        return WRITES_INPUTS[op]
    return UNSIGNED.get(op, _FIRST if op.startswith("Inplace") else ())


def is_view(op: str) -> bool:
    """Whether every output is memory of the first input: MindSpore's view kernels end in ``View``."""
    return op.endswith("View")

"""What each layout should hold after the forward: tables written by hand, to compare with what a probe finds.

They follow from the gradients' formulas. For y = x w, dw = x^T dy reads x. For a permutation of rows, dx = dy[back]
reads the way back only. Softmax reads its output, a quotient a / b both of its operands, SwiGLU its input; RMSNorm
reads its input and the reciprocal deviation per row; flash attention reads q, k, v, its output and the softmax's
maximum and sum per row, over 8 columns each. Sums, sends and rotations read nothing.

Inside a boundary a saved region holds what its own gradient reads unless a replay makes it again, and its output if
something live that is replayed reads it. No MindSpore here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from hp_memory.layout.regions import EXPERT_PATH
from hp_memory.models.settings import ModelSettings

BACKWARD, REPLAY, INPUT = "saved for backward", "output kept for replay", "block input"
KEPT = "input not rebuildable"
_ITEMSIZE = {"float32": 4, "int32": 4, "int64": 8}


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that some gradient or replay reads.

    Attributes:
        producer: the region (or bare operation) that makes it.
        reader: the region whose gradient reads it; the first of several in forward order.
        shape: factors of each dimension, in the symbols of ``sizes``.
    """

    name: str
    producer: str
    reader: str
    shape: tuple[str, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Expected:
    """One storage that a layout should hold. ``region`` is what a probe should name: the reader, or who keeps it."""

    tensor: str
    producer: str
    reader: str
    region: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    reason: str


_ATTENTION = (
    SavedTensor("x", "block input", "attention.norm", ("T", "H")),
    SavedTensor("deviation", "attention.norm", "attention.norm", ("T", "1")),
    SavedTensor("normed", "attention.norm", "attention.qkv_proj", ("T", "H")),
    SavedTensor("q", "attention.rope", "attention.core", ("B", "N", "S", "D")),
    SavedTensor("k", "attention.rope", "attention.core", ("B", "K", "S", "D")),
    SavedTensor("v", "attention.rope", "attention.core", ("B", "K", "S", "D")),
    SavedTensor("attended", "attention.core", "attention.core", ("T", "ND")),
    SavedTensor("maximum", "attention.core", "attention.core", ("B", "N", "S", "8")),
    SavedTensor("sum", "attention.core", "attention.core", ("B", "N", "S", "8")),
    SavedTensor("residual", "addition", "mlp.norm", ("T", "H")),
    SavedTensor("deviation 2", "mlp.norm", "mlp.norm", ("T", "1")),
)
_DENSE = (
    SavedTensor("normed 2", "mlp.norm", "mlp.up", ("T", "H")),
    SavedTensor("hidden", "mlp.up", "mlp.act", ("T", "2F_dense")),
    SavedTensor("activated", "mlp.act", "mlp.down", ("T", "F_dense")),
)
_ROUTER = (
    SavedTensor("normed 2", "mlp.norm", "router.gate", ("T", "H")),
    SavedTensor("scores", "router.gate", "router.gate", ("T", "E")),
    SavedTensor("experts", "router.choose", "router.choose", ("T", "k"), "int32"),
    SavedTensor("chosen scores", "router.choose", "router.choose", ("T", "k")),
    SavedTensor("sum of chosen", "router.choose", "router.choose", ("T", "1")),
    SavedTensor("load", "router.choose", "router.choose", ("E",)),
)
# Read by no gradient of the router; held where a replay must not decide again.
_DECISIONS = (
    SavedTensor("weights", "router.choose", "combine.unpermute", ("T", "k")),
    SavedTensor("counts", "router.choose", "none", ("E",), "int32"),
)
_METADATA = (
    SavedTensor("way back", "dispatch.counts", "compute.resort", ("R",), "int32"),
    SavedTensor("order", "dispatch.counts", "combine.unsort", ("R",), "int32"),
    SavedTensor("group list", "dispatch.counts", "gmm.up", ("G",), "int64"),
)
_EXPERTS = (
    SavedTensor("places", "dispatch.permute", "dispatch.permute", ("Tk",), "int32"),
    SavedTensor("received", "all2all.in", "none", ("R", "H")),
    SavedTensor("sorted", "compute.resort", "gmm.up", ("R", "H")),
    SavedTensor("hidden", "gmm.up", "compute.act", ("R", "2F")),
    SavedTensor("activated", "compute.act", "gmm.down", ("R", "F")),
    SavedTensor("result", "gmm.down", "none", ("R", "H")),
    SavedTensor("returned", "all2all.out", "combine.unpermute", ("Tk", "H")),
)
_SHARED = (
    SavedTensor("shared hidden", "shared_experts.up", "shared_experts.act", ("T", "2F_shared")),
    SavedTensor("shared activated", "shared_experts.act", "shared_experts.down", ("T", "F_shared")),
)
TENSORS: Mapping[str, tuple[SavedTensor, ...]] = {
    "dense": _ATTENTION + _DENSE,
    "moe": _ATTENTION + _ROUTER + _DECISIONS + _METADATA + _EXPERTS + _SHARED,
}

CHAIN_REGIONS = EXPERT_PATH[:3]
"""``all2all.in``, ``compute.resort`` and ``gmm.up``."""

_Rows = Mapping[str, tuple[str, ...]]


def _names(tensors: Iterable[SavedTensor], without: tuple[str, ...] = ()) -> tuple[str, ...]:
    return tuple(t.name for t in tensors if t.name not in without)


# The scores aren't among them: they are made again.
_CHOSEN = ("experts", "chosen scores", "sum of chosen", "load")
_DECIDED = ("weights", "counts")
# Excluded as a whole or link by link, the way through the expert holds the same: links' inputs and the last output.
_WHOLE_PATH: _Rows = {
    INPUT: ("x",),
    BACKWARD: (*_CHOSEN, "way back", "order", "group list", "sorted", "hidden", "activated"),
    REPLAY: (*_DECIDED, "returned"),
}
HELD: Mapping[str, Mapping[str, _Rows]] = {
    "dense": {
        "none": {BACKWARD: _names(TENSORS["dense"])},
        **{layout: {INPUT: ("x",)} for layout in ("full", "op_exclude", "region_exclude", "chain_exclude")},
    },
    "moe": {
        "none": {BACKWARD: _names(TENSORS["moe"], without=("counts", "received", "result"))},
        "full": {
            INPUT: ("x",),
            BACKWARD: _CHOSEN,
            REPLAY: (*_DECIDED, "way back", "order", "group list"),
        },
        "op_exclude": {
            INPUT: ("x",),
            BACKWARD: (*_CHOSEN, "group list"),
            REPLAY: (*_DECIDED, "way back", "order", "received", "hidden", "returned"),
        },
        "region_exclude": _WHOLE_PATH,
        "chain_exclude": _WHOLE_PATH,
    },
}
# all2all -> resort -> gmm alone, between two replayed operations: the activations that the document counts.
CHAIN: Mapping[str, _Rows] = {
    "op_exclude, inputs kept": {REPLAY: ("received", "hidden"), KEPT: ("sorted",)},
    "op_exclude": {REPLAY: ("received", "hidden")},
    "region_exclude": {BACKWARD: ("sorted",), REPLAY: ("hidden",)},
    "chain_exclude, outputs kept": {BACKWARD: ("sorted",), REPLAY: ("received", "hidden")},
    "chain_exclude": {BACKWARD: ("sorted",), REPLAY: ("hidden",)},
}


def sizes(model: ModelSettings, sequences: int, rows: int, expert_parallel: int = 1) -> dict[str, int]:
    """The symbols' values for one rank: ``sequences`` in the micro-batch, ``rows`` received by its experts."""
    tokens, shared = sequences * model.seq_length, model.shared_experts * model.expert_ffn_size
    return {
        "1": 1,
        "8": 8,
        "B": sequences,
        "S": model.seq_length,
        "T": tokens,
        "k": model.top_k,
        "Tk": tokens * model.top_k,
        "H": model.hidden_size,
        "N": model.num_heads,
        "K": model.num_kv_heads,
        "D": model.head_dim,
        "ND": model.num_heads * model.head_dim,
        "E": model.num_experts,
        "G": model.num_experts // expert_parallel,
        "R": rows,
        "F": model.expert_ffn_size,
        "2F": 2 * model.expert_ffn_size,
        "F_dense": model.ffn_size,
        "2F_dense": 2 * model.ffn_size,
        "F_shared": shared,
        "2F_shared": 2 * shared,
    }


def expected(layout: str, kind: str, values: Mapping[str, int]) -> list[Expected]:
    """What one block of ``kind`` should hold under a named layout.

    Args:
        layout: ``none``, ``full``, ``op_exclude``, ``region_exclude`` or ``chain_exclude``, as shipped.
        kind: ``dense`` or ``moe``.
        values: see ``sizes``.
    """
    span = EXPERT_PATH if layout == "region_exclude" else ()
    return _entries(HELD[kind][layout], kind, values, span)


def expected_in_chain(case: str, values: Mapping[str, int]) -> list[Expected]:
    """The activations that ``chain.Chain`` should hold between its ends, for a case of ``CHAIN``."""
    return _entries(CHAIN[case], "moe", values, CHAIN_REGIONS if case == "region_exclude" else ())


def _entries(rows: _Rows, kind: str, values: Mapping[str, int], span: tuple[str, ...]) -> list[Expected]:
    made = [_entry(kind, name, reason, values, span) for reason, names in rows.items() for name in names]
    return [entry for entry in made if entry.nbytes]


def _entry(kind: str, name: str, reason: str, values: Mapping[str, int], span: tuple[str, ...]) -> Expected:
    tensor = next(t for t in TENSORS[kind] if t.name == name)
    shape = tuple(values[symbol] for symbol in tensor.shape)
    region = {BACKWARD: tensor.reader, KEPT: tensor.reader, REPLAY: tensor.producer, INPUT: ""}[reason]
    if region in span:
        region = f"{span[0]}..{span[-1]}"
    nbytes = prod(shape) * _ITEMSIZE[tensor.dtype]
    return Expected(name, tensor.producer, tensor.reader, region, shape, tensor.dtype, nbytes, reason)

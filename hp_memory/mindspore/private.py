"""MindSpore's private names, each imported once and given the name by which the rest of the package calls it.

``probes.PROBES`` says of each what it is for. They were measured on the CPU wheel of 2.10.0; a newer MindSpore is
checked here first (``hp-memory doctor``).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from mindspore import _c_expression as c_expression
from mindspore._c_expression import Cell_, MixedPrecisionType, _DispatchGuardStack, run_backward
from mindspore._c_expression.amp import get_curr_amp_strategy
from mindspore.common._grad_function import _Function as Function
from mindspore.common.generator import default_generator, get_rng_state, set_rng_state
from mindspore.graph.api import _GradientEdge as GradientEdge
from mindspore.graph.api import _JitExecutor as JitExecutor
from mindspore.graph.api import _no_grad as no_grad
from mindspore.graph.api import _pynative_executor as executor
from mindspore.ops.auto_generate import as_strided
from mindspore.train.amp import AmpDecorator

__all__ = [
    "AmpDecorator",
    "Cell_",
    "Function",
    "GradientEdge",
    "JitExecutor",
    "MixedPrecisionType",
    "_DispatchGuardStack",
    "as_strided",
    "c_expression",
    "cluster_entity",
    "compile_config",
    "default_generator",
    "executor",
    "get_curr_amp_strategy",
    "get_rng_state",
    "grad_code",
    "no_grad",
    "recompute",
    "run_backward",
    "set_rng_state",
]

# The package attribute of this name is the public function, so the module has to be asked for.
recompute = importlib.import_module("mindspore.common.recompute")

# Where gradients are taken: a function of this file that is being called has a graph open.
grad_code = importlib.import_module("mindspore.ops.composite.base").__file__


def compile_config() -> ModuleType:
    """Where graph mode keeps the settings of its passes."""
    return importlib.import_module("mindspore.graph._parse.compile_config")


def cluster_entity() -> ModuleType:
    """What msrun starts and watches; importing it has side effects on signals, so only a launcher asks."""
    return importlib.import_module("mindspore.parallel.cluster.process_entity._api")

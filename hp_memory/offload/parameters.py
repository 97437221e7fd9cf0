"""Operations for remote parameters: a load before each use, and a write-back where the kernel may have written."""

from __future__ import annotations

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import CONDITION_SWITCH, Node, ParameterRef, Source
from hp_memory.offload.operations import H2D, WRITE_BACK, Operation
from hp_memory.offload.users import is_ref_input


def is_loaded_for(draft: Draft, node: Node, index: int, source: Source) -> bool:
    """Whether the optimizer loads this input: a remote parameter whose buffer no output of the node shares."""
    return (
        isinstance(source, ParameterRef)
        and draft.graph.parameters[source.name].remote
        and not is_ref_input(node, index)
    )


def generate_parameter_operations(draft: Draft) -> None:
    """One load per use, never shared. Read through a Load node: no write-back (the document's pseudo-code has one)."""
    remote = {name for name, parameter in draft.graph.parameters.items() if parameter.remote}
    if not remote:
        return
    for position, node in enumerate(draft.graph.nodes):
        if node.enable_offload is False or node.op == CONDITION_SWITCH:
            continue
        for index, source in enumerate(node.inputs):
            if not isinstance(source, ParameterRef) or not is_loaded_for(draft, node, index, source):
                continue
            reload = Operation(H2D, ParameterRef(source.name))
            draft.rewire(position, index, reload)
            draft.operations.add_before(position, reload)
            if not source.load:
                draft.operations.add_after(position, Operation(WRITE_BACK, reload))

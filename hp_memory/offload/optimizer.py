"""The optimizer: graph and settings in, new execution order out. The order of steps is MindSpore 2.10.0's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hp_memory.errors import HPMemoryError
from hp_memory.offload.activations import add_activation_operations
from hp_memory.offload.adaptive import set_adaptive_distances
from hp_memory.offload.distance import distance_strategy
from hp_memory.offload.draft import Draft, source_of
from hp_memory.offload.events import add_event_nodes
from hp_memory.offload.graph import Graph, Node, Output
from hp_memory.offload.info import (
    OffloadInfo,
    Skipped,
    drop_ref_input_ranges,
    filter_by_number,
    filter_by_percentage,
)
from hp_memory.offload.operations import H2D, HyperOffloadOperations, Input, Moved, Operation
from hp_memory.offload.parameters import generate_parameter_operations
from hp_memory.offload.peak import PeakChoice, peak_strategy
from hp_memory.offload.prefetch import adjust_hyper_offload_node_position
from hp_memory.offload.settings import OffloadSettings
from hp_memory.offload.users import UserInfo, collect_all_node_users

HandleNewNodeCallback = Callable[[Operation, int], None]


@dataclass(slots=True)
class HyperOffloadInput:
    """What the optimizer gets.

    Args:
        callback: sees every inserted operation with the position of the kernel it follows (-1: before the first).
        stage: the pipeline stage this graph belongs to.
    """

    graph: Graph
    settings: OffloadSettings
    callback: HandleNewNodeCallback | None = None
    stage: int = 0


@dataclass(slots=True)
class HyperOffloadPlan:
    """What the optimizer gives back.

    Args:
        graph: the graph that was planned, unchanged.
        settings: the settings it was planned with.
        operations: the operations queue.
        inputs: new inputs of the kernels whose inputs changed, by position.
        outputs: the graph's outputs afterwards.
        offload_infos: the activations that are moved, in the order of their first use.
        skipped: candidates that were left on the device, and why.
        truncated: candidates cut off by ``select_num`` or the percentage.
        peak_choices: the peak strategy's rounds.
        peak_bytes: the highest point of its memory profile afterwards.
        raises: tensors for which MindSpore's optimizer raises; see :class:`ReloadWithoutUserError`.
        stage: the pipeline stage of the graph.
    """

    graph: Graph
    settings: OffloadSettings
    operations: HyperOffloadOperations
    inputs: dict[int, list[Input]] = field(default_factory=dict)
    outputs: list[Input] = field(default_factory=list)
    offload_infos: list[OffloadInfo] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    truncated: list[OffloadInfo] = field(default_factory=list)
    peak_choices: list[PeakChoice] = field(default_factory=list)
    peak_bytes: int | None = None
    raises: list[Moved] = field(default_factory=list)
    stage: int = 0

    @property
    def stage_enabled(self) -> bool:
        """Whether activations are moved in the graph's stage."""
        return not self.settings.stages or self.stage in self.settings.stages

    def execution_order(self) -> Iterator[Node | Operation]:
        """Kernels and operations as they will run."""
        yield from self.operations.pre
        for position, node in enumerate(self.graph.nodes):
            yield node
            yield from self.operations.after(position)

    def inputs_of(self, position: int) -> Sequence[Input]:
        return self.inputs.get(position) or self.graph.nodes[position].inputs

    def label(self, tensor: Moved) -> str:
        return self.graph.label(source_of(tensor))

    def check(self) -> None:
        """Raise where MindSpore's optimizer would.

        Raises:
            ReloadWithoutUserError: naming the graph outputs that were chosen.
        """
        if self.raises:
            raise ReloadWithoutUserError(
                f"{', '.join(map(self.label, self.raises))}: H2D node of a graph output has no users in execution order"
            )


class ReloadWithoutUserError(HPMemoryError):
    """A graph output was chosen by the distance strategy, and its reload stays after the last kernel."""


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """Plans allocate millions of objects without cycles: each full collection would visit all of them for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@no_cyclic_collection()
def run(request: HyperOffloadInput) -> HyperOffloadPlan:
    """Plan one graph."""
    draft = Draft(request.graph)
    plan = HyperOffloadPlan(request.graph, request.settings, draft.operations, stage=request.stage)
    if not skip_hyper_offload_optimizer(request):
        if request.settings.moves_parameters:
            generate_parameter_operations(draft)
        if request.settings.moves_activations and plan.stage_enabled:
            generate_activation_operations(draft, plan)
        peak = request.settings.strategy == "peak"
        gap_starts = {i.data_node: i.replace_info_list[-1].replace_start_node for i in plan.offload_infos if peak}
        floors = reload_floors(draft, gap_starts)
        adjust_hyper_offload_node_position(draft, distances_of(plan, "prefetch_distance"), floors)
        plan.raises = add_event_nodes(draft, distances_of(plan, "release_distance"), peak, gap_starts)
    plan.inputs, plan.outputs = draft.changed, draft.outputs
    if request.callback is not None:
        for operation in draft.operations:
            request.callback(operation, operation.slot)
    return plan


def skip_hyper_offload_optimizer(request: HyperOffloadInput) -> bool:
    """Nothing enabled, or nothing to plan."""
    return request.settings.auto_offload == "none" or not request.graph.nodes


def generate_activation_operations(draft: Draft, plan: HyperOffloadPlan) -> None:
    """Choose activations, drop what can't be rewired, insert their copies."""
    peak = plan.settings.strategy == "peak"
    user_infos = collect_all_node_users(draft, tuples=peak)
    chosen = choose_by_peak_strategy(draft, plan, user_infos) if peak else choose_by_distance(draft, plan, user_infos)
    plan.offload_infos, dropped = drop_ref_input_ranges(draft.graph, chosen)
    plan.skipped += dropped
    add_activation_operations(draft, plan.offload_infos, peak)


def choose_by_distance(draft: Draft, plan: HyperOffloadPlan, user_infos: list[UserInfo]) -> list[OffloadInfo]:
    settings = plan.settings
    candidates, plan.skipped = distance_strategy(draft.graph, user_infos, settings.select_distance)
    chosen = filter_by_number(candidates, settings.select_num)
    if settings.filter_percentage is not None:
        chosen = filter_by_percentage(chosen, settings.filter_percentage)
    kept = {info.data_node for info in chosen}
    plan.truncated = [info for info in candidates if info.data_node not in kept]
    return chosen


def choose_by_peak_strategy(draft: Draft, plan: HyperOffloadPlan, user_infos: list[UserInfo]) -> list[OffloadInfo]:
    settings = plan.settings
    if settings.max_device_memory == 0:
        return []
    chosen, plan.peak_choices, values = peak_strategy(draft, user_infos, settings.threshold, settings.score_weights)
    plan.peak_bytes = int(values.max())
    set_adaptive_distances(draft.graph, chosen, settings, values)
    return chosen


def distances_of(plan: HyperOffloadPlan, name: str) -> Callable[[Moved], int]:
    """A tensor's distance: the adaptive one, else its producer's own attribute, else the setting.

    An output of a tuple is a TupleGetItem for the optimizer, which has no attributes.
    """
    adaptive: dict[Moved, int | None] = {info.data_node: getattr(info, name) for info in plan.offload_infos}
    default = getattr(plan.settings, name)

    def distance(tensor: Moved) -> int:
        node = plan.graph.nodes[tensor.node] if isinstance(tensor, Output) else None
        own = getattr(node, name) if node is not None and not node.is_tuple else None
        computed = adaptive.get(tensor)
        return next((value for value in (computed, own) if value is not None), default)

    return distance


def reload_floors(draft: Draft, gap_starts: dict[Output, int]) -> dict[Operation, int]:
    """Lowest slots of reloads: with the peak strategy one after the last kernel that reads the device copy."""
    return {
        reload: gap_starts[reload.data] + 1 for reload in draft.operations.of_kind(H2D) if reload.data in gap_starts
    }

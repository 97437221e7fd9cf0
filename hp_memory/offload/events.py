"""Events that order the copy stream against compute, and the release of each buffer.

A copy-out runs when its producer is done, and its tensor is freed on the device once the last kernel that still reads
it is done and the copy has arrived. A reload is waited for right before its first user.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import CONDITION_SWITCH, Output
from hp_memory.offload.operations import (
    AFTER_D2H,
    AFTER_H2D,
    ASSIGN,
    BEFORE_D2H,
    COMPUTE_STREAM,
    D2H,
    DEVICE,
    FREE,
    H2D,
    HOST,
    PRE,
    RECV,
    SEND,
    TRANSFER_STREAM,
    WRITE_BACK,
    Input,
    Moved,
    Operation,
)

Spans = dict[Moved, tuple[int, int]]


def add_event_nodes(
    draft: Draft, release_distance: Callable[[Moved], int], peak: bool, gap_starts: Mapping[Output, int]
) -> list[Moved]:
    """Surround every copy with its events: copy-outs in slot order first, then reloads.

    Args:
        gap_starts: the last kernel before each tensor's gap, where the strategy is ``peak``.

    Returns:
        Tensors with a reload that nothing reads and that stays in a slot: MindSpore's optimizer raises for them.
    """
    saves = draft.operations.of_kind(D2H, WRITE_BACK)
    reloads = draft.operations.of_kind(H2D)
    spans = user_spans(draft, [save.data for save in saves], draft.origins(own_branch=True))
    slots = reload_slots(reloads) if peak else {}
    for save in saves:
        floor = gap_starts.get(save.data, PRE) if isinstance(save.data, Output) else PRE
        release = release_slot(draft, save, spans, release_distance(save.data), slots, floor)
        add_events_of_save(draft, save, release)
    return add_events_of_reloads(draft, reloads, user_spans(draft, reloads, {}), peak)


def user_spans(draft: Draft, data: Sequence[Moved], origins: Mapping[Input, Input]) -> Spans:
    """First and last user of each tensor in the rewired graph.

    ``origins``: what stands for what, as in :meth:`Draft.origins`. For the release of a copy-out a reader of a view
    uses the source, but a reload counts its direct readers only.
    """
    wanted = set(data)
    spans: Spans = {}
    if not wanted:
        return spans
    for position, node in enumerate(draft.graph.nodes):
        inputs = draft.inputs(position)
        for source in inputs[:1] if node.op == CONDITION_SWITCH else inputs:
            tensor = origins.get(source, source)
            if tensor in wanted:
                spans[tensor] = (spans[tensor][0] if tensor in spans else position, position)
    return spans


def reload_slots(reloads: list[Operation]) -> dict[Moved, list[int]]:
    slots: dict[Moved, list[int]] = {}
    for reload in reloads:
        slots.setdefault(reload.data, []).append(reload.slot)
    return slots


def release_slot(
    draft: Draft, save: Operation, spans: Spans, distance: int, slots: dict[Moved, list[int]], floor: int
) -> int:
    """Where the device copy is freed: after its last reader and the release distance, never after the last kernel.

    With the peak strategy that is after ``floor``, the last kernel before the chosen gap, and before the tensor's next
    reload; the distance strategy has no such guards.
    """
    last_user = spans[save.data][1] if save.data in spans else save.slot
    target = max(floor, min(last_user + distance, len(draft.graph.nodes) - 1))
    later = slots.get(save.data, [])
    following = bisect_right(later, save.slot)
    if following < len(later):
        target = max(min(target, later[following] - 1), save.slot)
    return target


def add_events_of_save(draft: Draft, save: Operation, release: int) -> None:
    queue, slot, data = draft.operations, save.slot, save.data
    queue.remove(save)
    queue.add_after(slot, Operation(SEND, data, COMPUTE_STREAM, BEFORE_D2H))
    queue.add_after(slot, Operation(RECV, data, TRANSFER_STREAM, BEFORE_D2H))
    queue.add_after(slot, save)
    queue.add_after(slot, Operation(SEND, data, TRANSFER_STREAM, AFTER_D2H))
    queue.add_after(release, Operation(RECV, data, COMPUTE_STREAM, AFTER_D2H))
    queue.add_after(release, Operation(FREE, data, side=DEVICE))
    queue.add_after(release, Operation(ASSIGN, data, side=HOST))


def add_events_of_reloads(draft: Draft, reloads: list[Operation], spans: Spans, peak: bool) -> list[Moved]:
    """Reloads of one tensor in slot order: all but the last give their device copy back after their last user."""
    last = {reload.data: reload for reload in reloads}
    unused = []
    for reload in reloads:
        if reload.slot == PRE:
            continue  # loaded before the first kernel: no events at all
        span = span_of_reload(draft, reload, spans, peak)
        if span is None:
            unused.append(reload.data)
        else:
            add_events_of_reload(draft, reload, span, is_last=last[reload.data] is reload)
    return unused


def add_events_of_reload(draft: Draft, reload: Operation, span: tuple[int, int], is_last: bool) -> None:
    queue, slot, data = draft.operations, reload.slot, reload.data
    first_user, last_user = span
    queue.remove(reload)
    queue.add_after(slot, reload)
    queue.add_after(slot, Operation(SEND, data, TRANSFER_STREAM, AFTER_H2D))
    queue.add_before(first_user, Operation(RECV, data, COMPUTE_STREAM, AFTER_H2D))
    if is_last:
        queue.add_before(first_user, Operation(FREE, data, side=HOST))
    queue.add_before(first_user, Operation(ASSIGN, data, side=DEVICE, copy=reload))
    if not is_last:
        queue.add_after(last_user, Operation(FREE, data, side=DEVICE))
        queue.add_after(last_user, Operation(ASSIGN, data, side=HOST))


def span_of_reload(draft: Draft, reload: Operation, spans: Spans, peak: bool) -> tuple[int, int] | None:
    """First and last user. The peak strategy counts the graph's outputs as a user after the last kernel."""
    if peak and reload.output_reload:
        end = len(draft.graph.nodes)
        return end, end
    return spans.get(reload)

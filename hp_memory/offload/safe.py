"""Values of settings with which a kind of hazard is gone: each is tried on the graph before it is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hp_memory.offload.hazards import ERROR, Hazard, find_hazards
from hp_memory.offload.optimizer import HyperOffloadInput, HyperOffloadPlan, run
from hp_memory.offload.settings import changed

Values = dict[str, int]

# Trials for one kind of hazard: each plans the graph again.
MOST_TRIALS = 8


def with_safe_values(plan: HyperOffloadPlan, hazards: list[Hazard]) -> list[Hazard]:
    """The hazards, the first of each kind with values that worked; kinds for which none did have none."""
    by_kind: dict[str, list[Hazard]] = {}
    for hazard in hazards:
        by_kind.setdefault(hazard.kind, []).append(hazard)
    for kind, same in by_kind.items():
        safe = first_that_works(plan, hazards, kind, candidates(plan, kind, same))
        for hazard in same:
            hazard.safe = dict(safe)
    return hazards


def first_that_works(plan: HyperOffloadPlan, hazards: list[Hazard], kind: str, tried: Iterable[Values]) -> Values:
    had = {hazard.kind for hazard in hazards if hazard.severity == ERROR}
    seen: list[Values] = []
    for values in tried:
        if values in seen or all(getattr(plan.settings, name) == value for name, value in values.items()):
            continue
        seen.append(values)
        if len(seen) > MOST_TRIALS:
            break
        new = run(HyperOffloadInput(plan.graph, changed(plan.settings, values), stage=plan.stage))
        found = find_hazards(new)
        errors = {hazard.kind for hazard in found if hazard.severity == ERROR}
        if errors <= had and all(hazard.kind != kind for hazard in found):
            return values
    return {}


def candidates(plan: HyperOffloadPlan, kind: str, hazards: list[Hazard]) -> Iterator[Values]:
    """What may help against a kind of hazard, the least change first."""
    yield from CANDIDATES.get(kind, nothing)(plan, hazards)


def nothing(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    return iter(())


def smaller_prefetch(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    """Up to the shortest distance from a producer to the first use after its gap."""
    firsts = [
        group.replace_rest_nodes[0].node - info.data_node.node - 1
        for info in plan.offload_infos
        for group in info.replace_info_list
    ]
    yield {"prefetch_distance": min(firsts, default=0)}
    yield {"prefetch_distance": 0}


def smaller_release(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    gaps = [group.gap for info in plan.offload_infos for group in info.replace_info_list]
    yield {"release_distance": max(0, min(gaps, default=1) - 1)}
    yield {"release_distance": 0}
    yield from smaller_prefetch(plan, hazards)
    yield from longer_select(plan, gaps)


def longer_select(plan: HyperOffloadPlan, gaps: list[int]) -> Iterator[Values]:
    if plan.settings.strategy == "distance":
        yield from ({"select_distance": gap} for gap in sorted(set(gaps))[:MOST_TRIALS])


def without_outputs(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    """A select distance that leaves the graph's outputs alone."""
    raised = set(plan.raises)
    gaps = [g.gap for info in plan.offload_infos if info.data_node in raised for g in info.replace_info_list]
    yield {"select_distance": max(gaps, default=0)}


def earlier_write_back(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    yield {"prefetch_distance": min(max(0, h.numbers["use"] - 1 - h.numbers["write_back"]) for h in hazards)}
    yield {"prefetch_distance": 0}


def room_between(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    """Releases before reloads: less prefetch, less release, or both."""
    prefetch = min(hazard.numbers["first_use"] - 2 - hazard.numbers["release"] for hazard in hazards)
    if prefetch >= 0:
        yield {"prefetch_distance": prefetch}
    yield {"release_distance": 0}
    yield {"prefetch_distance": 0}
    yield {"prefetch_distance": 0, "release_distance": 0}


def single_gaps(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    """A select distance that only the longest gap of each skipped tensor exceeds."""
    seconds = [sorted(hazard.numbers.values(), reverse=True)[1] for hazard in hazards if len(hazard.numbers) > 1]
    yield from with_prefetch(plan, max(seconds, default=plan.settings.select_distance))


def all_of_them(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    number = hazards[0].numbers["candidates"]
    yield {"select_num": number}
    yield {"filter_percentage": 100}
    yield {"select_num": number, "filter_percentage": 100}


def longest_selected(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    if plan.settings.strategy != "distance" or not plan.stage_enabled:
        return
    if plan.truncated:
        yield {"select_num": len(plan.truncated)}
        yield {"filter_percentage": 100}
    longest = hazards[0].numbers["longest_gap"]
    for share in (1.0, 0.75, 0.5, 0.25):
        yield from with_prefetch(plan, max(0, int(longest * share) - 1))


def with_prefetch(plan: HyperOffloadPlan, select: int) -> Iterator[Values]:
    """A select distance alone, or with distances that are never an error with it."""
    yield {"select_distance": select}
    settings = plan.settings
    if settings.prefetch_distance > select or settings.release_distance > select:
        distances = {"prefetch_distance": settings.prefetch_distance, "release_distance": settings.release_distance}
        yield {"select_distance": select} | {name: min(value, select) for name, value in distances.items()}


def what_is_left(plan: HyperOffloadPlan, hazards: list[Hazard]) -> Iterator[Values]:
    yield {"max_device_memory": hazards[0].numbers["modelled_peak"] + plan.settings.headroom}


CANDIDATES = {
    "reload before save": smaller_prefetch,
    "use after free": smaller_release,
    "graph output": without_outputs,
    "stale parameter": earlier_write_back,
    "saves nothing": room_between,
    "skipped": single_gaps,
    "truncated": all_of_them,
    "selects nothing": longest_selected,
    "peak too high": what_is_left,
}

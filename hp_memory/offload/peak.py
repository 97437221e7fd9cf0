"""The peak strategy: move out what covers the highest point of the memory profile, until it fits."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from hp_memory.offload.draft import Draft
from hp_memory.offload.info import OffloadInfo, ReplaceInfo
from hp_memory.offload.profile import memory_profile, profile_bytes
from hp_memory.offload.users import Use, UserInfo, is_valid_offload_node


@dataclass(slots=True)
class PeakChoice:
    """One round: where the peak was and how high, which candidate was taken, its gap and score."""

    position: int
    profile_bytes: int
    info: UserInfo
    gap: tuple[int, int]
    score: float


class CoveredSpans:
    """The union of half-open spans as sorted disjoint intervals."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        left = bisect_left(self.ends, start)
        right = left
        while right < len(self.starts) and self.starts[right] <= end:
            start, end = min(start, self.starts[right]), max(end, self.ends[right])
            right += 1
        self.starts[left:right], self.ends[left:right] = [start], [end]

    def covered_before(self, positions: np.ndarray) -> np.ndarray:
        """How many covered positions lie below each of ``positions``."""
        if not self.starts:
            return np.zeros(len(positions), dtype=np.int64)
        starts, ends = np.asarray(self.starts), np.asarray(self.ends)
        whole = np.concatenate(([0], np.cumsum(ends - starts)))
        at = np.searchsorted(starts, positions, side="left")
        last = np.maximum(at - 1, 0)
        return np.where(at > 0, whole[last] + np.minimum(positions, ends[last]) - starts[last], 0)


class Gaps:
    """Every stretch of more than one kernel in which a candidate isn't used, as arrays; candidates by producer."""

    def __init__(self, draft: Draft, user_infos: list[UserInfo], last_use: dict) -> None:
        nodes = draft.graph.nodes
        self.infos = sorted(
            (i for i in user_infos if not nodes[i.node.node].inplace and is_valid_offload_node(draft.graph, i)),
            key=lambda info: info.node,
        )
        rows = []
        for number, info in enumerate(self.infos):
            previous = info.node.node
            for use in info.users:
                if use.node - previous > 1:
                    rows.append((number, previous, use.node))
                previous = use.node
        table = np.asarray(rows, dtype=np.int64).reshape(-1, 3)
        self.owner, self.previous, self.next = table.T.copy()
        producers = np.asarray([info.node.node for info in self.infos], dtype=np.int64)
        sizes = [profile_bytes(nodes[info.node.node], info.node.index) for info in self.infos]
        self.producer = producers[self.owner]
        self.size = np.asarray(sizes, dtype=np.int64)[self.owner]
        last = np.asarray([last_use[info.node] for info in self.infos], dtype=np.int64)
        self.last = last[self.owner]
        self.free = np.ones(len(self.owner), dtype=bool)
        self.chosen = np.zeros(len(self.infos), dtype=bool)

    def covering(self, position: int) -> np.ndarray:
        """Rows whose gap covers the position. Data chosen before are preferred: they cost no second copy-out."""
        rows = np.flatnonzero(self.free & (self.previous < position) & (self.next > position))
        again = rows[self.chosen[self.owner[rows]]]
        return again if len(again) else rows


def scores(gaps: Gaps, rows: np.ndarray, position: int, covered: CoveredSpans, weights: list[float]) -> np.ndarray:
    """Size, distance back to the producer and ahead to the next use, each over the largest among the rows; minus the
    share of the tensor's life that chosen tensors cover already."""
    producer, last = gaps.producer[rows], gaps.last[rows]
    size, back, ahead = gaps.size[rows], position - producer, gaps.next[rows] - position
    overlap = (covered.covered_before(last) - covered.covered_before(producer)) / (last - producer)
    by_size, by_start, by_end, by_overlap = weights
    return (
        by_size * size / size.max() + by_start * back / back.max() + by_end * ahead / ahead.max() - by_overlap * overlap
    )


def find_peak(profile: np.ndarray, gaps: Gaps, threshold: int) -> tuple[int, np.ndarray] | None:
    """The last highest position and the gaps that cover it; on a plateau, the next one to the left that has any."""
    position = len(profile) - 1 - int(np.argmax(profile[::-1]))
    height = profile[position]
    while height > threshold and position >= 0 and profile[position] == height:
        rows = gaps.covering(position)
        if len(rows):
            return position, rows
        position -= 1
    return None


def choose_by_peak(values: np.ndarray, gaps: Gaps, threshold: int, weights: list[float]) -> list[PeakChoice]:
    """Greedy rounds until the highest point fits or nothing covers it; ``values`` is lowered on the way."""
    covered = CoveredSpans()
    choices: list[PeakChoice] = []
    while found := find_peak(values, gaps, threshold):
        position, rows = found
        ranking = scores(gaps, rows, position, covered, weights)
        best = int(np.argmax(ranking))
        row = rows[best]
        info, gap = gaps.infos[gaps.owner[row]], (int(gaps.previous[row]), int(gaps.next[row]))
        choices.append(PeakChoice(position, int(values[position]), info, gap, float(ranking[best])))
        gaps.free[row] = False
        gaps.chosen[gaps.owner[row]] = True
        covered.add(int(gaps.producer[row]), int(gaps.last[row]))
        values[gap[0] + 1 : gap[1]] -= gaps.size[row]
    return choices


def peak_strategy(
    draft: Draft, user_infos: list[UserInfo], threshold: int, weights: list[float]
) -> tuple[list[OffloadInfo], list[PeakChoice], np.ndarray]:
    """Chosen tensors, the rounds that chose them, and the profile they leave.

    A tensor chosen for several gaps is saved and reloaded at the one chosen first.

    Args:
        threshold: bytes the profile must fit in: the device's memory minus the headroom.
        weights: of size, cover start, cover end and neighbour impact.
    """
    profile = memory_profile(draft, user_infos)
    gaps = Gaps(draft, user_infos, profile.last_use)
    values = profile.values.copy()
    choices = choose_by_peak(values, gaps, threshold, weights)
    first: dict = {}
    for choice in choices:
        first.setdefault(choice.info.node, choice)
    infos = [OffloadInfo(c.info.node, [ReplaceInfo(c.gap[0], rest_of(c.info, c.gap[1]))]) for c in first.values()]
    return infos, choices, values


def rest_of(info: UserInfo, position: int) -> list[Use]:
    return [use for use in info.users if use.node >= position]

"""The peak strategy: move out what covers the highest point of the memory profile, until it fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import Output
from hp_memory.offload.heights import Heights
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

    def add(self, start: int, end: int) -> bool:
        """Cover a span; whether it was covered before."""
        left = bisect_left(self.ends, start)
        if left < len(self.starts) and self.starts[left] <= start and end <= self.ends[left]:
            return True
        right = left
        while right < len(self.starts) and self.starts[right] <= end:
            start, end = min(start, self.starts[right]), max(end, self.ends[right])
            right += 1
        self.starts[left:right], self.ends[left:right] = [start], [end]
        return False

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

    def __init__(self, draft: Draft, user_infos: list[UserInfo], last_use: dict[Output, int]) -> None:
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


def find_peak(heights: Heights, gaps: Gaps, threshold: int) -> tuple[int, np.ndarray] | None:
    """The last highest position and the gaps that cover it; on a plateau, the next one to the left that has any."""
    position, height = heights.last_highest()
    while height > threshold and position >= 0 and heights.at(position) == height:
        rows = gaps.covering(position)
        if len(rows):
            return position, rows
        position -= 1
    return None


def choose_by_peak(heights: Heights, gaps: Gaps, threshold: int, weights: list[float]) -> list[PeakChoice]:
    """Greedy rounds until the highest point fits or nothing covers it; ``heights`` is lowered on the way.

    Scores stay as they are while the peak, the largest values among the rows and the covered spans do. Rounds up to
    such a change take the best rows one after the other, so that a graph is not scored again for each of them.
    """
    covered = CoveredSpans()
    choices: list[PeakChoice] = []
    while found := find_peak(heights, gaps, threshold):
        position, rows = found
        ranking = scores(gaps, rows, position, covered, weights)
        largest = Largest(gaps, rows, position)
        for best in from_the_best(ranking):
            row = int(rows[best])
            choices.append(take(heights, gaps, row, position, float(ranking[best])))
            same_spans = covered.add(int(gaps.producer[row]), int(gaps.last[row]))
            if not same_spans or not largest.remain_without(best):
                break
            peak, height = heights.last_highest()
            if peak != position or height <= threshold:
                break
    return choices


def take(heights: Heights, gaps: Gaps, row: int, position: int, score: float) -> PeakChoice:
    """Choose a row: lower the profile over its gap."""
    owner, start, end = int(gaps.owner[row]), int(gaps.previous[row]), int(gaps.next[row])
    choice = PeakChoice(position, heights.at(position), gaps.infos[owner], (start, end), score)
    gaps.free[row] = False
    gaps.chosen[owner] = True
    heights.subtract(start + 1, end, int(gaps.size[row]))
    return choice


def from_the_best(ranking: np.ndarray) -> Iterator[int]:
    """Indices by falling score, equal ones in their order. Few are asked for: more are sorted step by step."""
    yield int(np.argmax(ranking))
    done, wanted = 1, 32
    while done < len(ranking):
        wanted = min(wanted, len(ranking))
        least = np.partition(ranking, len(ranking) - wanted)[len(ranking) - wanted]
        top = np.flatnonzero(ranking >= least)
        order = top[np.argsort(-ranking[top], kind="stable")]
        yield from map(int, order[done:])
        done, wanted = len(order), wanted * 16


class Largest:
    """How many of the rows have the largest size, way back and way ahead: scores are shares of these."""

    def __init__(self, gaps: Gaps, rows: np.ndarray, position: int) -> None:
        columns = (gaps.size[rows], position - gaps.producer[rows], gaps.next[rows] - position)
        self.has = [column == column.max() for column in columns]
        self.left = [int(has.sum()) for has in self.has]

    def remain_without(self, row: int) -> bool:
        """Whether all of them are still there when this row is gone."""
        self.left = [left - int(has[row]) for left, has in zip(self.left, self.has, strict=True)]
        return all(self.left)


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
    heights = Heights(profile.values)
    choices = choose_by_peak(heights, gaps, threshold, weights)
    first: dict[Output, PeakChoice] = {}
    for choice in choices:
        first.setdefault(choice.info.node, choice)
    infos = [OffloadInfo(c.info.node, [ReplaceInfo(c.gap[0], rest_of(c.info, c.gap[1]))]) for c in first.values()]
    return infos, choices, heights.values()


def rest_of(info: UserInfo, position: int) -> list[Use]:
    return [use for use in info.users if use.node >= position]

"""Rules that the golden cases don't pin, checked against MindSpore's optimizer when they were written down."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.offload.draft import Draft
from hp_memory.offload.heights import Heights
from hp_memory.offload.peak import CoveredSpans, Gaps, choose_by_peak, scores
from hp_memory.offload.profile import aligned, memory_profile
from hp_memory.offload.users import collect_all_node_users


def units(graph):
    draft = Draft(graph)
    return list(memory_profile(draft, collect_all_node_users(draft, tuples=True)).values // aligned(1))


def test_every_input_of_an_inplace_kernel_lives_as_long_as_its_result(graph):
    spec = {"z": ["p"], "a": ["p"], "b": ["z", "a"], "c": ["p"], "d": ["b", "c"]}
    assert units(graph(spec, ["d"], 4, b={"inplace": True})) == [2, 3, 3, 4, 5]


def test_on_a_plateau_the_next_position_to_the_left_is_tried(graph, plan):
    spec = {"n0": ["p"], "n1": ["n0"], "n2": ["n0", "n1"], "n3": ["n2"], "n4": ["n1", "n3"], "n5": ["n3", "n4"]}
    found = plan(graph(spec, ["n5"], 4), strategy="peak", max_device_memory=1, headroom=0)
    assert [(c.position, c.info.node.node) for c in found.peak_choices] == [(3, 1)]


def test_the_threshold_is_memory_less_headroom_and_zero_memory_selects_nothing(step, plan):
    def chosen(**settings):
        return len(plan(step(), strategy="peak", **settings).offload_infos)

    assert chosen(max_device_memory=20000, headroom=0) == chosen(max_device_memory=25000, headroom=5000) > 0
    assert chosen(max_device_memory=0, headroom=0) == 0


def test_adaptive_distances_are_the_kernels_of_a_copy(graph, plan):
    """1 MB takes 50 us out and 18.2 us in; the release is spread further by half, as in MindSpore."""
    spec = {"n0": ["x"], "n1": ["n0"]} | {f"n{k}": [f"n{k - 1}"] for k in range(2, 9)} | {"n9": ["n8", "n0"]}
    spec |= {f"n{k}": [f"n{k - 1}"] for k in range(10, 20)}
    wide = {"output_bytes": [2 * 10**6], "device_bytes": [2 * 10**6]}
    size, small = {"output_bytes": [10**6], "device_bytes": [10**6]}, {"output_bytes": [4], "device_bytes": [4]}

    def distances(kernel_time_us):
        made = graph(spec, ["n19"], **dict.fromkeys(spec, small) | {"n0": size, "n5": wide})
        settings = {"adaptive_release": True, "adaptive_prefetch": True, "kernel_time_us": kernel_time_us}
        (info,) = plan(made, strategy="peak", max_device_memory=2_200_000, headroom=0, **settings).offload_infos
        return info.release_distance, info.prefetch_distance

    assert distances(10.0) == (5 + 5 // 2, 2)
    assert distances(100.0) == (1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_covered_spans_count_like_a_set(seed):
    rng = np.random.default_rng(seed)
    spans, reference = CoveredSpans(), set()
    for _ in range(12):
        start, length = int(rng.integers(40)), int(rng.integers(1, 12))
        spans.add(start, start + length)
        reference |= set(range(start, start + length))
        positions = np.arange(60)
        assert list(spans.covered_before(positions)) == [sum(x < p for x in reference) for p in positions]


def one_by_one(values, gaps, threshold, weights):
    """The greedy choice without anything kept from round to round."""
    covered, choices, values = CoveredSpans(), [], values.copy()
    while True:
        position = len(values) - 1 - int(np.argmax(values[::-1]))
        height = values[position]
        while position >= 0 and values[position] == height > threshold and not len(gaps.covering(position)):
            position -= 1
        if position < 0 or values[position] != height or height <= threshold:
            return choices, values
        rows = gaps.covering(position)
        ranking = scores(gaps, rows, position, covered, weights)
        row = rows[int(np.argmax(ranking))]
        choices.append((position, int(row)))
        gaps.free[row], gaps.chosen[gaps.owner[row]] = False, True
        covered.add(int(gaps.producer[row]), int(gaps.last[row]))
        values[gaps.previous[row] + 1 : gaps.next[row]] -= gaps.size[row]


def of_a_random_step(graph, seed):
    """A chain that goes back over its own results, with few sizes (so that scores tie) or many."""
    rng = np.random.default_rng(seed)
    half = int(rng.integers(4, 40))
    spec = {"n0": ["p"]} | {f"n{k}": [f"n{k - 1}"] for k in range(1, half)}
    spec |= {f"n{k}": [f"n{k - 1}", f"n{int(rng.integers(half))}"] for k in range(half, 3 * half)}
    sizes = rng.choice([1, 2, 3, 4096] if seed % 2 else np.arange(1, 5000), 3 * half)
    return graph(spec, [f"n{3 * half - 1}"], 4, **{f"n{k}": {"output_bytes": [int(s)]} for k, s in enumerate(sizes)})


@pytest.mark.parametrize("seed", range(40))
def test_many_choices_of_one_scoring_are_those_of_a_scoring_each(graph, seed):
    draft = Draft(of_a_random_step(graph, seed))
    users = collect_all_node_users(draft, tuples=True)
    profile = memory_profile(draft, users)
    weights = [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.2, 0.7, 0.0, 2.0]][seed % 3]
    threshold = int(profile.values.max() * (0.3 + 0.1 * (seed % 6)))
    expected, left = one_by_one(profile.values, Gaps(draft, users, profile.last_use), threshold, weights)
    heights, gaps = Heights(profile.values), Gaps(draft, users, profile.last_use)
    found = choose_by_peak(heights, gaps, threshold, weights)
    rows = list(zip(gaps.owner, gaps.previous, gaps.next, strict=True))
    assert [(c.position, c.info.node, c.gap) for c in found] == [
        (position, gaps.infos[rows[row][0]].node, tuple(map(int, rows[row][1:]))) for position, row in expected
    ]
    assert list(heights.values()) == list(left)


@pytest.mark.parametrize("seed", range(5))
def test_heights_are_those_of_an_array(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 50, 3000)
    heights = Heights(values)
    for _ in range(40):
        start, stop = sorted(map(int, rng.integers(0, 3001, 2)))
        heights.subtract(start, stop, 3)
        values[start:stop] -= 3
        last = len(values) - 1 - int(np.argmax(values[::-1]))
        assert heights.last_highest() == (last, values[last])
        assert heights.at(start % 3000) == values[start % 3000]
    assert list(heights.values()) == list(values)

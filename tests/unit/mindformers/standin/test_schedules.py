"""The stand-in's orders: complete, free of deadlock, and what MindFormers' own callback expects of a pair."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from hp_memory.mindformers.standin.schedules import (
    MetaStep,
    MetaStepType,
    cut,
    leaves,
    paired,
    rank_order,
    with_fsdp,
)

T = MetaStepType
SHAPES = [("1f1b", 2, 4, 1), ("1f1b", 4, 6, 1), ("gpipe", 3, 3, 1), ("interleaved_1f1b", 2, 4, 2)]
SHAPES += [("interleaved_1f1b", 2, 2, 3), ("interleaved_1f1b", 4, 8, 2)]
FORMS = {"plain": lambda order: order, "paired": paired, "split": lambda order: cut(paired(order))}


def orders(name, ranks, micros, interleave, form):
    return [FORMS[form](rank_order(name, ranks, rank, micros, interleave)) for rank in range(ranks)]


def run(rows, ranks):
    """Runs every rank's steps in turns, with queues between ranks; returns the number of steps that ran."""
    wires, at, done = defaultdict(list), [0] * ranks, set()

    def ready(rank, step):
        if step.type in (T.FWD_RECV, T.BWD_RECV):
            source = step.stage_index + (-1 if step.type is T.FWD_RECV else 1)
            queue = wires[source % ranks, rank]
            return bool(queue) and queue[0] == (step.type.name[:3], step.stage_index, step.micro_index)
        return all(_needs(rank, leaf, done) for leaf in leaves(step))

    def take(rank, step):
        if step.type in (T.FWD_RECV, T.BWD_RECV):
            source = step.stage_index + (-1 if step.type is T.FWD_RECV else 1)
            wires[source % ranks, rank].pop(0)
        if step.type in (T.FWD_SEND, T.BWD_SEND):
            assert _made(step) & done, f"{step} before what it sends"
            target = step.stage_index + (1 if step.type is T.FWD_SEND else -1)
            wires[rank, target % ranks].append((step.type.name[:3], target, step.micro_index))
        done.update((leaf.type, leaf.stage_index, leaf.micro_index) for leaf in leaves(step))

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and ready(rank, row[at[rank]]):
                take(rank, row[at[rank]])
                at[rank] += 1
                moved = True
    assert not any(wires.values()), "messages nobody received"
    return at


def _made(step):
    if step.type is T.FWD_SEND:
        return {(T.FWD, step.stage_index, step.micro_index)}
    return {(kind, step.stage_index, step.micro_index) for kind in (T.BWD, T.BWD_INPUT)}


def _needs(rank, step, done):
    if step.type is T.BWD_WEIGHT:
        return (T.BWD_INPUT, step.stage_index, step.micro_index) in done
    if step.type in (T.BWD, T.BWD_INPUT):
        return (T.FWD, step.stage_index, step.micro_index) in done
    return True


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_every_rank_gets_to_its_end(shape, form):
    rows = orders(*shape, form)
    assert run(rows, shape[1]) == [len(row) for row in rows]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_every_micro_batch_has_its_forward_and_its_backward(shape, form):
    _, ranks, micros, interleave = shape
    for rank, row in enumerate(orders(*shape, form)):
        found = defaultdict(list)
        for leaf in (leaf for step in row for leaf in leaves(step)):
            found[leaf.type].append((leaf.stage_index, leaf.micro_index))
        everything = sorted((rank + turn * ranks, m) for turn in range(interleave) for m in range(micros))
        assert sorted(found[T.FWD]) == everything
        assert sorted(found[T.BWD] + found[T.BWD_INPUT]) == everything
        assert sorted(found[T.BWD_WEIGHT]) == sorted(found[T.BWD_INPUT])


def test_a_pair_is_a_backward_and_the_forward_after_it():
    row = orders("interleaved_1f1b", 2, 4, 2, "paired")[1]
    pairs = [step.sub_steps for step in row if step.type is T.OVERLAP_B_F]
    assert pairs
    assert all((first.type, second.type) == (T.BWD, T.FWD) for first, second in pairs)
    assert row[-2].type is T.BWD, "the last backwards have no forward beside them"


def test_dw_is_following_the_messages_of_its_pair_and_the_first_stage_has_none():
    for row in orders("interleaved_1f1b", 2, 4, 2, "split"):
        for step, following in pairwise(row):
            if step.type is T.OVERLAP_B_F and step.sub_steps[0].type is T.BWD_INPUT:
                assert following.type in (T.BWD_SEND, T.FWD_SEND, T.BWD_WEIGHT)
        split = [step for step in row if step.type is T.BWD_WEIGHT]
        assert split
        assert all(step.stage_index > 0 for step in split)


def test_fsdp_modules_are_gathered_first_reduced_once_and_resharded_last():
    order = with_fsdp(rank_order("interleaved_1f1b", 2, 0, 4, 2), frozenset({0, 2}), 4)
    assert [step.stage_index for step in order if step.type is T.FSDP_UNSHARD] == [0, 2]
    assert order[0] == MetaStep(None, T.FSDP_UNSHARD, 0)
    assert sorted(step.stage_index for step in order if step.type is T.FSDP_REDUCE_GRAD) == [0, 2]
    for stage in (0, 2):
        last = max(i for i, step in enumerate(order) if step.type is T.BWD and step.stage_index == stage)
        assert order.index(MetaStep(None, T.FSDP_REDUCE_GRAD, stage)) == last + 1


def test_more_stages_than_are_gathered_at_once_take_turns():
    order = with_fsdp(rank_order("interleaved_1f1b", 2, 0, 2, 4), frozenset({0, 2, 4, 6}), 2)
    gathered = set()
    for step in order:
        if step.type is T.FSDP_UNSHARD:
            gathered.add(step.stage_index)
            assert len(gathered) <= 3
        elif step.type is T.FSDP_RESHARD:
            gathered.remove(step.stage_index)
        for leaf in leaves(step):
            if leaf.type in (T.FWD, T.BWD):
                assert leaf.stage_index in gathered
    assert not gathered

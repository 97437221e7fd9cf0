"""Pipeline schedules with HyperParallel's interface: an order of steps per rank, run on this rank's stages.

The orders are this project's own (``hp_memory.pipeline``): 1F1B, interleaved 1F1B and GPipe are what the literature
calls so, in HyperParallel too. Modelled after ``hyper_parallel/core/pipeline_parallel/scheduler.py``: the types of
steps, pairs of a backward and a forward (``OVERLAP_B_F``), a pair's backward cut into dx inside it and dw after its
messages, functions registered for a type of step, and the steps that gather, reduce and reshard an FSDP module around
all micro-batches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import Tensor

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers.standin.stages import PipelineStage
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.messages import add_messages
from hp_memory.pipeline.schedule import Step

# An FSDP module of a rank stays gathered while it is among the next so many that compute.
GATHERED_AT_ONCE = 3


class MetaStepType(enum.Enum):
    """What a step does. The names are HyperParallel's."""

    FWD = enum.auto()
    BWD = enum.auto()
    BWD_INPUT = enum.auto()
    BWD_WEIGHT = enum.auto()
    FWD_SEND = enum.auto()
    FWD_RECV = enum.auto()
    BWD_SEND = enum.auto()
    BWD_RECV = enum.auto()
    OVERLAP_B_F = enum.auto()
    FSDP_UNSHARD = enum.auto()
    FSDP_REDUCE_GRAD = enum.auto()
    FSDP_RESHARD = enum.auto()


T = MetaStepType
_OF_OP = {"F": T.FWD, "BW": T.BWD, "SF": T.FWD_SEND, "RF": T.FWD_RECV, "SB": T.BWD_SEND, "RB": T.BWD_RECV}
# A message of ours is named after the chunk that computes with it, HyperParallel's send after the stage that sends it.
_SENDER = {"SF": -1, "SB": 1}
_COMPUTE = (T.FWD, T.BWD, T.BWD_INPUT, T.BWD_WEIGHT)
_RECEIVES = (T.FWD_RECV, T.BWD_RECV)


@dataclass(frozen=True)
class MetaStep:
    """One thing a rank does; a pair has no number of its own, only ``sub_steps`` (backward, forward)."""

    micro_index: int | None
    type: MetaStepType
    stage_index: int | None
    sub_steps: tuple[MetaStep, ...] = ()

    def __str__(self) -> str:
        if self.sub_steps:
            return f"{self.type.name}({', '.join(map(str, self.sub_steps))})"
        micro = "" if self.micro_index is None else f" micro {self.micro_index}"
        return f"{self.type.name}{micro} stage {self.stage_index}"

    __repr__ = __str__


@dataclass
class PipelineContext:
    """What a registered function is given beside its step.

    Attributes:
        schedule: the running schedule.
        arg_mbs: positional inputs of the first stage, by micro-batch.
        kwarg_mbs: keyword inputs of every stage, by micro-batch.
        losses: what the last stage has returned so far.
    """

    schedule: Any
    arg_mbs: Sequence[tuple]
    kwarg_mbs: Sequence[dict[str, Any]]
    losses: list[Any]


def rank_order(name: str, ranks: int, rank: int, micros: int, interleave: int) -> list[MetaStep]:
    """One rank's steps with their messages, each step by itself."""
    row = add_messages(generate(name, ranks, micros, interleave=interleave)).rows[rank]
    return [_meta(step) for step in row]


def _meta(step: Step) -> MetaStep:
    return MetaStep(step.micro, _OF_OP[step.op], step.chunk + _SENDER.get(step.op, 0))


def paired(order: Sequence[MetaStep]) -> list[MetaStep]:
    """The order with each backward that a forward follows as one pair: receives before it, sends after it."""
    done: list[MetaStep] = []
    rest = list(order)
    while rest:
        step = rest.pop(0)
        follower = next((i for i, other in enumerate(rest) if other.type in _COMPUTE), None)
        if step.type is not T.BWD or follower is None or rest[follower].type is not T.FWD:
            done.append(step)
            continue
        between, forward, rest = rest[:follower], rest[follower], rest[follower + 1 :]
        done += [m for m in between if m.type in _RECEIVES]
        done.append(MetaStep(None, T.OVERLAP_B_F, None, (step, forward)))
        done += [m for m in between if m.type not in _RECEIVES]
    return done


def cut(order: Sequence[MetaStep]) -> list[MetaStep]:
    """The order with the backward of each pair as dx, and its dw after the sends that follow the pair.

    The first stage has no dx, so its backward stays whole.
    """
    done: list[MetaStep] = []
    waiting: MetaStep | None = None
    for step in order:
        if waiting is not None and step.type not in (T.FWD_SEND, T.BWD_SEND, *_RECEIVES):
            done.append(waiting)
            waiting = None
        if step.type is T.OVERLAP_B_F and step.sub_steps[0].stage_index:
            backward, forward = step.sub_steps
            dx, waiting = (
                MetaStep(backward.micro_index, kind, backward.stage_index) for kind in (T.BWD_INPUT, T.BWD_WEIGHT)
            )
            step = MetaStep(None, T.OVERLAP_B_F, None, (dx, forward))
        done.append(step)
    return done if waiting is None else [*done, waiting]


def with_fsdp(order: Sequence[MetaStep], stages: frozenset[int], micros: int) -> list[MetaStep]:
    """The order with the steps that gather, reduce and reshard ``stages`` where these are FSDP modules.

    A stage's gradients are reduced once, after its last backward; it is gathered again only where more than
    ``GATHERED_AT_ONCE`` stages take turns.
    """
    done: list[MetaStep] = []
    gathered: list[int] = []
    for i, step in enumerate(order):
        coming = _next_stages(order[i:], stages)
        for stage in [s for s in gathered if s not in coming]:
            done.append(MetaStep(None, T.FSDP_RESHARD, stage))
            gathered.remove(stage)
        for stage in [s for s in coming if s not in gathered]:
            done.append(MetaStep(None, T.FSDP_UNSHARD, stage))
            gathered.append(stage)
        done.append(step)
        for leaf in leaves(step):
            if leaf.type in (T.BWD, T.BWD_WEIGHT) and leaf.micro_index == micros - 1 and leaf.stage_index in stages:
                done.append(MetaStep(None, T.FSDP_REDUCE_GRAD, leaf.stage_index))
    return done + [MetaStep(None, T.FSDP_RESHARD, stage) for stage in gathered]


def _next_stages(order: Sequence[MetaStep], stages: frozenset[int]) -> list[int]:
    found: list[int] = []
    for leaf in (leaf for step in order for leaf in leaves(step)):
        if leaf.type in _COMPUTE and leaf.stage_index in stages and leaf.stage_index not in found:
            found.append(leaf.stage_index)
            if len(found) == GATHERED_AT_ONCE:
                break
    return found


def leaves(step: MetaStep) -> Iterator[MetaStep]:
    """The step itself, or those it is made of."""
    if step.sub_steps:
        yield from step.sub_steps
    else:
        yield step


class _Schedule:
    """Runs this rank's order.

    Args:
        stages: this rank's stages, one per chunk of the model.
        micro_batch_num: micro-batches of a step.

    Attributes:
        exec_order: every rank's steps; a rank knows for its own only whether its stages are FSDP modules.
    """

    NAME = ""

    def __init__(self, stages: Sequence[PipelineStage], micro_batch_num: int, swap: bool = False) -> None:
        self._setup(stages, micro_batch_num, swap)

    def _setup(
        self, stages: Sequence[PipelineStage], micros: int, swap: bool, overlap: bool = False, split: bool = False
    ) -> None:
        if swap:
            raise NeedsHyperParallel("swap", "it copies activations between device and host")
        self.stages = [stages] if isinstance(stages, PipelineStage) else list(stages)
        self.micro_batch_num = micros
        self.enable_dxdw_split = split
        self._stage_dict = {stage.stage_index: stage for stage in self.stages}
        self._functions: dict[MetaStepType, Callable[[MetaStep, PipelineContext], None]] = {}
        first = self.stages[0]
        self._rank, ranks = first.stage_index % first.ranks, first.ranks
        self.exec_order = {
            rank: self._order(rank, ranks, first.stage_num // ranks, overlap, split) for rank in range(ranks)
        }
        sharded = frozenset(stage.stage_index for stage in self.stages if stage.sharded is not None)
        self.exec_order[self._rank] = with_fsdp(self.exec_order[self._rank], sharded, micros)

    def _order(self, rank: int, ranks: int, interleave: int, overlap: bool, split: bool) -> list[MetaStep]:
        order = rank_order(self.NAME, ranks, rank, self.micro_batch_num, interleave)
        order = paired(order) if overlap else order
        return cut(order) if split else order

    def register_custom_function(
        self, step_type: MetaStepType, function: Callable[[MetaStep, PipelineContext], None]
    ) -> None:
        """From now on ``function(step, context)`` runs the steps of this type."""
        self._functions[step_type] = function

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """One training step over a whole batch; returns what the last stage returned, by micro-batch."""
        context = PipelineContext(self, *self._micro_batches(args, kwargs), [])
        for stage in self.stages:
            stage.begin()
        for step in self.exec_order[self._rank]:
            function = self._functions.get(step.type)
            if function is not None:
                function(step, context)
                continue
            for leaf in leaves(step):
                self._run(leaf, context)
        for stage in self.stages:
            stage.finish()
        return context.losses

    def _micro_batches(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[tuple], list[dict[str, Any]]]:
        def part(value: Any, i: int) -> Any:
            if not isinstance(value, Tensor):
                return value
            rows = value.shape[0] // self.micro_batch_num
            return value[i * rows : (i + 1) * rows]

        numbers = range(self.micro_batch_num)
        return [tuple(part(a, i) for a in args) for i in numbers], [
            {name: part(value, i) for name, value in kwargs.items()} for i in numbers
        ]

    def _run(self, step: MetaStep, context: PipelineContext) -> None:
        assert step.stage_index is not None, "only a pair has no stage of its own"
        stage, micro = self._stage_dict[step.stage_index], step.micro_index
        if micro is None:
            getattr(stage, _WITHOUT_MICRO_BATCH[step.type])()
        elif step.type is T.FWD:
            out = stage.forward_one_chunk(micro, context.arg_mbs[micro], context.kwarg_mbs[micro])
            self.update_losses(stage, out, context.losses)
        else:
            getattr(stage, _OF_A_MICRO_BATCH[step.type])(micro)

    @staticmethod
    def update_losses(stage: PipelineStage, out: Any, losses: list[Any]) -> None:
        """Adds what the last stage returned."""
        if stage.is_last_stage:
            losses.append(out)

    def wait_fwd_recv(self, stage_index: int, micro_index: int) -> None:
        """Messages are received where the order says; there is nothing left to wait for."""

    wait_bwd_recv = wait_fwd_recv


_OF_A_MICRO_BATCH = {
    T.BWD: "backward_one_chunk",
    T.BWD_INPUT: "backward_input_one_chunk",
    T.BWD_WEIGHT: "backward_weight_one_chunk",
    T.FWD_SEND: "send_forward",
    T.FWD_RECV: "receive_forward",
    T.BWD_SEND: "send_backward",
    T.BWD_RECV: "receive_backward",
}
_WITHOUT_MICRO_BATCH = {
    T.FSDP_UNSHARD: "unshard",
    T.FSDP_REDUCE_GRAD: "reduce_gradients",
    T.FSDP_RESHARD: "reshard",
}


class ScheduleGPipe(_Schedule):
    """Every forward, then every backward."""

    NAME = "gpipe"


class Schedule1F1B(_Schedule):
    """One forward, one backward. Like HyperParallel's it takes no overlap, and MindFormers then drops the setting."""

    NAME = "1f1b"


class ScheduleInterleaved1F1B(_Schedule):
    """1F1B over several chunks per rank; its pairs of a backward and a forward can be run side by side."""

    NAME = "interleaved_1f1b"

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        micro_batch_num: int,
        overlap_p2p: bool = False,
        overlap_b_f: bool = False,
        swap: bool = False,
        enable_dxdw_split: bool = False,
        p2p_transport: str = "auto",
    ) -> None:
        if overlap_p2p:
            raise NeedsHyperParallel("pipeline_parallel_overlap_p2p", "the CPU's messages end before the next step")
        if p2p_transport not in ("auto", "plain"):
            raise NeedsHyperParallel(f"p2p_transport={p2p_transport!r}", "the CPU sends one message at a time")
        self._setup(stages, micro_batch_num, swap, overlap_b_f, enable_dxdw_split)

"""Is what this project makes of a program right? The plain block and MindSpore's recompute say what is."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hp_memory.activation.invocation import Invocation
from hp_memory.errors import ReplayError
from tests.fuzz import program as programs
from tests.fuzz.program import Program
from tests.fuzz.runs import Way, recording, train


class Verdict(NamedTuple):
    """``kind``: equal, refused, invalid, or failed. ``why`` in one line."""

    kind: str
    why: str = ""


@contextmanager
def counted() -> Iterator[weakref.WeakSet]:
    """The invocations that live, with the collector off: nothing may wait for it."""
    living: weakref.WeakSet = weakref.WeakSet()
    original = Invocation.__init__

    def init(self, *args) -> None:
        original(self, *args)
        living.add(self)

    gc.disable()
    Invocation.__init__ = init
    try:
        yield living
    finally:
        Invocation.__init__ = original
        gc.enable()


def judge(program: Program) -> Verdict:
    """Trains ``program`` plainly and twice under the layout it has; where they differ, under MindSpore's recompute too.

    What MindSpore's recompute can't do either is no failure.
    """
    with recording():
        want, error = _attempt(program, "plain")
    if error is not None:
        return _refused_by_mindspore(program, error)
    with counted() as living:
        verdict = _own(program, want, living)
    if verdict.kind != "failed" or programs.writes(program):
        return verdict
    with recording():
        oracle, error = _attempt(program, "recompute")
    if error is None and oracle == want:
        return verdict
    return Verdict("invalid", f"MindSpore's recompute differs from the plain block: {_line(error)}")


def _refused_by_mindspore(program: Program, error: Exception) -> Verdict:
    """What autograd itself refuses may not give numbers under a checkpoint."""
    why = f"the plain block raises {_line(error)}"
    if "modified by an inplace" not in str(error):
        return Verdict("invalid", why)
    with recording():
        _, error = _attempt(program, "own")
    return Verdict("invalid", why) if error is not None else Verdict("failed", f"trains, but {why}")


def _attempt(program: Program, kind: str) -> tuple:
    try:
        return train(Way(program, kind), program, "double" if program["backward"] == "double" else "whole"), None
    except Exception as error:
        return None, error


def _own(program: Program, want: list, living: weakref.WeakSet) -> Verdict:
    way = Way(program, "own")
    try:
        with recording():
            for step in (1, 2):
                way.block.runs.clear()
                if train(way, program, program["backward"]) != want:
                    return Verdict("failed", f"other numbers in step {step}")
                again = _ran_again(program, way)
                if again:
                    return Verdict("failed", f"{again} in step {step}")
                if _may_wait_for_the_collector(program):
                    gc.collect()
                if len(living) > _kept_by_mindspore(program):
                    return Verdict("failed", f"{len(living)} invocations outlive step {step}")
    except ReplayError as error:
        first = way.forwards == 0
        if programs.writes(program) and first and "region" in str(error):
            return Verdict("refused", _line(error))
        return Verdict("failed", f"{'refused' if first else 'refused late'}: {_line(error)}")
    except Exception as error:
        return Verdict("failed", "".join(traceback.format_exception(error)[-4:]))
    return Verdict("equal")


def _may_wait_for_the_collector(program: Program) -> bool:
    """MindSpore's own graphs do where a compiled function had no backward, and where gradients are recorded too."""
    return program["backward"] == "double" or any("jitted" in step["operations"] for step in program["steps"])


def _kept_by_mindspore(program: Program) -> int:
    """After second gradients the last graph of a micro-batch may stay; no more than that, however many steps."""
    return program["micro_batches"] if program["backward"] == "double" else 0


def _ran_again(program: Program, way: Way) -> str:
    """Which saved region's body ran more or less than once for each call in a forward."""
    for name in program["saved"]:
        steps = [step for step in program["steps"] if step["region"] == name]
        if any(step["worker"] for step in steps):
            continue  # MindSpore records nothing on other threads: there the region is in no checkpoint
        calls = program["micro_batches"] * len(steps)
        ran = way.block.runs.get(name, 0)
        if ran != calls:
            return f"region {name} ran {ran} times for {calls} calls"
    return ""


def _line(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def shrink(program: Program, rounds: int = 60) -> Program:
    """The smallest program on the way down from ``program`` that still fails."""
    for _ in range(rounds):
        for candidate in programs.smaller(program):
            if judge(candidate).kind == "failed":
                program = candidate
                break
        else:
            return program
    return program

"""Runs one case, in one process or as one rank of a job, and checks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mindspore import Tensor, float32

from hp_memory.errors import ConfigError, SessionError
from hp_memory.install import Receipt, window_of
from hp_memory.mindspore.private import default_generator
from hp_memory.pipeline.chunk import Chunk
from hp_memory.pipeline.generate import one_at_a_time
from hp_memory.pipeline.messages import add_messages
from hp_memory.pipeline.regression import checks
from hp_memory.pipeline.regression.cases import Case
from hp_memory.pipeline.regression.job import Result
from hp_memory.pipeline.regression.model import EMBEDDING, HEAD, Bench
from hp_memory.pipeline.regression.probes import Probes
from hp_memory.pipeline.regression.reference import Arrays, Reference, array_of, compute
from hp_memory.pipeline.runner import RankRunner, run_local, run_rank
from hp_memory.pipeline.schedule import COMPUTE, Schedule, Step
from hp_memory.pipeline.session import check_all_closed
from hp_memory.pipeline.simulate import Held, levels
from hp_memory.pipeline.transport import Messages


@dataclass
class _Built:
    """One build of a case: its chunks on this process, and what was installed in them."""

    chunks: dict[int, Chunk]
    layers: dict[int, tuple[int, ...]]
    receipts: dict[int, Receipt]
    probes: Probes


class Executor:
    """Runs cases on one bench, sharing references between cases that need the same one.

    Args:
        bench: model, data and groups.
        rank: this process' pipeline rank, or None to run all ranks here.
        peers: global ranks of the pipeline this process belongs to (with ``rank``).
        world: communicator of the job (with ``rank``).
    """

    def __init__(self, bench: Bench, rank: int | None = None, peers: Sequence[int] = (), world: str = "") -> None:
        self.bench, self.rank, self.peers, self.world = bench, rank, peers, world
        self._references: dict[tuple, Reference] = {}
        self._units: dict[tuple, dict[tuple[int, int], Held]] = {}

    def run(self, case: Case) -> Result:
        """Run a case and check everything; a case that must be refused is run for its error."""
        started = time.perf_counter()
        result = self._refused(case) if case.refused else self._checked(case)
        result.seconds = time.perf_counter() - started
        return result

    # -- cases that must fail ---------------------------------------------------------------------------------------

    def _refused(self, case: Case) -> Result:
        """The config refuses it; run all the same, the session refuses it too, and leaves nothing behind."""
        result = Result(case.name, refused=True, checks=("refused by config", "nothing alive"))
        try:
            case.settings.validate()
            result.failures["refused by config"] = "the settings were accepted"
        except ConfigError:
            pass
        built = self._build(case, observed=False)
        watched = _watch(built.chunks)
        if self.rank is None:  # between workers a step that fails would leave messages for the next case to trip on
            result.checks += ("refused by session",)
            self._must_fail(case, built, result)
        del built
        with suppress(SessionError):  # micro-batches whose turn never came
            check_all_closed()
        _note(result, "nothing alive", checks.nothing_alive(watched))
        return result

    def _must_fail(self, case: Case, built: _Built, result: Result) -> None:
        try:
            self._execute(case, case_schedule(case), built)
        except SessionError as error:
            if not any(words in str(error) for words in ("retain_on_unpack=False", "needs a session")):
                result.failures["refused by session"] = f"with an unclear error: {error}"
        else:
            result.failures["refused by session"] = "it ran to the end"

    # -- cases that must pass ---------------------------------------------------------------------------------------

    def _checked(self, case: Case) -> Result:
        result = Result(case.name, checks=checks.CHECKS)
        if case.aux_loss:
            result.checks = tuple(c for c in checks.CHECKS if c != "whole batch")
        try:
            self.check_numbers(case, result)
            self.check_memory(case, result)
        except RuntimeError as error:  # ours and MindSpore's: one broken case must not hide the others
            result.failures["run"] = str(error).splitlines()[0]
            with suppress(SessionError):
                check_all_closed()
        return result

    def check_numbers(self, case: Case, result: Result) -> None:
        """Run the case's schedule with probes and check all but memory; reasons go into ``result``."""
        reference, schedule = self._reference(case), case_schedule(case)
        built = self._build(case, observed=False)
        start = _offset()
        watched = _watch(built.chunks)
        losses = self._execute(case, schedule, built)
        own = {w.name: array_of(g) for c in built.chunks.values() for w, g in zip(c.weights, c.grads, strict=True)}
        chunk_of = {w.name: i for i, c in built.chunks.items() for w in c.weights}
        total = self._tied_total(own, schedule)
        forwards = case.microbatches * sum(map(len, built.layers.values()))
        tokens = self.bench.rows * self.bench.settings.seq_length
        found = {
            "loss": checks.loss(losses, reference),
            "gradients": checks.gradients(own, schedule, chunk_of, reference)
            or checks.tied(total, schedule, reference),
            "whole batch": checks.whole_batch(_with_tied(own, total), losses, reference),
            "excluded bodies": checks.excluded_bodies(case, built.receipts, built.probes),
            "replays": checks.replays(case, built.layers, built.probes),
            "bindings": checks.bindings(case, built.receipts, built.probes),
            "random numbers": checks.random_numbers(start, _offset(), built.probes, forwards),
            "counted once": checks.counted_once(case, list(built.chunks.values()), tokens),
        }
        del built
        found["nothing alive"] = checks.nothing_alive(watched)
        for name, reason in found.items():
            _note(result, name, reason)

    def check_memory(self, case: Case, result: Result) -> None:
        """Predict every step's bytes from micro-batches run one at a time, then run the schedule and compare."""
        schedule = case_schedule(case)
        units = self._unit_costs(case, schedule)
        measured = self._measure(case, schedule)
        for rank in self._ranks(schedule):
            predicted = levels(schedule, rank, lambda chunk, micro: units[chunk, micro])
            series = [level for r, _, _, level in measured if r == rank]
            _note(result, "memory", checks.memory(series, predicted))
            result.peak_bytes[rank] = int(max(series))

    def _unit_costs(self, case: Case, schedule: Schedule) -> dict[tuple[int, int], Held]:
        """What each (chunk, micro-batch) holds when it is alone; the same for schedules with the same chunks."""
        key = (replace(case, schedule="", backward_thread=False), schedule.placement)
        if key not in self._units:
            alone = add_messages(one_at_a_time(schedule))
            found: dict[tuple[int, int], dict[str, int]] = {}
            for _, step, own, _ in self._measure(case, alone):
                found.setdefault((step.chunk, step.micro), {})[step.op] = own
            self._units[key] = {k: Held(ops["F"], ops.get("R", 0), ops.get("B", 0)) for k, ops in found.items()}
        return self._units[key]

    def _measure(self, case: Case, schedule: Schedule) -> list[tuple[int, Step, int, int]]:
        """(rank, step, bytes of the step's chunk, bytes of the rank) after each compute step."""
        built, seen = self._build(case, observed=True, probed=False), []

        def after(rank: int, step: Step) -> None:
            if step.op in COMPUTE:
                own = [built.chunks[c].held_bytes for c in schedule.chunks_of(rank)]
                seen.append((rank, step, built.chunks[step.chunk].held_bytes, sum(own)))

        self._execute(case, schedule, built, after)
        return seen

    # -- shared -----------------------------------------------------------------------------------------------------

    def _reference(self, case: Case) -> Reference:
        key = (self.bench.model_settings(case).num_layers, case.microbatches, case.aux_loss)
        if key not in self._references:
            self._references[key] = compute(self.bench, case)
        return self._references[key]

    def _ranks(self, schedule: Schedule) -> tuple[int, ...]:
        return tuple(range(schedule.ranks)) if self.rank is None else (self.rank,)

    def _build(self, case: Case, *, observed: bool, probed: bool = True) -> _Built:
        settings, probes = case.settings, Probes()
        split = settings.layers_of_chunks(self.bench.model_settings(case).num_layers)
        own = [c for c, rank in enumerate(settings.placement) if self.rank in (None, rank)]
        parts = {c: self.bench.part(case, split[c], c == 0, c == settings.chunks - 1) for c in own}
        # Where bytes are predicted nothing comes back ahead of time: when a copy is complete isn't.
        seen, ahead = probes if probed else None, 0 if observed else 2
        receipts = {c: self.bench.installed(case, part, seen, ahead) for c, part in parts.items()}
        windows = {c: window_of(part.model) for c, part in parts.items()}
        chunks = {c: Chunk(c, p, case.session, observed=observed, window=windows[c]) for c, p in parts.items()}
        return _Built(chunks, {c: split[c] for c in own}, receipts, probes)

    def _feed(self, case: Case) -> Callable[[int, int], tuple[Tensor, ...]]:
        (tokens, labels), last = self.bench.data(case), case.settings.chunks - 1

        def feed(chunk: int, micro: int) -> tuple[Tensor, ...]:
            first = (Tensor(tokens[micro]),) if chunk == 0 else ()
            return (*first, Tensor(labels[micro])) if chunk == last else first

        return feed

    def _execute(
        self, case: Case, schedule: Schedule, built: _Built, after: Callable[[int, Step], None] | None = None
    ) -> list[float]:
        with ThreadPoolExecutor(1) if case.backward_thread else nullcontext() as thread:
            options: dict[str, Any] = {"after": after, "backward_thread": thread}
            if self.rank is None:
                chunks = [built.chunks[c] for c in range(schedule.chunks)]
                return run_local(schedule, chunks, self._feed(case), **options)
            transport = self._transport()
            runner = RankRunner(schedule, self.rank, built.chunks, transport, self._feed(case), **options)
            losses = run_rank(runner)
            transport.finish()
            return losses

    def _transport(self) -> Messages:
        settings = self.bench.settings
        rows = (self.bench.rows * settings.seq_length, settings.hidden_size)
        return Messages(self.peers, self.world, [(rows, float32)])

    def _tied_total(self, own: Arrays, schedule: Schedule) -> np.ndarray | None:
        """Embedding's plus head's gradient on the rank of the first chunk; the last chunk's rank sends its share."""
        first, last = schedule.placement[0], schedule.placement[-1]
        if HEAD in own and self.rank is not None and self.rank != first:
            transport = self._transport()
            transport.send(first, (Tensor(own[HEAD]),))
            transport.finish()
        if EMBEDDING not in own:
            return None
        if HEAD in own:
            return own[EMBEDDING] + own[HEAD].T
        shape = own[EMBEDDING].T.shape
        (head,) = Messages(self.peers, self.world, [(shape, float32)]).receive(last)
        return own[EMBEDDING] + head.asnumpy().T


def case_schedule(case: Case) -> Schedule:
    """The case's schedule with messages, checked."""
    return case.settings.build_schedule()


def _with_tied(own: Arrays, total: np.ndarray | None) -> Arrays:
    rest = {name: grad for name, grad in own.items() if name not in (EMBEDDING, HEAD)}
    return rest if total is None else {**rest, EMBEDDING: total}


def _watch(chunks: Mapping[int, Chunk]) -> list[Callable[[], int]]:
    """A list that fills with a counter of what is left of each forward."""
    watched: list[Callable[[], int]] = []
    for chunk in chunks.values():
        chunk.on_forward = lambda session: watched.append(lambda: session.alive)
    return watched


def _offset() -> int:
    return int(default_generator._step(Tensor(0))[1])


def _note(result: Result, check: str, reason: str | None) -> None:
    if reason is not None:
        result.failures.setdefault(check, reason)

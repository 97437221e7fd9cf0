"""Puts the installation where MindFormers applies its own activation checkpointing: after TP, EP and CP, before FSDP.

A callback comes too late for that, so ``Trainer`` is changed in two places, once per process: it remembers the
callbacks it was given, and while it applies parallelism, ``apply_ac`` is the callback's installation, and pairs of a
backward and a forward keep to the schedule's dx/dw split.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mindformers.pynative.base_models.gpt import parallelize
from mindformers.pynative.trainer import trainer as trainer_module

from hp_memory.mindformers import agreement, standin
from hp_memory.runs import ranks

_GIVEN = "_hp_memory_callbacks"


def hook(callback_type: type) -> None:
    """Makes every Trainer of this process install a ``callback_type``'s plan at the right moment."""
    trainer = trainer_module.Trainer
    if hasattr(trainer, _GIVEN):
        return
    setattr(trainer, _GIVEN, None)
    plain_init, plain_apply = trainer.__init__, trainer._apply_parallelism

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(plain_init).bind(self, *args, **kwargs).arguments.get("callbacks")
        setattr(self, _GIVEN, given)
        standin.refuse_ranks(ranks.world_size())
        plain_init(self, *args, **kwargs)

    @functools.wraps(plain_apply)
    def apply_parallelism(self: Any, model: Any, parallelism: Any) -> Any:
        callback = find(callback_type, getattr(self, _GIVEN), self.config)
        if callback is None:
            return plain_apply(self, model, parallelism)
        # Before the first group is made: ranks that make others would wait for each other there.
        agreement.same("parallel sizes", agreement.digest(parallelism.to_dict()))
        with replaced_apply_ac(callback, self.config):
            return plain_apply(self, model, parallelism)

    trainer.__init__ = init
    trainer._apply_parallelism = apply_parallelism


def find(callback_type: type, given: Any, config: Any) -> Any | None:
    """The callback of this type among those given as objects, else one made from the config's stanza, or None."""
    for callback in given or ():
        if isinstance(callback, callback_type):
            return callback
    for stanza in getattr(config, "callbacks", None) or ():
        if stanza.type == callback_type.__name__:
            return trainer_module._build_callback(stanza)
    return None


@contextlib.contextmanager
def replaced_apply_ac(callback: Any, config: Any) -> Iterator[None]:
    """While this is open, MindFormers' ``apply_ac`` installs the callback's plan."""
    plain_apply, plain_recompute, plain_pair = (
        parallelize.apply_ac,
        config.recompute,
        parallelize._make_overlap_b_f_callback,
    )
    # Conflicts are refused before the gate below hides what the config asked for.
    callback.refuse_conflicts(config)

    def apply_ac(decoder: Any, recompute: Any, comm: Any, swap: Any, pp: int, mtp_block: Any = None) -> None:
        callback.install(decoder, mtp_block, config)

    parallelize.apply_ac = apply_ac
    parallelize._make_overlap_b_f_callback = _with_dx_alone(plain_pair)
    # MindFormers calls apply_ac only if its own recompute is on; nothing else reads the mode in between.
    config.recompute = dataclasses.replace(plain_recompute, mode="full")
    try:
        yield
    finally:
        parallelize.apply_ac, config.recompute = plain_apply, plain_recompute
        parallelize._make_overlap_b_f_callback = plain_pair


def _with_dx_alone(make: Callable[[Any], Callable[..., None]]) -> Callable[[Any], Callable[..., None]]:
    """What MindFormers registers for a backward beside a forward, taking dx alone where the schedule says so.

    MindFormers' function runs the whole backward of each pair; under a dx/dw split HyperParallel's schedule asks for
    that backward's dw after the pair, and finds it gone.
    """

    @functools.wraps(make)
    def made(overlap: Any) -> Callable[[Any, Any], None]:
        whole = make(overlap)

        def run(step: Any, context: Any) -> None:
            backward = step.sub_steps[0]
            if backward.type.name != "BWD_INPUT":
                whole(step, context)
                return
            stage = context.schedule._stage_dict[backward.stage_index]
            stage.backward_one_chunk = stage.backward_input_one_chunk
            try:
                whole(step, context)
            finally:
                del stage.backward_one_chunk

        return run

    return made

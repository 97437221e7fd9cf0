"""A config as the experiment it means: checked once, its plan made once, and handed to every command."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from lzma import LZMAError

from hp_memory.config.schema import HPConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.experiment import refusals
from hp_memory.layout import ActivationPlan, LayoutSettings, ModelFingerprint, build_plan
from hp_memory.mindformers import conflicts, families, limits, megatron, mindrecord, standin
from hp_memory.mindformers.trainer_yaml.train_config import train_config
from hp_memory.models import fingerprint as reference
from hp_memory.pipeline.settings import check_plan, with_stage_layouts
from hp_memory.train.data import Batches, check_vocabulary, load_corpus

# Bytes of text per token of a sequence: even compressed text yields at least one token per 64 bytes.
_SURELY_ENOUGH = 64


@dataclass(frozen=True)
class Experiment:
    """What a config means. ``of`` makes one; what has been made is made once."""

    cfg: HPConfig

    @cached_property
    def fingerprint(self) -> ModelFingerprint:
        """Of the config's model, in the engine it runs in."""
        if self.cfg.model.family in families.FAMILIES:
            return families.fingerprint(self.cfg.model, self.cfg.parallel)
        return reference.fingerprint(self.cfg.model)

    @cached_property
    def layout(self) -> LayoutSettings:
        """The layout with the exceptions of single stages written out per layer."""
        return self._with_stages(self.cfg.layout)

    @cached_property
    def plan(self) -> ActivationPlan:
        """The activation plan."""
        return build_plan(self.layout, self.fingerprint, "layout")

    def plan_under(self, layout: LayoutSettings, path: str) -> ActivationPlan:
        """The plan of the same model under another layout; ``path`` says where the layout stands, for errors."""
        return build_plan(self._with_stages(layout), self.fingerprint, path)

    def _with_stages(self, layout: LayoutSettings) -> LayoutSettings:
        return with_stage_layouts(layout, self.cfg.pipeline, self.cfg.model.num_layers)


def of(command: str, cfg: HPConfig) -> Experiment:
    """The experiment that ``command`` is asked for, checked as a whole.

    Raises:
        ConfigError: for whatever can't work, before anything is written or started.
    """
    validate(cfg)
    refusals.refuse(command, cfg)
    experiment = Experiment(cfg)
    if command in (*refusals.TRAINS, "pipeline"):
        cfg.data.validate("data")
        if cfg.engine == "reference":
            check_vocabulary(cfg.data, cfg.model.vocab_size)
        else:
            conflicts.refuse(train_config(cfg), with_plan=True)
            if runs_here(cfg) and not standin.installed():
                limits.refuse_without_the_package(cfg)
    if command != "search":  # which makes the plan
        check_plan(cfg.pipeline, experiment.plan, cfg.model.num_layers)
    return experiment


def runs_here(cfg: HPConfig) -> bool:
    """Whether the job's processes are this machine's alone; other nodes have packages of their own."""
    launch = cfg.launch
    return launch.action == "run" and not launch.nodes and not launch.hostfile and launch.num_nodes <= 1


def check_text(cfg: HPConfig) -> None:
    """Refuses data with fewer sequences than one step takes; a text that must hold more isn't read for that.

    Raises:
        ConfigError: naming ``data.text``, ``data.mindrecord`` or ``data.megatron``.
    """
    if cfg.data.of_tokens:
        (mindrecord if cfg.data.mindrecord is not None else megatron).check(cfg)
        return
    sequences = cfg.train.micro_batch_size * cfg.train.micro_batches * cfg.parallel.data
    trained_on = cfg.data.text_path.stat().st_size * (1 - cfg.data.validation_fraction)
    if trained_on < _SURELY_ENOUGH * cfg.model.seq_length * sequences:
        try:
            corpus = load_corpus(cfg.data)
        except (OSError, ValueError, EOFError, LZMAError) as error:
            raise ConfigError("data.text", str(cfg.data.text_path), f"can't be read: {error}") from error
        world = cfg.parallel.data
        Batches(corpus.train, cfg.model.seq_length, cfg.train, 0, world, cfg.data.seed).require_global_batch()

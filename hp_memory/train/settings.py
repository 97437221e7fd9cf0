"""What to train on, and how. No MindSpore here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from hp_memory.errors import ConfigError
from hp_memory.train.text import TEXT, TOKENIZER


@dataclass
class DataSettings:
    """A text and how it is cut into sequences."""

    text: str | None = None
    """A UTF-8 text file, may be packed as ``.xz``; null for the shipped text."""
    tokenizer: str | None = None
    """A tokenizer file of the ``tokenizers`` library; null for the shipped one."""
    validation_fraction: float = 0.02
    """The part at the text's end that is never trained on."""
    mindrecord: str | None = None
    """A MindRecord file that MindFormers' own loader reads in place of the text; null for the text."""
    megatron: str | None = None
    """Megatron-format data in place of the text, as the path before ``.bin`` and ``.idx``; null for the text."""
    seed: int = 0
    """Fixes the order of the sequences."""

    @property
    def of_tokens(self) -> bool:
        """Whether a dataset of tokens takes the text's place."""
        return self.mindrecord is not None or self.megatron is not None

    @property
    def text_path(self) -> Path:
        return Path(self.text) if self.text else TEXT

    @property
    def tokenizer_path(self) -> Path:
        return Path(self.tokenizer) if self.tokenizer else TOKENIZER

    def validate(self, path: str = "data") -> None:
        """Raises ConfigError for a missing file or a fraction that leaves nothing."""
        for name, file in (("text", self.text_path), ("tokenizer", self.tokenizer_path)):
            if getattr(self, name) == "":
                raise ConfigError(f"{path}.{name}", "", "is empty; null takes the shipped one")
            if not file.is_file():
                raise ConfigError(f"{path}.{name}", str(file), "there is no such file")
        for name, ends in (("mindrecord", ("", ".db")), ("megatron", (".bin", ".idx"))):
            given = getattr(self, name)
            for needed in () if given is None else (f"{given}{end}" for end in ends):
                if not Path(needed).is_file():
                    raise ConfigError(f"{path}.{name}", given, f"there is no file {needed!r}")
        if self.mindrecord is not None and self.megatron is not None:
            raise ConfigError(f"{path}.megatron", self.megatron, f"{path}.mindrecord is set too; one is read", (None,))
        if self.seed < 0:
            raise ConfigError(f"{path}.seed", self.seed, "must not be negative")
        if not 0 <= self.validation_fraction < 1:
            raise ConfigError(f"{path}.validation_fraction", self.validation_fraction, "must be at least 0 and below 1")


@dataclass
class TrainSettings:
    """Steps, batches and the optimizer (AdamW with a linear warm-up and a cosine decay)."""

    steps: int = MISSING
    """The step at which training ends, counted from the first step of all, also after a resume."""
    micro_batch_size: int = MISSING
    """Sequences per rank and micro-batch."""
    micro_batches: int = 1
    """Micro-batches per step, whose gradients are added up."""
    learning_rate: float = 3e-3
    min_learning_rate: float = 3e-4
    """What the cosine ends at."""
    warmup_steps: int = 10
    decay_steps: int = 0
    """The step at which the cosine ends; 0 for ``steps``. Set it where a run is to be continued later."""
    weight_decay: float = 0.1
    """Decoupled; for matrices only."""
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    seed: int = 0
    """Fixes the initial parameters."""
    save_every: int = 0
    """Steps between checkpoints; 0 for none but the last."""
    keep_last: int = 0
    """How many checkpoints of this run are kept, the newest; 0 for all."""
    save_last: bool = True
    """Write a checkpoint after the last step."""
    resume_from: str | None = None
    """A run directory or a checkpoint in one to continue from; the newest complete checkpoint is taken."""
    eval_batches: int = 4
    """Micro-batches of the validation text whose loss is measured at the end; 0 for none."""

    def validate(self, path: str = "train") -> None:
        """Raises ConfigError for numbers that mean no training."""
        for name in ("steps", "micro_batch_size", "micro_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must be at least 1")
        for name in ("warmup_steps", "decay_steps", "save_every", "keep_last", "eval_batches",
                     "weight_decay", "min_learning_rate",
                     "epsilon", "seed"):  # fmt: skip
            if getattr(self, name) < 0:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must not be negative")
        self._check_schedule(path)
        if self.min_learning_rate > self.learning_rate:
            why = f"must not be above {path}.learning_rate={self.learning_rate}"
            raise ConfigError(f"{path}.min_learning_rate", self.min_learning_rate, why)
        if self.learning_rate <= 0:
            raise ConfigError(f"{path}.learning_rate", self.learning_rate, "must be above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must be at least 0 and below 1")

    def _check_schedule(self, path: str) -> None:
        end, name = (self.decay_steps, "decay_steps") if self.decay_steps else (self.steps, "steps")
        if self.warmup_steps > end:
            why = f"the warm-up would not end before {path}.{name}={end}; set it lower, or {path}.decay_steps higher"
            raise ConfigError(f"{path}.warmup_steps", self.warmup_steps, why)
        if end < self.steps and self.min_learning_rate == 0:
            why = f"with {path}.min_learning_rate=0 the steps from there on, to {self.steps}, would change nothing"
            raise ConfigError(f"{path}.decay_steps", self.decay_steps, why)
        if self.save_every > self.steps and not self.save_last:
            why = f"{path}.steps={self.steps} would save nothing; save_every=0 says so, save_last=true saves the last"
            raise ConfigError(f"{path}.save_every", self.save_every, why)

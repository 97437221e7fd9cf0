"""A MindFormers YAML with its lines, and what is found wrong in it: everything at once, in the file's order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from hp_memory.errors import ConfigError, ConfigErrors, nearest

Trainer = Literal["pynative", "graph"]

# Top-level keys that only one of the Trainers has, misspelt sections apart.
_MARKS: dict[Trainer, tuple[str, ...]] = {
    "pynative": ("training", "parallelism", "recompute", "recompute_comm", "lr_scheduler", "checkpoint", "monitor"),
    "graph": (
        "runner_config",
        "parallel_config",
        "recompute_config",
        "parallel",
        "trainer",
        "lr_schedule",
        "use_legacy",
    ),
}


@dataclass
class Document:
    """One file.

    Attributes:
        file: as it was named.
        text: as it stands there.
        data: as YAML reads it.
        lines: the line of each key, by its path.
        trainer: whose file it is.
        errors: what has been found so far.
        ignored: paths whose values the user knows to be harmless.
        notes: what a reader should know of the figures.
    """

    file: str
    text: str
    data: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]
    trainer: Trainer
    errors: list[ConfigError] = field(default_factory=list)
    ignored: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; the default where it is missing or empty."""
        node: Any = self.data
        for part in path.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return default if node is None else node

    def whole(self, path: str, default: int = 1, least: int = 1) -> int:
        """A whole number; notes an error for anything else, and goes on with the default."""
        value = self.get(path, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(path, value, f"must be a whole number, at least {least}")
            return default
        return value

    def flag(self, path: str, default: bool = False) -> bool:
        """True or false; notes an error for anything else."""
        value = self.get(path, default)
        if not isinstance(value, bool):
            self.refuse(path, value, "must be true or false")
            return default
        return value

    def choice(self, path: str, default: str, accepted: Iterable[str]) -> str:
        """One of several words; notes an error for another."""
        value, accepted = self.get(path, default), tuple(accepted)
        if value not in accepted:
            self.refuse(path, value, "isn't one of those modelled", accepted)
            return default
        return str(value)

    def refuse(
        self,
        path: str | tuple[str, ...],
        value: Any,
        why: str,
        accepted: Iterable[Any] = (),
        meant: str | None = None,
    ) -> None:
        """Notes an error; ``finish`` raises them all."""
        keys = tuple(path.split(".")) if isinstance(path, str) else path
        dotted = ".".join(keys)
        if dotted in self.ignored:
            return
        error = ConfigError(f"{self.where(keys)}: {dotted}", value, why, accepted, meant)
        if str(error) not in {str(other) for other in self.errors}:
            self.errors.append(error)

    def where(self, keys: tuple[str, ...]) -> str:
        """``file:line`` of a key, or of the nearest section above it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.file}:{self.lines[keys]}" if keys else self.file

    def finish(self) -> None:
        """Raises ConfigErrors if anything was noted, in the order of the file."""
        if self.errors:
            raise ConfigErrors(sorted(self.errors, key=_line))


def _line(error: ConfigError) -> int:
    number = error.path.split(": ")[0].rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def load(file: str, ignored: Iterable[str] = ()) -> Document:
    """The file, with duplicated keys already noted as errors.

    Raises:
        ConfigError: for a file that can't be read as YAML, or that is no training config of MindFormers.
    """
    try:
        text = Path(file).read_text()
        data, lines, twice = _parsed(text)
    except (OSError, UnicodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError("yaml", file, f"can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError("yaml", file, "isn't a training config of MindFormers: it has no sections")
    document = Document(file, text, data, lines, _trainer(file, data), ignored=tuple(ignored))
    for keys, value in twice:
        document.refuse(keys, value, "stands in the file twice: MindFormers reads the last one only")
    return document


def _parsed(text: str) -> tuple[Any, dict[tuple[str, ...], int], list[tuple[tuple[str, ...], Any]]]:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[tuple[str, ...], int] = {}
        twice: list[tuple[tuple[str, ...], Any]] = []
        _note(node, (), lines, twice, set())
        return (loader.construct_document(node) if node else None), lines, twice
    finally:
        loader.dispose()


def _note(node: Any, at: tuple[str, ...], lines: dict, twice: list, done: set[int]) -> None:
    """Notes the line of each key below a node, and keys that stand there twice. What aliases share is noted once."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*at, str(key.value))
            if key.value in seen and key.value != "<<":
                twice.append((here, value.value if isinstance(value, yaml.ScalarNode) else "..."))
            seen.add(key.value)
            lines[here] = key.start_mark.line + 1
            _note(value, here, lines, twice, done)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*at, str(i))] = item.start_mark.line + 1
            _note(item, (*at, str(i)), lines, twice, done)


def _trainer(file: str, data: Mapping[str, Any]) -> Trainer:
    model = data.get("model")
    if isinstance(model, Mapping) and "model_config" in model:
        return "graph"
    scores = {trainer: sum(mark in data for mark in marks) for trainer, marks in _MARKS.items()}
    best = max(scores, key=lambda trainer: scores[trainer])
    if not scores[best] and "model" not in data:
        known = ("model", *_MARKS["pynative"], *_MARKS["graph"])
        near = [f"{key!r} like {found!r}" for key in data if (found := nearest(key, known))]
        hint = f" ({', '.join(near)})" if near else ""
        raise ConfigError("yaml", file, f"isn't a training config of MindFormers: it has none of its sections{hint}")
    return best

"""A user's own configs: folders beside the shipped one, and a single file named with an @ (``layout=@my.yaml``).

The folders, each with a subfolder per config group (``recipe``, ``layout``, ``model``, ...), are those of
``HP_MEMORY_CONFIGS``, ``configs`` in the working directory and ``~/.config/hp-memory``. They hold data only: nothing in
them is imported or run.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hp_memory.errors import ConfigError
from hp_memory.runs.files import read_bytes
from hp_memory.runs.paths import config_dir

VARIABLE = "HP_MEMORY_CONFIGS"
GROUPS = ("recipe", "layout", "model", "train", "data", "pipeline", "launch", "estimate", "offload")
_HYDRA = re.compile(r"@package\s+hydra|\bhydra[\"']?\s*:|/hydra\b|@hydra\b|hydra/")
_AT = re.compile(r"(\w+)='?@(.+?)'?")


def folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The user's folders that exist, in the order in which they are looked into; the shipped one comes before all.

    Raises:
        ConfigError: if the variable names a folder that doesn't exist, or a file there has the name of a shipped one.
    """
    asked = [Path(name).expanduser() for name in environ.get(VARIABLE, "").split(os.pathsep) if name]
    for folder in asked:
        if not folder.is_dir():
            raise ConfigError(VARIABLE, str(folder), "there is no such folder")
    found = [*asked, Path("configs"), home_folder(environ)]
    shipped = config_dir().resolve()
    there = (folder.resolve() for folder in found if folder.is_dir())
    return tuple(_checked(folder) for folder in dict.fromkeys(there) if folder != shipped)


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's folder that needs no variable and no working directory."""
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "hp-memory"


def _checked(folder: Path) -> Path:
    for group in GROUPS:
        shipped = _names(config_dir() / group)
        for name, file in _names(folder / group).items():
            _data(group, file)
            if name in shipped:
                raise ConfigError(
                    group, str(file), f"{name!r} is the name of a shipped {group}: give your file another"
                )
    return folder


def _data(group: str, file: Path) -> bytes:
    """A file's content, which can't reach what isn't data of an experiment: where Hydra reads from and writes to."""
    try:
        found = read_bytes(file)
    except OSError as error:
        raise ConfigError(group, str(file), f"can't be read: {error.strerror}") from error
    if _HYDRA.search(found.decode(errors="replace")):
        raise ConfigError(group, str(file), "sets Hydra's own settings, which are fixed")
    return found


def options(group: str) -> dict[str, Path]:
    """Every option of a config group with its file: shipped ones and the user's own."""
    found: dict[str, Path] = {}
    for folder in (config_dir(), *folders()):
        found = _names(folder / group) | found
    return dict(sorted(found.items()))


def _names(folder: Path) -> dict[str, Path]:
    files = [*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


@contextmanager
def for_hydra(words: Sequence[str]) -> Iterator[list[str]]:
    """The words with each ``group=@file`` as an option of that group, and a search path that has all own files.

    Raises:
        ConfigError: for a file that isn't there, or isn't YAML.
    """
    with tempfile.TemporaryDirectory(prefix="hp-memory-") as given:
        taken = [_taken(word, Path(given)) for word in words]
        path = [f"file://{folder}" for folder in (given, *folders())]
        quoted = ",".join("'" + place.replace("\\", "\\\\").replace("'", "\\'") + "'" for place in path)
        yield [*taken, f"hydra.searchpath=[{quoted}]"]


def _taken(word: str, given: Path) -> str:
    match = _AT.fullmatch(word)
    if match is None or match[1] not in GROUPS:
        return word
    group, file = match[1], Path(match[2]).expanduser()
    if not file.is_file():
        raise ConfigError(group, f"@{match[2]}", "there is no such file")
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(group, f"@{match[2]}", "is no YAML file", (".yaml", ".yml"))
    name = f"file_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}"
    place = given / group / f"{name}.yaml"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(_data(group, file))
    return f"{group}={name}"

"""``hp-memory ls`` and ``cp``: the recipes, layouts and other options there are, and a copy to change."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hp_memory.config import own_files
from hp_memory.errors import ConfigError
from hp_memory.report.table import Table
from hp_memory.report.table import console as make_console
from hp_memory.runs.paths import config_dir

SHOWN = ("recipe", "layout")


def ls(words: Sequence[str]) -> int:
    """Lists the options of some config groups, recipes and layouts by default, with a line each."""
    console = make_console()
    for group in words or SHOWN:
        if group not in own_files.GROUPS:
            raise ConfigError("ls", group, "no such config group", own_files.GROUPS)
        rows = [[name, _whose(file), _first_line(file)] for name, file in own_files.options(group).items()]
        console.print(Table(group, ["name", "whose", "what"], rows).rich())
    console.print(f"use one: hp-memory train recipe=NAME layout=NAME; change one: hp-memory cp {SHOWN[1]}/full mine")
    return 0


def cp(words: Sequence[str]) -> int:
    """Copies an option into the user's own folder: ``cp layout/full mine``."""
    group, name, new = _said(words)
    options = own_files.options(group)
    if name not in options:
        raise ConfigError(group, name, "no such option in this group", list(options), meant=name)
    if new in options:
        raise ConfigError("cp", f"{group}/{new}", "there is an option of this name already")
    target = _own_folder() / group / f"{new}.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("x") as file:
        # Plans and runs are told apart by their names.
        file.write(re.sub(r"^name: .*$", f"name: {new}", options[name].read_text(), count=1, flags=re.MULTILINE))
    print(f"{target}\nuse it: hp-memory train {group}={new}")
    return 0


def _said(words: Sequence[str]) -> tuple[str, str, str]:
    if len(words) not in (1, 2) or "/" not in words[0]:
        raise ConfigError("cp", " ".join(words), "what is copied, and its new name: hp-memory cp layout/full mine")
    group, _, name = words[0].partition("/")
    if group not in own_files.GROUPS:
        raise ConfigError("cp", words[0], "no such config group", own_files.GROUPS)
    new = words[1] if len(words) == 2 else f"my_{name.rpartition('/')[2]}"
    if not new.replace("_", "").replace("-", "").isalnum():
        raise ConfigError("cp", new, "a name has letters, digits, - and _ only")
    return group, name, new


def _own_folder() -> Path:
    """The first of the user's folders, or the one in the home folder, which is made."""
    found = own_files.folders()
    return found[0] if found else own_files.home_folder(os.environ)


def _whose(file: Path) -> str:
    return "shipped" if config_dir() in file.parents else str(file.parent)


def _first_line(file: Path) -> str:
    lines = (line.strip("# ").strip() for line in file.read_text().splitlines() if line.startswith("#"))
    return next((line for line in lines if line and not line.startswith("@package")), "")

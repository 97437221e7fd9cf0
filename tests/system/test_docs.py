"""What the README and the docs print can be typed: every command composes, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from hp_memory.cli import ACTIONS, COMMANDS
from hp_memory.config import app as hydra_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^ {4}|^\$ |^|`)hp-memory ([^`\n#]+)", re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    texts = [(page.name, re.sub(r"\\\n\s*", "", page.read_text())) for page in PAGES]
    found = [(name, line.strip()) for name, text in texts for line in COMMAND.findall(text)]
    # An ellipsis stands for something the reader has to fill in.
    typed = {(name, line) for name, line in found if line.split()[0] in COMMANDS}
    return sorted((name, line) for name, line in typed if "..." not in line and "…" not in line)


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_printed_command_composes(page, line):
    command, *args = shlex.split(line)
    if args and args[0] in ACTIONS.get(command, ()):
        args.pop(0)
    overrides = [arg for arg in args if "=" in arg or arg.startswith("~")]
    if "layout.save=[gmm,al2all]" in overrides:
        return  # printed as an example of what is refused; tests/unit/test_cli.py checks that it is
    sweep = {"-m", "--multirun"} & set(args)
    for job in hydra_app.jobs(overrides, bool(sweep)):
        hydra_app.checked(command, job)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reference_of_configs_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    sys.modules.pop("make_configs", None)
    import make_configs

    assert make_configs.PAGE.read_text() == make_configs.render(), "run: python docs/make_configs.py"

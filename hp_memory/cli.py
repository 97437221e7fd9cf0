"""``hp-memory COMMAND [overrides]``: each command is a Hydra app that refuses a bad config before it starts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from hp_memory import __version__
from hp_memory.errors import ConfigError, HPMemoryError

COMMANDS = {
    "train": "train the reference model, or MindFormers with our callback",
    "compare": "train the same steps under several layouts: equal numbers, memory and time",
    "calibrate": "time every region on this device, for the step's time of dry runs",
    "dryrun": "full-size memory per stage and region on the meta device",
    "search": "the fastest step that fits a budget",
    "offload": "HyperOffload plan, advice, timeline or check of a graph",
    "pipeline": "run a pipeline regression recipe",
    "launch": "render or run msrun on one node or many",
    "export": "the plan as MindFormers YAML",
    "doctor": "what this machine has and what will work",
}
# A command's exit code from here on is 128 + the signal that ended its job.
SIGNALLED = 128
TOOLS = {
    "ls": "the recipes and layouts there are, a line each; ls GROUP for another config group",
    "cp": "copy one into your own folder: cp layout/full mine",
    "validate": "check a recipe, a layout or a MindFormers YAML: validate FILE",
    "diff": "what differs between two runs: diff RUN RUN",
}
ACTIONS = {"offload": ("plan", "advise", "timeline", "verify"), "dryrun": ("compare-run",)}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script; exits with 0, with a command's own code, or with 2 for a refused config."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(args)
    except ConfigError as error:
        print(f"hp-memory: {error}", file=sys.stderr)
        code = 2
    except HPMemoryError as error:
        print(f"hp-memory: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("--help", "-h", "help"):
        return _help(args[1:]) if args else _help([], 2)
    if args[0] in ("--version", "-V", "version"):
        print(f"hp-memory {__version__}")
        return 0
    if args[0] in TOOLS:
        return _tool(args[0], args[1:])
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        raise ConfigError("command", command, "no such command", [*COMMANDS, *TOOLS])
    actions = ACTIONS.get(command, ())
    action = rest.pop(0) if rest and rest[0] in actions else None
    if rest and "=" not in rest[0] and not rest[0].startswith(("-", "~")):
        raise ConfigError(command, rest[0], "an override is written key=value", actions)
    return _run(command, action, rest)


def _help(args: list[str], code: int = 0) -> int:
    """``help`` shows the usage, ``help COMMAND`` what ``COMMAND --help`` shows."""
    if not args or args[0] in TOOLS:
        print(_usage())
        return code
    return _dispatch([args[0], "--help"])


def _tool(name: str, args: list[str]) -> int:
    """A command on files, which has no config."""
    if any(arg in ("--help", "-h") for arg in args):
        print(f"usage: hp-memory {name}: {TOOLS[name]}")
        return 0
    if name in ("ls", "cp"):
        return getattr(importlib.import_module("hp_memory.commands.files"), name)(args)
    return importlib.import_module(f"hp_memory.commands.{name}").run(args)


def _usage() -> str:
    lines = [f"  {name:10}{text}" for name, text in (COMMANDS | TOOLS).items()]
    return "usage: hp-memory COMMAND [key=value ...] [--help | --cfg job --resolve | -m]\n\ncommands:\n" + "\n".join(
        lines
    )


def _run(command: str, action: str | None, args: list[str]) -> int:
    # Hydra and the command's own modules are loaded when they are needed: `--help` answers at once.
    from hp_memory.config import app

    jobs = app.read(command, args)
    if not jobs.configs:
        return 0
    module = importlib.import_module(f"hp_memory.commands.{command}")
    words = (action,) if command in ACTIONS else ()
    if jobs.sweep is not None and hasattr(module, "run_sweep"):
        return module.run_sweep(jobs.configs, jobs.sweep, *words)
    code = 0
    for cfg in jobs.configs:
        code = max(code, module.run(cfg, *words))
        if code >= SIGNALLED:  # whoever ended this job wants no further one
            break
    return code

"""HyperParallel packages on disk, whole or not; their functions are fakes."""

from __future__ import annotations

from pathlib import Path

from hp_memory.runs.hyper_parallel import MINDSPORE_LINE, NEEDED

CHECKPOINT = "def checkpoint_wrapper(cell, context_fn=None):\n    return (cell, context_fn)\n"
SAVED = {
    True: "def checkpoint_exclude_wrapper(target, *, save_output=True):\n    return ('saved', target)\n",
    False: "def checkpoint_exclude_wrapper(target):\n    return ('saved', target)\n",
}
SESSIONS = "    def recompute_session_ctx(self, session_id, retain_on_unpack=False):\n        return None\n"


def write(folder: Path, has: dict[str, bool] | None = None, without: tuple[str, ...] = (), text: str = "") -> None:
    """Writes ``hyper_parallel`` into ``folder``.

    Args:
        has: abilities (see ``backend.Capabilities``); none by default.
        without: modules that it lacks.
        text: of its ``__init__.py``.
    """
    has = has or {}
    source = dict.fromkeys((*NEEDED, MINDSPORE_LINE, "platform"), "")
    source["core.activation_checkpoint"] = CHECKPOINT
    if has.get("exclude"):
        source["core.activation_checkpoint"] += SAVED[has.get("save_output", False)]
    body = SESSIONS if has.get("sessions") else "    pass\n"
    source["platform"] = f"class Platform:\n{body}def get_platform():\n    return Platform()\n"
    if has.get("reentrant"):
        source["platform.mindspore.activation_checkpoint.reentrant_checkpoint"] = ""
    source[""] = text
    for module, code in source.items():
        if module not in without:
            _package(folder / "hyper_parallel", module, code)


def _package(root: Path, module: str, code: str) -> None:
    place = root
    for part in module.split(".") if module else ():
        place.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").touch()
        place = place / part
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(code)

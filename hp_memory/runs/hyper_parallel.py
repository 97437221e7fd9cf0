"""Which HyperParallel is on this machine, in one sentence each. The one probe of ``doctor``, launcher and callback.

MindFormers imports HyperParallel's MindSpore line. What is installed under that name may also be a release for PyTorch
only, one whose modules lie elsewhere, or one that can't be imported; none of these is "not installed".
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = "hyper_parallel"
# What MindFormers 2.0 imports of it at module level, of each part one module.
NEEDED = (
    "core.activation_checkpoint",
    "core.distributed_checkpoint",
    "core.dtensor.dtensor",
    "core.fully_shard.api",
    "core.pipeline_parallel",
)
MINDSPORE_LINE = "platform.mindspore"


class State(enum.Enum):
    """What was found under HyperParallel's name."""

    ABSENT = "absent"
    USABLE = "usable"
    TORCH_ONLY = "torch only"
    OLD_LAYOUT = "old layout"
    BROKEN = "broken"


@dataclass(frozen=True)
class Found:
    """A state, and the sentence that says why; without the package's name in front."""

    state: State
    sentence: str

    @property
    def usable(self) -> bool:
        """MindFormers can import it."""
        return self.state is State.USABLE


def look() -> Found:
    """Looks at the files only: imports nothing, so it can't tell whether an import fails."""
    places = _places()
    if not places:
        return Found(State.ABSENT, "not installed")
    where = f"installed at {places[0]}"
    if not _has(places, MINDSPORE_LINE):
        why = f"a release for PyTorch only, without {ROOT}.{MINDSPORE_LINE}, which MindFormers needs"
        return Found(State.TORCH_ONLY, f"{where}, but it is {why}")
    missing = [module for module in NEEDED if not _has(places, module)]
    if missing:
        why = f"its layout is another than MindFormers 2.0 imports: it has no {ROOT}.{missing[0]}"
        return Found(State.OLD_LAYOUT, f"{where}, but {why}")
    return Found(State.USABLE, where)


def probe() -> Found:
    """As ``look``, and then imports what MindFormers would."""
    found = look()
    if not found.usable:
        return found
    for module in (ROOT, *(f"{ROOT}.{name}" for name in (*NEEDED, MINDSPORE_LINE))):
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a package raises while it is imported
            said = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
            return Found(State.BROKEN, f"{found.sentence}, but importing {module} fails: {said}")
    return found


def _places() -> list[Path]:
    """Where the package lies; a stand-in, which has no files, lies nowhere."""
    known = sys.modules.get(ROOT)
    if known is not None:
        return [Path(place) for place in getattr(known, "__path__", ())]
    spec = importlib.util.find_spec(ROOT)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []


def _has(places: list[Path], module: str) -> bool:
    relative = Path(*module.split("."))
    return any((place / relative).is_dir() or (place / relative).with_suffix(".py").is_file() for place in places)

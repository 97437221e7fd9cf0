"""A layout: what happens to each region of one block. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hp_memory.errors import ConfigError
from hp_memory.layout.regions import ACTIONS, ALWAYS_SAVED, REGIONS, Action, expand


@dataclass(frozen=True)
class Layout:
    """The action of each region of one block.

    Attributes:
        name: the name people know it by, e.g. ``op_exclude``.
        default: the action of the regions that ``actions`` doesn't name.
        actions: the exceptions.
        spans: runs of consecutive saved regions which one wrapper excludes together.
        keep_outputs: keep every saved region's output, also where no replay reads it.
        early_stop: end a replay once backward has all that it needs; otherwise it runs to the end of the block.
    """

    name: str
    default: Action
    actions: Mapping[str, Action]
    spans: tuple[tuple[str, ...], ...] = ()
    keep_outputs: bool = False
    early_stop: bool = True

    def action(self, region: str) -> Action:
        """What happens to ``region``."""
        return self.actions.get(region, self.default)

    def restrict(self, regions: Sequence[str]) -> Layout:
        """The same layout without what names regions this block doesn't have; a span keeps the regions it has here."""
        spans = (tuple(r for r in span if r in regions) for span in self.spans)
        return replace(
            self,
            actions={r: a for r, a in self.actions.items() if r in regions},
            spans=tuple(span for span in spans if len(span) > 1),
        )

    def replays(self, regions: Sequence[str]) -> tuple[str, ...]:
        """The regions among ``regions`` that backward runs again; without any the block needs no boundary."""
        return tuple(r for r in regions if self.action(r) == "recompute")

    def offloads(self, regions: Sequence[str]) -> tuple[str, ...]:
        """The regions among ``regions`` whose saved tensors wait on the host."""
        return tuple(r for r in regions if self.action(r) == "offload")

    def in_words(self, regions: Sequence[str]) -> str:
        """One line that says what happens to each region of a block with these regions."""
        replayed, moved = self.replays(regions), self.offloads(regions)
        saved = [r for r in regions if self.action(r) == "save"]
        move = f"; offload {', '.join(moved)}" if moved else ""
        if not replayed:
            return f"nothing is replayed, autograd keeps what it needs{move}"
        text = f"replay {', '.join(replayed)}; save {', '.join(saved)}{move}"
        spans = "".join(f"; {s[0]} .. {s[-1]} excluded as one" for s in self.spans)
        kept = "; every saved output is kept" if self.keep_outputs else ""
        return text + spans + kept + ("" if self.early_stop else "; replays run to the end of the block")


def make_layout(
    name: str,
    default: str,
    save: Sequence[str],
    recompute: Sequence[str],
    as_one: Sequence[Sequence[str]],
    keep_outputs: bool = False,
    early_stop: bool = True,
    path: str = "layout",
    offload: Sequence[str] = (),
) -> Layout:
    """Builds a layout from what a config says, and refuses what contradicts itself.

    Raises:
        ConfigError: unknown action or region, an exception that repeats the default, a region named twice, a span that
            isn't a run of saved regions, or a request to replay or move routing decisions or split sizes.
    """
    if not name:
        raise ConfigError(f"{path}.name", name, "must not be empty: it identifies plans and reports")
    if default not in ACTIONS:
        raise ConfigError(f"{path}.default", default, "not an action", ACTIONS)
    named = _exceptions(default, {"save": save, "recompute": recompute, "offload": offload}, path)
    named.update(dict.fromkeys(ALWAYS_SAVED, "save"))
    layout = Layout(name, default, named, (), keep_outputs, early_stop)
    spans = tuple(_span(layout, ends, f"{path}.as_one[{i}]") for i, ends in enumerate(as_one))
    _refuse_overlap(spans, path)
    return replace(layout, spans=spans)


def _exceptions(default: str, given: Mapping[Action, Sequence[str]], path: str) -> dict[str, Action]:
    named: dict[str, Action] = {}
    for action, names in given.items():
        if names and action == default:
            raise ConfigError(f"{path}.{action}", list(names), f"has no effect: {action} is the default already")
        for i, entry in enumerate(names):
            for region in expand(entry, f"{path}.{action}[{i}]"):
                if region in named:
                    raise ConfigError(f"{path}.{action}[{i}]", entry, f"names {region} a second time")
                if region in ALWAYS_SAVED and action != "save":
                    others = [r for r in expand(entry, path) if r not in ALWAYS_SAVED]
                    raise ConfigError(f"{path}.{action}[{i}]", entry, _why_saved(region, action), others)
                named[region] = action
    return named


def _why_saved(region: str, action: Action) -> str:
    if action == "recompute":
        return f"{region} is always saved: a replay could route otherwise"
    return f"{region} is always saved: its choices are small, and the host reads them at once"


def _span(layout: Layout, ends: Sequence[str], path: str) -> tuple[str, ...]:
    if len(ends) != 2:
        raise ConfigError(path, list(ends), "a span is [first, last]")
    first, last = (expand(end, f"{path}[{i}]") for i, end in enumerate(ends))
    span = REGIONS[REGIONS.index(first[0]) : REGIONS.index(last[-1]) + 1]
    if len(span) < 2:
        raise ConfigError(path, list(ends), "a span needs two regions or more, in the order of the forward", REGIONS)
    for region in span:
        if layout.action(region) != "save":
            done = "replayed" if layout.action(region) == "recompute" else "offloaded"
            raise ConfigError(path, list(ends), f"{region} lies inside the span but is {done}")
    return span


def _refuse_overlap(spans: Sequence[tuple[str, ...]], path: str) -> None:
    seen: dict[str, int] = {}
    for i, span in enumerate(spans):
        for region in span:
            if region in seen:
                raise ConfigError(
                    f"{path}.as_one[{i}]", [span[0], span[-1]], f"overlaps as_one[{seen[region]}] at {region}"
                )
            seen[region] = i

"""All ranks in one view, and a job's end in words."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hp_memory.launch.launcher.supervise import Outcome
from hp_memory.launch.progress import RankView

# Without a terminal a line is printed this often at most.
QUIET_SECONDS = 10.0
# More ranks than this are shown as one line a node.
MANY = 32


class Watcher:
    """Shows progress while a job runs: a table that is redrawn in a terminal, a line now and then in a log."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.shown, self.last_line = 0.0, ""

    def __enter__(self) -> Watcher:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, views: dict[int, RankView]) -> None:
        """Shows the newest state."""
        if self.live:
            self.live.update(Group(progress_table(views)), refresh=True)
            return
        line = progress_line(views)
        if line != self.last_line and time.monotonic() - self.shown > QUIET_SECONDS:
            self.console.print(line, markup=False, highlight=False)
            self.shown, self.last_line = time.monotonic(), line


def progress_table(views: dict[int, RankView]) -> Table:
    """Rank, node, step, loss, time per step, memory, last heard; of many ranks only each node's slowest."""
    shown = Table("rank", "node", "state", "step", "loss", "s/step", "memory", "heard")
    for view in views.values() if len(views) <= MANY else slowest_of_each_node(views):
        record = view.record
        shown.add_row(
            str(view.rank),
            str(view.node),
            "[red]stalled[/]" if view.stalled else view.state,
            str(record.get("step", "-")),
            _number(record.get("loss"), ".4f"),
            _number(record.get("seconds"), ".2f"),
            memory_in_words(record),
            f"{time.monotonic() - view.heard:.0f} s ago",
        )
    return shown


def slowest_of_each_node(views: dict[int, RankView]) -> list[RankView]:
    """Each node's rank with the fewest steps: it is the one the others wait for."""
    nodes: dict[int, RankView] = {}
    for view in views.values():
        held = nodes.get(view.node)
        if held is None or view.record.get("step", -1) < held.record.get("step", -1):
            nodes[view.node] = view
    return list(nodes.values())


def progress_line(views: dict[int, RankView]) -> str:
    """The same in one line."""
    known = [view for view in views.values() if "step" in view.record]
    if not known:
        return f"{len(views)} ranks starting"
    slow = min(known, key=lambda view: view.record["step"])
    # Of a pipeline only the last stage has a loss.
    loss = next((view.record["loss"] for view in (slow, *reversed(known)) if "loss" in view.record), None)
    stalled = [str(view.rank) for view in views.values() if view.stalled]
    return (
        f"step {slow.record['step']}  loss {_number(loss, '.4f')}"
        f"  {_number(slow.record.get('seconds'), '.2f')} s/step  {len(known)}/{len(views)} ranks"
        f"{'  stalled: ' + ', '.join(stalled) if stalled else ''}"
    )


def memory_in_words(record: dict) -> str:
    """A rank's own figure with its kind, or ``-``: on a CPU there is no device memory to report."""
    value = record.get("memory_bytes")
    return f"{value / 2**20:.0f} MiB {record.get('memory_kind', '')}".strip() if value else "-"


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) else "-"


def outcome_in_words(outcome: Outcome) -> Group:
    """Who failed, why, the end of its log, and what could not be ended."""
    if outcome.exit_code == 0:
        return Group(Text(f"all ranks ended well after {outcome.seconds:.0f} s", style="green"))
    lines = [Text(outcome.message or "the job failed", style="bold red")]
    if outcome.log:
        lines.append(Text(f"  {outcome.log}:", style="dim"))
    lines += [Text(f"  | {line}") for line in outcome.log_tail]
    for other in outcome.failures:
        if other.in_words() != outcome.message:
            lines.append(Text(f"also: {other.in_words()}"))
    for node, pids in outcome.leftovers.items():
        lines.append(Text(f"node {node}: processes {pids} could not be ended", style="bold red"))
    return Group(*lines)

"""A launch from settings to exit code: what `hp-memory launch`, `train` and `compare` all do."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from hp_memory.errors import ConfigError
from hp_memory.launch import checks
from hp_memory.launch.checks import Check
from hp_memory.launch.launcher import peaks, preflight, restart, supervise, view
from hp_memory.launch.launcher.screen import Screen
from hp_memory.launch.launcher.supervise import Outcome
from hp_memory.launch.plan import LaunchPlan, plan_launch, world_size
from hp_memory.launch.script import check_node, render
from hp_memory.launch.secrets import hidden_below
from hp_memory.launch.settings import LaunchSettings
from hp_memory.report import table
from hp_memory.runs.files import write_whole

TaskFor = Callable[[int], tuple[str, ...]]


def launch(
    settings: LaunchSettings,
    task_for: TaskFor,
    run_dir: Path,
    env: Mapping[str, str],
    parallel: Mapping[str, int] | None = None,
    console: Console | None = None,
) -> int:
    """Shows, writes or runs the job, as ``settings.action`` and ``settings.dry_run`` say.

    Args:
        task_for: world size -> what every rank runs. Called again before a restart, whose nodes may be fewer;
            raises ConfigError for a world size the parallel sizes don't allow.
        run_dir: made by the caller; not touched by a dry run.
        parallel: parallel dimension -> size, for the checks.

    Returns:
        The exit code: 0, 1 for a failed job, 128 + signal for an interrupted one.

    Raises:
        ConfigError: before anything is started.
    """
    console = console or table.console()
    plan = checked(settings, task_for, run_dir, env, parallel)
    if settings.action != "run":
        return _write(plan, console)
    if settings.dry_run:
        _say(console, plan.in_words())
        return 0
    estimate = peaks.read_estimate(settings.estimate)
    with Screen(console) as screen:
        outcome = _run_with_restarts(plan, task_for, env, parallel, screen)
        ranks = peaks.measured(outcome.reports, plan.world_size, (parallel or {}).get("pipeline", 1))
        if ranks:
            write_whole(Path(plan.run_dir) / "reports" / "memory.json", json.dumps({"ranks": ranks}, indent=1))
            screen.print(peaks.peaks_table(ranks, estimate))
    return outcome.exit_code


def checked(
    settings: LaunchSettings,
    task_for: TaskFor,
    run_dir: Path,
    env: Mapping[str, str],
    parallel: Mapping[str, int] | None = None,
) -> LaunchPlan:
    """The plan that ``launch`` would follow; writes nothing, starts nothing and asks no other machine.

    Raises:
        ConfigError: for what can be refused without that.
    """
    task = tuple(settings.task) or task_for(world_size(settings))
    resume = restart.last_complete(run_dir) if settings.action == "run" else None
    plan = plan_launch(settings, task, run_dir, env, resume=str(resume or ""))
    checks.check(plan, parallel)
    peaks.read_estimate(settings.estimate)
    return plan


def _say(console: Console, text: str) -> None:
    """Text as it is: paths and commands are to be copied, so they are neither wrapped nor coloured."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _write(plan: LaunchPlan, console: Console) -> int:
    files = render.render(plan)
    for name, text in files.items():
        if plan.settings.dry_run:
            _say(console, f"# {name}\n{text}")
        else:
            _say(console, f"wrote {render.write(plan, name, text)}")
    if not plan.settings.dry_run:
        _say(console, f"wrote {check_node.write_expectation(plan)}, by which each node checks itself")
    return 0


def _run_with_restarts(
    plan: LaunchPlan, task_for: TaskFor, env: Mapping[str, str], parallel: Mapping[str, int] | None, screen: Screen
) -> Outcome:
    settings, outcome = plan.settings, Outcome()
    # An earlier launch of the same command may have begun it: nothing of that is written over.
    before = restart.attempts(plan.run_dir) if settings.node_rank <= 0 else 0
    if before:
        restart.keep_logs(plan.run_dir, before - 1)
    for attempt in range(settings.max_restarts + 1):
        if attempt:
            time.sleep(settings.restart_delay)
            restart.keep_logs(plan.run_dir, before + attempt - 1)
        try:
            if attempt:
                plan = _plan_again(plan, task_for, env, screen)
                checks.check(plan, parallel)
            outcome = _attempt(plan, attempt, before + attempt, screen)
        except ConfigError as error:
            if not attempt:
                raise
            # The node that failed may still be down; the next attempt reads the hostfile anew.
            outcome = Outcome(1, kind="preflight", message=f"attempt {attempt} could not start: {error}")
        screen.print(view.outcome_in_words(outcome), soft_wrap=True)
        if not restart.is_worth_it(outcome):
            break
    return outcome


def _plan_again(plan: LaunchPlan, task_for: TaskFor, env: Mapping[str, str], screen: Screen) -> LaunchPlan:
    """The same job from its last complete checkpoint, on the nodes the hostfile lists now."""
    found = restart.last_complete(plan.run_dir, screen.say)
    task = tuple(plan.settings.task) or task_for(world_size(plan.settings))
    return plan_launch(plan.settings, task, Path(plan.run_dir), env, resume=str(found or ""))


def _attempt(plan: LaunchPlan, attempt: int, number: int, screen: Screen) -> Outcome:
    """Runs it. ``attempt`` counts those of this launch, ``number`` those of the run, also by earlier launches."""
    if attempt:
        screen.say(f"restart {attempt} of {plan.settings.max_restarts} from {plan.resume or 'the beginning'}")
    elif plan.resume:
        screen.say(f"goes on from {plan.resume}")
    lines = _checks(plan)
    screen.print(checks.table(lines))
    checks.refuse(lines, plan)
    if plan.settings.node_rank == 0:
        check_node.write_expectation(plan)
    _save(plan, f"plan_{number}", hidden_below(plan.to_dict()))
    screen.say(f"{plan.size_in_words()}, logs in {plan.run_dir}/logs")
    outcome = supervise.run(plan, screen.show, say=lambda text: screen.say(text, style="yellow"))
    screen.end_frames()
    # A full disk may be what ended the job: it must not hide that.
    with contextlib.suppress(OSError):
        _save(plan, f"outcome_{number}", asdict(outcome))
    return outcome


def _checks(plan: LaunchPlan) -> list[Check]:
    lines = preflight.preflight(plan)
    if plan.settings.node_rank > 0:
        # This launcher sees one node: what it compared with itself is compared with node 0.
        found = {line.name: line for line in [*lines, *check_node.compare_with_node_0(plan)]}
        lines = list(found.values())
    return lines


def _save(plan: LaunchPlan, name: str, data: dict) -> None:
    """Into ``<run_dir>/launch``, which launchers of single nodes share."""
    mine = f"_node_{plan.settings.node_rank}" if plan.settings.node_rank > 0 else ""
    file = Path(plan.run_dir) / "launch" / f"{name}{mine}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(data, indent=1), 0o600)

"""What is checked before anything is started: the plan by itself, and every node's answers, in one table."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from hp_memory.errors import ConfigError
from hp_memory.launch import environment, hosts
from hp_memory.launch.node import probe
from hp_memory.launch.plan import LaunchPlan, NodePlan

# A node's Python has to start and answer; slow shared file systems need their time.
ANSWER = 60.0
SAME_EVERYWHERE = ("python", *probe.PACKAGES, "hyper-parallel", "cann", "driver", "package", *probe.SHARED_FILES)


@dataclass(frozen=True)
class Check:
    """One line of the table. ``bad`` refuses the launch, ``warn`` only says so."""

    name: str
    status: str
    text: str
    key: str = "launch.nodes"
    """The setting to change."""
    value: object = None
    """Its value where that is a node's own and not the plan's."""


@dataclass
class Answer:
    """One node's answer, with the launcher's clock around it."""

    rank: int
    host: str
    facts: dict
    """What it said of itself; empty where it didn't answer."""
    sent: float
    received: float
    error: str = ""

    @property
    def skew(self) -> float:
        """Seconds the node's clock is off, at least: its time may lie anywhere between question and answer."""
        there = self.facts["time"]
        return max(self.sent - there, there - self.received, 0.0)


def check(plan: LaunchPlan, parallel: Mapping[str, int] | None = None) -> None:
    """What needs no machine: another job's variables, sizes that don't fit.

    Args:
        parallel: parallel dimension -> size, of those that multiply; with ``data`` their product must be the number of
            workers, without it a divisor of that.

    Raises:
        ConfigError: naming the setting.
    """
    environment.refuse_inherited(plan.inherited)
    _check_sizes(plan.world_size, parallel or {})


def check_addresses(plan: LaunchPlan) -> None:
    """Whether the scheduler's address can work; asks the resolver of this machine, so only before a real start.

    Raises:
        ConfigError: naming the setting.
    """
    if plan.total_nodes == 1:
        return
    address = hosts.address_of(plan.master_addr)
    if address is None:
        raise ConfigError("launch.master_addr", plan.master_addr, "doesn't resolve to an IPv4 address")
    far = [node for node in plan.nodes if not node.here]
    if far and address.startswith("127."):
        why = f"is this machine's own loopback address ({address}); {far[0].host} can't reach it"
        raise ConfigError("launch.master_addr", plan.master_addr, why)


def _check_sizes(world: int, parallel: Mapping[str, int]) -> None:
    product = math.prod(parallel.values())
    fits = product == world if "data" in parallel else world % product == 0
    if not fits:
        name = max(parallel, key=lambda name: parallel[name])
        sizes = " x ".join(f"{name} {size}" for name, size in parallel.items())
        why = f"{sizes} needs {'' if 'data' in parallel else 'a multiple of '}{product} workers, the launch has {world}"
        raise ConfigError(f"parallel.{name}", parallel[name], why)


def write_token(plan: LaunchPlan) -> str:
    """Writes a new token where ``token_file`` says, and returns it."""
    token, file = secrets.token_hex(8), Path(plan.run_dir) / token_file(plan)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(token)
    except OSError as error:
        raise ConfigError("run_dir", plan.run_dir, f"can't be written: {error.strerror}") from error
    return token


def token_file(plan: LaunchPlan) -> str:
    """One per launcher: nodes started by hand share the run directory."""
    return f"launch/token_{plan.nodes[0].rank}"


def question(plan: LaunchPlan, node: NodePlan) -> dict:
    """What ``probe.probe`` is asked of a node."""
    return {
        "do": "probe",
        "run_dir": plan.run_dir,
        "env": node.env,
        "python": plan.python,
        "master_addr": plan.master_addr,
        "token_file": token_file(plan),
        "port": plan.scheduler_port(node.rank),
    }


def judge(plan: LaunchPlan, answers: list[Answer], token: str) -> list[Check]:
    """The table's lines from the nodes' answers."""
    lost = [answer for answer in answers if not answer.facts]
    if lost:
        text = "; ".join(f"{answer.host}: {answer.error}" for answer in lost)
        return [Check("reachable", "bad", text)]
    reachable = Check("reachable", "ok", f"{len(answers)} node(s)")
    return [reachable, *compare(answers, SAME_EVERYWHERE), *inspect(plan, answers, token), _clock(plan, answers)]


def compare(answers: list[Answer], names: Iterable[str]) -> list[Check]:
    """A line for each of ``names``, which must be the same in all answers."""
    titles = {"package": "hp-memory"}
    return [_same(answers, name, titles.get(name, name)) for name in names]


def inspect(plan: LaunchPlan, answers: list[Answer], token: str) -> list[Check]:
    """What each node must have, whatever the others have."""
    checks = [_msrun(plan, answers), _devices(plan, answers), _inherited(answers), _leftovers(plan, answers)]
    checks += [_port(plan, answers), _master(plan, answers), _run_dir(answers, token)]
    return [*checks, _room(plan, answers, "disk"), _room(plan, answers, "host_memory")]


def fact(facts: Mapping, name: str) -> object:
    """One of ``SAME_EVERYWHERE`` in a node's answer: a version, or the digest of a file."""
    return facts["files"][name] if name in probe.SHARED_FILES else facts[name]


def _same(answers: list[Answer], name: str, title: str) -> Check:
    groups: dict[str, list[str]] = {}
    for answer in answers:
        value = fact(answer.facts, name)
        groups.setdefault("none" if value is None else str(value), []).append(answer.host)
    if len(groups) == 1:
        return Check(title, "ok", next(iter(groups)))
    commonest_first = sorted(groups.items(), key=lambda item: -len(item[1]))
    text = "; ".join(f"{value} on {', '.join(found)}" for value, found in commonest_first)
    return Check(title, "bad", f"differs: {text}")


def _only_bad(name: str, bad: list[str], good: str, key: str = "launch.nodes", status: str = "bad") -> Check:
    return Check(name, status, "; ".join(bad), key) if bad else Check(name, "ok", good, key)


def _msrun(plan: LaunchPlan, answers: list[Answer]) -> Check:
    if plan.settings.launcher == "process":
        return Check("msrun", "ok", "not used")
    bad = [f"{a.host}: not found beside {plan.python}" for a in answers if a.facts["msrun"] is None]
    return _only_bad("msrun", bad, "found", "launch.python")


def _devices(plan: LaunchPlan, answers: list[Answer]) -> Check:
    wanted = len(plan.nodes[0].ranks)
    kinds = {"Ascend" if a.facts["devices"] else "CPU" for a in answers}
    if plan.settings.device == "CPU" or (plan.settings.device == "auto" and kinds == {"CPU"}):
        return Check("devices", "ok", "CPU")
    bad = [
        f"{a.host}: {wanted} workers, visible devices {a.facts['devices'] or 'none'}"
        for a in answers
        if len(a.facts["devices"]) < wanted
    ]
    return _only_bad("devices", bad, f"{wanted} of each node's", "launch.workers_per_node")


def _inherited(answers: list[Answer]) -> Check:
    found = [(a.host, name, value) for a in answers for name, value in a.facts["inherited"].items()]
    if not found:
        return Check("environment", "ok", "no other job's variables")
    _, name, value = found[0]
    text = "; ".join(f"{host}: {name}={value}" for host, name, value in found)
    return Check("environment", "bad", f"{text}; {environment.advice(name)}", f"environment.{name}", value)


def _leftovers(plan: LaunchPlan, answers: list[Answer]) -> Check:
    ours = {(plan.run_id, str(node.rank)) for node in plan.nodes}
    own, others = {}, {}
    for a in answers:
        # Nodes that are started one by one may share a machine: what another launcher started isn't in the way.
        own[a.host] = [p["pid"] for p in a.facts["leftovers"] if (p["run_id"], p["node"]) in ours]
        others[a.host] = [p["pid"] for p in a.facts["leftovers"] if (p["run_id"], p["node"]) not in ours]
    bad = [f"{host}: this run's processes {pids} are still there" for host, pids in own.items() if pids]
    if bad:
        return _only_bad("other jobs", bad, "", "run_dir")
    # Two jobs on the same devices can't work; on CPUs they only share the cores.
    on_devices = plan.settings.device == "Ascend" or any(a.facts["devices"] for a in answers)
    found = [f"{host}: MindSpore processes {pids}" for host, pids in others.items() if pids]
    return _only_bad("other jobs", found, "none", status="bad" if on_devices else "warn")


def _port(plan: LaunchPlan, answers: list[Answer]) -> Check:
    bad = [f"{a.host}: port {plan.master_port} is in use" for a in answers if a.facts["port_free"] is False]
    return _only_bad("port", bad, str(plan.master_port), "launch.master_port")


def _master(plan: LaunchPlan, answers: list[Answer]) -> Check:
    unresolved = [f"{a.host} can't resolve {plan.master_addr}" for a in answers if a.facts["master_address"] is None]
    # Debian's /etc/hosts gives a machine's own name a loopback address: its scheduler would listen where no one comes.
    loop = [
        f"{a.host} resolves {plan.master_addr} to its own {a.facts['master_address']}"
        for a in answers
        if plan.is_spread and not unresolved and a.facts["master_address"].startswith("127.")
    ]
    return _only_bad("scheduler's address", unresolved or loop, plan.master_addr, "launch.master_addr")


def _clock(plan: LaunchPlan, answers: list[Answer]) -> Check:
    limit = plan.settings.max_clock_skew
    bad = [f"{a.host}: {a.skew:.0f} s off" for a in answers if a.skew > limit]
    return _only_bad("clock", bad, f"within {limit:g} s", "launch.max_clock_skew")


def _run_dir(answers: list[Answer], token: str) -> Check:
    bad = [
        f"{a.host}: doesn't see it; it must be on a file system all nodes share"
        for a in answers
        if a.facts["token"] != token
    ]
    bad = bad or [f"{a.host}: can't write it" for a in answers if not a.facts["writable"]]
    return _only_bad("run directory", bad, "shared and writable", "run_dir")


def _room(plan: LaunchPlan, answers: list[Answer], what: str) -> Check:
    setting, fact = f"min_{what}_gib", f"{what.removeprefix('host_')}_gib"
    least = getattr(plan.settings, setting)
    bad = [f"{a.host}: {a.facts[fact]:.2f} GiB free, {least:g} needed" for a in answers if a.facts[fact] < least]
    lowest = min(a.facts[fact] for a in answers)
    return _only_bad(what.replace("_", " "), bad, f"{lowest:.1f} GiB free", f"launch.{setting}")


def table(checks: list[Check]) -> Table:
    """The checks as a table for people."""
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "bad": "[red]BAD[/]"}
    shown = Table("check", "", "found", title="Before the start", title_justify="left")
    for line in checks:
        shown.add_row(line.name, marks[line.status], Text(line.text))
    return shown


def refuse(checks: list[Check], plan: LaunchPlan) -> None:
    """Raises ConfigError for the first bad line, with the value of the setting to change."""
    for line in checks:
        if line.status == "bad":
            listed_in_file = line.key == "launch.nodes" and plan.settings.hostfile
            key = "launch.hostfile" if listed_in_file else line.key
            value = line.value or _value(plan, key.removeprefix("launch."))
            raise ConfigError(key, value, f"{line.name}: {line.text}")


def _value(plan: LaunchPlan, name: str) -> object:
    """What is in force, also where the plan has replaced a setting's 0 or empty by something real."""
    chosen = {
        "nodes": [node.host for node in plan.nodes],
        "master_port": plan.master_port,
        "master_addr": plan.master_addr,
        "python": plan.python,
        "run_dir": plan.run_dir,
    }
    return chosen[name] if name in chosen else getattr(plan.settings, name)

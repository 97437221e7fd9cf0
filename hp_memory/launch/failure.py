"""What went wrong, from an exit code and the end of a log: kinds of failure as a table of what each one prints."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hp_memory.layout import REGIONS

TIME_OUT = "communication time-out"
NOT_FINITE = "not finite"
KILLED = "killed (by someone, or by the kernel for lack of host memory: see dmesg)"
ENDED = "ended from outside"
TAIL_LINES = 20
_READ = 65536  # Bytes from the end of a log that are looked at.

# Kind -> what a log then contains. The first kind that matches wins: causes stand before their consequences.
SIGNS: tuple[tuple[str, str], ...] = (
    ("disk full", r"No space left on device|Errno 28|Disk quota exceeded"),
    (
        "out of memory",
        r"[Oo]ut of [Mm]emory|MemoryError|[Mm]emory not enough|[Mm]emory isn't enough|Allocate memory failed"
        r"|Malloc .*failed|EL0004|bad_alloc|Cannot allocate memory",
    ),
    ("config", r"ConfigError|^hp-memory: .*=|unrecognized arguments"),
    (NOT_FINITE, r"NotFinite:"),
    ("missing package", r"ModuleNotFoundError|ImportError|No module named"),
    ("port taken", r"[Aa]ddress already in use|bind .*failed|Failed to bind"),
    ("cluster not built", r"not successfully spawned|[Ff]ailed to register|Topology build timed out|cluster topology"),
    (
        TIME_OUT,
        r"Launch kernel failed, name:.*(AllReduce|AllGather|ReduceScatter|AlltoAll|Send|Recv|Broadcast|Barrier)"
        r"|(AllReduce|AllGather|ReduceScatter|AlltoAll\w*|Send|Recv|Broadcast|Barrier) failed"
        r"|Launch kernel failed, name:.*DistComm|Timed out node list|Time out nodes|EI0002|EI0006|HCCL.*timeout"
        r"|[Cc]ollective.*timed? ?out|Receive .*timed? out|connect.*timed? ?out",
    ),
)
# Lines of MindSpore that explain nothing to whoever doesn't work on MindSpore.
_CHATTER = ("[INFO]", "[WARNING]", "[DEBUG]", "-----", "- C++ Call Stack", "mindspore/ccsrc")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CONSEQUENCES = (TIME_OUT, "cluster not built")


@dataclass
class Failure:
    """One rank's or one node's end."""

    kind: str
    node: int
    rank: int | None = None
    code: int | None = None
    log: str = ""
    tail: tuple[str, ...] = ()
    where: str = ""
    """Phase and region of the rank's last word, where it said so."""
    missing: tuple[int, ...] = ()
    """Ranks the others waited for in vain."""

    @property
    def is_consequence(self) -> bool:
        """Whether another rank's failure probably caused it."""
        return self.kind in CONSEQUENCES

    def in_words(self) -> str:
        """One line: who, what, where."""
        who = f"rank {self.rank} (node {self.node})" if self.rank is not None else f"node {self.node}"
        code = f", {code_in_words(self.code)}" if self.code is not None else ""
        missing = f"; missing ranks: {', '.join(map(str, self.missing))}" if self.missing else ""
        return f"{who} failed: {self.kind}{self.where and f' in {self.where}'}{code}{missing}"

    def to_dict(self) -> dict:
        """Plain data for the wire and the report."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> Failure:
        """The inverse of ``to_dict``, after JSON has made lists of the tuples."""
        return cls(**data | {"tail": tuple(data["tail"]), "missing": tuple(data["missing"])})


def code_in_words(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


def evidence(text: str, code: int | None) -> str:
    """The lines of a log that may say why a process ended: a warning at its start or a line of source may not.

    With a traceback its last exception's lines; without, for one that was ended by a signal, what was logged as an
    error; else the last lines but for warnings.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if starts:
        return "\n".join(line for line in lines[starts[-1] + 1 :] if not line.startswith(" "))
    if code is not None and code < 0:
        return "\n".join(line for line in lines if re.search(r"ERROR|CRITICAL|terminate called|what\(\):", line))
    return "\n".join(line for line in lines[-TAIL_LINES:] if "WARN" not in line)


def kind_of(text: str, code: int | None) -> str:
    """The kind of a failure from the end of a log and the exit code."""
    said = evidence(text, code)
    for kind, pattern in SIGNS:
        if re.search(pattern, said, re.MULTILINE):
            return kind
    if code == -signal.SIGKILL:
        return KILLED
    if code == -signal.SIGTERM:
        return ENDED
    if code == 2:
        return "config"
    return "crash"


def region_of(text: str) -> str:
    """The region a traceback passes through, innermost first, with ``replay of`` before it in a replay; else empty.

    The reference model has a method per region, named like it: ``gmm_up`` in ``moe.py`` is ``gmm.up``.
    """
    frames = re.findall(r'File "[^"]*?(\w+)\.py", line \d+, in (\w+)', text)
    replayed = any(name.startswith(("replay", "_replay", "recompute")) for _, name in frames)
    for file, name in reversed(frames):
        named = {name.replace("_", ".", 1), f"{file}.{name}"}
        inside = {f"{part}.{name}" for part in ("dispatch", "compute", "combine")} if file == "moe" else set()
        if found := next((region for region in REGIONS if region in named | inside), None):
            return f"replay of {found}" if replayed else found
    return ""


def missing_ranks(text: str) -> tuple[int, ...]:
    """The ranks the scheduler lists as lost.

    It says ``The node: 3 is timed out``, ``Timed out node list is: {3}`` or ``Time out nodes are: ['3']``.
    """
    found = {int(number) for number in re.findall(r"The node: (\d+) is timed out", text)}
    for match in re.finditer(r"Time(?:d)? out node(?: list is|s are)\D{0,4}([^\n}\]]*)", text):
        found.update(int(number) for number in re.findall(r"\d+", match.group(1)))
    return tuple(sorted(found))


def add_missing(found: Failure, scheduler_log: str) -> Failure:
    """Adds the ranks the scheduler has lost; the others get SIGTERM from MindSpore then, not from outside."""
    found.missing = missing_ranks(scheduler_log)
    if found.kind == ENDED and found.missing:
        found.kind = TIME_OUT
    return found


def end_of(log: str | Path) -> str:
    """The last part of a log; empty where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def tail(text: str, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The lines a person needs: from the last traceback on, else simply the last ones."""
    # A log may hold escape sequences that would rewrite the reader's screen.
    plain = (_CONTROL.sub("", line).rstrip() for line in text.splitlines())
    found = [line for line in plain if line and not line.startswith(_CHATTER)]
    starts = [i for i, line in enumerate(found) if line.startswith("Traceback (most recent call last)")]
    return tuple(found[starts[-1] if starts else 0 :][-lines:])


def first_cause(failures: Iterable[Failure]) -> Failure:
    """The failure to name: the earliest that isn't another one's consequence, else the earliest.

    Beside a time-out a SIGKILL is msrun's, which ends the others for its sake: one killed from outside is seen at once,
    long before anybody's time-out.
    """
    ordered = list(failures)
    if any(failure.kind == TIME_OUT for failure in ordered):
        ordered = [failure for failure in ordered if failure.kind != KILLED]
    return next((failure for failure in ordered if not failure.is_consequence), ordered[0])

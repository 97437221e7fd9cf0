"""How a job is started: on how many nodes, by what, and what happens when it fails."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass

from hp_memory.errors import ConfigError
from hp_memory.launch.hccl import OWN_ADDRESS, HcclSettings
from hp_memory.runs import variables

# What defines a MindSpore job. Inherited from an outer one, msrun's workers would join that job or its port.
JOB_VARIABLES = (
    "MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM", "MS_NODE_ID", "MS_TOPO_TIMEOUT",
    "MS_SIMULATION_LEVEL", "RANK_ID", "RANK_SIZE", "RANK_TABLE_FILE",
)  # fmt: skip
LAUNCHERS = ("process", "msrun")
# What a shell accepts as a variable's name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
ACTIONS = ("run", "scripts", "slurm", "volcano")
DEVICES = ("auto", "CPU", "Ascend")
# No prompt may ever wait for a person; a dead peer is noticed by the heartbeat, which also covers other transports.
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", "{host}"]


@dataclass
class SlurmSettings:
    """Lines of the Slurm batch file. ``options`` are written as they are, one ``#SBATCH`` line each."""

    partition: str | None = None
    account: str | None = None
    time: str = "24:00:00"
    setup: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)


@dataclass
class VolcanoSettings:
    """The Kubernetes job. ``device_resource`` is what one node asks for, once per worker; empty asks for none."""

    image: str = ""
    namespace: str = "default"
    queue: str = "default"
    device_resource: str = "huawei.com/Ascend910"
    memory: str | None = None
    run_claim: str = ""


@dataclass
class LaunchSettings:
    """Where the workers run.

    Args:
        launcher: ``process`` starts one process without msrun, ``msrun`` starts msrun on every node.
        action: ``run`` the job, or write ``scripts`` (one per node), a ``slurm`` batch file, a ``volcano`` template.
        dry_run: print every command and its environment and start nothing.
        workers_per_node: worker processes on each node; 0 takes the slots of the hostfile.
        nodes: nodes as ``host`` or ``host slots=8``; empty with no ``hostfile``: this machine.
        hostfile: file with one such node a line.
        num_nodes: how many nodes the job has where each is started by hand (``node_rank``) or by Slurm or Volcano; of
            listed nodes, how many are used, the others being spare. 0: all that are listed, or one.
        node_rank: this machine's place among ``num_nodes``; -1 where this launcher starts all nodes.
        master_addr: address of node 0 as the others see it; empty: the first node.
        master_port: port of msrun's scheduler; 0 chooses a free one.
        connect: command that reaches another node, ``{host}`` replaced.
        connect_shell: the connection hands its command to a shell at the other end (ssh does).
        python: interpreter on every node; empty: this one.
        device: what workers run on; ``auto`` asks each node.
        devices: value of ASCEND_RT_VISIBLE_DEVICES on every node; empty leaves it.
        cluster_time_out: seconds msrun waits for all workers to appear.
        heartbeat: seconds between keep-alive messages; a peer silent for ``lost_after`` seconds is considered lost.
        stall_after: seconds without a step before a rank is reported; 0 never.
        stall_ends: end the job when a rank stalls instead of only saying so.
        max_restarts: how often a failed job starts again from its last complete checkpoint.
        restart_delay: seconds between a failure and the next start; time for a node to come back or be taken out.
        threads: OMP_NUM_THREADS of each worker; 0 leaves it.
        log_level: GLOG_v of each worker (3 is errors only).
        min_disk_gib, min_host_memory_gib: what each node must have free.
        max_clock_skew: seconds the nodes' clocks may differ.
        estimate: ``report.json`` of a dry run, shown beside each rank's measured peaks at the end.
        env: further variables for every worker.
        task: another program instead of the trainer, e.g. ``[run_mindformer.py, --config, exported.yaml]``.
    """

    launcher: str = "msrun"
    action: str = "run"
    dry_run: bool = False
    workers_per_node: int = 2
    nodes: list[str] = field(default_factory=list)
    hostfile: str | None = None
    num_nodes: int = 0
    node_rank: int = -1
    master_addr: str = ""
    master_port: int = 0
    connect: list[str] = field(default_factory=lambda: list(SSH))
    connect_shell: bool = True
    python: str = ""
    device: str = "auto"
    devices: str = ""
    cluster_time_out: int = 60
    heartbeat: float = 2.0
    lost_after: float = 20.0
    stall_after: float = 300.0
    stall_ends: bool = False
    max_restarts: int = 0
    restart_delay: float = 5.0
    threads: int = 1
    log_level: int = 3
    min_disk_gib: float = 1.0
    min_host_memory_gib: float = 1.0
    max_clock_skew: float = 30.0
    estimate: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    task: list[str] = field(default_factory=list)
    hccl: HcclSettings = field(default_factory=HcclSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    volcano: VolcanoSettings = field(default_factory=VolcanoSettings)

    def validate(self, path: str = "launch") -> None:
        """Checks every value by itself and with its neighbours; looks at no file and no machine.

        Raises:
            ConfigError: naming the setting.
        """
        _choices(self, path)
        _numbers(self, path)
        _places(self, path)
        _rendered(self, path)
        if "{host}" not in " ".join(self.connect):
            raise ConfigError(f"{path}.connect", self.connect, "must contain {host}")
        for name, value in (self.env | self.hccl.extra).items():
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{path}.env", name, "a variable's name is of letters, digits and _, no digit first")
            refuse_control(f"{path}.env.{name}", value)
        for key, value in _texts(self, path):
            refuse_control(key, value)
        for name, value in self.env.items():
            if name in (*JOB_VARIABLES, variables.RUN_ID, variables.NODE, variables.RUN_DIR, variables.RESUME):
                raise ConfigError(f"{path}.env.{name}", value, "is set by the launcher and msrun for each worker")
        self.hccl.validate(f"{path}.hccl")


def refuse_control(key: str, value: str) -> None:
    """Raises ConfigError for a control character: it may reach a script or a terminal."""
    found = next((character for character in value if unicodedata.category(character) in ("Cc", "Zl", "Zp")), None)
    if found is not None:
        raise ConfigError(key, value, f"has the control character {found!r}")


def _texts(settings: object, path: str) -> Iterator[tuple[str, str]]:
    """Every text of the settings with its key, those in lists and in groups as well."""
    for field_ in fields(settings):  # type: ignore[arg-type]
        key, value = f"{path}.{field_.name}", getattr(settings, field_.name)
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, list):
            yield from ((f"{key}[{i}]", item) for i, item in enumerate(value) if isinstance(item, str))
        elif is_dataclass(value):
            yield from _texts(value, key)


def _choices(settings: LaunchSettings, path: str) -> None:
    for name, accepted in (("launcher", LAUNCHERS), ("action", ACTIONS), ("device", DEVICES)):
        value = getattr(settings, name)
        if value not in accepted:
            raise ConfigError(f"{path}.{name}", value, "unknown", accepted)
    if settings.action in ("slurm", "volcano") and settings.launcher != "msrun":
        raise ConfigError(f"{path}.launcher", settings.launcher, f"{settings.action} jobs start msrun", ("msrun",))
    if settings.action in ("slurm", "volcano") and settings.hccl.if_ip == OWN_ADDRESS:
        why = "the nodes' addresses aren't known yet; name the interface (socket_ifname)"
        raise ConfigError(f"{path}.hccl.if_ip", settings.hccl.if_ip, why)
    if settings.action == "volcano" and not settings.volcano.image:
        raise ConfigError(f"{path}.volcano.image", "", "a Volcano job needs a container image")


def _numbers(settings: LaunchSettings, path: str) -> None:
    least = {
        "workers_per_node": 0, "num_nodes": 0, "node_rank": -1, "cluster_time_out": 1, "heartbeat": 0.1,
        "stall_after": 0, "max_restarts": 0, "restart_delay": 0, "threads": 0, "log_level": 0, "min_disk_gib": 0,
        "min_host_memory_gib": 0, "max_clock_skew": 0,
    }  # fmt: skip
    for name, low in least.items():
        if getattr(settings, name) < low:
            raise ConfigError(f"{path}.{name}", getattr(settings, name), f"must be at least {low}")
    if settings.master_port != 0 and not 1024 <= settings.master_port <= 65535:
        raise ConfigError(f"{path}.master_port", settings.master_port, "must be 0 or between 1024 and 65535")
    if settings.lost_after < 3 * settings.heartbeat:
        raise ConfigError(f"{path}.lost_after", settings.lost_after, "must be at least three heartbeats")


def _rendered(settings: LaunchSettings, path: str) -> None:
    """What acts only while this launcher runs the job, or only where it chooses the nodes."""
    if settings.action == "run":
        return
    scheduled = settings.action in ("slurm", "volcano")
    if settings.stall_ends:
        raise ConfigError(f"{path}.stall_ends", True, f"no launcher watches what action={settings.action} writes")
    if settings.action == "slurm" and settings.max_restarts:
        why = "is Slurm's work: give `--requeue` in slurm.options; a job goes on from its last complete checkpoint"
        raise ConfigError(f"{path}.max_restarts", settings.max_restarts, why)
    for name in ("nodes", "hostfile"):
        if scheduled and getattr(settings, name):
            why = f"{settings.action} chooses the nodes; give their number (num_nodes)"
            raise ConfigError(f"{path}.{name}", getattr(settings, name), why)


def _places(settings: LaunchSettings, path: str) -> None:
    listed = bool(settings.nodes or settings.hostfile)
    if settings.nodes and settings.hostfile:
        raise ConfigError(f"{path}.hostfile", settings.hostfile, "nodes are listed already; give one of the two")
    by_hand = settings.node_rank >= 0
    if listed and by_hand:
        raise ConfigError(f"{path}.node_rank", settings.node_rank, "nodes are listed, so this launcher starts them all")
    if by_hand and settings.node_rank >= max(settings.num_nodes, 1):
        raise ConfigError(f"{path}.node_rank", settings.node_rank, f"num_nodes is {settings.num_nodes}")
    if by_hand and settings.num_nodes > 1 and not (settings.master_addr and settings.master_port):
        raise ConfigError(f"{path}.master_addr", settings.master_addr, "needed with node_rank, and master_port too")
    if by_hand and settings.max_restarts:
        raise ConfigError(f"{path}.max_restarts", settings.max_restarts, "needs one launcher that sees all nodes")
    if settings.action in ("run", "scripts") and settings.num_nodes > 1 and not (listed or by_hand):
        raise ConfigError(f"{path}.num_nodes", settings.num_nodes, "say which: nodes, hostfile, or node_rank on each")
    if settings.launcher == "process" and (listed or settings.num_nodes > 1 or settings.workers_per_node > 1):
        raise ConfigError(f"{path}.launcher", "process", "starts one process; use msrun for more")

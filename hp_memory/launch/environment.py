"""The environment of a node's workers, and the variables of another job that must not leak into it."""

from __future__ import annotations

from collections.abc import Mapping

from hp_memory.errors import ConfigError
from hp_memory.launch import hccl
from hp_memory.launch.settings import JOB_VARIABLES, LaunchSettings
from hp_memory.runs.variables import DEVICE, NODE, RESUME, RUN_DIR, RUN_ID


def inherited_job(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``env`` that belong to another job."""
    found = {name: env[name] for name in JOB_VARIABLES if name in env}
    # A launcher that a scheduler starts once per task would start the whole job once per task.
    # What an earlier run left in this shell would make this one go on from that one's checkpoint.
    if env.get(RESUME) and RUN_ID not in env:
        found[RESUME] = env[RESUME]
    if env.get("SLURM_LOCALID", "0") != "0" and RUN_ID not in env:
        found["SLURM_LOCALID"] = env["SLURM_LOCALID"]
    return found


def refuse_inherited(found: Mapping[str, str], where: str = "environment") -> None:
    """Raises ConfigError with advice for the first variable of another job."""
    for name, value in found.items():
        raise ConfigError(f"{where}.{name}", value, advice(name))


def advice(name: str) -> str:
    """What to do about one of ``inherited_job``'s variables."""
    if name == RESUME:
        return f"left by another run; run `unset {RESUME}`, and say train.resume_from to go on from a checkpoint"
    if name == "RANK_TABLE_FILE":
        return "a rank table and msrun's dynamic cluster exclude each other; run `unset RANK_TABLE_FILE`"
    if name == "SLURM_LOCALID":
        return "this launcher was started once per task; start it once (per node at most): srun --ntasks-per-node=1"
    return f"inherited from another MindSpore job; start from a clean shell or run `unset {' '.join(JOB_VARIABLES)}`"


def node_variables(
    settings: LaunchSettings,
    inherited: Mapping[str, str],
    *,
    run_id: str,
    run_dir: str,
    node: int,
    address: str,
    logs: str,
    resume: str,
) -> dict[str, str]:
    """What a node sets on top of its own environment, sorted by name; the settings' own ``env`` wins.

    Args:
        resume: the checkpoint to go on from; empty for none, so that no node's own shell decides.
    """
    ours = {
        RUN_ID: run_id,
        NODE: str(node),
        RUN_DIR: run_dir,
        DEVICE: settings.device,
        RESUME: resume,
        "PYTHONUNBUFFERED": "1",
        "GLOG_v": str(settings.log_level),
        "ASCEND_PROCESS_LOG_PATH": f"{logs}/ascend",
    }
    if settings.threads:
        # Idle OpenMP threads that spin take the cores from the other workers of the node.
        ours |= {"OMP_NUM_THREADS": str(settings.threads), "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    if not settings.task:
        # Our own workers import nothing from the working directory; another program may have its modules there.
        ours["PYTHONSAFEPATH"] = "1"
    if settings.devices:
        ours["ASCEND_RT_VISIBLE_DEVICES"] = settings.devices
    if settings.launcher == "process":
        ours |= {"RANK_ID": "0", "RANK_SIZE": "1", "DEVICE_ID": "0"}
    return dict(sorted((ours | hccl.variables(settings.hccl, inherited, address) | settings.env).items()))

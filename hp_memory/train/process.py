"""A rank's process: device, communicators, and an end that never leaves the other ranks waiting."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init

from hp_memory.kernels import devices
from hp_memory.kernels.ascend import machine
from hp_memory.kernels.groups import ALONE, Group, blocks, strides
from hp_memory.models.settings import ParallelSettings
from hp_memory.runs.parent import die_with_parent
from hp_memory.runs.variables import DEVICE, RUN_ID

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Groups:
    """The groups one rank belongs to.

    Attributes:
        world: all ranks.
        experts: the ranks that share one set of experts.
        expert_copies: the ranks that hold the same experts as this one.
    """

    world: Group = ALONE
    experts: Group = ALONE
    expert_copies: Group = ALONE


def device() -> str:
    """What this process computes on, as the launch says; where it leaves that open, Ascend if the machine has any.

    The one place of choice: kernels and collectives follow the device that is set.
    """
    asked = os.environ.get(DEVICE, "auto")
    if asked != "auto":
        return asked
    return "Ascend" if machine.visible(machine.devices(), os.environ) else "CPU"


def set_device() -> str:
    """Sets this process's device and returns it."""
    chosen = device()
    ms.set_device(chosen)
    if chosen == "CPU":
        use_one_thread()
    return chosen


def start(parallel: ParallelSettings) -> Groups:
    """Sets the device and joins the job that msrun started, if there is one. In msrun's scheduler it never returns.

    Raises:
        RuntimeError: if the job has another number of ranks than ``parallel`` asks for.
    """
    chosen = set_device()
    if "MS_ROLE" not in os.environ:
        _check_size(1, parallel)
        return Groups()
    init("mccl" if chosen == "CPU" else "hccl")
    if chosen == "CPU":
        know_own_rank()
    return make_groups(parallel)


def use_one_thread() -> None:
    """Runs every operation in the calling thread.

    MindSpore's dispatch and kernel threads spin while they wait. On few cores they take them from each other and from
    the other ranks: a step takes three times as long.
    """
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    with contextlib.suppress(RuntimeError):  # it can be set once per process only
        ms.device_context.cpu.op_tuning.threads_num(1)


def make_groups(parallel: ParallelSettings) -> Groups:
    """The groups of this rank; every rank must call it, in the same order as other group creations."""
    world_size, rank = get_group_size(), get_rank()
    _check_size(world_size, parallel)
    world = Group(tuple(range(world_size)), rank, GlobalComm.WORLD_COMM_GROUP)
    experts = _own_group(blocks(world_size, parallel.expert), "experts", world)
    copies = _own_group(strides(world_size, parallel.expert), "expert_copies", world)
    return Groups(world, experts, copies)


def _check_size(world_size: int, parallel: ParallelSettings) -> None:
    if world_size != parallel.world_size:
        raise RuntimeError(f"{world_size} ranks were started, the config needs {parallel.world_size}")


def _own_group(partition: list[tuple[int, ...]], name: str, world: Group) -> Group:
    mine = next(ranks for ranks in partition if world.index in ranks)
    index = mine.index(world.index)
    if len(mine) == 1:
        return Group(mine, index)
    if len(mine) == world.size:
        return Group(mine, index, world.name)
    full_name = f"{name}_{mine[0]}"
    create_group(full_name, list(mine))
    return Group(mine, index, full_name)


def know_own_rank() -> None:
    """mint.distributed looks up its own rank under the world group's name on Ascend, which a CPU job doesn't have."""
    from mindspore.mint.distributed import distributed

    distributed._GROUP_RANK_CACHE["hccl_world_group"] = get_rank()


def gather_bytes(own: bytes, world: Group) -> list[bytes]:
    """Every rank's bytes, of equal length everywhere; no rank returns before all have called."""
    sent = Tensor(np.frombuffer(own, np.uint8).astype(np.int32))
    return [part.asnumpy().astype(np.uint8).tobytes() for part in devices.collectives().gather_list(sent, world)]


def require_agreement(digest: str, what: str, world: Group) -> None:
    """Raises RuntimeError on every rank unless all have the same hexadecimal digest.

    Ranks with different plans would replay different collectives and wait for each other forever.
    """
    everyone = gather_bytes(bytes.fromhex(digest.ljust(16, "0")[:16]), world)
    if len(set(everyone)) > 1:
        odd = [rank for rank, value in enumerate(everyone) if value != everyone[0]]
        raise RuntimeError(f"ranks {odd} have another {what} than rank 0")


def run_worker(main: Callable[[Path], None]) -> None:
    """The entry of a rank's script: ``--run-dir DIR`` on the command line, then ``main(DIR)``.

    Whatever goes wrong is logged and ends the process at once with exit code 1: the other ranks wait in a collective,
    and MindSpore's own shutdown would wait for them.
    """
    if RUN_ID in os.environ:
        # msrun's workers outlive it otherwise, and it dies with the launcher's program on this node.
        die_with_parent()
        if os.getppid() == 1:  # it has ended while this process was starting
            os._exit(1)
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="the directory the launcher prepared")
    run_dir = parser.parse_args().run_dir
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        main(run_dir)
    except BaseException:
        log.error("this rank ends here:\n%s", traceback.format_exc())
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

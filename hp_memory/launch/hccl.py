"""HCCL's environment variables as settings: which there are, what each accepts, and what is passed on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hp_memory.errors import ConfigError

# Setting -> variable. Ranges are those of the CANN 8 documentation (seconds, seconds, MB).
VARIABLES = {
    "connect_timeout": "HCCL_CONNECT_TIMEOUT",
    "exec_timeout": "HCCL_EXEC_TIMEOUT",
    "buffsize": "HCCL_BUFFSIZE",
    "if_ip": "HCCL_IF_IP",
    "socket_ifname": "HCCL_SOCKET_IFNAME",
    "deterministic": "HCCL_DETERMINISTIC",
}
RANGES = {"connect_timeout": (120, 7200), "exec_timeout": (0, 17340), "buffsize": (1, 65536)}
DETERMINISTIC = ("false", "true", "strict")
# The value of `if_ip` that stands for "each node's own address": one fixed address can't be right on two nodes.
OWN_ADDRESS = "node"


@dataclass
class HcclSettings:
    """Collective communication on Ascend. ``None`` leaves a variable as the launching shell has it.

    Args:
        connect_timeout: seconds to wait for sockets between devices.
        exec_timeout: seconds a device waits for the others inside a collective.
        buffsize: MB of communication buffer of each communicator, part of device memory.
        if_ip: address HCCL uses on the host, or ``node`` for each node's own.
        socket_ifname: network interface, as HCCL spells it (``eth0``, ``=eth0``, ``^docker``).
        deterministic: ``false``, ``true`` or ``strict`` order in reductions.
        extra: any other variable, by its full name.
    """

    connect_timeout: int | None = None
    exec_timeout: int | None = None
    buffsize: int | None = None
    if_ip: str | None = None
    socket_ifname: str | None = None
    deterministic: str | None = None
    extra: dict[str, str] = field(default_factory=dict)

    def validate(self, path: str) -> None:
        """Raises ConfigError for a value HCCL would refuse or quietly change."""
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{path}.{name}", value, f"must be between {low} and {high}")
        if self.deterministic is not None and self.deterministic not in DETERMINISTIC:
            raise ConfigError(f"{path}.deterministic", self.deterministic, "unknown", DETERMINISTIC)
        for name in self.extra:
            if name in VARIABLES.values():
                raise ConfigError(f"{path}.extra", name, "has a setting of its own", VARIABLES)


def variables(settings: HcclSettings, env: Mapping[str, str], address: str) -> dict[str, str]:
    """The HCCL variables of one node, most specific last: the launching shell's, then the settings'."""
    # Another name than these can't be HCCL's, and would be no name in a shell script.
    found = {name: value for name, value in env.items() if re.fullmatch(r"HCCL_[A-Z0-9_]+", name)}
    for name, variable in VARIABLES.items():
        value = getattr(settings, name)
        if value is not None:
            found[variable] = address if name == "if_ip" and value == OWN_ADDRESS else str(value)
    return found | settings.extra

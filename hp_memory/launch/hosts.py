"""Nodes of a job: hostfile lines, and which of them is this machine."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from functools import lru_cache

import psutil

from hp_memory.errors import ConfigError
from hp_memory.launch.settings import LaunchSettings
from hp_memory.runs.files import read_text

# Names and addresses of version 4; never an option of the command that connects.
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?!\.))*", re.ASCII)
LONGEST_HOST, LONGEST_FILE = 253, 2**24


@dataclass(frozen=True)
class Host:
    """One node as listed: its name or address, and how many workers it may hold (0: unspecified)."""

    name: str
    slots: int = 0


def parse_host(line: str, path: str) -> Host:
    """``host``, ``host slots=8``, or ``host:8``, which needs no quotes on a command line."""
    name, *rest = line.replace(":", " slots=", 1).split() or [""]
    if not _HOST.fullmatch(name) or len(name) > LONGEST_HOST:
        raise ConfigError(path, line, "a host's name is of letters, digits, points, _ and -, and begins with no -")
    if len(rest) > 1 or (rest and not rest[0].startswith("slots=")):
        raise ConfigError(path, line, "a node is written `host`, `host slots=8` or `host:8`")
    slots = rest[0].removeprefix("slots=") if rest else "0"
    if not re.fullmatch("[0-9]{1,6}", slots) or (rest and int(slots) == 0):
        raise ConfigError(path, line, "slots must be a whole number above 0")
    return Host(name, int(slots))


def read_hostfile(file: str, path: str) -> list[Host]:
    """The nodes of a hostfile, in order; ``#`` starts a comment."""
    try:
        lines = read_text(file, LONGEST_FILE).splitlines()
    except OSError as error:
        raise ConfigError(path, file, f"can't read it: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(path, file, "can't read it: it isn't text in UTF-8") from error
    texts = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    hosts = [parse_host(text, f"{path}:{number}") for number, text in texts if text]
    if not hosts:
        raise ConfigError(path, file, "lists no node")
    return hosts


def listed_hosts(settings: LaunchSettings, path: str = "launch") -> list[Host]:
    """The nodes this launcher starts, the first ``num_nodes`` of the list; empty where none is listed.

    Raises:
        ConfigError: a node twice, or fewer nodes than wanted.
    """
    key = f"{path}.hostfile" if settings.hostfile else f"{path}.nodes"
    if settings.hostfile:
        hosts = read_hostfile(settings.hostfile, key)
    else:
        hosts = [parse_host(line, f"{key}[{i}]") for i, line in enumerate(settings.nodes)]
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(key, twice, "is listed twice")
    if hosts and len(hosts) < settings.num_nodes:
        raise ConfigError(f"{path}.num_nodes", settings.num_nodes, f"only {len(hosts)} nodes are listed")
    return hosts[: settings.num_nodes or len(hosts)]


def workers_on_each(hosts: list[Host], settings: LaunchSettings, path: str = "launch") -> int:
    """Workers of every node: msrun numbers ranks as node x workers + i, so all nodes have the same number.

    Raises:
        ConfigError: slots that differ or don't suffice.
    """
    wanted = settings.workers_per_node
    slots = {host.slots for host in hosts if host.slots}
    if wanted == 0:
        if not hosts:
            raise ConfigError(f"{path}.hostfile", settings.hostfile, "no nodes: give a hostfile, or list them in nodes")
        if len(slots) != 1 or any(host.slots == 0 for host in hosts):
            why = "takes the slots of the nodes, which must all be given and equal"
            raise ConfigError(f"{path}.workers_per_node", wanted, why)
        return slots.pop()
    if slots and min(slots) < wanted:
        least = min((host for host in hosts if host.slots), key=lambda host: host.slots)
        raise ConfigError(f"{path}.workers_per_node", wanted, f"{least.name} has only {least.slots} slots")
    return wanted


@lru_cache
def own_addresses() -> frozenset[str]:
    """Every IPv4 address of this machine's interfaces."""
    entries = [entry for card in psutil.net_if_addrs().values() for entry in card]
    return frozenset(entry.address for entry in entries if entry.family == socket.AF_INET)


def address_of(name: str) -> str | None:
    """The IPv4 address of a host, or None where it doesn't resolve. msrun has no IPv6."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None


def is_this_machine(name: str) -> bool:
    """Whether a host is the machine we are on; all of 127.0.0.0/8 is."""
    address = address_of(name)
    return address is not None and (address.startswith("127.") or address in own_addresses())

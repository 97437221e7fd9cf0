"""Several hosts on one machine: network namespaces on a bridge, each with an address of its own and an ssh server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

NETWORK = "10.77.41"
GATEWAY = f"{NETWORK}.254"
PORT = 2222
BRIDGE = "hpbr"
HOSTS = 3


def require(*programs: str) -> None:
    """Skips, naming what is missing."""
    missing = [
        program for program in programs if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")


@pytest.fixture(scope="session")
def needs() -> Callable[..., None]:
    """Skips a test unless these programs are here."""
    return require


def run(*words: str, check: bool = True) -> str:
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


@dataclass
class Cluster:
    """Two hosts, a spare one, and how to reach them."""

    addresses: list[str]
    namespaces: list[str]
    spare: str
    gateway: str
    """This machine's own address on their network."""
    ssh: list[str]

    @property
    def without_network(self) -> list[str]:
        """A connection that doesn't use the network: what happens on it can be watched while the network is cut."""
        return ["ip", "netns", "exec", "{host}"]

    def cut(self, node: int) -> None:
        """Pulls a host's plug."""
        run("ip", "link", "set", f"{BRIDGE}{node}", "down")

    def mend(self, node: int) -> None:
        run("ip", "link", "set", f"{BRIDGE}{node}", "up")


def add_host(number: int) -> tuple[str, str]:
    """A namespace with an address on the bridge."""
    # Named like its address, so that `ip netns exec {host}` reaches it.
    name = address = f"{NETWORK}.{number + 1}"
    link = f"{BRIDGE}{number}"
    run("ip", "netns", "add", name)
    run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
    run("ip", "link", "set", link, "master", BRIDGE, "up")
    run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    run("ip", "-n", name, "link", "set", "eth0", "up")
    run("ip", "-n", name, "link", "set", "lo", "up")
    return name, address


def start_sshd(folder: Path, namespace: str, address: str) -> subprocess.Popen:
    config = folder / f"sshd_{address}"
    config.write_text(
        f"ListenAddress {address}\nPort {PORT}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\n"
        f"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile {folder}/{address}.pid\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["ip", "netns", "exec", namespace, "/usr/sbin/sshd", "-D", "-f", str(config)])
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection((address, PORT), timeout=1):
            return server
        time.sleep(0.1)
    raise TimeoutError(f"no ssh server at {address}")


def clean_up(hosts: int) -> None:
    for number in range(hosts):
        run("ip", "netns", "del", f"{NETWORK}.{number + 1}", check=False)
        run("ip", "link", "del", f"{BRIDGE}{number}", check=False)
    run("ip", "link", "del", BRIDGE, check=False)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts; gone again at the end."""
    require("ip", "ssh", "sshd", "ssh-keygen")
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("key", "host_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    clean_up(HOSTS)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    servers = []
    try:
        hosts = [add_host(number) for number in range(HOSTS)]
        servers = [start_sshd(folder, name, address) for name, address in hosts]
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ConnectTimeout=5",
            "LogLevel=ERROR",
        ]
        ssh = [
            "ssh",
            "-F",
            "none",
            "-i",
            str(folder / "key"),
            "-p",
            str(PORT),
            *(f"-o{option}" for option in options),
            "root@{host}",
        ]
        names, addresses = zip(*hosts, strict=True)
        yield Cluster(list(addresses[:2]), list(names[:2]), addresses[2], GATEWAY, ssh)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        clean_up(HOSTS)

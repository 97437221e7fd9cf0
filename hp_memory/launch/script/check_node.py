"""``python -m hp_memory.launch.script.check_node RANK MASTER_ADDR MASTER_PORT``: one node checks itself.

Nodes that are started one by one can't be asked all at once. So the first one, or the writer of their scripts, leaves
in the run directory what each is to find there. Scripts call this before msrun, with the run's variables set.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hp_memory.errors import ConfigError
from hp_memory.launch import checks as rules
from hp_memory.launch.checks import Answer, Check
from hp_memory.launch.node import processes
from hp_memory.launch.node.probe import probe
from hp_memory.launch.plan import LaunchPlan
from hp_memory.launch.secrets import hidden_below
from hp_memory.runs import variables
from hp_memory.runs.files import write_whole

FILE = "launch/expected.json"


def write_expectation(plan: LaunchPlan) -> Path:
    """Leaves in the run directory what every node is to find: the plan, what this machine has, and a token."""
    token = rules.write_token(plan)
    order = rules.question(plan, plan.nodes[0]) | {"port": None}
    data = {"plan": hidden_below(plan.to_dict()), "token": token, "writer": socket.gethostname(), "facts": probe(order)}
    file = Path(plan.run_dir) / FILE
    write_whole(file, json.dumps(data, indent=1), 0o600)
    return file


def read_expectation(run_dir: Path) -> dict:
    """What ``write_expectation`` left there.

    Raises:
        ConfigError: where it can't be read.
    """
    try:
        return json.loads((run_dir / FILE).read_text())
    except (OSError, ValueError) as error:
        why = f"can't read {FILE} there; the run directory must be on a file system all nodes share"
        raise ConfigError("run_dir", str(run_dir), why) from error


def check(expected: dict, rank: int, master_addr: str, master_port: int) -> tuple[LaunchPlan, list[Check]]:
    """This node's plan, and the preflight table's lines that one node can answer.

    Args:
        expected: what ``write_expectation`` wrote.
        rank: the node's, as its script has it; likewise the address and port of the scheduler.
    """
    written = LaunchPlan.from_dict(expected["plan"])
    node = replace(written.nodes[0], rank=rank, host=socket.gethostname())
    plan = replace(written, nodes=(node,), master_addr=master_addr, master_port=master_port)
    # The script has set the node's variables already; they may have been edited since.
    facts = probe(rules.question(plan, node) | {"env": {}, "token_file": rules.token_file(written)})
    facts["inherited"] = {name: value for name, value in facts["inherited"].items() if name not in node.env}
    facts["leftovers"] = [found for found in facts["leftovers"] if found["pid"] not in processes.ancestors()]
    own = Answer(rank, node.host, facts, time.time(), time.time())
    return plan, [*_as_written(own, expected), *rules.inspect(plan, [own], expected["token"])]


def compare_with_node_0(plan: LaunchPlan) -> list[Check]:
    """The lines of a further node whose launcher was started by hand, against what node 0's leaves when it starts."""
    deadline = time.monotonic() + rules.ANSWER
    while not (Path(plan.run_dir) / FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    node = plan.nodes[0]
    own = Answer(node.rank, socket.gethostname(), probe(rules.question(plan, node)), 0.0, 0.0)
    return _as_written(own, read_expectation(Path(plan.run_dir)))


def _as_written(own: Answer, expected: dict) -> list[Check]:
    """What must be as it was on the writer's machine, as far as that has it: a login node may have no CANN."""
    writer = Answer(-1, f"{expected['writer']}, where the job was laid out", expected["facts"], 0.0, 0.0)
    names = [name for name in rules.SAME_EVERYWHERE if rules.fact(writer.facts, name) is not None]
    return rules.compare([writer, own], names)


def main(argv: list[str]) -> int:
    """Prints the table; 2 and one or two lines more where something is bad."""
    rank, master_addr, master_port = argv
    try:
        expected = read_expectation(Path(os.environ[variables.RUN_DIR]))
        plan, checks = check(expected, int(rank), master_addr, int(master_port))
        Console(stderr=True, width=140).print(rules.table(checks))
        rules.refuse(checks, plan)
    except ConfigError as error:
        print(f"hp-memory: node {rank} ({socket.gethostname()}): {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

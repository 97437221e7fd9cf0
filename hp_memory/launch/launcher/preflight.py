"""Asks every node before anything is started."""

from __future__ import annotations

import time

from hp_memory.launch.checks import ANSWER, Answer, Check, check_addresses, judge, question, write_token
from hp_memory.launch.launcher.channel import ask
from hp_memory.launch.plan import LaunchPlan


def preflight(plan: LaunchPlan) -> list[Check]:
    """Asks every node and compares the answers; starts nothing that stays.

    Writes a token into ``<run_dir>/launch``, by which nodes recognise the run directory.
    """
    check_addresses(plan)
    token = write_token(plan)
    return judge(plan, ask_nodes(plan), token)


def ask_nodes(plan: LaunchPlan) -> list[Answer]:
    """Every node's answer, all asked at once."""
    sent = time.time()
    replies = ask(plan, {node.rank: question(plan, node) for node in plan.nodes}, ANSWER)
    return [
        Answer(node.rank, node.host, reply.message or {}, sent, reply.received, reply.error)
        for node in plan.nodes
        for reply in [replies[node.rank]]
    ]

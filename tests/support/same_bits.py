"""What the jobs over several ranks have in common: the layouts they run, and that none of them changes a bit."""

from __future__ import annotations

LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
SEEN = ("losses", "norms", "grads", "params", "states", "tokens", "aux")


def assert_no_bit_changed(ranks: list[dict], plain: str, planned: list[str]) -> None:
    """Compares every case in ``planned`` with the one without a plan, on each rank (see ``job.py`` for the cases)."""
    for number, rank in enumerate(ranks):
        assert {name: case["trace"] for name, case in rank.items() if "error" in case} == {}
        for name in planned:
            differ = [what for what in SEEN if rank[name][what] != rank[plain][what]]
            assert not differ, f"rank {number}, {name}"
            assert rank[name]["names_kept"], f"rank {number}, {name}"
            assert rank[name]["optimizer_kept"], f"rank {number}, {name}"
            assert rank[name]["report"]["plan_hash"] == ranks[0][name]["report"]["plan_hash"]
            assert rank[name]["report"]["receipts"], f"rank {number}, {name}"

"""Saved regions that are FSDP units of their own: nothing that was gathered stays, and no bit changes."""

from __future__ import annotations


def test_a_saved_unit_keeps_nothing_that_was_gathered(script):
    found = script("fsdp_units.py", timeout=200)
    assert len(found) == 8
    for name, case in found.items():
        planned, plain = case["planned"], case["plain"]
        assert len(plain["grads"]) == 4, name
        assert planned["grads"] == plain["grads"], name
        # Emptied between forward and backward where the unit is resharded, and never counted as activations.
        resharded = name.startswith("True")
        assert all((size == 0) == resharded for size in planned["gathered"]), name
        assert planned["held"] == case["unsharded"]["held"], name
        # Without a plan too; that a unit passes its inputs through a function of its own adds one of their size.
        assert set(plain["held"]) == set(case["plain unsharded"]["held"]), name

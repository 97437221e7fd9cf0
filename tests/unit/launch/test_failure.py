from __future__ import annotations

import signal

import pytest

from hp_memory.launch import failure
from hp_memory.launch.failure import Failure, kind_of, missing_ranks, tail


@pytest.mark.parametrize(
    ("log", "code", "kind"),
    [
        ("RuntimeError: Device(id:0) memory isn't enough and alloc failed, kernel name: MatMul", 1, "out of memory"),
        ("MemoryError", 1, "out of memory"),
        ("OSError: [Errno 28] No space left on device", 1, "disk full"),
        ("hp_memory.errors.ConfigError: layout.default='sve': unknown", 1, "config"),
        ("ModuleNotFoundError: No module named 'hyper_parallel'", 1, "missing package"),
        ("[ERROR] bind failed: Address already in use", 1, "port taken"),
        ("RuntimeError: Launch kernel failed, name:Default/AllReduce-op0", 1, "communication time-out"),
        ("Timed out node list is: {3}", 1, "communication time-out"),
        ("EI0006: Getting socket times out. Reason: Remote Rank did not send the data.", 1, "communication time-out"),
        ("some processes in the cluster are not successfully spawned", 1, "cluster not built"),
        ("Segmentation fault", -signal.SIGSEGV, "crash"),
        ("", 2, "config"),
        ("", -signal.SIGTERM, "ended from outside"),
        ("ValueError: boom", 1, "crash"),
    ],
)  # fmt: skip
def test_kind_from_what_a_log_says(log, code, kind):
    assert kind_of(log, code) == kind


def test_kill_without_a_word_hints_at_host_memory():
    assert "lack of host memory" in kind_of("step 3", -signal.SIGKILL)


@pytest.mark.parametrize(
    ("log", "ranks"),
    [
        ("Timed out node list is: {3}", (3,)),
        ("Time out nodes are: ['3', '11']", (3, 11)),
        ("The node: 2 is timed out. It may", (2,)),
        ("all well", ()),
    ],
)
def test_missing_ranks_from_the_schedulers_log(log, ranks):
    assert missing_ranks(log) == ranks


@pytest.mark.parametrize(
    ("frames", "region"),
    [
        ([("model", "construct"), ("moe", "gmm_up")], "gmm.up"),
        ([("moe", "experts_path"), ("moe", "act"), ("primitive", "__call__")], "compute.act"),
        ([("mlp", "act")], "mlp.act"),
        ([("attention", "qkv_proj")], "attention.qkv_proj"),
        ([("boundary", "replay"), ("moe", "all2all_in")], "replay of all2all.in"),
        ([("worker", "main"), ("other", "act")], ""),
    ],
)
def test_region_from_a_traceback(frames, region):
    text = "\n".join(f'  File "/x/{file}.py", line 1, in {name}\n    x()' for file, name in frames)
    assert failure.region_of(text) == region


def test_tail_begins_at_the_last_traceback_and_leaves_chatter_out():
    head = "Traceback (most recent call last):"
    text = f"step 1\n{head}\nA\nfine again\n{head}\n  B\nValueError\n[INFO] x"
    assert tail(text) == (head, "  B", "ValueError")
    assert tail("\n".join(map(str, range(100))), 3) == ("97", "98", "99")


def test_cause_is_named_before_its_consequences():
    late = Failure("crash", 1, 3, 1)
    early = Failure("communication time-out", 0, 0, 1)
    assert failure.first_cause([early, late]) is late
    assert failure.first_cause([early]) is early


def test_rank_ended_because_the_scheduler_lost_others_is_a_time_out():
    lost = "meta_server_node.cc:548] UpdateTopoState] The node: 3 is timed out. It may exit with exception"
    found = failure.add_missing(Failure(failure.ENDED, 0, 0, -15), lost)
    assert found.in_words() == "rank 0 (node 0) failed: communication time-out, killed by SIGTERM; missing ranks: 3"
    assert failure.add_missing(Failure(failure.ENDED, 0, 0, -15), "").kind == failure.ENDED


def test_words_name_rank_region_code_and_missing_ranks():
    found = Failure("out of memory", 2, 17, -9, where="backward layers.3/gmm.up", missing=(4, 5))
    assert found.in_words() == (
        "rank 17 (node 2) failed: out of memory in backward layers.3/gmm.up, killed by SIGKILL; missing ranks: 4, 5"
    )


def test_failure_survives_the_wire():
    found = Failure("crash", 0, 1, 1, "log", ("a", "b"), "", (2,))
    import json

    assert Failure.from_dict(json.loads(json.dumps(found.to_dict()))) == found


WARNED = "WARNING: optional accelerator disabled: ModuleNotFoundError: No module named 'triton'\nstep 1 loss 3.2\n"


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        (WARNED, -9, failure.KILLED),
        (WARNED, -11, "crash"),
        (WARNED + "Traceback (most recent call last):\n  x\nValueError: no\n", 1, "crash"),
        ("try less if you run out of memory\nTraceback (most recent call last):\n  x\nValueError: no\n", 1, "crash"),
        ("connect to store timed out, again\nTraceback (most recent call last):\n  x\nValueError: n\n", 1, "crash"),
        ("Traceback (most recent call last):\n  raise OutOfMemory  # out of memory\nValueError: no\n", 1, "crash"),
        (WARNED + "Traceback (most recent call last):\n  x\nImportError: no\n", 1, "missing package"),
        ("Traceback (most recent call last):\n  x\nRuntimeError: AllGather failed.\n", 1, failure.TIME_OUT),
        ("Traceback (most recent call last):\n  x\nhp_memory.errors.NotFinite: the loss\n", 1, failure.NOT_FINITE),
    ],
)
def test_a_warning_or_a_line_of_source_decides_nothing(text, code, kind):
    assert failure.kind_of(text, code) == kind


def test_a_time_out_is_the_cause_of_the_kills_that_come_with_it():
    killed, late = failure.Failure(failure.KILLED, 1, 3), failure.Failure(failure.TIME_OUT, 0, 0)
    assert failure.first_cause([killed, late]) is late
    assert failure.first_cause([killed]) is killed

"""The reader of MindSpore's log of device memory, on lines as the wheel writes them."""

from __future__ import annotations

from hp_memory.estimate.tracing.device_log import read

MIB = 2**20


def line(verb: str, address: int, mib: int, pointer: int, device: int = 1) -> str:
    tilde = "~" if verb == "Destruct" else ""
    return (
        f"[DEBUG] CORE(7,7f,python):2026-11-30-03:07:30.761 [mindspore/core/device_address/device_address.cc:180] "
        f"{tilde}DeviceAddress] {verb} device address:0x{address:x} device type:{device} size:{mib * MIB} device id:0 "
        f"device name:CPU device point:0x{pointer:x} ptr:0x1 from mem pool:0"
    )


def mark(words: str) -> str:
    return f"hp_memory.device_log {words}"


def alive(lines, results=True):
    found = read(lines)["a"]
    return [int(n) // MIB for n in found.alive(results)]


def test_blocks_count_from_their_start_to_their_end_beyond_what_was_there():
    lines = [
        line("Construct", 1, 50, 1),
        mark("begin a"),
        mark("op Mul"),
        line("Construct", 2, 8, 2),
        mark("op Exp"),
        line("Construct", 3, 4, 3),
        line("Destruct", 2, 8, 2),
        mark("op Add"),
        mark("end"),
        line("Construct", 9, 99, 9),
    ]
    assert alive(lines) == [8, 12, 4]


def test_a_view_is_no_second_block_and_a_host_address_is_none():
    lines = [
        mark("begin a"),
        mark("op Mul"),
        line("Construct", 2, 8, 2),
        line("Construct", 3, 8, 2),
        line("Construct", 4, 16, 4, device=0),
        mark("op Exp"),
        line("Destruct", 2, 8, 2),
        mark("op Add"),
        line("Destruct", 3, 8, 2),
        mark("op Sub"),
        mark("end"),
    ]
    assert alive(lines) == [8, 8, 8, 0]


def test_what_a_kernel_kept_from_before_makes_room_for_what_it_keeps_now():
    lines = [
        line("Construct", 1, 5, 1),
        mark("begin a"),
        mark("op Gather"),
        line("Construct", 2, 5, 2),
        line("Destruct", 1, 5, 1),
        mark("op Add"),
        mark("end"),
    ]
    assert alive(lines) == [5, 0]


def test_results_are_what_goes_after_they_were_returned():
    lines = [
        mark("begin a"),
        mark("op Mul"),
        line("Construct", 2, 8, 2),
        mark("op Exp"),
        line("Construct", 3, 4, 3),
        mark("results"),
        line("Destruct", 3, 4, 3),
        mark("end"),
    ]
    assert alive(lines) == [8, 12]
    assert alive(lines, results=False) == [8, 8]


def test_several_runs_are_told_apart_by_name():
    lines = [mark("begin a"), mark("op Mul"), mark("end"), mark("begin b"), mark("op Exp"), mark("op Exp"), mark("end")]
    assert {name: run.ops for name, run in read(lines).items()} == {"a": ["Mul"], "b": ["Exp", "Exp"]}

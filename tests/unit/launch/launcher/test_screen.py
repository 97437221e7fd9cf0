"""A terminal that takes nothing more, or goes away, ends no job."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
from rich.console import Console

from hp_memory.launch.launcher import supervise
from hp_memory.launch.launcher.screen import WAITING, Screen


@pytest.fixture
def stuck():
    """A terminal after Ctrl-S: a pipe that is full and that no one reads; and what reads it to its end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(65536))
    os.set_blocking(writer, True)
    with open(writer, "w") as terminal, open(reader, "rb") as other:
        yield Console(file=terminal, force_terminal=True, width=200), other


def read_in_background(reader):
    def read():
        with contextlib.suppress(OSError):
            while os.read(reader.fileno(), 65536):
                pass

    threading.Thread(target=read, daemon=True).start()


def test_a_job_outlives_a_terminal_that_takes_nothing(planned, stuck):
    console, reader = stuck
    # The node would give up after 2 s without a word.
    plan = planned("--steps=40", "--pause=0.1")
    with Screen(console) as screen:
        screen.say("said before it was stuck")
        outcome = supervise.run(plan, screen.show, screen.say)
        assert outcome.exit_code == 0, outcome.message
        assert outcome.seconds > 3
        read_in_background(reader)


def test_more_lines_than_may_wait_are_dropped_and_none_is_waited_for(stuck):
    console, reader = stuck
    with Screen(console) as screen:
        for number in range(3 * WAITING):
            screen.say(f"line {number}")
        read_in_background(reader)


def test_a_reader_that_has_gone_ends_nothing(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(OSError), open(writer, "w") as gone, Screen(Console(file=gone, width=200)) as screen:
        for number in range(100):
            screen.say(f"line {number}")
    assert number == 99


def test_everything_said_is_written_in_its_order_and_without_markup():
    import io

    console = Console(file=io.StringIO(), width=200)
    with Screen(console) as screen:
        for number in range(50):
            screen.say(f"[bold]{number} [/x]")
    assert console.file.getvalue().splitlines() == [f"[bold]{number} [/x]" for number in range(50)]

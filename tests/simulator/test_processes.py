"""Processes in which simulations run."""

import os
import signal

import pytest

from slurm_hadar.errors import HadarError
from slurm_hadar.simulator.processes import pool


def _end_oneself(number: int) -> None:
    os.kill(os.getpid(), number)


def test_one_that_is_killed_is_told_in_a_line() -> None:
    with pytest.raises(HadarError, match="killed, perhaps for want of memory"), pool(1) as processes:
        processes.submit(_end_oneself, signal.SIGKILL).result()


def test_who_is_told_to_stop_ends_in_the_middle() -> None:
    """As by Ctrl-C, which all processes of a terminal get."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _tell_to_stop()
    finally:
        signal.signal(signal.SIGINT, before)


def _tell_to_stop() -> None:
    with pytest.raises(HadarError, match="killed"), pool(1) as processes:
        processes.submit(_end_oneself, signal.SIGINT).result()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a shell's background
    with pool(1) as processes:
        assert processes.submit(_end_oneself, signal.SIGINT).result() is None

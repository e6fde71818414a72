"""A training that stands still after a save, so that it can be ended at once."""

from __future__ import annotations

import signal
import subprocess
import sys

from slurm_hadar.runtime.progress.endings import Ending
from slurm_hadar.runtime.progress.link import Link, stand_still
from slurm_hadar.runtime.workers.gang import Gang

NOTED = """
import os, signal
from slurm_hadar.runtime.progress.endings import Ending
from slurm_hadar.runtime.progress.link import Link, stand_still
from slurm_hadar.runtime.workers.gang import Gang
with Ending():
    os.kill(os.getpid(), signal.SIGTERM)
    stand_still(Link(Gang(), True), Gang(), 60.0)
"""


def test_one_that_came_before_the_pause_ends_it() -> None:
    """After the save is told of, and before the pause begins: Slurm would kill the process only KillWait later."""
    done = subprocess.run([sys.executable, "-c", NOTED], timeout=50, check=False)

    assert done.returncode == -signal.SIGTERM


class ByTurns(Gang):
    """Of one worker, that tells when others would be waited for."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self.told = told

    def gather(self, value: object) -> list[object] | None:
        self.told.append(f"ready: {signal.getsignal(signal.SIGTERM) is signal.SIG_DFL}")
        return super().gather(value)


class Answering(Link):
    """Tells when it answers, and goes on at once."""

    def __init__(self, gang: ByTurns) -> None:
        super().__init__(gang, True)
        self.told = gang.told

    def answer(self) -> None:
        self.told.append("answered")

    def told_to_go_on(self) -> bool:
        return True


def test_all_are_ready_to_end_before_it_is_answered() -> None:
    told: list[str] = []
    gang = ByTurns(told)
    with Ending():
        stand_still(Answering(gang), gang, 60.0)

    assert told == ["ready: True", "answered"]

"""hadar-srun is told to end, with a fake srun, scontrol and scancel on PATH."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.launch.batch import WRAPPER, Fakes, run


@pytest.fixture
def started(fakes: Fakes, env: dict[str, str]) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """hadar-srun, with an srun that tells what it hears of, and is known to slurmctld as that of step 77.3."""
    srun = """#!/bin/bash
trap 'echo TERM; exit 9' TERM; trap 'echo HUP; exit 9' HUP; trap 'echo INT' INT; trap 'echo USR1' USR1
echo $$ > pid; echo up; for i in {1..600}; do sleep 0.1; done
"""
    scontrol = """#!/bin/sh
echo "StepId=77.2 State=RUNNING SrunHost:Pid=$(hostname -s):1 TresPerNode=gres:gpu:1"
echo "StepId=77.3 State=RUNNING SrunHost:Pid=$(hostname -s):$(cat pid) TresPerNode=gres:gpu:1"
"""
    scancel = '#!/bin/sh\necho "$@" >> told\n'
    for name, text in {"srun": srun, "scontrol": scontrol, "scancel": scancel}.items():
        (fakes.directory / name).write_text(text)
        (fakes.directory / name).chmod(0o755)
    running = []

    def start() -> subprocess.Popen[str]:
        # a test run under nohup, or behind a shell, ignores these, and so would all that it starts
        words = ["env", "--default-signal=HUP,INT", str(WRAPPER), "--", "true"]
        one = subprocess.Popen(words, env=env, cwd=fakes.directory, stdout=subprocess.PIPE, text=True)
        running.append(one)
        assert one.stdout is not None and one.stdout.readline() == "up\n"
        return one

    yield start
    for one in running:
        one.kill()
        one.wait()


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
def test_told_to_end_it_has_the_step_end(
    fakes: Fakes, started: Callable[[], subprocess.Popen[str]], name: str, poll: Callable[..., Any]
) -> None:
    """srun would kill its tasks; it does when told again, later than timeout does, which signals twice."""
    one = started()
    assert one.stdout is not None
    number, told = signal.Signals[f"SIG{name}"], fakes.directory / "told"
    one.send_signal(number)
    if name == "INT":  # srun itself only tells the state of its tasks at the first
        assert one.stdout.readline() == "INT\n"
        one.send_signal(number)
    poll(told.exists, 60)
    one.send_signal(number)
    one.send_signal(signal.SIGUSR1)
    assert one.stdout.readline() == "USR1\n"
    time.sleep(1.1)
    one.send_signal(number)
    assert one.stdout.readline() == f"{name}\n"
    assert told.read_text() == "--signal=TERM 77.3\n"


def test_where_the_step_cannot_be_told_srun_is(fakes: Fakes, started: Callable[[], subprocess.Popen[str]]) -> None:
    (fakes.directory / "scancel").write_text("#!/bin/sh\nexit 1\n")
    one = started()
    one.terminate()
    assert one.communicate(timeout=300)[0] == "TERM\n" and one.returncode == 9


def test_srun_is_killed_with_it(fakes: Fakes, started: Callable[[], subprocess.Popen[str]], poll: Any) -> None:
    one = started()
    one.kill()
    srun = Path("/proc", (fakes.directory / "pid").read_text().strip())
    poll(lambda: not srun.exists(), 60)


def test_it_ends_by_the_signal_that_has_ended_srun(fakes: Fakes, env: dict[str, str]) -> None:
    (fakes.directory / "srun").write_text("#!/bin/sh\nkill -KILL $$\n")
    assert run(env, "true").returncode == -signal.SIGKILL

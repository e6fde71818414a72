"""How the processes of trials end, and who forks them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from slurm_hadar.tuning.executor.launch import Ended, LocalLauncher  # noqa: E402
from slurm_hadar.tuning.executor.site import Site  # noqa: E402
from slurm_hadar.tuning.trial.wire import Spec  # noqa: E402
from tests.tuning.conftest import PLAIN, RANDOM  # noqa: E402

Study = Callable[..., str]


def test_who_ends_without_a_word_is_told_by_its_last_line(tuner: Any, study: Study) -> None:
    told = study(PLAIN.format(before="import os; os.write(2, b'out of\\n\\x1b[1mpatience\\n\\n'); os._exit(3)"))
    _, _, said = tuner("run", told, "--trials", "1", *RANDOM)
    assert "its process ended by exit code 3, 3 times without progress; its output ends with: [1mpatience" in said


def test_the_end_of_the_process_that_forks_trials_is_told_as_it_was(tmp_path: Path) -> None:
    """Nobody has sent a signal to a trial that was never started."""
    launcher = LocalLauncher(set(), 1)
    spec = Spec("", "", "", 0, 0, "study.py", "objective", str(tmp_path), (0,), "cpu")
    try:
        zygote = launcher._living()  # noqa: SLF001
        os.kill(zygote.pid, signal.SIGSTOP)  # it cannot answer before its end
        launcher.start((0, 0), Site("here", "cpu", (0,)), [spec], tmp_path / "log")
        os.kill(zygote.pid, signal.SIGKILL)
        os.waitid(os.P_PID, zygote.pid, os.WEXITED | os.WNOWAIT)
        assert launcher.ended() == [Ended((0, 0), -signal.SIGKILL, "the process that forks trials")]
    finally:
        launcher.close()


def test_who_forks_trials_ends_quietly_when_the_tuner_was_killed(tmp_path: Path) -> None:
    """It may just have been told to fork one, and nobody reads which process that is, nor how it ended."""
    command = [sys.executable, "-m", "slurm_hadar.tuning.trial.zygote"]
    request = json.dumps({"spec": "", "environ": {}, "log": str(tmp_path / "log")})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as zygote:
        assert zygote.stdout is not None
        zygote.stdout.close()
        zygote.stdout = None
        _, said = zygote.communicate(request + "\n", timeout=60)
    assert (zygote.returncode, said) == (0, "")

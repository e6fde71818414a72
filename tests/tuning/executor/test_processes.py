"""How the processes of trials end, and who forks them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from slurm_hadar.tuning.executor import launch  # noqa: E402
from slurm_hadar.tuning.executor.launch import Ended, LocalLauncher, SlurmLauncher  # noqa: E402
from slurm_hadar.tuning.executor.site import Site  # noqa: E402
from slurm_hadar.tuning.trial.wire import Spec  # noqa: E402
from tests.tuning.conftest import DEADLINE_S, PLAIN, RANDOM  # noqa: E402

Study = Callable[..., str]


def test_who_ends_without_a_word_is_told_by_its_last_line(tuner: Any, study: Study) -> None:
    told = study(PLAIN.format(before="import os; os.write(2, b'out of\\n\\x1b[1mpatience\\n\\n'); os._exit(3)"))
    _, _, said = tuner("run", told, "--trials", "1", *RANDOM)
    assert "its process ended by exit code 3, 3 times without progress; its output ends with: [1mpatience" in said


def test_what_a_killed_tuner_leaves_is_removed_by_the_next_one(tuner: Any, study: Study) -> None:
    """Its trials end with it, by a signal that an ordinary objective does not survive to clear up."""
    first = tuner.start("run", study(PLAIN.format(before="import time; time.sleep(600)")), "--trials", "2", *RANDOM)
    (pages,) = tuner.until(lambda: list(Path("/tmp").glob(f"*-tune-{first.pid}-*/meet-0-0-0")))
    first.kill()
    with (pages.parent / "alive").open() as lock:
        tuner.until(lambda: nobody_has(lock))
    assert pages.exists()
    study(PLAIN.format(before="pass"))
    second = tuner.start("resume", *RANDOM[2:])
    assert second.wait(DEADLINE_S) == 0
    assert not [left for pid in (first.pid, second.pid) for left in Path("/tmp").glob(f"*-tune-{pid}-*")]


@pytest.mark.thorough
def test_a_tuner_that_may_not_open_enough_files_says_so(tuner: Any, study: Study) -> None:
    """Else the study's storage, or an objective, would be said to be what fails."""
    told, own = study(PLAIN.format(before="pass")), resource.getrlimit(resource.RLIMIT_NOFILE)
    for limits, code, words in (
        ((64, 64), 1, "12 trials at a time need 68 open files, and this tuner may have 64: raise the limit"),
        ((64, own[1]), 0, "trials: 3 complete"),
    ):
        tuner.limits = {resource.RLIMIT_NOFILE: limits}
        ended, out, said = tuner("run", told, "--trials", "3", *RANDOM[:-1], "12")
        assert ended == code and words in out + said


def nobody_has(lock: Any) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


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


def test_a_process_that_there_is_no_room_for_costs_no_other_trial(tuner: Any, study: Study) -> None:
    """As where trials have come to a limit on processes: it is tried again, and the others go on meanwhile."""
    (tuner.folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "fork, tries = os.fork, []\n"
        "def full():\n"
        "    tries.append(1)\n"
        "    if len(tries) in (2, 3):\n"
        "        raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\n"
        "if 'slurm_hadar.tuning.trial.zygote' in sys.orig_argv:\n"
        "    os.fork = full\n"
    )
    root = str(Path(launch.__file__).parents[3])
    tuner.environ["PYTHONPATH"] = os.pathsep.join([str(tuner.folder), root])
    code, out, said = tuner("run", study(PLAIN.format(before="import time; time.sleep(1)")), "--trials", "3", *RANDOM)
    assert code == 0 and "trials: 3 complete" in out and "ended by" not in said, said


def test_a_process_that_there_is_no_room_for_at_all_ends_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those of its ranks that there are; who forks trials goes on."""
    script = (
        "import json, subprocess, sys\n"
        "sys.stdin.readline()\n"
        "rank = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, process_group=0)\n"
        "print(json.dumps({'pid': rank.pid}), flush=True)\n"
        "sys.stdin.readline()\n"
        "print(json.dumps({'failed': 'no room'}), flush=True)\n"
        "print(json.dumps({'ended': rank.pid, 'code': rank.wait()}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    monkeypatch.setattr(launch, "_MODULE", ("-c", script))
    launcher = LocalLauncher(set(), 1)
    spec = Spec("", "", "", 0, 0, "study.py", "objective", str(tmp_path), (0, 1), "cpu", 2)
    try:
        launcher.start((0, 0), Site("here", "cpu", (0, 1)), [spec, spec], tmp_path / "log")
        deadline_s, found = time.monotonic() + DEADLINE_S, list[Ended]()
        while not found:
            assert time.monotonic() < deadline_s
            select.select(launcher.files(), [], [], 1.0)
            found = launcher.ended()
        assert found == [Ended((0, 0), 1, "the start of its process (no room)")]
        assert launcher._living().poll() is None  # noqa: SLF001
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
        _, said = zygote.communicate(request + "\n", timeout=300)
    assert (zygote.returncode, said) == (0, "")


def test_steps_that_do_not_end_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As srun's where a node is lost; and one that ends late is waited for beside the others, not before them."""

    def step(_node: object, _on_node: object, _words: object, _environ: object, output: Any, *_: object) -> Any:
        script = "import signal, sys; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
        begun.append(subprocess.Popen([sys.executable, "-c", script], stdout=output))
        return begun[-1]

    begun: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(launch, "start_step", step)
    monkeypatch.setattr(launch, "_STEPS_END_S", 0.1)
    slurm = SlurmLauncher(threads=1)
    logs = [tmp_path / str(n) for n in range(3)]
    for n, log in enumerate(logs):
        spec = Spec("", "", "", n, 0, "study.py", "objective", str(tmp_path), (0,), "v100")
        slurm.start((n, 0), Site("a", "v100", (0,), node="a", on_node=1), [spec], log)
    deadline_s = time.monotonic() + DEADLINE_S
    while not all(log.exists() and log.stat().st_size for log in logs):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)

    slurm.close()

    assert [process.returncode for process in begun] == [-signal.SIGKILL] * 3

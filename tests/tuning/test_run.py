"""Trials that run: real processes, objectives without PyTorch."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

THOROUGH = pytest.mark.thorough

STATES = optuna.trial.TrialState
Study = Callable[..., str]
PLAIN = """
def objective(trial):
    x = trial.suggest_int("x", 0, 3)
    return {returned}
"""


def result_of(out: str) -> dict[str, Any]:
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


@THOROUGH
def test_from_nothing_to_the_best(tuner: Any, study: Study) -> None:
    """An objective that knows nothing of us: one process each, a study that Optuna reads, a command that repeats it."""
    code, out, err = tuner("run", study(PLAIN, returned="(x - 1) ** 2"), "--trials", "6", "--algorithm", "random",
                           "--gpus", "2", "--seed", "1", "--json", "-")  # fmt: skip
    assert code == 0, err
    result = result_of(out)
    best = min(t.value for t in tuner.trials())
    assert result["ended"] == "done" and result["trials"] == {"complete": 6} and result["best"]["value"] == best
    assert Path(result["picture"]).read_bytes().startswith(b"\x89PNG")
    assert {event["width"] for event in tuner.events("start")} == {"1"}
    command = result["repeat"].replace("python -c", f"{sys.executable} -c", 1)
    assert float(subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout) == best


@THOROUGH
def test_a_grid_is_gone_through_once(tuner: Any, study: Study) -> None:
    code, _, err = tuner(
        "run", study(PLAIN, returned="x"), "--trials", "50", "--algorithm", "grid", "--gpus", "1", "--json", "-"
    )
    assert code == 0, err
    assert sorted(t.params["x"] for t in tuner.trials()) == [0, 1, 2, 3]
    assert tuner("status")[1].endswith("all of its trials are over\n"), "fewer than --trials, and there are no more"


@THOROUGH
def test_rungs(tuner: Any, study: Study) -> None:
    """Successive halving: nine, three, one; who is promoted goes on where it was, and reports no step twice."""
    code, _, err = tuner(
        "run", study(steps=12, pace=0.01), "--trials", "9", "--algorithm", "sha", "--gpus", "3", "--seed", "1"
    )
    assert code == 0, err
    trials = tuner.trials()
    reached = sorted((len(t.intermediate_values) for t in trials), reverse=True)
    assert reached[0] == 12 and all(3 <= n < 12 for n in reached[1:3]) and all(1 <= n < 9 for n in reached[3:])
    best = min(trials, key=lambda t: t.params["x"])
    assert best.state == STATES.COMPLETE and sum(t.state == STATES.PRUNED for t in trials) == 8
    folder = next(tuner.folder.glob(f"*.hadar/*/trials/{best.number}"))
    steps = [int(line) for line in (folder / "steps").read_text().split()]
    assert steps == list(range(1, 13))


@THOROUGH
def test_a_target_ends_it(tuner: Any, study: Study) -> None:
    code, out, err = tuner("run", study(steps=10**6, pace=0.01), "--trials", "4", "--algorithm", "random", "--gpus",
                           "2", "--target", "0.01", "--json", "-")  # fmt: skip
    assert code == 0, err
    assert result_of(out)["ended"] == "target" and result_of(out)["best"]["value"] <= 0.01
    assert not any(t.state == STATES.RUNNING for t in tuner.trials())


@THOROUGH
def test_stop_and_resume(tuner: Any, study: Study) -> None:
    """What ran is WAITING meanwhile, and goes on where it was; nothing is repeated."""
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=20, pace=0.05), "--trials", "3", "--algorithm", "random", "--gpus", "2")
    tuner.until(lambda: len(tuner.events("value")) > 4)
    assert "process" in tuner("status")[1]
    code, out, err = tuner("stop")
    assert code == 0 and "tune resume" in out, err
    assert running.wait(300) == 0
    states = {t.state for t in tuner.trials()}
    assert STATES.WAITING in states and STATES.RUNNING not in states
    (tuner.folder / "hold").unlink()
    code, out, err = tuner("resume", "--gpus", "2", "--json", "-")
    assert code == 0, err
    assert result_of(out)["trials"] == {"complete": 3}
    for file in tuner.folder.glob("*.hadar/*/trials/*/steps"):
        steps = [int(line) for line in file.read_text().split()]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 20


@THOROUGH
def test_a_tuner_that_is_killed(tuner: Any, study: Study) -> None:
    """Its trials save and end with it; resume loses none, and repeats none that was over."""
    running = tuner.start("run", study(steps=15, pace=0.05), "--trials", "6", "--algorithm", "random", "--gpus", "2")
    tuner.until(lambda: tuner.events("over") and len(tuner.events("start")) >= 4)
    running.send_signal(signal.SIGKILL)
    running.wait()
    over = {t.number: t.values for t in tuner.trials() if t.state.is_finished()}
    before = {event["trial"] for event in tuner.events("over")}
    code, out, err = tuner("resume", "--gpus", "2", "--json", "-")
    assert code == 0, err
    assert result_of(out)["trials"] == {"complete": 6}
    after = tuner.trials()
    assert all(after[number].values == values for number, values in over.items())
    again = [event["trial"] for event in tuner.events("start")]
    assert all(again.count(number) == 1 for number in before)
    for trial in after:  # one that was made as the tuner died was told later
        assert sorted(trial.intermediate_values) == list(range(1, 16))


@THOROUGH
def test_a_trial_that_is_killed_goes_on(tuner: Any, study: Study) -> None:
    text = PLAIN.replace(
        "return {returned}",
        "import os, pathlib\n"
        "    mark = pathlib.Path(os.environ['HADAR_JOB_DIR']) / 'mark'\n"
        "    if not mark.exists():\n"
        "        mark.touch()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return x",
    )
    code, out, err = tuner("run", study(text), "--trials", "2", "--algorithm", "random", "--gpus", "2", "--json", "-")
    assert code == 0 and result_of(out)["trials"] == {"complete": 2}
    assert err.count("signal 9") == 2


BAD = """
import os, time

def objective(trial):
    x = trial.suggest_int("x", 0, 6)
    if x == 1: return 1 / 0
    if x == 2: return float("nan")
    if x == 3: return "a"
    if x == 4: time.sleep(1000)
    if x == 5: exit(3)
    if x == 6: os.kill(os.getpid(), 9)
    return x
"""
FAILURES = {1: "ZeroDivisionError", 2: "nan", 3: "'a'", 4: "--time-limit", 5: "SystemExit", 6: "signal 9"}


@THOROUGH
def test_bad_trials_cost_themselves_only(tuner: Any, study: Study) -> None:
    limit_s = "20"  # a busy machine takes long to begin
    code, out, err = tuner(
        "run", study(BAD), "--trials", "7", "--algorithm", "grid", "--gpus", "2", "--time-limit", limit_s, "--json", "-"
    )
    assert code == 0 and "Traceback" not in err, err
    assert result_of(out)["best"]["parameters"] == {"x": 0}
    states = {t.params["x"]: t for t in tuner.trials()}
    assert states.pop(0).state == STATES.COMPLETE
    assert {t.state for t in states.values()} == {STATES.FAIL}
    assert {x for x, said in FAILURES.items() if said in states[x].user_attrs["hadar:failure"]} == set(FAILURES)


@THOROUGH
def test_nothing_but_failures_is_said_early(tuner: Any, study: Study) -> None:
    code, _, err = tuner(
        "run", study(PLAIN, returned="1 / 0"), "--trials", "1000", "--algorithm", "random", "--gpus", "2"
    )
    assert code == 1 and "the first 10 trials have failed" in err.splitlines()[-1] and "ZeroDivision" in err


@THOROUGH
def test_memory_that_does_not_do_for_two(tuner: Any, study: Study) -> None:
    """Two on a GPU run out of it: one on each from then on, in the next study too."""
    text = """
import slurm_hadar, os, pathlib, time
def objective(trial):
    x = trial.suggest_int("x", 0, 9)
    folder = pathlib.Path(os.environ["HADAR_JOB_DIR"]).parent
    here, met = folder / ("on" + os.environ["CUDA_VISIBLE_DEVICES"]), folder / "met"
    if here.exists():
        met.touch()
        raise MemoryError
    here.touch()
    until = time.monotonic() + 60
    for step in range(1, 10**6):
        time.sleep(0.3)
        trial.report(x, step)
        if met.exists() or time.monotonic() > until:
            break
    here.unlink()
    return x
"""
    code, out, err = tuner("run", study(text), "--trials", "3", "--algorithm", "random", "--gpus", "1", "--json", "-")
    assert code == 0, err
    assert "ran out of memory as one of 2" in err and result_of(out)["trials"] == {"complete": 3}
    (known,) = json.loads((tuner.folder / "state" / "slurm_hadar" / "tuning.json").read_text()).values()
    assert known["packed"] == 1
    code, _, err = tuner("run", "study.py:objective", "--trials", "5", "--algorithm", "random", "--gpus", "1")
    assert code == 0 and "memory" not in err


@THOROUGH
def test_a_locked_study_is_waited_for(tuner: Any, study: Study) -> None:
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.05), "--trials", "2", "--algorithm", "random", "--gpus", "2")
    tuner.until(lambda: tuner.events("value"))
    with sqlite3.connect(tuner.folder / "tune.db", timeout=60, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert running.stderr is not None
        assert "locked; waiting for it" in running.stderr.readline()
        other.execute("ROLLBACK")
    (tuner.folder / "hold").unlink()
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0 and "2 complete" in out, err


@THOROUGH
def test_a_damaged_study_is_one_line(tuner: Any, study: Study) -> None:
    told = study(PLAIN, returned="x")
    assert tuner("run", told, "--trials", "1", "--algorithm", "random", "--gpus", "1")[0] == 0
    for damaged in (b"", b"not a database at all, but long enough for a header" * 40):
        (tuner.folder / "tune.db").write_bytes(damaged)
        code, _, err = tuner("resume", "--gpus", "1")
        assert code == 1 and len(err.splitlines()) == 1 and "tune.db" in err and "Traceback" not in err


@pytest.mark.thorough
def test_a_search_that_breaks_off_is_not_noted_as_done(tuner: Any, study: Study) -> None:
    """As where the disk is full when a trial's folder is to be made."""
    told = study(PLAIN, returned="x")
    words = ("run", told, "--algorithm", "random", "--gpus", "1", "--trials")
    assert tuner(*words, "1")[0] == 0
    next(tuner.folder.glob("*.hadar/*/trials")).joinpath("1").touch()
    code, _, err = tuner(*words, "2")
    assert code == 1 and "trials/1: File exists" in err and "Traceback" not in err
    assert [event["why"] for event in tuner.events("ended")] == ["done", "broken off"]


@THOROUGH
def test_one_tuner_a_study(tuner: Any, study: Study) -> None:
    told = study(steps=1000, pace=0.05)
    tuner.start("run", told, "--trials", "1", "--algorithm", "random", "--gpus", "1")
    tuner.until(lambda: tuner.events("value"))
    code, _, err = tuner("run", told, "--trials", "1", "--algorithm", "random", "--gpus", "1")
    assert code == 1 and "another tuner is at work" in err
    assert tuner("stop")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "study.py"), "must read FILE.py:FUNCTION"),
        (("run", "nowhere.py:objective"), "nowhere.py: No such file"),
        (("run", "study.py:other"), "defines no other"),
        (("run", "study.py:objective", "--gpus", "none"), "must read TYPE:COUNT"),
        (("resume", "--storage", "sqlite:///none.db"), "there is no such study"),
        (("status",), "there is no such study"),
        (("stop",), "there is no such study"),
    ],
)
def test_bad_input_is_one_line(tuner: Any, study: Study, words: tuple[str, ...], said: str) -> None:
    study(PLAIN, returned="x")
    code, _, err = tuner(*words)
    assert code == 1 and said in err and len(err.splitlines()) == 1

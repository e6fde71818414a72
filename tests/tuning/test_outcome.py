"""How a search stands, how it ends, and what that leaves."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from tests.tuning.conftest import PLAIN, RANDOM  # noqa: E402

Study = Callable[..., str]


@pytest.mark.thorough
def test_a_notebooks_setting_does_not_spoil_the_end(tuner: Any, study: Study) -> None:
    """MPLBACKEND may name what is not installed here; the picture does not need it."""
    tuner.environ["MPLBACKEND"] = "module://nowhere.backend"
    code, out, said = tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, "--json", "-")
    assert code == 0, said
    assert Path(json.loads(out)["picture"]).stat().st_size > 0


@pytest.mark.thorough
def test_a_picture_that_cannot_be_drawn_spoils_nothing(tuner: Any, study: Study, tmp_path: Path) -> None:
    """As where there is no memory left for matplotlib's libraries."""
    (tmp_path / "libraries" / "matplotlib").mkdir(parents=True)
    (tmp_path / "libraries" / "matplotlib" / "__init__.py").write_text("raise ImportError('no memory')")
    tuner.environ["PYTHONPATH"] = str(tmp_path / "libraries")
    code, out, said = tuner("run", study(PLAIN.format(before="pass")), "--trials", "1", *RANDOM, "--json", "-")
    assert code == 0 and json.loads(out)["picture"] is None, said
    assert "run.png: no memory; there is no picture" in said


@pytest.mark.thorough
def test_a_target_that_was_reached_needs_no_further_trial(tuner: Any, study: Study) -> None:
    words = ("run", study(PLAIN.format(before="pass")), "--trials", "9", *RANDOM, "--target", "2", "--json", "-")
    tuner(*words)
    count = len(tuner.trials())
    code, out, said = tuner(*words)
    assert (code, json.loads(out)["ended"]) == (0, "target") and len(tuner.trials()) == count
    assert "has reached the target" in said


def test_no_value_is_no_success(tuner: Any, study: Study) -> None:
    text = "def objective(trial):\n    raise RuntimeError('boom')\n"
    code, out, said = tuner("run", study(text), "--trials", "2", *RANDOM, "--json", "-")
    assert (code, json.loads(out)["best"]) == (1, None) and "no trial has a value" in said


def test_how_it_stands_counts_what_was_before(tuner: Any, study: Study) -> None:
    words = study(steps=1, pace=0)
    assert tuner("run", words, "--trials", "3", *RANDOM)[0] == 0
    best = min(t.value for t in tuner.trials())
    (tuner.folder / "hold").touch()
    tuner.start("resume", "--trials", "5", "--gpus", "1")

    def stands() -> Any:
        return json.loads(tuner("status", "--json", "-")[1])["tuner"]

    live = tuner.until(lambda: (found := stands()) and found["counts"]["runs"] and found)
    assert (live["trials"], live["counts"]["ended"]) == (5, 3)
    assert live["best"]["value"] <= best
    (tuner.folder / "hold").unlink()


@pytest.mark.thorough
def test_a_search_that_is_interrupted_is_no_success(tuner: Any, study: Study) -> None:
    """``hadar tune run && next`` is not to go on; one that was asked to stop has done what it was told."""
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.02), "--trials", "2", *RANDOM)
    tuner.until(lambda: tuner.events("value"))
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=300)

    assert running.returncode == 130 and "stopped; go on with" in said
    (hint,) = re.findall(r"go on with: hadar tune resume (.*)", tuner("status")[1])
    assert hint.endswith(" --gpus 2")  # where the machine has none, resume asks for it


@pytest.mark.thorough
def test_a_search_that_is_stopped_before_it_knows_anything_has_done_what_it_was_told(tuner: Any, study: Study) -> None:
    running = tuner.start("run", study("import time\ndef objective(trial):\n    time.sleep(600)\n"), *RANDOM)
    tuner.until(lambda: tuner.events("start"))
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=300)

    assert running.returncode == 0 and "stopped; go on with" in said and "no trial has a value" not in said


def test_a_trial_that_somebody_else_has_ended_ends_no_search(tuner: Any, study: Study) -> None:
    """As who takes it for one that was left behind, by Optuna's ``tell``: the study has its word."""
    (tuner.folder / "hold").touch()
    running = tuner.start("run", study(steps=3, pace=0.02), "--trials", "2", *RANDOM, "--json", "-")
    tuner.until(lambda: {event["trial"] for event in tuner.events("value")} == {0, 1})
    (file,) = tuner.folder.glob("*.db")
    optuna.load_study(study_name=None, storage=f"sqlite:///{file}").tell(0, state=optuna.trial.TrialState.FAIL)
    tuner.until(lambda: any(event["trial"] == 0 for event in tuner.events("over")))
    (tuner.folder / "hold").unlink()
    out, said = running.communicate(timeout=300)

    assert running.returncode == 0 and json.loads(out)["trials"] == {"complete": 1, "fail": 1}, said
    assert "Traceback" not in said and "trial 0 failed" in said

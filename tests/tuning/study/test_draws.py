"""What trials are made of: the same whenever a search is cut off, and told so that it can be repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")

from slurm_hadar.tuning import algorithms, session  # noqa: E402
from slurm_hadar.tuning.study.book import Algorithm, Book, Sampler, finite, sampler_of  # noqa: E402
from slurm_hadar.tuning.trial.worker import _plain  # noqa: E402


def _drawn(book: Book, count: int, last_first: bool = False) -> list[dict[str, Any]]:
    """The parameters of so many new trials, each of which asks for two."""
    numbers = [book.ask() for _ in range(count)]
    for number in reversed(numbers) if last_first else numbers:
        for name in ("y", "x") if last_first else ("x", "y"):
            book.suggest(number, "float", name, {"low": 0.0, "high": 1.0})
        book.study.tell(number, 1.0)
    return [trial.params for trial in book.trials()]


def _book(algorithm: Algorithm, study: Any = None, seed: int | None = 7) -> Book:
    study = study or optuna.create_study()
    study.sampler = sampler_of(algorithm, Sampler.RANDOM, seed, len(study.trials))
    return Book(study, print)


@pytest.mark.parametrize("algorithm", [Algorithm.RANDOM, Algorithm.HYPERBAND, Algorithm.ASHA, Algorithm.PBT])
def test_random_trials_are_the_same_in_a_search_that_was_cut_off(algorithm: Algorithm) -> None:
    whole = _drawn(_book(algorithm), 6)
    first = _book(algorithm)
    _drawn(first, 2)

    assert _drawn(_book(algorithm, first.study), 4, last_first=True) == whole
    assert _drawn(_book(algorithm, seed=8), 6) != whole
    assert len({tuple(trial.values()) for trial in whole}) == 6
    assert all(trial["x"] != trial["y"] for trial in whole)


def test_tpe_draws_nothing_again_after_it_was_cut_off() -> None:
    first = _book(Algorithm.TPE)
    begun = _drawn(first, 3)

    after = _drawn(_book(Algorithm.TPE, first.study), 3)

    assert after[:3] == begun
    assert len({trial["x"] for trial in after}) == 6


@pytest.mark.parametrize("reports", [{}, {1: 5.0}, {1: 5.0, 2: 4.0}])
def test_who_gave_up_before_a_rung_is_not_ranked_at_it(reports: dict[int, float]) -> None:
    """However good it was. Who was dropped at the rung is, so that a search that is taken up decides as before."""
    pruned = optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED, value=0.0, intermediate_values=reports)

    assert algorithms.value_at(pruned, 3) is None
    assert [algorithms.value_at(pruned, rung) for rung in reports] == list(reports.values())


def test_infinite_parameters_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(
        "def objective(trial):\n    return float(trial.suggest_categorical('clip', [1.0, float('inf')]) > 1)\n"
    )
    best = session.Result(3, 1.0, {"clip": float("inf"), "n": 2}, True)
    options = session.Options(f"{tmp_path}/study.py:objective", storage="", study="")
    command = session.repeat_command(options, best).replace("python -c", f"{sys.executable} -c", 1)

    assert float(subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout) == 1.0
    assert json.dumps(best.told, allow_nan=False)
    assert best.told["parameters"] == {"clip": "inf", "n": 2}


def test_a_number_beyond_all_floats_is_no_value() -> None:
    assert finite(_plain(10**400)) is None

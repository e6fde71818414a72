"""The forest as arrays says what scikit-learn's says."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from slurm_hadar.errors import PredictionError
from slurm_hadar.predict import forest as forest_module
from slurm_hadar.predict.features import FEATURES, samples
from slurm_hadar.predict.forest import FEWEST, Forest, grow
from slurm_hadar.predict.history import HistoryJob


@pytest.fixture(scope="module")
def known(history: list[HistoryJob]) -> Any:
    return samples(history)


@pytest.fixture(scope="module")
def forest(known: Any) -> Forest:
    return grow(known, trees=20, seed=3)


def test_it_predicts_what_scikit_learn_does(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On top of the plain median, which trees correct; equal but for the order of a sum."""
    made = []

    class Kept(RandomForestRegressor):  # type: ignore[misc]  # scikit-learn has no types
        def fit(self, *args: Any, **rest: Any) -> Any:
            made.append(self)
            return super().fit(*args, **rest)

    monkeypatch.setattr("sklearn.ensemble.RandomForestRegressor", Kept)
    ours = grow(known, trees=15, seed=1)
    rows = np.asarray([s.row for s in known])

    guess = rows[:, FEATURES.index("series_median")]
    assert ours.predict(rows) == pytest.approx(guess + made[0].predict(rows.astype(np.float32)), rel=1e-12)
    assert ours.predict([]).shape == (0,)


def test_rows_are_answered_one_by_one_as_together(forest: Forest, known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [s.row for s in known[:50]]
    together = forest.predict(rows)

    monkeypatch.setattr(forest_module, "_ROWS_AT_ONCE", 7)
    assert (forest.predict(rows) == together).all()
    assert [float(forest.predict([r])[0]) for r in rows] == pytest.approx(list(together))


def test_same_seed_same_forest(forest: Forest, known: Any) -> None:
    again, other = grow(known, trees=20, seed=3), grow(known, trees=20, seed=4)

    assert all((a == forest.arrays()[k]).all() for k, a in again.arrays().items())
    assert (other.predict([known[0].row]) != forest.predict([known[0].row])).any()


def test_residuals_are_ordered(forest: Forest) -> None:
    for seen in (False, True):
        low, wide, high = forest.spread(seen)
        assert low < wide < high and low < 0 < high


def test_it_survives_its_arrays(forest: Forest, known: Any) -> None:
    again = Forest.of_arrays(forest.arrays(), forest.samples, forest.grown_by)

    assert (again.predict([s.row for s in known]) == forest.predict([s.row for s in known])).all()
    assert again.depth == forest.depth and again.grown_by.startswith("scikit-learn 1.")


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("left"),
        lambda a: a.update(left=a["left"][:, :-1]),
        lambda a: a.update(left=a["left"] * 0),  # a circle through the root
        lambda a: a.update(right=a["right"] + 1),
        lambda a: a.update(feature=a["feature"] + 99),
        lambda a: a.update(value=a["value"] * np.nan),
        lambda a: a.update(residuals=a["residuals"][:1]),
        lambda a: a.update(threshold=np.asarray([["x"]])),
        lambda a: a.update({k: v.ravel() for k, v in a.items() if k != "residuals"}),
    ],
)
def test_other_arrays_are_no_forest(forest: Forest, change: Any) -> None:
    arrays = dict(forest.arrays())
    change(arrays)

    with pytest.raises(PredictionError, match="not the arrays of a forest"):
        Forest.of_arrays(arrays, 1, "x")


def test_too_little_to_learn_from(known: Any) -> None:
    with pytest.raises(PredictionError, match=f"39 jobs ended well and had others before them: at least {FEWEST}"):
        grow(known[:39])


def test_asking_needs_no_scikit_learn() -> None:
    """Only growing imports it: a head node's commands stay quick."""
    code = "import sys, slurm_hadar.cli.studies.predict, slurm_hadar.predict.online; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("trees", [1, 20])
def test_lengths_that_are_all_the_same(known: Any, trees: int) -> None:
    """The median is right, no tree corrects it, and nothing is left: that is an answer, and no lack of one."""
    median = FEATURES.index("series_median")
    same = [replace(s, job=replace(s.job, steps=math.exp(s.row[median]) * s.job.steps_per_s)) for s in known]
    forest = grow(same, trees=trees)

    assert abs(forest.residuals).max() < 1e-9
    assert list(forest.predict([known[0].row])) == [pytest.approx(known[0].row[median])]

"""How good predictors are, and which may be used."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import PredictionError
from slurm_hadar.model import JobState
from slurm_hadar.predict import evaluate as evaluate_module
from slurm_hadar.predict.evaluate import Report, Score, Training, evaluate, refusal, score, train
from slurm_hadar.predict.history import HistoryJob
from slurm_hadar.simulator.history import history_of_trace
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.throughput.table import reference

_works = st.lists(st.floats(0.01, 1e6), min_size=2, max_size=20)


def test_errors_by_hand() -> None:
    got = score("x", [2.0, 2.0, 8.0], [1.0, 4.0, 16.0])

    assert got.mape == pytest.approx((1 + 0.5 + 0.5) / 3) and (got.over, got.under) == (2, 2)
    assert got.r2_log == pytest.approx(1 - 3 / 8) and got.rank == pytest.approx(math.sqrt(3) / 2)


@given(_works)
def test_the_truth_scores_best(work: list[float]) -> None:
    got = score("x", work, work)

    assert (got.r2_log, got.mape, got.over, got.under) == (1, 0, 1, 1)
    assert got.rank is None if len(set(work)) == 1 else got.rank == pytest.approx(1)


@given(_works, st.data(), st.floats(0.1, 10))
def test_the_unit_does_not_matter(work: list[float], data: Any, factor: float) -> None:
    guesses = data.draw(st.lists(st.floats(0.01, 1e6), min_size=len(work), max_size=len(work)))
    one, other = score("x", guesses, work), score("x", [g * factor for g in guesses], [w * factor for w in work])

    assert other.mape == pytest.approx(one.mape) and other.over == pytest.approx(one.over)
    assert other.under == pytest.approx(one.under)


def test_alike_predictions_have_no_rank() -> None:
    assert score("x", [3.0, 3.0], [1.0, 2.0]).rank is None
    with pytest.raises(PredictionError, match="1 predictions against 2 jobs"):
        score("x", [1.0], [1.0, 2.0])


def test_the_split_is_by_time(history: list[HistoryJob]) -> None:
    """The order of the list does not matter, and what ends after the split is not learned from."""
    report = evaluate(history, trees=10)
    shuffled = evaluate(history[::-1], trees=10)

    assert report == shuffled and report.split == history[320].submit and report.tested == 80
    assert report.trained < 320
    assert [s.name for s in report.scores] == ["forest", "group median", "group mean", "user mean", "global mean"]


def test_jobs_that_run_over_the_split_do_not_help_the_forest(history: list[HistoryJob]) -> None:
    """Their outcome can be anything before the tests are asked about: here they end after all others."""
    split, last = history[320].submit, history[-1].submit
    late = [replace(j, end=last + 1.0) if j.submit < split <= j.end else j for j in history]
    odd = [replace(j, steps=j.steps * 50) if j.submit < split and j.end == last + 1.0 else j for j in late]

    assert evaluate(late, trees=10) == evaluate(odd, trees=10)


def test_a_report_tells_how_much_was_new(history: list[HistoryJob]) -> None:
    new = [replace(j, group="new") if i >= 390 else j for i, j in enumerate(history)]

    before, after = evaluate(history, trees=10), evaluate(new, trees=10)
    assert before.unseen < after.unseen <= before.unseen + 10 / 80
    assert 0.5 < before.inside <= 1
    assert before.as_dict()["scores"][0]["name"] == "forest"


def test_too_short_histories(history: list[HistoryJob]) -> None:
    with pytest.raises(PredictionError, match="at least 40 are needed to learn from"):
        evaluate(history[:30])
    with pytest.raises(PredictionError, match="no job that ended well"):
        evaluate([replace(j, state=JobState.FAILED) for j in history[:60]])


def test_what_is_left_where_a_forest_is_not_to_be_had(
    history: list[HistoryJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group mean, with the reason; a median that was asked for; nothing where nothing ended well."""
    short = train(history[:30])
    assert (short.predictor, short.forest, short.report) == ("group mean", None, None)
    assert short.refused is not None and "at least 40 are needed" in short.refused
    monkeypatch.setattr(evaluate_module, "refusal", lambda _report: "it is bad")
    refused = train(history, trees=5)
    assert (refused.predictor, refused.forest, refused.refused) == ("group mean", None, "it is bad")
    assert refused.report is not None
    assert train(history[:3], predictor="group median") == Training("group median", None, None, None)
    with pytest.raises(PredictionError, match="no job that ended well"):
        train([replace(j, state=JobState.FAILED) for j in history[:60]])


def _report(forest: tuple[float | None, float], mean: tuple[float | None, float]) -> Report:
    scores = tuple(
        Score(n, 0.0, mape, rank, 1.0, 1.0) for n, (rank, mape) in (("forest", forest), ("group mean", mean))
    )
    return Report(100, 25, 0.0, 0.0, 0.8, scores)


@pytest.mark.parametrize(
    ("forest", "mean", "why"),
    [
        ((0.9, 0.3), (0.8, 0.4), None),
        ((0.8, 0.4), (0.8, 0.4), None),
        ((0.8 - 1e-9, 0.4 + 1e-12), (0.8, 0.4), None),
        ((0.7, 0.3), (0.8, 0.4), "its rank correlation 0.700 is below the group mean's 0.800 on the last 25 jobs"),
        ((0.9, 0.5), (0.8, 0.4), "its mean error 50% is above the group mean's 40% on the last 25 jobs"),
        ((None, 0.3), (0.1, 0.4), "its rank correlation 0.000 is below"),
        ((0.1, 0.3), (None, 0.4), None),
    ],
)
def test_who_is_refused(forest: Any, mean: Any, why: str | None) -> None:
    """Whoever orders jobs worse than the group mean, or is off by more."""
    got = refusal(_report(forest, mean))

    assert got is None if why is None else got.startswith(why)


@pytest.mark.thorough
def test_on_recurring_jobs_the_forest_beats_the_group_mean() -> None:
    """As docs/predict.md has it, on a smaller trace."""
    table = reference()
    report = evaluate(history_of_trace(read_trace("recurring:jobs=2500,seed=0", table), table), trees=50)

    forest, mean = report.of("forest"), report.of("group mean")
    assert forest.rank > mean.rank > report.of("user mean").rank and forest.mape < mean.mape
    assert refusal(report) is None

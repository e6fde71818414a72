"""Predictors, asked once and asked as time goes by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import PredictionError
from slurm_hadar.model import JobState
from slurm_hadar.predict.evaluate import Training
from slurm_hadar.predict.features import Past, Sample, walk
from slurm_hadar.predict.forest import Forest, grow
from slurm_hadar.predict.history import HistoryJob, Submission, over
from slurm_hadar.predict.online import Online, OnlineForest, named
from slurm_hadar.predict.predictors import (
    ForestPredictor,
    GlobalMean,
    GroupMean,
    GroupMedian,
    Noisy,
    Oracle,
    UserMean,
)

ALL = (GroupMean(), GroupMedian(), UserMean(), GlobalMean(), ForestPredictor(None))
ANN = Submission("x", 99.0, "ann", "a", steps_per_s=10.0)


def ended(name: str, run_s: float, user: str = "ann", group: str = "a", rate: float = 1.0) -> HistoryJob:
    return HistoryJob(name, 0.0, user, group, steps_per_s=rate, end=run_s, steps=run_s * rate)


@pytest.fixture
def past() -> Past:
    return Past(
        [
            ended("1", 10),
            ended("2", 20),
            ended("3", 90, rate=5.0),
            ended("4", 300, group="b"),
            ended("5", 2000, user="bob"),
        ]
    )


def test_means_and_medians(past: Past) -> None:
    """In steps of the job that is asked about, whatever the steps of the others were like."""
    got = {p.name: p.predict(ANN, past) for p in (GroupMean(), GroupMedian(), UserMean(), GlobalMean())}

    assert {name: round(p.steps) for name, p in got.items()} == {
        "group mean": 400,
        "group median": 200,
        "user mean": 1050,
        "global mean": 4840,
    }
    assert {p.runs for p in got.values()} == {3}
    assert all(p.low == p.steps == p.high for p in got.values())
    assert got["group mean"].source == "mean of its group"


def test_the_next_wider_circle(past: Past) -> None:
    """An unseen group goes by its user, an unseen user by all."""
    new_group, new_user = replace(ANN, group="c"), replace(ANN, user="eve")

    assert GroupMean().predict(new_group, past).steps == pytest.approx(1050)
    assert GroupMean().predict(new_user, past).steps == UserMean().predict(new_user, past).steps == pytest.approx(4840)
    assert GroupMean().predict(new_user, past).source == "mean of all jobs"


@pytest.mark.parametrize("predictor", ALL, ids=lambda p: p.name)
def test_without_a_past_nothing_is_said(predictor: Any) -> None:
    assert predictor.predict(ANN, Past()) is None


def test_the_oracle_knows(past: Past) -> None:
    assert Oracle({"x": 7.0}).predict(ANN, past).steps == 7
    with pytest.raises(PredictionError, match="job x: its true steps were not given"):
        Oracle({}).predict(ANN, past)


@given(st.floats(1, 16), st.integers(0, 5), st.floats(0.1, 1e9))
def test_noise_stays_within_its_factor(factor: float, seed: int, steps: float) -> None:
    """And is the same whenever it is asked for."""
    noisy = Noisy({"x": steps}, factor, seed)
    got = noisy.predict(ANN, Past()).steps

    assert steps / factor * (1 - 1e-9) <= got <= steps * factor * (1 + 1e-9)
    assert got == noisy.predict(replace(ANN, submit=5.0), Past([ended("1", 10)])).steps


def test_noise_differs_between_jobs_and_seeds() -> None:
    steps = {str(i): 100.0 for i in range(50)}
    drawn = [[Noisy(steps, 4, s).predict(Submission(i, 0.0), Past()).steps for i in steps] for s in (1, 2)]

    assert len({*drawn[0], *drawn[1]}) == 100 and min(drawn[0]) < 50 and max(drawn[0]) > 200
    with pytest.raises(PredictionError, match=r"noise factor 0\.5: must be at least 1"):
        Noisy({}, 0.5)


def test_a_forest_tells_its_interval(history: list[HistoryJob], training: Training) -> None:
    """It is wider for a job of an unseen group."""
    predictor, past = ForestPredictor(training.forest), Past(history)
    known = predictor.predict(replace(history[-1], job_id="x"), past)
    unknown = predictor.predict(replace(history[-1], job_id="x", group="new"), past)

    assert known.low < known.steps < known.high and known.runs > 0
    assert unknown.low < unknown.steps < unknown.high and unknown.runs == 0
    assert unknown.high / unknown.low > known.high / known.low and unknown.outlives > known.outlives
    assert "the median of its user's jobs" in unknown.source
    assert known.scaled(0.5).steps == known.steps / 2 and known.scaled(0.5).high == known.high / 2


# As time goes by


def _play(online: Online, jobs: list[HistoryJob]) -> dict[str, float | None]:
    """Submissions and ends in order; an end at the time of a submission comes after it."""
    events = [(j.submit, 0, j.job_id, j) for j in jobs] + [(j.end, 1, j.job_id, j) for j in jobs]
    found: dict[str, float | None] = {}
    for _, is_end, name, j in sorted(events, key=lambda e: e[:3]):
        if is_end:
            online.ended(j)
        else:
            got = online.submitted(j)
            found[name] = None if got is None else got.steps
    return found


@pytest.mark.parametrize("predictor", ALL, ids=lambda p: p.name)
def test_online_is_what_walking_is(history: list[HistoryJob], predictor: Any) -> None:
    jobs = history[:120]
    walked = {}
    for j, past in walk(jobs):
        got = predictor.predict(j, past)
        walked[j.job_id] = None if got is None else got.steps

    played = _play(Online(predictor), jobs)
    assert played.keys() == walked.keys()
    assert all(played[k] == pytest.approx(walked[k]) for k in walked)


@pytest.fixture
def forests(monkeypatch: pytest.MonkeyPatch) -> list[Forest]:
    """All that are grown."""
    grown: list[Forest] = []

    def noted(samples: Sequence[Sample], trees: int, seed: int) -> Forest:
        grown.append(grow(samples, trees, seed))
        return grown[-1]

    monkeypatch.setattr("slurm_hadar.predict.online.grow", noted)
    return grown


def test_the_forest_is_grown_again_as_time_goes_by(history: list[HistoryJob], forests: list[Forest]) -> None:
    """First by medians; then better than they are, by what has ended; the same every time."""
    jobs = history
    played = _play(OnlineForest(every_s=86400.0, trees=10), jobs)

    assert len(forests) == 3  # after 40 ends, and a day and two days later
    medians = _play(Online(GroupMedian()), jobs)
    assert [played[j.job_id] for j in jobs[:30]] == [medians[j.job_id] for j in jobs[:30]]
    assert sum(played[j.job_id] != medians[j.job_id] for j in jobs) > 250
    assert _play(OnlineForest(every_s=86400.0, trees=10), jobs) == played

    def off(found: Any) -> Any:
        return sum(abs(math.log(found[j.job_id] / j.steps)) for j in jobs[150:]) / (len(jobs) - 150)

    assert off(played) < 1.1 * off(medians)


def test_what_failed_teaches_nothing(history: list[HistoryJob], forests: list[Forest]) -> None:
    forest = OnlineForest(trees=5)
    _play(forest, [replace(j, state=JobState.FAILED) for j in history[:60]])

    assert forest.past.row(ANN) is None and not forests
    with pytest.raises(PredictionError, match="must be above 0"):
        OnlineForest(every_s=0)


@pytest.mark.parametrize(
    "text", ["oracle", "noisy:2", "forest", "forest:6", "group_median", "group_mean", "user_mean", "global_mean"]
)
def test_predictors_by_name(text: str, history: list[HistoryJob]) -> None:
    """Each is what it is called, and can be played."""
    online = named(text, {j.job_id: j.steps for j in history}, seed=1)
    played = _play(online, history[:80])

    assert online.name.replace(" ", "_").split("_2x")[0] == text.partition(":")[0]
    assert all(v is not None and v > 0 for k, v in played.items() if int(k[1:]) >= 40)
    if text == "oracle":
        assert played == {j.job_id: j.steps for j in history[:80]}


@pytest.mark.parametrize("text", ["", "orakel", "noisy", "noisy:0.5", "noisy:x", "forest:0", "forest:nan", "oracle:2"])
def test_other_names(text: str) -> None:
    with pytest.raises(PredictionError, match="must be oracle, noisy:FACTOR, forest, forest:HOURS or one of group_med"):
        named(text, {})


def test_a_submission_becomes_history() -> None:
    got = over(ANN, 100.0, 150.0, 500.0)

    assert (got.job_id, got.series, got.submit, got.start, got.end) == ("x", ANN.series, 99.0, 100.0, 150.0)
    assert got.alone_s == 50 and got.teaches
    with pytest.raises(PredictionError, match="lies before its submission"):
        over(ANN, None, 98.0, 1.0)

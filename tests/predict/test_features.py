"""What a predictor may know of a job: only what had ended before it was submitted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import PredictionError
from slurm_hadar.model import JobState
from slurm_hadar.predict.features import FEATURES, Past, samples, walk
from slurm_hadar.predict.history import HistoryJob, Submission, from_rows, to_rows

_times = st.floats(0, 1e6, allow_nan=False)
_jobs = st.builds(
    lambda i, submit, lasts, user, group, gpus, model, rate, steps, state: HistoryJob(
        str(i), submit, user, group, gpus, "", model, steps_per_s=rate, end=submit + lasts, steps=steps, state=state
    ),
    st.integers(0, 10**6),
    _times,
    st.floats(0, 1e5),
    st.sampled_from(["ann", "bob", ""]),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["lm", ""]),
    st.floats(0.01, 100),
    st.floats(0, 1e7),
    st.sampled_from([JobState.DONE, JobState.DONE, JobState.FAILED]),
)
_histories = st.lists(_jobs, min_size=1, max_size=12, unique_by=lambda j: j.job_id)


def job(name: str, submit: float, end: float, steps: float, **rest: Any) -> HistoryJob:
    return HistoryJob(name, submit, **{"user": "ann", "group": "a", **rest}, end=end, steps=steps)


def rows_of(jobs: Any) -> dict[str, tuple[float, ...] | None]:
    return {j.job_id: past.row(j) for j, past in walk(jobs)}


@given(_histories, st.data())
def test_nothing_of_the_future_is_known(jobs: list[HistoryJob], data: Any) -> None:
    """A job that ends at the submission of another, or later, can be changed or taken away at will: the other's
    features, plain guess and count stay the same."""
    one = data.draw(st.sampled_from(jobs))

    def changed(old: HistoryJob, new: HistoryJob) -> HistoryJob:
        return replace(new, job_id=old.job_id, submit=min(new.submit, old.end), end=max(new.end, one.submit))

    others = [
        data.draw(_jobs.map(partial(changed, j)))
        if j.end >= one.submit and j is not one and data.draw(st.booleans())
        else j
        for j in jobs
        if j is one or j.end < one.submit or data.draw(st.booleans())
    ]

    def known(history: Any) -> Any:
        return next(
            (past.row(j), past.fallback(j), past.runs(j), past.mean_s("series", j))
            for j, past in walk(history)
            if j.job_id == one.job_id
        )

    assert known(others) == known(jobs)


@given(_histories)
def test_nothing_of_the_job_itself_is_known(jobs: list[HistoryJob]) -> None:
    """Its outcome does not change its own features."""
    other = [replace(j, steps=j.steps + 5, state=JobState.DONE) for j in jobs]

    for j in other:
        mixed = [j if k.job_id == j.job_id else k for k in jobs]
        assert rows_of(mixed)[j.job_id] == rows_of(jobs)[j.job_id]


@given(_histories)
def test_walking_is_looking_back(jobs: list[HistoryJob]) -> None:
    """The growing past is at each job the past of all that had ended before it."""
    for j, past in walk(jobs):
        assert past.row(j) == Past(k for k in jobs if k.end < j.submit).row(j)


@given(_histories)
def test_rows_are_finite(jobs: list[HistoryJob]) -> None:
    for row in rows_of(jobs).values():
        assert row is None or (len(row) == len(FEATURES) and all(math.isfinite(v) for v in row))


def test_figures_of_a_series() -> None:
    """By hand: three runs of 10, 1000 and 100 s before, of which one failed more."""
    past = Past(
        [
            job("1", 0, 10, 10),
            job("2", 5, 1005, 1000),
            job("3", 2000, 2100, 200, steps_per_s=2.0),
            job("4", 10, 3000, 5, state=JobState.FAILED),
            job("5", 10, 20, 77, user="bob"),
        ]
    )
    row = dict(zip(FEATURES, past.row(Submission("x", 2200, "ann", "a", 4, cpus=3)), strict=True))

    logs = [math.log(10), math.log(1000), math.log(100)]
    assert row["series_count"] == math.log1p(3) and row["series_last"] == pytest.approx(math.log(100))
    assert row["series_mean"] == pytest.approx(sum(logs) / 3) and row["series_median"] == pytest.approx(math.log(100))
    assert row["series_spread"] == pytest.approx(math.sqrt(2 / 3) * math.log(10))
    assert row["series_age"] == pytest.approx(math.log(100)) and row["user_count"] == math.log1p(3)
    assert row["gpus"] == 2 and row["cpus"] == math.log1p(3) and row["weekday"] == 3
    assert row["all_median"] == pytest.approx((math.log(77) + math.log(100)) / 2)


def test_what_stands_in_for_an_unseen_group() -> None:
    """The median of the user, else of as many GPUs of the type, else of all."""
    past = Past([job("1", 0, 10, 10, gpus=2), job("2", 0, 20, 1000, user="bob", gpus=4)])

    def guess(**what: Any) -> Any:
        found = past.fallback(Submission("x", 99, **what))
        return found.level, round(math.exp(found.log_s))

    assert guess(user="ann", group="a") == ("group", 10)
    assert guess(user="ann", group="b") == ("user", 10) == guess(user="ann")
    assert guess(user="eve", group="a", gpus=4) == ("shape", 1000)
    assert guess(user="eve", gpus=4, gpu_type="k80")[0] == "all"
    assert Past().fallback(Submission("x", 9)) is None and Past().row(Submission("x", 9)) is None


def test_groups_are_a_users_own() -> None:
    past = Past([job("1", 0, 10, 10)])

    assert past.runs(Submission("x", 9, "ann", "a")) == 1
    assert past.runs(Submission("x", 9, "bob", "a")) == past.runs(Submission("x", 9, "ann", "")) == 0


def test_samples_are_jobs_that_ended_well_and_had_others_before_them() -> None:
    jobs = [job("1", 0, 10, 10), job("2", 20, 30, 10, state=JobState.FAILED), job("3", 40, 50, 10), job("4", 40, 60, 0)]

    (only,) = samples(jobs)
    assert only.job.job_id == "3" and only.seen and only.log_s == pytest.approx(math.log(10))


@given(st.lists(_jobs.filter(lambda j: j.teaches), max_size=5))
def test_histories_can_be_kept(jobs: list[HistoryJob]) -> None:
    assert from_rows(to_rows(jobs), "x") == tuple(jobs)


@pytest.mark.parametrize("rows", [{}, {"job_id": ["1"]}, to_rows([job("1", 0, 1, 1)]) | {"state": ["odd"]}])
def test_other_things_are_no_history(rows: Any) -> None:
    with pytest.raises(PredictionError, match=r"f\.npz: is not a history of jobs"):
        from_rows(rows, "f.npz")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"submit": math.nan}, "job 1: submit must be a finite time"),
        ({"gpus": 0}, "gpus at least 1"),
        ({"steps_per_s": 0.0}, "steps_per_s above 0"),
        ({"submit": 5.0, "end": 4.0}, "job 1: end 4.0 lies before its submission 5.0"),
    ],
)
def test_impossible_jobs(wrong: Any, error: str) -> None:
    with pytest.raises(PredictionError, match=error):
        HistoryJob(**{"job_id": "1", "submit": 0.0, **wrong})

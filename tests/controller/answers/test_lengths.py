"""Lengths as distributions: what is left of jobs that go on, and by when they are done in all likelihood."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import Config, load
from slurm_hadar.controller.answers.expectation import Peek, answer
from slurm_hadar.controller.answers.foresee import play
from slurm_hadar.controller.answers.lengths import UNKNOWN_ERROR, drawn_steps, leaning_steps, uncertainty
from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.model.length import Length
from slurm_hadar.policies import get

NOW = 1_000_000.0
CONFIG: Config = load(None, ["guard.min_run_s=0", "controller.round_s=10", "controller.event_round_s=1"])


def job(job_id: str, **fields: Any) -> Job:
    """One GPU, 10 steps/s; predicted to make 3,000 steps, four in five such jobs 1,000 to 9,000."""
    predicted = {"predicted_steps": 3000.0, "predicted_range": (1000.0, 9000.0)}
    known = {"speeds": {"v100": Speed(10.0)}, "arrival": NOW - 100 + float(job_id), "restart_cost_s": 0.0, **predicted}
    return Job(job_id, Form(1), **{**known, **fields})


def runs(job_id: str, node: str, **fields: Any) -> Job:
    held = Placement.of({node: {"v100": 1}})
    return job(job_id, state=JobState.RUNNING, started=NOW, placement=held, **fields)


def peek(*jobs: Job, nodes: int = 1) -> Peek:
    return Peek(Snapshot(NOW, tuple(Node("ab"[n], {"v100": 1}) for n in range(nodes)), jobs, round_s=10.0), get("fifo"))


def test_four_in_five_lie_between() -> None:
    length = Length(1000.0, 9000.0)

    assert length.left(0.1, 0.0) == pytest.approx(1000) and length.left(0.9, 0.0) == pytest.approx(9000)
    assert length.left(0.5, 0.0) == pytest.approx(3000)


@pytest.mark.parametrize("done", [500.0, 3000.0, 20_000.0])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_who_goes_on_is_one_of_the_longer_ones(done: float, share: float) -> None:
    """Against 200,000 lengths drawn from the same distribution, of which only those that go on count."""
    dice, sigma = Random(1), math.log(3.0) / NormalDist().inv_cdf(0.9)
    totals = (math.exp(math.log(3000.0) + sigma * dice.gauss()) for _ in range(200_000))
    left = sorted(total - done for total in totals if total > done)

    assert Length(1000.0, 9000.0).left(share, done) == pytest.approx(left[int(share * len(left))], rel=0.08)


@given(
    low=st.floats(1.0, 1e9),
    ratio=st.floats(1.01, 1e6),
    done=st.floats(0.0, 1e15),
    shares=st.tuples(*[st.floats(1e-9, 1 - 1e-9)] * 2),
)
def test_something_finite_is_left_and_more_with_a_larger_share(
    low: float, ratio: float, done: float, shares: tuple[float, float]
) -> None:
    less, more = (Length(low, low * ratio).left(share, done) for share in sorted(shares))

    assert 0.0 <= less <= more * (1 + 1e-9) + 1e-6 and math.isfinite(more)


def test_which_lengths_are_distributions() -> None:
    """A stated one is none, nor one of which nothing is predicted, nor a prediction without an error."""
    assert job("1").length == Length(1000.0, 9000.0)
    assert job("1", total_steps=500.0).length is None
    assert job("1", predicted_range=None).length is None
    assert job("1", predicted_range=(3000.0, 3000.0)).length is None


def test_early_and_late_are_those_of_the_prediction() -> None:
    """Times the tenth that no speed is known better than."""
    steps = [leaning_steps(job("1"), 3600.0, lean) for lean in (-1.0, 0.0, 1.0)]

    assert steps == [pytest.approx(900.0), 3000.0, pytest.approx(9900.0)]


def test_who_runs_alone_ends_by_its_own_length() -> None:
    """With 2,000 steps done, four in five of those that go on have at most so many left; the error of the speed adds
    little to that."""
    one = runs("1", "a", done_steps=2000.0)
    told = answer(peek(one), "1", CONFIG)

    assert told is not None and told.end_80 is not None and told.end is not None
    assert told.end_80 - NOW == pytest.approx(Length(1000.0, 9000.0).left(0.8, 2000.0) / 10.0, rel=0.15)
    assert told.end.low < told.end_80 < (told.end.high or 0.0)


def test_a_stated_length_leaves_little_doubt_and_an_unknown_one_nothing_to_say() -> None:
    stated = answer(peek(runs("1", "a", total_steps=1000.0)), "1", CONFIG)
    unknown = answer(peek(runs("1", "a", predicted_steps=None, predicted_range=None)), "1", CONFIG)

    assert stated is not None and stated.end_80 == pytest.approx(NOW + 108, abs=2)
    assert unknown is not None and unknown.end_80 is None and unknown.end is not None


def test_nothing_is_said_of_a_job_that_has_outrun_what_was_stated() -> None:
    """When it ends nobody knows; it is taken to make as many steps again."""
    liar = runs("1", "a", total_steps=100.0, done_steps=384.0)
    told = answer(peek(liar), "1", CONFIG)

    assert told is not None and told.end_80 is None and told.outrun_steps == 768
    assert uncertainty(liar) == UNKNOWN_ERROR
    honest = answer(peek(replace(liar, done_steps=84.0)), "1", CONFIG)
    assert honest is not None and honest.end_80 is not None and honest.outrun_steps is None


def test_without_time_to_look_ahead_nothing_is_said() -> None:
    told = answer(peek(runs("1", "a"), job("2")), "2", CONFIG, cpu_s=0.0)

    assert told is not None and told.end_80 is None


@pytest.mark.thorough
def test_four_in_five_end_by_then() -> None:
    """Two GPUs and five jobs: one that runs, and two that wait for others of unknown ends. Against 200 other futures,
    drawn as the lengths are distributed; 20 are looked at for the answer, so that it is right within some per cent."""
    jobs = [runs("1", "a", done_steps=1500.0), runs("2", "b"), *(job(str(n)) for n in (3, 4, 5))]
    seen = peek(*jobs, nodes=2)
    told = {job_id: answer(seen, job_id, CONFIG, cpu_s=60.0) for job_id in ("1", "3", "5")}

    in_time, dice = Counter[str](), Random("other futures")
    for _ in range(200):
        left = {j.job_id: drawn_steps(j, 3600.0, 1.0 - dice.random(), dice) for j in jobs}
        fates = play(seen.snapshot, seen.policy, CONFIG, left=left, wanted=told.keys()).fates
        in_time.update(job_id for job_id, answered in told.items() if fates[job_id].end <= answered.end_80)

    assert all(0.65 <= in_time[job_id] / 200 <= 0.92 for job_id in told)


def test_copies_share_one_length() -> None:
    """Each copy of a forked job is told the same end."""
    copies = [replace(runs("1", n), job_id=f"7_{n}", array_id="7", fork="spread") for n in "ab"]
    seen = peek(*copies, nodes=2)

    ends = {answer(seen, copy.job_id, CONFIG).end_80 for copy in copies}

    assert len(ends) == 1 and None not in ends

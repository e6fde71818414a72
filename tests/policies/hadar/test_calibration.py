"""Estimates of speeds are believed as far as measurements have borne out those before."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Job, Placement, Snapshot, Speed
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.estimates.calibration import Calibration
from tests.policies.conftest import NOW, make_job, make_snapshot

ERROR = 0.3
USUAL = {"v100": 0.8, "p100": 0.3, "k80": -1.1}


def estimated(job: Job, speeds: Mapping[str, float], measured: str = "") -> Job:
    return replace(
        job,
        speeds={
            t: Speed(x, error=0.0, measured=True) if t == measured else Speed(x, error=ERROR) for t, x in speeds.items()
        },
    )


def draw(dice: random.Random, differ: float, noise: float, shrunk: bool) -> tuple[dict[str, float], dict[str, float]]:
    """(estimates, truth) of one job: the errors are on top of what is true, or the truth is about the estimates."""
    one = {t: math.exp(x + dice.gauss(0, differ)) for t, x in USUAL.items()}
    other = {t: x * math.exp(dice.gauss(0, noise)) for t, x in one.items()}
    return (one, other) if shrunk else (other, one)


def after(count: int, differ: float, *, shrunk: bool = False, lies: float = 1.0) -> Snapshot:
    """Jobs have come one after the other, each of which ran on the type that seemed to suit it most; the last round."""
    dice = random.Random(1)
    memory: dict[str, Any] = {}
    for number in range(count):
        guess, truth = draw(dice, differ, ERROR, shrunk)
        best = max(guess, key=lambda t: math.log(guess[t]) - USUAL[t])
        job: Job = make_job(str(number), 1)
        fresh = Snapshot(NOW, (), (estimated(job, guess),), memory=memory)
        memory = Calibration.of(fresh).memory(fresh, {job.job_id: Placement.of({"n": {best: 1}})})
        told = {**guess, best: truth[best] * (lies if number == 0 else 1.0)}
        known = Snapshot(NOW, (), (estimated(job, told, best),), memory=json.loads(json.dumps(memory)))
        memory = Calibration.of(known).memory(known, {})
    return Snapshot(NOW, (), (), memory=memory)


def noise(snapshot: Snapshot) -> float:
    return Calibration.of(snapshot).noise


@pytest.mark.parametrize("differ", [0.15, 0.3, 0.6])
def test_the_share_that_is_error_is_found(differ: float) -> None:
    expected = ERROR**2 / (ERROR**2 + differ**2)
    assert noise(after(300, differ)) == pytest.approx(expected, abs=0.12)


def test_estimates_that_are_expectations_are_let_be() -> None:
    """Whose errors do not hang on how far they stand out."""
    assert noise(after(300, 0.3, shrunk=True)) < 0.1


def test_few_measurements_change_little() -> None:
    assert noise(after(0, 0.3)) == 0.0
    assert noise(after(2, 0.1)) < noise(after(200, 0.1)) / 2


def test_one_job_that_lies_is_one_among_others() -> None:
    assert noise(after(200, 0.3, lies=1e12)) == pytest.approx(noise(after(200, 0.3)), abs=0.05)


def test_corrected_estimates_are_nearer_to_the_truth() -> None:
    """How much faster each type is than the slowest: on fresh jobs, with the errors learned from those before."""
    before, dice = after(200, 0.15), random.Random(2)
    off: dict[bool, list[float]] = {False: [], True: []}
    for number in range(100):
        guess, truth = draw(dice, 0.15, ERROR, shrunk=False)
        raw = before.with_jobs([estimated(make_job(str(1000 + number), 1), guess)])
        for corrected in (False, True):
            (job,) = (Calibration.of(raw).corrected(raw) if corrected else raw).jobs
            logs = {t: math.log(job.speeds[t].steps_per_s / truth[t]) for t in truth}
            off[corrected] += [(logs[t] - logs["k80"]) ** 2 for t in ("v100", "p100")]
    assert sum(off[True]) < 0.5 * sum(off[False])


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), st.sampled_from(["", "v100", "k80"]))
def test_what_is_measured_stays_and_the_rest_goes_towards_the_usual(steps: list[float], measured: str) -> None:
    job = estimated(make_job("9", 1), dict(zip(USUAL, steps, strict=True)), measured)
    job = replace(job, scaled={2: {t: replace(s, steps_per_s=2 * s.steps_per_s) for t, s in job.speeds.items()}})
    raw = SKEWED.with_jobs([job])
    calibration = Calibration.of(raw)
    (seen,) = calibration.corrected(raw).jobs

    def gap(one: Job, a: str, b: str) -> float:
        return (
            math.log(one.speeds[a].steps_per_s / one.speeds[b].steps_per_s)
            - calibration.usual[a]
            + calibration.usual[b]
        )

    for a, b in (("v100", "p100"), ("p100", "k80"), ("v100", "k80")):
        assert abs(gap(seen, a, b)) <= abs(gap(job, a, b)) + 1e-9 or measured in (a, b)
    for t in USUAL:
        assert seen.scaled[2][t].steps_per_s == pytest.approx(2 * seen.speeds[t].steps_per_s)
    if measured:
        assert seen.speeds[measured] == job.speeds[measured]


SKEWED = after(100, 0.2)
USUAL_SPEEDS = {t: math.exp(x) for t, x in USUAL.items()}


def test_speeds_of_which_nothing_is_known_are_let_be() -> None:
    job = replace(make_job("9", 1), speeds={"v100": Speed(5.0), "p100": Speed(1.0), "k80": Speed(3.0)})
    raw = SKEWED.with_jobs([job])
    assert Calibration.of(raw).corrected(raw).jobs == (job,)


def test_a_job_without_any_speed_is_no_harm_to_the_others() -> None:
    useless, other = estimated(make_job("8", 1), dict.fromkeys(USUAL, 0.0)), estimated(make_job("9", 1), USUAL_SPEEDS)
    raw = SKEWED.with_jobs([useless, other])
    assert Calibration.of(raw).corrected(raw).jobs[0] == useless
    plan = get("hadar").allocate(make_snapshot([useless, other], memory=SKEWED.memory))
    assert plan.placement("9") and not plan.placement("8")


def test_the_policy_remembers_who_starts_by_an_estimate() -> None:
    job = estimated(make_job("1", 1), {"v100": 3.0, "p100": 2.0, "k80": 1.0})
    plan = get("hadar").allocate(make_snapshot([job]))
    (gpu_type,) = plan.placement("1").by_type
    assert plan.memory["speeds"]["started"]["1"][0] == gpu_type

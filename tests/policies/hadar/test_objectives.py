"""What a second of delay costs whom."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Snapshot
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes
from slurm_hadar.policies.hadar.lookahead.objectives import chance_late, delay_costs, due_s, hastened
from slurm_hadar.policies.hadar.lookahead.outlook import survey
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.testing.snapshots import snapshots

OBJECTIVES = ("jct", "ttd", "ftf", "deadline")


def weights_of(
    seen: Snapshot, objective: Any = "jct", fair_share: Any = "none", type_value: Any = None, fairness: Any = 0.0
) -> Any:
    """{job: weight}."""
    outlook = survey(Arena.of(seen), Lifetimes(3600.0))
    found = delay_costs(outlook, objective, fairness, fair_share, type_value or {})
    if objective == "deadline" and outlook.jobs:
        found = hastened(found, outlook, due_s(outlook))
    return dict(zip([j.job_id for j in outlook.jobs], found.tolist(), strict=True))


@given(snapshots(), st.sampled_from(OBJECTIVES), st.sampled_from(("none", "user", "account")))
def test_positive_and_one_on_average(seen: Any, objective: Any, fair_share: Any) -> None:
    """So that prices and payoffs read the same under all objectives."""
    seen = replace(
        seen,
        jobs=tuple(replace(j, user=f"u{i % 3}", account="lab") for i, j in enumerate(seen.jobs)),
        user_usage={"u0": {"v100": 1e5}, "u1": {"k80": 10.0}},
    )
    found = np.array(list(weights_of(seen, objective, fair_share).values()))
    assert np.isfinite(found).all() and (found > 0).all()
    if len(found):
        assert found.mean() == pytest.approx(1.0)


def test_the_owners_weight_multiplies_under_every_objective(job: Any, snapshot: Any) -> None:
    """weight=2 counts twice."""
    seen = snapshot([job("1", arrival=900.0), job("2", arrival=900.0, weight=2.0)])
    for objective in OBJECTIVES:
        found = weights_of(seen, objective)
        assert found["2"] == pytest.approx(2 * found["1"])


def test_finish_time_fairness_grows_with_age_and_falls_with_size(job: Any, snapshot: Any) -> None:
    """2 rho / T_iso: who waited longer counts more, and a second hurts a short job more than a long one."""
    jobs = [job("1", arrival=0.0), job("2", arrival=900.0), job("3", arrival=900.0, steps=1e5)]
    found = weights_of(snapshot(jobs), "ftf")
    assert found["1"] > found["2"] > found["3"]
    # both have 100 s of work; (age + 100) / (age + 100) as 1100 to 200
    assert found["1"] / found["2"] == pytest.approx(1100 / 200)


def test_finish_time_fairness_counts_the_whole_job(job: Any, snapshot: Any) -> None:
    """A job that is nearly done is measured against all of its work, not against what is left."""
    half_done = job("1", arrival=900.0, steps=2000.0, done_steps=1000.0)
    found = weights_of(snapshot([half_done, job("2", arrival=900.0)]), "ftf")
    assert found["2"] / found["1"] == pytest.approx(4.0)


def test_a_deadline_that_is_close_and_can_be_kept_counts_ten_times(job: Any, snapshot: Any) -> None:
    """Ten the less, the further off it is; hopeless: one; at the very edge half-way between."""
    jobs = [
        job("1"),
        job("2", deadline=1000.0 + 1e6),
        job("3", deadline=-1e6),
        job("4", deadline=1000.0 + 100.0),  # as many seconds as it needs on its best type
        job("5", deadline=1000.0 + 500.0),  # as many as five of its mean run times
        job("6", deadline=1000.0 + 2100.0),
    ]
    found = weights_of(snapshot(jobs, round_s=20.0), "deadline")
    for job_id, times in {"2": 1.0, "3": 1.0, "4": 5.5, "5": 1 + 9 * np.exp(-1), "6": 1 + 9 * np.exp(-5)}.items():
        assert found[job_id] / found["1"] == pytest.approx(times)


@given(snapshots(), st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_who_ends_later_is_no_less_likely_to_be_late(seen: Any, end_s: float, more_s: float) -> None:
    """And who has no deadline never is."""
    seen = replace(
        seen, jobs=tuple(replace(j, deadline=seen.time + 3600.0 if i % 2 else None) for i, j in enumerate(seen.jobs))
    )
    outlook = survey(Arena.of(seen), Lifetimes(3600.0))
    sooner, later = (
        chance_late(outlook, np.full(len(outlook.jobs), at), due_s(outlook)) for at in (end_s, end_s + more_s)
    )
    assert ((sooner >= 0) & (sooner <= later + 1e-12) & (later <= 1)).all()
    assert (later[~np.isfinite(due_s(outlook))] < 1e-9).all()


def test_who_used_twice_as_much_counts_half(job: Any, snapshot: Any) -> None:
    """Fair share over actual share, by user or by account."""
    jobs = [job("1", user="a", account="x"), job("2", user="b", account="y")]
    usage = {"v100": 1000.0}, {"v100": 2000.0}
    by_user = snapshot(jobs, user_usage=dict(zip("ab", usage, strict=True)))
    by_account = snapshot(jobs, account_usage=dict(zip("xy", usage, strict=True)))
    for seen, fair_share in ((by_user, "user"), (by_account, "account")):
        found = weights_of(seen, fair_share=fair_share)
        assert found["1"] == pytest.approx(2 * found["2"])
    assert weights_of(by_user) == {"1": 1.0, "2": 1.0}
    assert weights_of(by_user, fair_share="account") == {"1": 1.0, "2": 1.0}


def test_gpu_time_counts_at_the_value_of_its_type(job: Any, snapshot: Any) -> None:
    """Ten hours of a type worth a tenth are one hour of a type worth one."""
    jobs = [job("1", user="a"), job("2", user="b")]
    seen = snapshot(jobs, user_usage={"a": {"v100": 3600.0}, "b": {"k80": 36000.0}})
    valued = weights_of(seen, fair_share="user", type_value={"v100": 1.0, "k80": 0.1})
    assert valued["1"] == pytest.approx(valued["2"])
    assert weights_of(seen, fair_share="user")["1"] > weights_of(seen, fair_share="user")["2"]


def test_fair_share_stays_between_an_eighth_and_eight(job: Any, snapshot: Any) -> None:
    """One user had everything, twenty had nothing; none of them is shut out by that."""
    jobs = [job(str(i), user=f"u{i}", arrival=900.0) for i in range(1, 22)]
    found = weights_of(snapshot(jobs, user_usage={"u1": {"v100": 1e9}}), fair_share="user")
    assert found["2"] / found["1"] == pytest.approx(64.0)
    assert len({round(w, 9) for w in found.values()}) == 2


def test_one_user_alone_is_compared_with_nobody(job: Any, snapshot: Any) -> None:
    """Fair shares concern those who have active jobs."""
    seen = snapshot([job("1", user="a"), job("2", user="a")], user_usage={"a": {"v100": 9.0}, "b": {"v100": 1.0}})
    assert weights_of(seen, fair_share="user") == {"1": 1.0, "2": 1.0}


@given(snapshots(), st.floats(0.0, 1.0))
def test_fairness_leads_from_the_jobs_own_weights_to_those_of_ftf(seen: Any, fairness: Any) -> None:
    """The knob is a straight line between the two ends."""
    plain = replace(seen, jobs=tuple(replace(j, weight=1.0) for j in seen.jobs))
    start, end = weights_of(plain), weights_of(plain, objective="ftf")
    between = weights_of(plain, fairness=fairness)
    for job_id, weight in between.items():
        assert weight == pytest.approx((1 - fairness) * start[job_id] + fairness * end[job_id], rel=1e-6, abs=1e-8)

"""How two jobs divide the turns of a GPU, and what each accepts of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.safety.guard import ChangeKind, changes_of
from slurm_hadar.model import Form, Job, JobState, Node, Pairing, Placement, Plan, Snapshot, Speed, Tier, Wait
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL, affords, kept_by, patience_s
from slurm_hadar.testing.snapshots import carry_out

ON_V100 = Placement.of({"n1": {"v100": 1}})
HALF: dict[Pairing, tuple[float, float]] = {("a", "a", "v100"): (0.5, 0.5)}
AT_HOME = "no checkpoint support"


def job(job_id: str, steps: float = 3600.0, **fields: Any) -> Job:
    """One GPU, one step per second on a v100, a slow-down of 2."""
    speeds = {"v100": Speed(1.0)}
    given_ = {"form": Form(1), "model": "a", "total_steps": steps, "slow_down": 2.0, "speeds": speeds}
    return Job(job_id, **{**given_, **fields})


def running(job_id: str, steps: float = 3600.0, **fields: Any) -> Job:
    return job(job_id, steps, **{"state": JobState.RUNNING, "placement": ON_V100, "started": 0.0, **fields})


def cluster(*jobs: Job, **fields: Any) -> Snapshot:
    return Snapshot(1e5, (Node("n1", {"v100": 1}),), jobs, pairings=HALF, **{"turns": True, **fields})


def planned(snapshot: Snapshot, policy: str = "fifo") -> Plan:
    plan = registry.get(policy).allocate(snapshot)
    assert check_plan(snapshot, plan) == []
    return plan


@given(st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_what_two_keep_goes_from_all_for_the_one_to_all_for_the_other(a: float, b: float, share: float) -> None:
    assert kept_by((a, b), EQUAL) == (a, b)
    assert kept_by((a, b), 1.0) == pytest.approx((1.0, 0.0)) and kept_by((a, b), 0.0) == pytest.approx((0.0, 1.0))
    guest, host = kept_by((a, b), share)
    assert 0.0 <= guest <= 1.0 and 0.0 <= host <= 1.0
    assert (guest >= a) == (host <= b) or share == EQUAL


@given(
    st.floats(1.0, 10.0),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 5000.0)), max_size=20),
)
def test_who_is_only_asked_for_what_he_affords_is_never_slower_than_he_accepts(
    slow_down: float, asked: list[tuple[float, float]]
) -> None:
    """At no moment has he run for more than so many times what his steps take alone."""
    one = job("1", slow_down=slow_down)
    for keeps, for_s in asked:
        keeps = keeps if affords(one, keeps, for_s) else 1.0
        one = replace(one, attained_s=one.attained_s + for_s, held_up_s=one.held_up_s + (1.0 - keeps) * for_s)
        own_s = one.attained_s - one.held_up_s
        assert one.attained_s <= slow_down * own_s + 1e-3 and patience_s(one) >= -1e-3


@pytest.mark.parametrize(
    ("host", "guest", "share"),
    [
        ({"attained_s": 3600.0}, {}, 1.0),
        ({"attained_s": 1000.0}, {}, 0.6),  # of 1800 s that the guest has to do
        ({"attained_s": 3600.0, "held_up_s": 1800.0}, {}, None),
        ({"attained_s": 3600.0, "total_steps": None}, {}, None),  # whose length nobody knows
        ({"attained_s": 3600.0}, {"total_steps": 1e6}, None),  # who is further from its end
        ({"attained_s": 3600.0, "weight": 99.0}, {}, None),
        ({"attained_s": 3600.0, "slow_down": 1.0}, {}, None),
        ({"attained_s": 3600.0, "gives_way": False}, {}, None),  # nobody can tell it to
    ],
)
def test_who_waits_gets_turns_at_once(host: dict[str, Any], guest: dict[str, Any], share: float | None) -> None:
    held = running("1", **{"total_steps": 1e5, "unmovable": AT_HOME, **host})
    plan = planned(cluster(held, job("2", arrival=5.0, **{"total_steps": 1800.0, **guest})))

    assert plan.turns == ({} if share is None else {"2": share})
    assert share is None or plan.guests == {"2": "1"}


def test_without_turns_shares_are_not_chosen() -> None:
    held = running("1", 1e5, attained_s=1e5, unmovable=AT_HOME)

    assert planned(cluster(held, job("2", 600.0, arrival=5.0), turns=False)).turns == {}


def test_bound_together_the_one_that_is_nearer_to_its_end_has_the_turns() -> None:
    """Who cannot leave each other; either may be ahead, as far as the other affords it."""
    for steps, share in (((1e5, 600.0), 1.0), ((600.0, 1e5), 0.0), ((600.0, 600.0), None)):
        host = running("1", steps[0], attained_s=3600.0, unmovable=AT_HOME)
        guest = running("2", steps[1], attained_s=3600.0, unmovable=AT_HOME, host="1")
        assert planned(cluster(host, guest)).turns.get("2") == share


def test_a_job_that_another_is_to_replace_becomes_its_host_and_gets_its_turns_back() -> None:
    host, guest = running("1", 1e5), job("2", 600.0, arrival=5.0)
    snapshot = cluster(host, guest)

    plan = planned(snapshot, "srtf")
    assert plan.guests == {"2": "1"} and plan.turns == {"2": 1.0} and plan.waits == {}
    assert [c.kind for c in changes_of(snapshot, plan)] == [ChangeKind.STAY, ChangeKind.START]
    again = carry_out(snapshot, plan)
    assert planned(again, "srtf").turns == {"2": 1.0}
    shorter = again.with_jobs(replace(j, total_steps=10.0) if j.job_id == "1" else j for j in again.jobs)
    back = planned(shorter, "srtf")
    assert back.guests == {"2": "1"} and back.turns == {"2": 0.0}  # and now the guest waits in memory
    over = again.with_jobs(j for j in again.jobs if j.job_id == "1")
    assert planned(over, "srtf").placements == {"1": ON_V100}


def test_a_plan_may_not_take_turns_from_who_does_not_accept_it() -> None:
    fixed = running("1", 1e5, unmovable=AT_HOME)
    snapshot = cluster(fixed, job("2", 600.0))
    placements = {"1": ON_V100, "2": ON_V100}
    bad = Plan("p", placements, guests={"2": "1"}, turns={"2": 1.0})

    assert check_plan(snapshot, bad) == ["job 2: has 1 of the turns beside 1, which they do not both accept"]
    assert check_plan(snapshot, replace(bad, turns={})) == []
    willing = cluster(replace(fixed, attained_s=3600.0), snapshot.job["2"])
    assert check_plan(willing, bad) == []
    assert check_plan(replace(willing, turns=False), bad) != []
    assert check_plan(willing, replace(bad, turns={"2": 1.5})) != []


def test_wait_is_what_the_policy_says_of_who_fits_nowhere() -> None:
    """Who is paired with nobody is stopped as ever."""
    snapshot = cluster(running("1", 1e5, slow_down=1.0), job("2", 600.0, arrival=5.0))
    plan = planned(snapshot, "srtf")

    assert plan.guests == {} and isinstance(plan.waits["1"], Wait) and plan.waits["1"].tier is Tier.POLICY


def test_who_was_larger_is_not_taken_to_have_run_for_longer() -> None:
    """4,000 GPU-seconds on up to four GPUs may be no more than 1,000 seconds."""
    one = job("1", form=Form(1, sizes=(1, 2, 4)), attained_s=4000.0, slow_down=2.0)
    assert patience_s(one) == pytest.approx(1000.0)

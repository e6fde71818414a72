"""Third and later jobs on one GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.safety.guard import ChangeKind, changes_of, fit
from slurm_hadar.model import LEAST_DUTY, Form, Job, JobState, Node, Placement, Plan, Snapshot, Speed, Tier, Wait
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.shared_gpus.company import kept_by_each
from slurm_hadar.testing.snapshots import carry_out, snapshots

ON_V100 = Placement.of({"n1": {"v100": 1}})
HALF = {(a, b, "v100"): (0.5, 0.5) for a in "ab" for b in "ab"}


def job(number: int, duty: float | None = 0.2, steps: float = 3600.0, **fields: Any) -> Job:
    given_ = {"form": Form(1), "model": "a", "total_steps": steps, "slow_down": 2.0, "speeds": {"v100": Speed(1.0)}}
    given_ |= {"arrival": float(number), "duty": {} if duty is None else {"v100": duty}}
    return Job(str(number), **{**given_, **fields})


def running(number: int, duty: float | None = 0.2, steps: float = 3600.0, **fields: Any) -> Job:
    there = {"state": JobState.RUNNING, "placement": ON_V100, "started": float(number)}
    return job(number, duty, steps, **{**there, **fields})


def cluster(*jobs: Job, gpus: int = 1, **fields: Any) -> Snapshot:
    return Snapshot(1000.0, (Node("n1", {"v100": gpus}),), jobs, **{"pairings": HALF, "turns": True, **fields})


def planned(snapshot: Snapshot, policy: str = "fifo") -> Plan:
    plan = registry.get(policy).allocate(snapshot)
    assert check_plan(snapshot, plan) == []
    return plan


def test_as_many_as_the_gpu_has_time_for_run_on_it() -> None:
    """Six want 0.2 of it; a seventh would leave each of them 0.71 of its speed, which all accept, and help nobody."""
    plan = planned(cluster(running(1), *(job(n) for n in range(2, 20))))

    assert 5 <= 1 + len(plan.guests) <= 6 and set(plan.guests.values()) == {"1"} and plan.turns == {}


def test_two_by_turns_do_more_than_one_where_their_duties_leave_time() -> None:
    """Without duties they do not, and nobody is paired where the order is as good as any."""
    assert planned(cluster(running(1), job(2))).guests == {"2": "1"}
    assert planned(cluster(running(1, None), job(2, None))).guests == {}


@pytest.mark.parametrize(
    ("unmovable", "shorter", "comes"),
    [(None, 6, True), ("has no checkpoints", 6, False), ("has no checkpoints", 0, True)],
)
def test_who_cannot_leave_again_does_not_come_before_many_shorter_ones(
    unmovable: str | None, shorter: int, comes: bool
) -> None:
    waiting = [job(n, user="another", steps=600.0) for n in range(4, 4 + shorter)]
    guest = running(2, host="1")
    plan = planned(cluster(running(1), guest, job(3, steps=1e5, unmovable=unmovable), *waiting))

    assert ("3" in plan.guests) is comes


@pytest.mark.parametrize(
    ("third", "fields"),
    [
        ({"slow_down": 1.0}, {}),
        ({"duty": None, "slow_down": 1.6}, {}),  # which is not known, and counts as 1: it keeps 0.6
        ({"user": "bob"}, {}),
        ({"model": "c"}, {}),  # of which nothing is known
        ({"duty": 0.9, "slow_down": 1.2}, {}),  # which keeps 0.67
        ({"takes": (3, 3)}, {"gpu_bytes": {"v100": 9}}),  # 2 + 2 + 3 + 3
        ({"parts": 2}, {}),  # of which there is one left
        ({}, {"turns": False}),
        ({}, {"measured": {("a", ("a", "a"), "v100"): 0.4}}),
    ],
)
def test_no_third_comes_who_is_not_accepted_or_does_not_accept(third: dict[str, Any], fields: dict[str, Any]) -> None:
    two = [running(1, takes=(2, 2), room=1), running(2, takes=(2, 1), host="1", room=1)]
    if fields.get("turns") is False:
        fields = {**fields, "pairings": dict.fromkeys(HALF, (0.9, 0.9))}
    assert planned(cluster(*two, job(3, takes=(2, 1)))).guests == {"2": "1", "3": "1"}

    assert planned(cluster(*two, job(3, **third), **fields)).guests == {"2": "1"}


def test_of_one_at_most_the_duty_is_not_known() -> None:
    """With ten times as long accepted, two such would do no more than one."""
    waiting = [job(3, None, 60.0, slow_down=10.0), job(4, None, 60.0, slow_down=10.0)]
    plan = planned(cluster(running(1, 0.1, slow_down=10.0), running(2, 0.1, host="1", slow_down=10.0), *waiting))

    assert plan.guests in ({"2": "1", "3": "1"}, {"2": "1", "4": "1"})


def test_who_is_as_fast_as_a_guest_is_not_moved_to_a_gpu_of_its_own() -> None:
    """Which is for one that waits; one that is slowed goes there, if it is its turn."""
    there = running(1), running(2, host="1")
    snapshot = cluster(*there, job(3), gpus=2)
    plan = planned(snapshot)
    assert plan.guests == {"2": "1"} and [c.kind for c in changes_of(snapshot, plan)[:2]] == [ChangeKind.STAY] * 2

    slowed = cluster(running(1), running(2, 1.0, host="1"), job(3), gpus=2)
    assert "2" not in planned(slowed).guests


def test_a_crowd_stays_as_it_is() -> None:
    """What comes of it is no change; nor is one where all GPUs are as good."""
    crowd = [running(1), *(running(n, host="1") for n in (2, 3, 4))]
    snapshot = cluster(*crowd, running(5, model="b"), gpus=2)
    plan = planned(snapshot)

    assert plan.guests == dict.fromkeys("234", "1")
    assert [c.kind for c in changes_of(snapshot, plan)] == [ChangeKind.STAY] * 5


def test_what_turns_out_worse_than_accepted_is_undone() -> None:
    """By what was measured of three: the last who came leaves, and does not come again."""
    crowd = [running(1), running(2, host="1"), running(3, host="1")]
    slow = {("a", ("a", "a"), "v100"): 0.4}
    snapshot = cluster(*crowd, measured=slow)

    plan = planned(snapshot)
    following = carry_out(snapshot, plan)

    assert plan.guests == {"2": "1"} and set(plan.waits) == {"3"}
    assert planned(following).guests == {"2": "1"}


def test_when_the_host_is_stopped_one_of_its_guests_is_the_host_of_the_others() -> None:
    """Shortest first: nobody is requeued, as they are all on one GPU."""
    crowd = [running(1, 0.4, 9e5), running(2, 0.4, 3600.0, host="1"), running(3, 0.4, 8e5, host="1")]
    snapshot = cluster(*crowd)

    plan = planned(snapshot, "srtf")

    assert plan.guests == {"1": "2", "3": "2"}
    assert [c.kind for c in changes_of(snapshot, plan)] == [ChangeKind.STAY] * 3


def test_a_guest_that_is_as_fast_as_alone_stays_with_the_next_host() -> None:
    """Of three the policy stops one for another; the third is not shown to it."""
    crowd = [running(1, 0.5, 9e5), running(2, 0.9, 3600.0, host="1"), running(3, 0.05, 8e5, host="1")]
    snapshot = cluster(*crowd)

    plan = planned(snapshot, "srtf")

    assert plan.guests["3"] == "2" and "3" not in plan.waits
    assert {c.job_id: c.kind for c in changes_of(snapshot, plan)}["3"] is ChangeKind.STAY


def test_guests_of_a_host_that_stays_after_all_stay_with_it() -> None:
    """A veto that comes after the plan."""
    snapshot = cluster(running(1), running(2, host="1"), running(3, host="1"))
    wait = {"1": Wait(Tier.POLICY, "waits")}
    plan = Plan("p", {"2": ON_V100, "3": ON_V100}, wait, guests={"3": "2"})
    assert check_plan(snapshot, plan) == []

    settled = fit(snapshot, changes_of(snapshot, plan), {"1": "is not stopped"})

    assert {c.job_id: c.host for c in settled} == {"1": None, "2": "1", "3": "1"}
    assert {c.kind for c in settled} == {ChangeKind.STAY}


def test_plans_with_crowds_that_cannot_be_are_no_plans() -> None:
    snapshot = cluster(running(1), job(2), job(3), job(4, None))
    wait = {"4": Wait(Tier.POLICY, "waits")}
    three = Plan("p", dict.fromkeys("123", ON_V100), wait, guests={"2": "1", "3": "1"})
    large = [replace(j, duty={}) for j in snapshot.jobs]

    assert check_plan(snapshot, three) == []
    assert check_plan(replace(snapshot, turns=False), three)
    assert check_plan(snapshot, replace(three, turns={"2": 0.75}))
    assert check_plan(snapshot.with_jobs(large), three)  # each has a third, and accepts a half


@pytest.mark.parametrize("policy", ["srtf", pytest.param("hadar", marks=pytest.mark.thorough), "fifo"])
@given(snapshot=snapshots(), data=st.data())
def test_policies_keep_the_contract_with_crowds(policy: str, snapshot: Snapshot, data: st.DataObject) -> None:
    """Three rounds, in each of which what was planned is carried out; and nobody keeps less than he accepts."""
    types = {t for n in snapshot.nodes for t in n.gpus}
    slow = st.sampled_from([1.0, 1.3, 2.0, 10.0])
    duty = st.one_of(st.none(), st.floats(LEAST_DUTY, 0.5))
    jobs = [
        replace(
            j, model="m", batch=None, user="u", slow_down=data.draw(slow), duty=dict.fromkeys(types, d) if d else {}
        )
        for j in snapshot.jobs
        for d in [data.draw(duty)]
    ]
    pairings = {("m", "m", t): (0.5, 0.5) for t in types}
    snapshot = replace(snapshot, jobs=tuple(jobs), pairings=pairings, turns=True)
    for _ in range(3):
        plan = registry.get(policy).allocate(snapshot)
        assert check_plan(snapshot, plan) == []
        for host in {*plan.guests.values()}:
            there = [snapshot.job[j] for j in (host, *(g for g, h in plan.guests.items() if h == host))]
            kept = kept_by_each(snapshot, there, next(iter(plan.placement(host).by_type)))
            assert kept is not None
            assert len(there) == 2 or all(k * j.slow_down >= 1 - 1e-9 for k, j in zip(kept, there, strict=True))
        snapshot = carry_out(snapshot, plan)

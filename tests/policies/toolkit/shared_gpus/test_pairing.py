"""Who runs beside whom on one GPU, after a policy has given out whole ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import Config, GuardSection
from slurm_hadar.controller.safety.guard import ChangeKind, changes_of, limit
from slurm_hadar.model import (
    EMPTY,
    Draw,
    Form,
    Job,
    JobState,
    Kept,
    Needs,
    Node,
    Pairing,
    Placement,
    Plan,
    Quota,
    Snapshot,
    Speed,
    Tier,
    Wait,
)
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.shared_gpus.company import on_same_gpu
from slurm_hadar.testing.snapshots import carry_out, snapshots
from slurm_hadar.throughput.colocation import both_ways, published

POLICIES = ["srtf", *(pytest.param(p, marks=pytest.mark.thorough) for p in ("hadar", "hadare", "gavel_las"))]
ON_V100 = Placement.of({"n1": {"v100": 1}})
KEPT: dict[Pairing, Kept] = both_ways({("a", "b", "v100"): (0.9, 0.6), ("a", "a", "v100"): (0.5, 0.5)})


def job(job_id: str, model: str = "a", steps: float = 3600.0, **fields: Any) -> Job:
    """One GPU, one step per second on a v100, a slow-down of 2."""
    given_ = {"form": Form(1), "model": model, "total_steps": steps, "slow_down": 2.0, "speeds": {"v100": Speed(1.0)}}
    return Job(job_id, **{**given_, **fields})


def running(job_id: str, model: str = "a", steps: float = 3600.0, **fields: Any) -> Job:
    return job(job_id, model, steps, **{"state": JobState.RUNNING, "placement": ON_V100, "started": 0.0, **fields})


def cluster(*jobs: Job, gpus: int = 1, pairings: dict[Pairing, Kept] = KEPT, **fields: Any) -> Snapshot:
    return Snapshot(1000.0, (Node("n1", {"v100": gpus}),), jobs, pairings=pairings, **fields)


def fifo(snapshot: Snapshot) -> Plan:
    plan = registry.get("fifo").allocate(snapshot)
    assert check_plan(snapshot, plan) == []
    return plan


def test_who_waits_runs_beside_who_runs() -> None:
    plan = fifo(cluster(running("1"), job("2", "b", arrival=5.0)))

    assert plan.placements == {"1": ON_V100, "2": ON_V100} and plan.guests == {"2": "1"} and plan.waits == {}


@pytest.mark.parametrize(
    ("host", "guest"),
    [
        ({"slow_down": 1.1}, {}),  # keeps 0.9, accepts 0.909
        ({"slow_down": 1.0}, {}),
        ({}, {"slow_down": 1.6}),  # keeps 0.6, accepts 0.625
        ({}, {"model": "c"}),  # of which nothing is known
        ({}, {"form": Form(2)}),
        ({}, {"form": Form(1, types=frozenset({"k80"})), "speeds": {"k80": Speed(1.0)}}),
        ({}, {"blocked": "Slurm would not start it"}),
    ],
)
def test_nobody_is_slowed_by_more_than_he_accepts(host: dict[str, Any], guest: dict[str, Any]) -> None:
    plan = fifo(cluster(running("1", **host), job("2", **{"model": "b", "arrival": 5.0, **guest})))

    assert plan.guests == {} and list(plan.placements) == ["1"]


def test_a_pair_that_loses_more_than_it_gains_is_none() -> None:
    """Equal halves gain nothing where nobody waits behind them, unless the guest is shorter than who waits."""
    assert fifo(cluster(running("1"), job("2", arrival=5.0))).guests == {}
    waiting = [job(str(n), "c", 1e6, arrival=9.0 + n) for n in range(3, 9)]
    assert fifo(cluster(running("1"), job("2", arrival=5.0), *waiting)).guests == {}
    assert fifo(cluster(running("1"), job("2", "b", arrival=5.0), *waiting)).guests == {"2": "1"}


def test_the_pairs_of_largest_sum_are_chosen() -> None:
    """Two hosts, two who wait: who is greedy takes the best pair first, and leaves the worst."""
    pairings = both_ways(
        {("a", "c", "v100"): (1.0, 1.0), ("b", "c", "v100"): (0.95, 0.95), ("a", "d", "v100"): (0.9, 0.9)}
    )
    hosts = [running("1", "a"), running("2", "b")]
    snapshot = cluster(*hosts, job("3", "c", arrival=3.0), job("4", "d", arrival=4.0), gpus=2, pairings=pairings)

    assert fifo(snapshot).guests == {"3": "2", "4": "1"}


@pytest.mark.parametrize(("unmovable", "guests"), [(None, {"2": "1"}), ("has no checkpoints", {})])
def test_who_cannot_leave_again_is_no_guest_on_a_slow_gpu(unmovable: str | None, guests: dict[str, str]) -> None:
    """It would be there to its end."""
    faster = {"v100": Speed(1.0), "k80": Speed(1.2)}
    snapshot = cluster(running("1"), job("2", "b", arrival=5.0, speeds=faster, unmovable=unmovable))

    assert fifo(snapshot).guests == guests


@pytest.mark.parametrize(
    ("unmovable", "shorter", "guests"),
    [(None, 6, {"2": "1"}), ("has no checkpoints", 6, {}), ("has no checkpoints", 0, {"2": "1"})],
)
def test_who_cannot_leave_again_is_no_guest_before_many_shorter_ones(
    unmovable: str | None, shorter: int, guests: dict[str, str]
) -> None:
    """It would have the GPU to its end, when its host's is come."""
    waiting = [job(str(n), "c", 600.0, arrival=9.0) for n in range(3, 3 + shorter)]
    snapshot = cluster(running("1"), job("2", "b", 1e5, arrival=5.0, unmovable=unmovable), *waiting)

    assert fifo(snapshot).guests == guests


def test_nobody_is_a_new_guest_on_a_node_that_is_drained() -> None:
    """Where there is no GPU to hand out at all."""
    drained = Node("n1", {"v100": 1}, available=False)
    snapshot = replace(cluster(running("1"), job("2", "b", arrival=5.0)), nodes=(drained,))

    assert fifo(snapshot).guests == {}


def test_a_guest_is_left_where_it_is() -> None:
    """The policy is shown one that waits; what comes of it is no change."""
    snapshot = cluster(running("1"), running("2", "b", arrival=5.0, host="1"))
    plan = fifo(snapshot)

    assert plan.guests == {"2": "1"} and [c.kind for c in changes_of(snapshot, plan)] == [ChangeKind.STAY] * 2


def test_a_guest_whose_host_is_done_has_the_gpu() -> None:
    """As the simulator and Slurm would show it: it runs on GPUs of its own."""
    plan = fifo(cluster(running("2", "b")))

    assert plan.placements == {"2": ON_V100} and plan.guests == {}


def test_a_guest_that_must_stay_keeps_its_host() -> None:
    """Also from a policy that would stop the host for a shorter job."""
    fixed = running("2", "b", 1e5, arrival=5.0, host="1", unmovable="is young")
    snapshot = cluster(running("1", steps=1e6), fixed, job("3", steps=10.0, arrival=6.0))

    plan = registry.get("srtf").allocate(snapshot)

    assert check_plan(snapshot, plan) == [] and plan.guests == {"2": "1"} and plan.placement("1") == ON_V100


@pytest.mark.parametrize(
    ("guests", "hosts_place", "same"),
    [
        ({"2": "1"}, ON_V100, True),
        ({}, EMPTY, True),  # its host leaves
        ({}, ON_V100, False),  # its host stays, so that the GPU that it gets is another
        ({"2": "3"}, EMPTY, True),  # the new host comes in place of the old one
        ({"2": "3"}, ON_V100, False),
    ],
)
def test_the_same_gpu_or_another_one_of_the_node(guests: dict[str, str], hosts_place: Placement, same: bool) -> None:
    guest = running("2", "b", host="1")
    snapshot = cluster(running("1"), guest, job("3"), gpus=2)
    placements = {"2": ON_V100, "3": ON_V100, **({"1": hosts_place} if hosts_place else {})}

    assert on_same_gpu(snapshot, Plan("p", placements, guests=guests), guest) is same


def test_guests_are_within_limits_too() -> None:
    """A quota of one GPU, which the host has."""
    needs = Needs(draws=(Draw("gpus", "gpu"),))
    snapshot = cluster(
        running("1", needs=needs), job("2", "b", arrival=5.0, needs=needs), quotas=(Quota("gpus", 0.0, "no more"),)
    )

    assert fifo(snapshot).guests == {}


def test_a_guest_whose_host_is_held_back_waits_on() -> None:
    """The limits of the site come after the plan; a host comes before its guest, whatever that gains."""
    snapshot = cluster(job("1", arrival=1.0), job("2", "b", arrival=2.0), job("3", arrival=3.0), job("4", arrival=4.0))
    plan = fifo(snapshot)
    assert plan.guests == {"2": "1"}
    one_change = Config(guard=GuardSection(max_changed_share=0.25))

    settled = {c.job_id: c for c in limit(snapshot, changes_of(snapshot, plan), one_change)}

    kinds = {j: c.kind for j, c in settled.items()}
    assert kinds == {"1": ChangeKind.START, **dict.fromkeys("234", ChangeKind.WAIT)}


def test_a_plan_with_guests_that_cannot_be_is_no_plan() -> None:
    snapshot = cluster(job("1"), job("2", "b"), job("3", "b"))
    wait = {"3": Wait(Tier.POLICY, "waits")}
    two = Plan("p", {"1": ON_V100, "2": ON_V100, "3": ON_V100}, guests={"2": "1", "3": "1"})
    mutual = Plan("p", {"1": ON_V100, "2": ON_V100}, wait, guests={"2": "1", "1": "2"})
    unknown = Plan("p", {"2": ON_V100, "3": ON_V100}, {"1": wait["3"]}, guests={"2": "3"})
    unplaced = Plan("p", {"2": ON_V100}, {"1": wait["3"], **wait}, guests={"2": "1"})

    assert all(check_plan(snapshot, plan) for plan in (two, mutual, unknown, unplaced))


@pytest.mark.parametrize("policy", POLICIES)
@given(snapshot=snapshots(), data=st.data())
def test_every_policy_keeps_the_contract_with_guests(policy: str, snapshot: Snapshot, data: st.DataObject) -> None:
    """Three rounds, in each of which what was planned is carried out; and nobody runs with less than he accepts."""
    kept = st.floats(0.3, 1.0)
    pairings = both_ways(
        {("m", "m", t): (k := data.draw(kept), k) for t in {t for n in snapshot.nodes for t in n.gpus}}
    )
    slow_down = {j.job_id: data.draw(st.sampled_from([1.0, 1.3, 2.0, 10.0])) for j in snapshot.jobs}
    jobs = [replace(j, model="m", batch=None, slow_down=slow_down[j.job_id]) for j in snapshot.jobs]
    snapshot = replace(snapshot, jobs=tuple(jobs), pairings=pairings)
    for _ in range(3):
        plan = registry.get(policy).allocate(snapshot)
        assert check_plan(snapshot, plan) == []
        for guest, host in plan.guests.items():
            (gpu_type,) = plan.placement(guest).by_type
            mine, others = pairings["m", "m", gpu_type]
            assert mine * slow_down[guest] >= 1 - 1e-9 and others * slow_down[host] >= 1 - 1e-9
        following = carry_out(snapshot, plan)
        hosts = [replace(j, host=plan.guests.get(j.job_id)) for j in following.jobs]
        snapshot = replace(following, jobs=tuple(hosts))


@given(snapshots())
def test_without_pairings_nothing_is_other_than_it_was(snapshot: Snapshot) -> None:
    """Whatever slow-downs jobs accept."""
    willing = snapshot.with_jobs([replace(j, slow_down=9.0) for j in snapshot.jobs])

    assert registry.get("hadar").allocate(willing) == registry.get("hadar").allocate(snapshot)


def test_published_figures_are_sound() -> None:
    """Each pair in both orders, nothing above what is made alone, and Gavel's own figure for one."""
    found = published()

    assert len({(t, *sorted((a, b))) for a, b, t in found}) == 976
    assert all(found[b, a, t] == (y, x) for (a, b, t), (x, y) in found.items())
    assert all(0 < share <= 1 for kept in found.values() for share in kept)
    assert found["a3c", "lm:10", "k80"] == (0.597, 0.367)

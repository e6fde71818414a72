"""Tiresias, SRTF and AlloX: cases worked out by hand; and what holds for all peers over many rounds."""

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_hadar.model import EMPTY, Form, JobState, Mix, Node, Speed, Tier
from slurm_hadar.policies import check_plan, get
from slurm_hadar.policies.baselines.allox import match, start
from slurm_hadar.testing.snapshots import carry_out, snapshots
from tests.profiles import examples

HOUR = 3600.0
ONE = [Node("a", {"v100": 1})]


class TestTiresias:
    """Queues by attained service."""

    def test_less_attained_service_goes_first(self, job: Any, running: Any, snapshot: Any) -> None:
        """A job past the threshold is preempted for one that is not, and told which queue it is in."""
        old = running("1", {"a": {"v100": 1}}, attained_s=2 * HOUR)
        plan = get("tiresias").allocate(snapshot([old, job("2", attained_s=0.5 * HOUR)], ONE))
        assert set(plan.placements) == {"2"}
        assert "queue 2 of 4" in plan.waits["1"].why

    def test_within_a_queue_first_come_first_served(self, job: Any, running: Any, snapshot: Any) -> None:
        """Attained service below the threshold does not matter, and nobody is preempted inside a queue."""
        busy = running("1", {"a": {"v100": 1}}, attained_s=0.9 * HOUR)
        assert set(get("tiresias").allocate(snapshot([busy, job("2")], ONE)).placements) == {"1"}

    def test_service_counts_every_gpu(self, job: Any, snapshot: Any) -> None:
        """Two dimensions: four GPUs for half an hour are more than one for fifty minutes."""
        jobs = [job("1", 4, attained_s=4 * 0.5 * HOUR), job("2", attained_s=50 * 60.0)]
        plan = get("tiresias").allocate(snapshot(jobs, [Node("a", {"v100": 4})]))
        assert set(plan.placements) == {"2"}

    def test_a_queue_is_entered_at_its_end(self, job: Any, snapshot: Any) -> None:
        """Who sinks later stands behind those who are there, whoever came first."""
        policy, now = get("tiresias", thresholds="100"), 1000.0
        jobs = [job("1", attained_s=50.0), job("2", attained_s=150.0)]
        before = policy.allocate(snapshot(jobs, ONE))
        assert set(before.placements) == {"1"}
        sunk = [replace(jobs[0], attained_s=200.0), jobs[1]]
        later = replace(snapshot(sunk, ONE), time=now + 360, memory=before.memory)
        assert set(policy.allocate(later).placements) == {"2"}
        assert set(policy.allocate(replace(later, memory={})).placements) == {"1"}

    def test_the_starving_are_promoted(self, job: Any, running: Any, snapshot: Any) -> None:
        """After waiting twice as long as it ran, a job is back in the first queue and its service is forgiven."""
        policy = get("tiresias", thresholds="100", starvation=2.0)
        jobs = [running("1", {"a": {"v100": 1}}), job("2", attained_s=200.0)]
        state = snapshot(jobs, ONE)
        plan = policy.allocate(state)
        assert plan.memory["standings"]["2"] == [1, jobs[1].arrival, 0.0, 1000.0]
        waited = policy.allocate(replace(state, time=1399.0, memory=plan.memory))
        assert waited.memory["standings"]["2"][0] == 1
        promoted = policy.allocate(replace(state, time=1400.0, memory=waited.memory))
        assert promoted.memory["standings"]["2"] == [0, 1400.0, 200.0, 1400.0]

    def test_blind_to_speeds(self, job: Any, snapshot: Any) -> None:
        """The type with most free GPUs is taken, fast or slow."""
        nodes = [Node("a", {"v100": 1}), Node("b", {"k80": 3})]
        plan = get("tiresias").allocate(snapshot([job("1"), job("2")], nodes))
        assert {t for p in plan.placements.values() for t in p.by_type} == {"k80"}

    def test_gangs_that_suffer_from_spreading_wait_for_one_node(self, snapshot: Any, job: Any) -> None:
        """With the profile as a hint, only a gang that keeps its speed is spread."""
        nodes = [Node("a", {"v100": 1}), Node("b", {"v100": 1}), Node("c", {"v100": 2}, {"v100": 1})]
        tolerant = job("1", 2, form=Form(2, max_nodes=2))
        plan = get("tiresias", consolidate_below=0.7).allocate(snapshot([tolerant], nodes))
        assert set(plan.placements) == {"1"}
        nodes[2] = Node("c", {"v100": 2})
        others = [job("2", arrival=0.0, form=Form(1, nodes=frozenset({"c"})))]
        plan = get("tiresias", consolidate_below=0.9).allocate(snapshot([*others, tolerant], nodes))
        assert set(plan.placements) == {"2"}


class TestSrtf:
    """Shortest remaining time, type by type."""

    def test_the_shortest_goes_first_on_its_best_free_type(self, job: Any, snapshot: Any) -> None:
        """100 s on the v100 against 150 s; the longer job takes the p100."""
        jobs = [job("1", steps=1500.0), job("2", steps=1000.0)]
        plan = get("srtf").allocate(snapshot(jobs, [Node("a", {"v100": 1}), Node("b", {"p100": 1})]))
        assert plan.placements["2"].by_type == {"v100": 1}
        assert plan.placements["1"].by_type == {"p100": 1}

    def test_preemption_must_pay_for_the_restart(self, job: Any, running: Any, snapshot: Any) -> None:
        """A job with 80 s to go does not oust one with 100 s if its start costs 30 s; one with 60 s does."""
        busy = running("1", {"a": {"v100": 1}}, steps=1000.0)
        policy = get("srtf")
        assert set(policy.allocate(snapshot([busy, job("2", steps=800.0)], ONE)).placements) == {"1"}
        plan = policy.allocate(snapshot([busy, job("2", steps=600.0)], ONE))
        assert set(plan.placements) == {"2"}
        assert plan.waits["1"].tier is Tier.POLICY

    def test_service_counts_the_gang(self, job: Any, snapshot: Any) -> None:
        """A gang of two with 100 s to go has more service left than a single GPU with 150 s."""
        jobs = [job("1", 2, steps=1000.0), job("2", steps=1500.0)]
        nodes = [Node("a", {"v100": 2})]
        assert set(get("srtf").allocate(snapshot(jobs, nodes)).placements) == {"1"}
        assert set(get("srtf", service=True).allocate(snapshot(jobs, nodes)).placements) == {"2"}

    def test_unknown_lengths_count_as_told(self, job: Any, snapshot: Any) -> None:
        """A job of unknown length stands where a job of ``unknown_runtime_s`` would."""
        jobs = [job("1", steps=None), job("2", steps=2000.0)]
        assert set(get("srtf", unknown_runtime_s=100).allocate(snapshot(jobs, ONE)).placements) == {"1"}
        assert set(get("srtf", unknown_runtime_s=1000).allocate(snapshot(jobs, ONE)).placements) == {"2"}

    def test_a_prediction_stands_in(self, job: Any, snapshot: Any) -> None:
        """Where nobody states the steps, what is expected of them orders the jobs, less what is done."""
        jobs = [replace(job("1", steps=None), predicted_steps=3000.0), job("2", steps=2000.0)]
        assert set(get("srtf").allocate(snapshot(jobs, ONE)).placements) == {"2"}
        done = [replace(jobs[0], done_steps=1500.0, outlives=1.2), jobs[1]]
        assert set(get("srtf").allocate(snapshot(done, ONE)).placements) == {"1"}

    def test_gangs_only_for_mixed_types_come_last(self, job: Any, snapshot: Any) -> None:
        """They run on what is left over."""
        nodes = [Node("a", {"v100": 2}), Node("b", {"p100": 2})]
        mixed = job("1", steps=1.0, form=Form(4, max_nodes=2, mix=Mix.GATED))
        assert set(get("srtf").allocate(snapshot([mixed], nodes)).placements) == {"1"}
        assert set(get("srtf").allocate(snapshot([mixed, job("2")], nodes)).placements) == {"2"}


def completion_sum_s(times: Any, queues: Any) -> Any:
    """Least sum of completion times over all ways to put jobs on GPUs; on each the shortest goes first."""
    best = np.inf
    for choice in itertools.product(range(len(queues)), repeat=len(times)):
        total = 0.0
        for gpu in set(choice):
            own = sorted(times[j][queues[gpu]] for j, g in enumerate(choice) if g == gpu)
            total += sum(t * (len(own) - k) for k, t in enumerate(own))
        best = min(best, total)
    return best


@st.composite
def small_instances(draw: Any) -> Any:
    types = draw(st.integers(1, 2))
    free = [draw(st.integers(0, 2)) for _ in range(types)]
    free[0] = max(free[0], 1)
    jobs = draw(st.integers(1, 5))
    return np.array([[draw(st.floats(1.0, 100.0)) for _ in range(types)] for _ in range(jobs)]), np.array(free, float)


class TestAlloX:
    """Matching of jobs to places in the queues of GPUs."""

    @given(small_instances())
    def test_optimal_on_tiny_instances(self, instance: Any) -> None:
        """The matching's sum of completion times is that of the best schedule found by trying all."""
        times, free = instance
        kinds = match(times, np.ones(len(times)), free)
        total = 0.0
        for kind in np.flatnonzero(free):
            own = sorted((times[j, kind] for j in np.flatnonzero(kinds == kind)), reverse=True)
            total += sum(t * (1 + place // int(free[kind])) for place, t in enumerate(own))
        queues = [kind for kind in range(len(free)) for _ in range(int(free[kind]))]
        assert total == pytest.approx(completion_sum_s(times, queues))

    @given(small_instances(), st.data())
    def test_never_more_than_is_free(self, instance: Any, data: Any) -> None:
        """Gangs included: who starts fits together, and nobody starts where it cannot run."""
        times, free = instance
        times[data.draw(st.integers(0, len(times) - 1)), 0] = np.inf
        gang = np.array([data.draw(st.sampled_from((1.0, 1.0, 2.0))) for _ in times])
        used = np.zeros(len(free))
        for job, kind in start(times, gang, free):
            assert np.isfinite(times[job, kind])
            used[kind] += gang[job]
        assert (used <= free).all()

    def test_by_hand(self) -> None:
        """GPUs of 10 and 20 s per unit: the longest job runs last on the fast one, the middle one on the slow one.

        1, 2 and 3 units cost at best 10 + (10 + 30) + 40 = 90 (fast: 1 and 3; slow: 2).
        """
        times = np.array([[10.0, 20.0], [20.0, 40.0], [30.0, 60.0]])
        assert match(times, np.ones(3), np.ones(2)).tolist() == [0, 1, 0]
        assert sorted(start(times, np.ones(3), np.ones(2))) == [(0, 0), (1, 1)]

    def test_a_gang_that_comes_first_is_not_overtaken(self) -> None:
        """The gang has least GPU time; it does not fit, so nobody is committed before it."""
        assert start(np.array([[1.0], [100.0]]), np.array([2.0, 1.0]), np.array([1.0])) == []

    def test_committed_jobs_keep_their_gpus(self, job: Any, snapshot: Any) -> None:
        """A shorter job that comes later waits for the one that was started."""
        policy, state = get("allox"), snapshot([job("1", steps=5000.0)], ONE)
        plan = policy.allocate(state)
        assert plan.memory["noted"] == {"1": "v100"}
        after = carry_out(state, plan)
        after = replace(after.with_jobs([*after.jobs, job("2", steps=10.0)]), time=1360.0, memory=plan.memory)
        assert set(policy.allocate(after).placements) == {"1"}

    def test_idle_gpus_are_lent_and_taken_back(self, job: Any, snapshot: Any) -> None:
        """Until the next matching a new job may use a free GPU; then the shorter one that came with it is committed."""
        policy, state = get("allox", reset_s=1000), snapshot([], ONE)
        first = policy.allocate(snapshot([job("1", steps=100.0)], ONE))
        jobs = [job("2", steps=9000.0), job("3", steps=100.0)]
        state = replace(snapshot(jobs, ONE), time=1360.0, memory=first.memory)
        lent = policy.allocate(state)
        assert set(lent.placements) == {"2"} and lent.memory["noted"] == {"1": "v100"}
        state = replace(carry_out(state, lent), time=2080.0, memory=lent.memory)
        assert set(policy.allocate(state).placements) == {"3"}


PEERS = [
    ("gavel_las", {}),
    ("gavel_ftf", {"aware": False}),
    ("gavel_ttd", {"reset_s": 0}),
    ("gavel_throughput", {}),
    ("gavel_cost", {}),
    ("tiresias", {"starvation": 0.5, "thresholds": "500,5000"}),
    ("srtf", {}),
    ("allox", {}),
]


def advance(snapshot: Any, plan: Any, seconds: Any) -> Any:
    """The plan carried out, and the steps made that follow from it; jobs that are done are gone."""
    jobs = []
    for job in carry_out(snapshot, plan).jobs:
        if job.running and job.placement:
            done = job.done_steps + job.rate(job.placement) * seconds
            if job.total_steps is not None and done >= job.total_steps and job.steerable:
                continue
            served = job.attained_s + seconds * job.placement.workers
            job = replace(job, done_steps=done, attained_s=served)
        jobs.append(job)
    memory = json.loads(json.dumps(plan.memory))
    return replace(snapshot, jobs=tuple(jobs), time=snapshot.time + seconds, memory=memory)


@pytest.mark.parametrize(("name", "params"), PEERS, ids=[n for n, _ in PEERS])
@examples(15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshot=snapshots(), data=st.data())
def test_plans_stay_sound_over_many_rounds(name: Any, params: Any, snapshot: Any, data: Any) -> None:
    """With memory handed on through JSON, and jobs and nodes coming and going, every plan may be carried out."""
    policy = get(name, **params)
    gone = data.draw(st.integers(0, 5))
    for number in range(5):
        plan = policy.allocate(snapshot)
        assert check_plan(snapshot, plan) == []
        assert policy.allocate(snapshot) == plan
        snapshot = advance(snapshot, plan, 700.0)
        if number == 1 and snapshot.nodes:
            lost = snapshot.nodes[gone % len(snapshot.nodes)]
            nodes = tuple(replace(n, available=False) if n is lost else n for n in snapshot.nodes)
            snapshot = replace(snapshot, nodes=nodes)
        if number == 2:
            speeds = {"v100": Speed(1.0), "k80": Speed(0.5)}
            late = (
                replace(
                    snapshot.jobs[0], job_id="late", state=JobState.PENDING, placement=EMPTY, pinned=None, speeds=speeds
                )
                if snapshot.jobs
                else None
            )
            snapshot = snapshot.with_jobs([*snapshot.jobs, late] if late else snapshot.jobs)


@pytest.mark.parametrize("name", ["gavel_las", "gavel_ftf", "tiresias"])
def test_nobody_starves(name: str, job: Any, snapshot: Any) -> None:
    """Fair policies let every job run within a few hours, a gang that needs all GPUs among singles included."""
    params = {"starvation": 1.0, "thresholds": "1000"} if name == "tiresias" else {}
    policy = get(name, **params)
    jobs = [job(str(i), steps=1e9, attained_s=0.0) for i in range(6)] + [job("9", 4, steps=1e9)]
    state = snapshot(jobs, [Node("a", {"v100": 2}), Node("b", {"v100": 2})])
    ran: set[str] = set()
    for _ in range(60):
        plan = policy.allocate(state)
        ran |= plan.placements.keys()
        state = advance(state, plan, 360.0)
    assert ran == {j.job_id for j in jobs}

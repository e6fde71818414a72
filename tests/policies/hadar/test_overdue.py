"""Nobody waits without end: who has waited too long for its length goes before all others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.regimes import beyond
from slurm_hadar.model import Node, Snapshot
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes
from slurm_hadar.policies.hadar.lookahead.outlook import survey
from slurm_hadar.policies.hadar.lookahead.overdue import Patience
from slurm_hadar.policies.hadar.lookahead.planning.search import MOST_JOBS
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.run import simulate
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.testing.snapshots import snapshots

NODE = (Node("a", {"v100": 4}),)


@pytest.mark.parametrize("movable", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_gang_as_wide_as_the_cluster_runs_while_smaller_jobs_keep_coming(movable: bool) -> None:
    """Eight GPUs, of which six are in use on average, and a gang of eight that comes among jobs of one GPU."""
    rng = np.random.default_rng(2)
    comes = np.cumsum(rng.exponential(17.0, 250)).tolist()
    jobs = [
        TraceJob(f"j{n}", at, "", None, 1, float(rng.uniform(50, 150)), steps_per_s={"v100": 1.0}, movable=movable)
        for n, at in enumerate(comes)
    ]
    jobs.append(TraceJob("wide", 60.0, "", None, 8, 400.0, steps_per_s={"v100": 1.0}, movable=movable))
    trace = Trace("stream", "csv", tuple(sorted(jobs, key=lambda job: job.arrival_s)))

    def takes_s(bound: float) -> float:
        result = simulate(trace, get("hadar", overdue=bound), SimOptions("v100:2x4", restart_s=5.0, round_s=30.0))
        assert not result.summary()["unfinished"]
        (row,) = (row for row in result.jobs if row.job_id == "wide")
        assert row.jct_s is not None
        return row.jct_s

    assert takes_s(0.0) > comes[-1] - 60.0
    assert 2.0 * 400.0 < takes_s(2.0) < 2000.0


def wide(job: Any, job_id: str, **fields: Any) -> Any:
    return job(job_id, 4, steps=1000.0, p100=None, k80=None, **fields)


@pytest.mark.parametrize("held", [True, False])
def test_who_is_not_decided_about_does_not_wait(held: bool, job: Any, snapshot: Any) -> None:
    """A job that is held, or whose dependency is not met, asks for nothing: its time begins when it does."""
    policy, gang = get("hadar"), wide(job, "1", arrival=0.0)
    small = [job(f"{n}", steps=100.0, p100=None, k80=None, arrival=4600.0) for n in range(2, 8)]
    before = snapshot([replace(gang, pinned="held" if held else None)], NODE)
    plan = policy.allocate(before)
    later = replace(before, time=before.time + 3600.0, memory=plan.memory).with_jobs([gang, *small])
    found = policy.allocate(later)
    assert ("1" in found.placements) is not held
    assert held or set(found.placements) == {"1"}


def test_its_owner_is_told(job: Any, running: Any, snapshot: Any) -> None:
    stays = running("9", {"a": {"v100": 1}}, unmovable="exempt")
    seen = snapshot([wide(job, "1", arrival=0.0), stays], NODE, memory={"since": {"1": -1e6, "9": 0.0}})
    assert "(overdue)" in get("hadar").allocate(seen).waits["1"].why


def test_where_nobody_has_come_since_lengths_decide(job: Any, snapshot: Any) -> None:
    """The queue that was there before has an end."""
    jobs = [wide(job, "1", arrival=0.0), *(job(str(n), steps=1e3, p100=None, k80=None) for n in range(2, 9))]
    since = {one.job_id: -1e6 for one in jobs}
    assert "1" not in get("hadar").allocate(snapshot(jobs, NODE, memory={"since": since})).placements
    found = get("hadar").allocate(snapshot(jobs, NODE, memory={"since": since | {"8": -1e3}}))
    assert set(found.placements) == {"1"}


@pytest.mark.parametrize("bound", [0.0, 10.0])
def test_where_it_waits_for_room_nobody_is_started_who_could_not_be_moved(
    bound: float, job: Any, running: Any, snapshot: Any
) -> None:
    """Of GPUs that come free one by one there would never be enough. Who can be moved uses them meanwhile."""
    stays = running("9", {"a": {"v100": 1}}, unmovable="exempt")
    small = {"steps": 1e9, "p100": None, "k80": None}  # so many and so long that no plan is made
    stuck = [job(str(n), unmovable="saves nothing", **small) for n in range(100, 100 + MOST_JOBS)]
    seen = snapshot([wide(job, "1", arrival=0.0), stays, *stuck, job("10", **small)], NODE)
    found = get("hadar", overdue=bound).allocate(replace(seen, memory={"since": {"1": -1e6}}))
    assert "plan" not in found.memory
    others = set(found.placements) - {"9"}
    assert others == {"10"} if bound else len(others) == 3
    told = [wait.why for job_id, wait in found.waits.items() if job_id not in ("1", "10")]
    assert all(("kept free for 1, which is overdue" in why) is bool(bound) for why in told)


def test_who_is_gone_by_when_there_is_room_may_run_meanwhile(job: Any, running: Any, snapshot: Any) -> None:
    """The gang waits for the one that must stay, 1000 s; a plan that weighs the little that more like it would cost the
    gang would start one after the other."""
    stays = running("9", {"a": {"v100": 1}}, unmovable="exempt", steps=10_000.0)
    stuck = {"unmovable": "saves nothing", "p100": None, "k80": None, "restart_cost_s": 1.0}
    jobs = [wide(job, "1", arrival=0.0), stays, job("2", steps=5_000.0, **stuck), job("3", steps=11_000.0, **stuck)]
    found = get("hadar").allocate(snapshot(jobs, NODE, memory={"since": {"1": -1e6}}))
    assert "plan" in found.memory and set(found.placements) == {"9", "2"}
    without = get("hadar", overdue=0.0).allocate(snapshot(jobs, NODE))
    assert set(without.placements) == {"9", "2", "3"}


@pytest.mark.parametrize("begun", [True, False])
def test_who_has_begun_at_last_is_not_stopped_at_once(begun: bool, job: Any, running: Any, snapshot: Any) -> None:
    """What it has run counts as not waited: it would stop as soon as it runs, be overdue again and start again, and
    make no step between."""
    gang = running("1", {"a": {"v100": 4}}, arrival=0.0, steps=1000.0, p100=None, k80=None, attained_s=4e5)
    small = [job(str(n), steps=100.0, p100=None, k80=None, arrival=900.0) for n in range(2, 8)]
    memory = {"since": {"1": -1e4}, "first": {"1": 0.0}} if begun else {"since": {"1": -1e4}}
    plan = get("hadar").allocate(snapshot([gang, *small], NODE, memory=memory))
    assert (set(plan.placements) == {"1"}) is begun
    assert plan.memory.get("first", {}) == ({"1": 0.0} if begun else {})
    ended = get("hadar").allocate(snapshot(small, NODE, memory=plan.memory))
    assert "first" not in ended.memory


@pytest.mark.thorough
def test_jobs_that_are_overdue_get_on_though_a_round_is_shorter_than_a_start() -> None:
    """Elastic jobs of which some are overdue, on a cluster that others fill: whoever was overdue ran for a round, and
    was stopped before its first step, for ever."""
    scene = beyond.draw(4)

    assert not simulate(scene.trace, get("hadar", frontier=0.0), scene.options).unfinished


@given(snapshots(), st.floats(0.0, 20.0), st.data())
def test_who_goes_first_has_waited_and_counts_as_the_smallest(seen: Snapshot, bound: float, data: Any) -> None:
    """And no more than a tenth of the GPUs go by that, or one job's."""
    since = {j.job_id: seen.time - data.draw(st.floats(0.0, 1e5)) for j in seen.jobs}
    outlook = survey(Arena.of(replace(seen, memory={"since": since})), Lifetimes(3600.0))
    assume(outlook.jobs)
    patience = Patience.of(outlook, bound)
    alone_s = outlook.best_s * outlook.grown + outlook.restart_s
    for row in patience.first:
        assert bound and seen.time - since[outlook.jobs[row].job_id] > bound * alone_s[row]
    first, workers = list(patience.first), outlook.workers.min(axis=1)
    assert len(first) <= 1 or workers[first].sum() <= 0.1 * outlook.gpus.sum()
    assert patience.memory(outlook)["since"].keys() >= {j.job_id for j in outlook.jobs}
    hurry = patience.hurry(outlook)
    assert (hurry >= 1.0).all() and (np.delete(hurry, first) == 1.0).all()
    area = (outlook.run_s * outlook.workers).min(axis=1) * outlook.grown / hurry
    others = np.setdiff1d(outlook.rows, first)
    assert not len(others) or (area[first] <= area[others].min() * (1 + 1e-9)).all()

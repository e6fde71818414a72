"""Drawn traces of jobs that recur: their shape."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import read_text, read_trace, table_csv
from slurm_hadar.simulator.traces.recurring import GANGS, Recurring, generate
from slurm_hadar.simulator.traces.workloads import gang_workloads
from slurm_hadar.throughput.table import read_table, reference
from tests.profiles import examples

TABLE = reference()
DAY_S = 86400.0


def _run_s(trace: Any) -> list[float]:
    rates = Rates(TABLE, ("v100",))
    return [j.steps / rates.of(j, j.workers)["v100"].steps_per_s for j in trace.jobs]


@examples(15)
@given(
    jobs=st.integers(1, 400),
    users=st.integers(1, 20),
    gpus=st.integers(1, 200),
    load=st.floats(0.05, 3),
    comm=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_what_always_holds(jobs: int, users: int, gpus: int, load: float, comm: float, seed: int) -> None:
    """As many jobs as asked, sorted, at the load asked for; each script has one user, model and gang that fits."""
    what = Recurring(jobs, users, gpus, load, comm, seed)
    trace = generate(what, TABLE)

    arrivals = [j.arrival_s for j in trace.jobs]
    assert len(trace.jobs) == jobs and arrivals == sorted(arrivals) and arrivals[0] >= 0
    assert [j.job_id for j in trace.jobs] == [str(i) for i in range(jobs)]
    assert len({j.user for j in trace.jobs}) <= users
    scripts = {(j.group, j.user, j.model, j.batch, j.workers) for j in trace.jobs}
    assert len({s[0] for s in scripts}) == len(scripts)
    assert all(j.workers == 1 or j.workers <= gpus / 4 for j in trace.jobs)
    run_s = _run_s(trace)
    assert all(r > 0 for r in run_s) and max(run_s) <= 7.01 * DAY_S
    offered = sum(r * j.workers for r, j in zip(run_s, trace.jobs, strict=True))
    assert max(arrivals) <= 1.1 * offered / (load * gpus) + 1
    assert trace.jobs == generate(what, TABLE).jobs


@pytest.fixture(scope="module")
def large() -> Any:
    return read_trace("recurring:jobs=6000,users=60,gpus=256,load=0.7,comm=0.3,seed=5", TABLE)


def test_two_thirds_of_the_jobs_recur(large: Any) -> None:
    """Runs of scripts with at least five of them, and the most popular script is far above the middle one."""
    runs = Counter(j.group for j in large.jobs)

    assert sum(n for n in runs.values() if n >= 5) / 6000 == pytest.approx(2 / 3, abs=0.06)
    ranked = sorted(runs.values(), reverse=True)
    assert ranked[0] >= 20 * ranked[len(ranked) // 2]
    slope = math.log(ranked[0] / ranked[99]) / math.log(100)
    assert 0.5 < slope < 1.3  # Zipf's law has 1


def test_run_times_are_heavy_tailed_and_alike_within_a_script(large: Any) -> None:
    logs: dict[str, list[float]] = {}
    run_s = _run_s(large)
    for job, seconds in zip(large.jobs, run_s, strict=True):
        logs.setdefault(job.group, []).append(math.log(seconds))

    within = statistics.fmean(statistics.pstdev(v) for v in logs.values() if len(v) >= 5)
    across = statistics.pstdev(statistics.fmean(v) for v in logs.values())
    assert 0.2 < within < 0.6 and across > 2 * within
    assert statistics.fmean(run_s) > 2 * statistics.median(run_s)


def test_gangs_and_communication(large: Any) -> None:
    """Shares over scripts, by the published mix; as many scripts communicate as asked."""
    scripts = {j.group: j for j in large.jobs}

    gangs = Counter(j.workers for j in scripts.values())
    for size, share in GANGS.items():
        assert gangs[size] / len(scripts) == pytest.approx(share / 160, abs=0.04)
    ratios = gang_workloads(TABLE)
    middle = statistics.median(ratios.values())
    heavy = sum(ratios[j.model, j.batch] < middle for j in scripts.values()) / len(scripts)
    assert heavy == pytest.approx(0.3, abs=0.05)


def test_days_and_weeks(large: Any) -> None:
    """More arrivals by day than by night, fewer at weekends."""
    hours = Counter(int(j.arrival_s % DAY_S // 3600) for j in large.jobs)

    assert large.jobs[-1].arrival_s > 3 * DAY_S
    assert sum(hours[h] for h in range(11, 19)) > 2 * sum(hours[h] for h in (*range(23, 24), *range(7)))


def test_load_is_that_of_the_cluster() -> None:
    """GPUs that the text does not name are the cluster's."""
    of_cluster = read_trace("recurring:jobs=50", TABLE, seed=3, gpus=24)

    assert of_cluster.name == "recurring:jobs=50,users=40,gpus=24,load=0.8,comm=0.3,seed=3"
    assert read_trace("recurring:jobs=50,gpus=24,seed=3", TABLE, seed=1, gpus=60).jobs == of_cluster.jobs


def test_it_can_be_kept() -> None:
    """User and group travel in our own format."""
    trace = read_trace("recurring:jobs=40,seed=2", TABLE)

    kept = read_text(table_csv.write(trace), "kept.csv", TABLE)
    assert kept.jobs == trace.jobs and {j.group for j in kept.jobs} != {""}


def test_parts_are_times_of_one_life() -> None:
    """Together they are the whole, with the same ids and times; the later part has scripts of the earlier."""
    whole = read_trace("recurring:jobs=200,seed=4", TABLE)
    early, late = (read_trace(f"recurring:jobs=200,seed=4,part={p}", TABLE) for p in ("0:150", "150:200"))

    assert early.jobs + late.jobs == whole.jobs
    assert late.name.endswith(",seed=4,part=150:200")
    assert {j.group for j in early.jobs} & {j.group for j in late.jobs}


def test_scripts_that_always_take_the_same_time() -> None:
    """``vary=0``: all runs of a script are alike; who they are stays the same."""
    same, usual = (read_trace(f"recurring:jobs=200,vary={vary},seed=4", TABLE) for vary in (0, 1))

    assert all(len({j.steps for j in same.jobs if j.group == group}) == 1 for group in {j.group for j in same.jobs})
    assert same.name.endswith("comm=0.3,vary=0,seed=4")
    assert {j.user for j in same.jobs} == {j.user for j in usual.jobs}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("recurring:job=3", "recurring:job=3: 'job=3' is not one of jobs=N, users=N"),
        ("recurring:jobs=0", "jobs must be a whole number of at least 1"),
        ("recurring:load=0", "load must be above 0"),
        ("recurring:comm=2", "comm must lie from 0 to 1"),
        ("recurring:vary=-1", "vary must not be negative"),
        ("recurring:seed=-1", "seed must be a whole number of at least 0"),
        ("recurring:jobs=9,part=3", "part=3 must be A:B with whole numbers A < B, B at most 9"),
        ("recurring:jobs=9,part=3:3", "part=3:3 must be A:B"),
        ("recurring:jobs=9,part=3:10", "part=3:10 must be A:B"),
    ],
)
def test_bad_wishes(text: str, error: str) -> None:
    with pytest.raises(TraceError, match=error):
        read_trace(text, TABLE)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("recurring:vary=1e9", "vary must be at most 10"),
        ("recurring:users=1e9", r"users must be at most 1e\+07"),
        ("recurring:jobs=1e9", r"jobs must be at most 1e\+07"),
        ("recurring:jobs=20,load=1e-9", "at so low a load the jobs would arrive over"),
    ],
)
def test_wishes_beyond_all_measure(text: str, error: str) -> None:
    with pytest.raises(TraceError, match=error):
        read_trace(text, TABLE)


def test_a_table_without_gangs() -> None:
    table = read_table(["model,batch,gpus,gpu_type,placement,steps_per_s,source", "m,,1,k80,one_node,1,x"])

    with pytest.raises(TraceError, match="recurring: needs a throughput table with rates of gangs on a v100"):
        read_trace("recurring:jobs=3", table)

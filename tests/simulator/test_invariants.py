"""What must hold in every simulation, whatever the trace and the policy."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Mix, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies import registry
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import find_gang
from slurm_hadar.simulator.nodes import cluster_nodes
from slurm_hadar.simulator.options import unlimited
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.setup import drawn
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.simulator.virtual.faults import draw_faults
from tests.profiles import examples

CLUSTERS = ("v100:1x2", "v100:2x2,k80:1x4", "v100:1x4,p100:2x1,k80:1x1", "v100+k80:2x2")
RATES = {"v100": 3.0, "p100": 2.0, "k80": 0.7}


class Restless(Policy):
    """Packs jobs in an order that changes from round to round, wherever they fit: moves and preempts all the time."""

    name = "restless"

    def allocate(self, snapshot: Snapshot) -> Plan:
        arena = Arena.of(snapshot)
        free, placements, waits = arena.free.copy(), dict(arena.kept), {}

        def dice(job_id: str) -> str:
            return hashlib.sha256(f"{snapshot.time} {job_id}".encode()).hexdigest()

        for job in sorted(arena.movers, key=lambda j: dice(j.job_id)):
            ways = [[(slot,) for slot in slots] for slots in arena.reach(job).by_type.values()]
            found = [g for nodes in ways if (g := find_gang(job.form, nodes, free))]
            if not found:
                waits[job.job_id] = Wait(Tier.CAPACITY, "no room")
                continue
            gang = found[int(dice(job.job_id), 16) % len(found)]
            placements[job.job_id] = arena.placement(gang)
            for slot, count in gang:
                free[slot] -= count
        return Plan(self.name, placements, waits)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to eight jobs of half an hour to a few hours."""
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        rates = {t: r * draw(st.sampled_from((0.5, 1.0, 2.0))) for t, r in RATES.items() if draw(st.booleans())}
        arrival_s = draw(st.sampled_from((0.0, 0.0, 100.0, 1000.5, 9000.0)))
        workers = draw(st.sampled_from((1, 1, 2, 3, 4)))
        steps = draw(st.floats(1.0, 20000.0))
        restart_s = draw(st.sampled_from((0.0, 30.0, 100.0)))
        job = TraceJob(str(number), arrival_s, "", None, workers, steps, restart_s=restart_s, user=f"u{number % 2}")
        start_s, movable = draw(st.sampled_from((None, 0.0, 50.0))), draw(st.sampled_from((True, True, True, False)))
        jobs.append(replace(job, steps_per_s=rates or {"v100": 1.0}, start_s=start_s, movable=movable))
    return Trace("drawn", "csv", tuple(sorted(jobs, key=lambda j: j.arrival_s)))


@st.composite
def options(draw: st.DrawFn) -> SimOptions:
    cluster = draw(st.sampled_from(CLUSTERS))
    model = draw(st.sampled_from(("nodes", "nodes", "gavel")))
    faulty = model == "nodes" and draw(st.booleans())
    names = [n.name for n in cluster_nodes(cluster)]
    faults = draw_faults(names, 4e3, 1e3, draw(st.integers(0, 5)), 1e5, 150.0 if draw(st.booleans()) else 0.0)
    return SimOptions(
        cluster,
        model,
        event_round_s=draw(st.sampled_from((0.0, 30.0))),
        asked_s=draw(st.sampled_from((0.0, 3.0))),
        save_s=draw(st.sampled_from((0.0, 10.0))),
        self_start_s=draw(st.sampled_from((None, 1.25, 60.0))),
        phase_s=draw(st.sampled_from((None, 0.0, 5e3))),
        faults=faults if faulty else SimOptions().faults,
        unmovable=draw(st.sampled_from((0.0, 0.0, 0.5))),
        speed_error=draw(st.sampled_from((0.0, 0.5))),
        report_s=draw(st.sampled_from((0.0, 70.0))),
        predictor=draw(st.sampled_from((None, None, "group_median"))),
        max_rounds=3000,
    )


def runs_of(result: Any) -> dict[str, Any]:
    """{job: {(start, end): {(node, type): count}}}"""
    runs: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for i in result.intervals:
        runs[i.job_id][i.start_s, i.end_s][i.node, i.gpu_type] = i.count
    return runs


@given(trace=traces(), options=options())
def test_gangs_are_whole_and_gpus_are_held_once(trace: Trace, options: SimOptions) -> None:
    result = simulate(trace, Restless(), options)

    by_node = options.model == "nodes"
    capacity = {(n.name, t): c for n in cluster_nodes(options.cluster, by_node=by_node) for t, c in n.gpus.items()}
    workers = {j.job_id: j.workers for j in trace.jobs}
    events = []
    for job_id, runs in runs_of(result).items():
        for (start, end), held in runs.items():
            assert sum(held.values()) == workers[job_id] and start <= end
            assert start >= next(j.arrival_s for j in trace.jobs if j.job_id == job_id)
            events += [
                (time, sign * count, slot) for slot, count in held.items() for time, sign in ((start, 1), (end, -1))
            ]
    in_use: dict[str, Any] = defaultdict(int)
    for _, change, slot in sorted(events, key=lambda e: (e[0], e[1])):
        in_use[slot] += change
        assert 0 <= in_use[slot] <= capacity[slot]
    assert not any(in_use.values())


@given(trace=traces(), options=options())
def test_steps_are_neither_lost_nor_invented(trace: Trace, options: SimOptions) -> None:
    """What a job did in its runs, each after its start, adds up to its steps and those that failures cost it, at its
    true speeds, whatever a policy was told of them."""
    result = simulate(trace, Restless(), replace(options, save_s=0.0))

    runs = runs_of(result)
    for job, row in zip(sorted(trace.jobs, key=lambda j: j.arrival_s), result.jobs, strict=True):
        if row.completion_s is None:
            assert job.job_id in result.unfinished
            continue
        made = 0.0
        for number, ((start, end), held) in enumerate(sorted(runs[job.job_id].items())):
            ((_, gpu_type),) = {(None, t) for _, t in held}
            spread = 0.8 if len(held) > 1 else 1.0
            start_s = (job.restart_s if number else job.start_s or 0.0) if options.model == "nodes" else 0.0
            rate = job.steps_per_s[gpu_type] * spread * (job.workers if options.model == "gavel" else 1)
            made += max(0.0, end - start - start_s) * rate
        assert made - row.lost_steps == pytest.approx(row.steps, rel=1e-6)
        assert row.completion_s == pytest.approx(max(end for _, end in runs[job.job_id]))
        assert row.restarts == len(runs[job.job_id]) - 1
        busy_s = sum(end - start for start, end in runs[job.job_id])
        assert row.queueing_s == pytest.approx(row.jct_s - busy_s, abs=1e-6)


@given(trace=traces(), options=options(), policy=st.sampled_from(("hadar", "srtf", "gavel_las", "restless")))
@examples(40)
def test_who_cannot_be_moved_is_stopped_by_failures_alone(trace: Trace, options: SimOptions, policy: str) -> None:
    """Who they are hangs on the seed and their ids alone."""
    result = simulate(trace, Restless() if policy == "restless" else registry.get(policy), options)

    fixed = {j.job_id for j in trace.jobs if not j.movable or drawn(options.unmovable, options.seed, j.job_id)}
    runs = runs_of(result)
    for row in result.jobs:
        if row.job_id in fixed:
            assert (row.moves, row.preemptions) == (0, 0)
            stopped = [end for _, end in sorted(runs[row.job_id])[:-1]]
            assert all(any(abs(end - o.down_s) < 1e-4 for o in options.faults.outages) for end in stopped)


@pytest.mark.thorough
@given(
    trace=traces(),
    options=options(),
    policy=st.sampled_from(("hadar", "srtf", "tiresias", "gavel_las", "restless")),
    most=st.sampled_from((1.0, 1.5, 3.0)),
    elastic=st.booleans(),
)
@examples(80)
def test_no_job_beyond_the_bound_is_stopped_for_others(
    trace: Trace, options: SimOptions, policy: str, most: float, elastic: bool
) -> None:
    """Whoever was stopped, and neither moved nor thrown off a node, had by then had GPUs for its share of the time."""
    guard = unlimited().model_copy(update={"max_stretch": most})
    if elastic:
        trace = replace(trace, jobs=tuple(replace(j, sizes=(j.workers, 2 * j.workers)) for j in trace.jobs))

    result = simulate(
        trace, Restless() if policy == "restless" else registry.get(policy), replace(options, guard=guard)
    )

    runs, jobs = runs_of(result), {j.job_id: j for j in trace.jobs}
    for row in result.jobs:
        gpu_s, own = 0.0, sorted(runs[row.job_id].items())
        for ((start, end), held), (following, _) in itertools.pairwise([*own, ((math.inf, math.inf), {})]):
            gpu_s += (end - start) * sum(held.values())
            failed = any(abs(end - o.down_s) < 1e-4 for o in options.faults.outages)
            if following[0] == end or failed or end in (row.completion_s, result.end_s):
                continue
            ran_s, age_s = gpu_s / jobs[row.job_id].workers, end - row.arrival_s
            assert age_s <= most * ran_s * (1 + 1e-6) + 1e-3


@given(trace=traces(), options=options())
@examples(15)
def test_the_same_input_gives_the_same_result(trace: Trace, options: SimOptions) -> None:
    first, second = (simulate(trace, Restless(), options) for _ in range(2))

    assert replace(first, decide_s=()) == replace(second, decide_s=())


@pytest.mark.thorough
@given(
    trace=traces(),
    options=options(),
    policy=st.sampled_from(("fifo", "hadar", "restless")),
    mix=st.sampled_from((None, *Mix)),
    elastic=st.booleans(),
)
@examples(80)
def test_nothing_beats_the_lower_bounds(
    trace: Trace, options: SimOptions, policy: str, mix: Mix | None, elastic: bool
) -> None:
    """Mixed gangs and elastic ones neither."""
    options = replace(options, faults=SimOptions().faults, mix=mix)
    if elastic:
        trace = replace(trace, jobs=tuple(replace(j, sizes=(j.workers, 2 * j.workers)) for j in trace.jobs))

    result = simulate(trace, Restless() if policy == "restless" else registry.get(policy), options)

    if not result.unfinished:
        bounds, reached = bounds_of(trace, options), result.summary()
        assert bounds["ttd_s"] <= reached["ttd_s"] * (1 + 1e-6)
        assert bounds["avg_jct_s"] <= reached["avg_jct_s"] * (1 + 1e-6)


@given(trace=traces(), options=options())
@examples(30)
def test_the_books_agree(trace: Trace, options: SimOptions) -> None:
    """Utilisation, GPU-seconds per job and the series over rounds tell the same story."""
    result = simulate(trace, Restless(), options)

    summary = result.summary()
    if summary["gru"] is None:
        return
    by_jobs = sum(s for row in result.jobs for s in row.gpu_s.values())
    by_intervals = sum(i.count * (i.end_s - i.start_s) for i in result.intervals)
    assert by_jobs == pytest.approx(by_intervals)
    assert 0 <= summary["gru"] <= 1 + 1e-9 and 0 <= summary["cru"] <= 1 + 1e-9
    assert summary["gru"] <= summary["cru"] * len(result.setting.cluster.gpus) * 4 + 1e-9
    assert all(0 <= u <= 1 + 1e-9 for u in summary["utilisation"].values())
    for row in result.rounds:
        held: dict[Any, int] = defaultdict(int)
        for i in result.intervals:
            if i.start_s <= row.time_s < i.end_s:
                held[i.gpu_type] += i.count
        assert {t: n for t, n in row.busy.items() if n} == held

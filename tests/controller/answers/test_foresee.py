"""Looking ahead: what explain foresees is what the same policy then does, and what other GPU types would change."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import Config, load
from slurm_hadar.controller.answers.expectation import Interval, Peek, answer, starts
from slurm_hadar.controller.answers.foresee import play, remaining_s
from slurm_hadar.controller.answers.lengths import LEAST_ERROR, uncertainty
from slurm_hadar.model import Draw, Fork, Form, Job, JobState, Needs, Node, Placement, Plan, Quota, Snapshot, Speed
from slurm_hadar.policies import get
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.testing.snapshots import snapshots
from slurm_hadar.throughput.table import reference
from tests.profiles import examples

NOW = 1_000_000.0
POLICIES = ("fifo", "hadar", "srtf", "tiresias", "gavel_las", "asrpt", "hadare")


def config(*more: str) -> Config:
    return load(
        None,
        [
            "guard.min_run_s=0",
            "guard.max_moves_per_job=1000000",
            "guard.max_preemptions=1000000",
            "guard.max_stretch=0",
            "controller.round_s=60",
            "controller.event_round_s=0",
            *more,
        ],
    )


def job(job_id: str, steps: float | None, workers: int = 1, **fields: Any) -> Job:
    speeds = {"v100": Speed(10.0), "k80": Speed(1.0)}
    return Job(
        job_id,
        Form(workers, types=fields.pop("types", None)),
        total_steps=steps,
        speeds=speeds,
        arrival=NOW - 100 + float(job_id),
        user="ada",
        restart_cost_s=0.0,
        **fields,
    )


def runs(job_id: str, steps: float, where: dict[str, dict[str, int]], **fields: Any) -> Job:
    placement = Placement.of(where)
    return job(job_id, steps, placement.workers, placement=placement, state=JobState.RUNNING, started=NOW, **fields)


def snapshot(*jobs: Job, **fields: Any) -> Snapshot:
    nodes = fields.pop("nodes", (Node("a", {"v100": 1}), Node("b", {"k80": 1})))
    return Snapshot(NOW, nodes, jobs, round_s=60.0, **fields)


class First(Policy):
    """Another policy, and the first snapshot that it was shown."""

    name = "first"
    forks = True

    def __init__(self, inner: str) -> None:
        self.inner = get(inner)
        self.shown: Snapshot | None = None

    def allocate(self, snapshot: Snapshot) -> Plan:
        self.shown = self.shown or snapshot
        return self.inner.allocate(snapshot)


@pytest.mark.thorough
@pytest.mark.parametrize("name", POLICIES)
def test_agrees_with_the_simulator(name: str) -> None:
    """25 jobs that are all there at the beginning: every one starts and ends when the simulator says, to the second."""
    trace = read_trace("philly:jobs=25,rate=0,seed=3", table=reference())
    policy = First(name)
    done = simulate(trace, policy, SimOptions("v100:2x4,k80:2x4", round_s=3600.0, restart_s=30.0))

    future = play(policy.shown, policy.inner, config("controller.round_s=3600"))

    began = policy.shown.time
    for row in done.jobs:
        fate = future.fates[row.job_id]
        assert fate.start - began == pytest.approx(row.first_start_s - done.jobs[0].arrival_s, abs=1.0)
        assert fate.end - began == pytest.approx(row.completion_s - done.jobs[0].arrival_s, rel=1e-3, abs=1.0)


def test_waits_for_the_one_that_runs() -> None:
    """1,000 steps at 10 a second: the next starts with the round after 100 s, at 120 s, and is done 50 s later."""
    seen = snapshot(runs("1", 1000, {"a": {"v100": 1}}), job("2", 500, types=frozenset({"v100"})))

    future = play(seen, get("fifo"), config())

    assert future.fates["1"].end == NOW + 100 and future.fates["1"].start is None
    assert (future.fates["2"].start, future.fates["2"].end) == (NOW + 120, NOW + 170)
    assert str(future.fates["2"].where) == "a(v100:1)"


def test_events_bring_rounds_forward() -> None:
    """With event rounds it starts half a second after the other's end."""
    seen = snapshot(runs("1", 1000, {"a": {"v100": 1}}), job("2", 500, types=frozenset({"v100"})))

    assert play(seen, get("fifo"), config("controller.event_round_s=5")).fates["2"].start == NOW + 100.5


def test_a_job_that_is_left_to_slurm_leaves_at_its_time_limit() -> None:
    """Its GPU is taken until then; without a limit, for ever. So it is with a year, which Slurm says for none."""
    held = replace(runs("1", 1000, {"a": {"v100": 1}}), pinned="has no hadar: comment", time_limit_s=600.0)
    nodes = (Node("a", {"v100": 1}, taken={"v100": 1}),)
    seen = snapshot(held, job("2", 500), nodes=nodes)
    endless = snapshot(replace(held, time_limit_s=None), job("2", 500), nodes=nodes)

    assert play(seen, get("fifo"), config()).fates["2"].start == NOW + 600
    assert play(endless, get("fifo"), config()).fates["2"].start is None
    a_year = snapshot(replace(held, time_limit_s=364.96 * 86400), job("2", 500), nodes=nodes)
    assert play(a_year, get("fifo"), config()).fates["2"].start is None


@pytest.mark.parametrize(("until", "start"), [(None, 60.0), (7000.0, 7020.0)])
def test_what_is_kept_back_starts_when_that_is_over(until: float | None, start: float) -> None:
    """With the next round where nobody knows when, such as a limit of Slurm's; with the first after it where that is
    known, such as a reservation, though nothing else happens until then."""
    kept = job("2", 500, blocked="so", blocked_until=None if until is None else NOW + until)

    assert play(snapshot(kept), get("fifo"), config()).fates["2"].start == NOW + start


def test_who_is_kept_off_its_nodes_starts_there_when_that_is_over() -> None:
    """It has no others, or none as good."""
    kept = job("2", 500, blocked="so", opens={"a": NOW + 7000.0})
    nowhere, elsewhere = (replace(kept, form=replace(kept.form, nodes=frozenset(open_))) for open_ in ("", "b"))
    one, two = (Node("a", {"v100": 1}),), (Node("a", {"v100": 1}), Node("b", {"v100": 1}))

    assert play(snapshot(nowhere, nodes=one), get("fifo"), config()).fates["2"].start == NOW + 7020.0
    assert play(snapshot(elsewhere, nodes=two), get("fifo"), config()).fates["2"].where.nodes == ("b",)


def test_young_runs_and_fixed_ones_stay() -> None:
    """srtf would take the GPU for the shorter job at once: it must wait for min_run_s, or for the end of one that stays
    for good."""
    long = runs("1", 100_000, {"a": {"v100": 1}})
    fixed = replace(long, unmovable="has no checkpoint support")
    seen = snapshot(long, job("2", 10, types=frozenset({"v100"})), nodes=(Node("a", {"v100": 1}),))
    young = config("guard.min_run_s=300")

    assert play(seen, get("srtf"), config()).fates["2"].start == NOW
    assert play(seen, get("srtf"), young).fates["2"].start == NOW + 300
    kept = snapshot(fixed, seen.jobs[1], nodes=seen.nodes)
    assert play(kept, get("srtf"), young, stays={"1"}).fates["2"].start == NOW + 10_020


def test_copies_share_what_is_left() -> None:
    """Two copies at 10 and 1 steps/s are done with 1,100 steps together after 100 s."""
    copies = [
        replace(runs(str(i), 1100, where), array_id="7", fork=Fork.SPREAD)
        for i, where in ((1, {"a": {"v100": 1}}), (2, {"b": {"k80": 1}}))
    ]
    future = play(snapshot(*copies), get("hadare"), config())

    assert {f.end for f in future.fates.values()} == {NOW + 100}


def test_an_answer() -> None:
    """Start within the error of what is left of the holder; another type at once, but done later; none that it cannot
    use."""
    seen = snapshot(
        runs("1", 10_000, {"a": {"v100": 1}}),
        job("2", 500, types=frozenset({"v100"})),
        nodes=(Node("a", {"v100": 1}), Node("b", {"k80": 1}), Node("c", {"a100": 1})),
    )
    told = answer(Peek(seen, get("fifo")), "2", config())

    assert not told.runs and told.start == Interval(NOW + 900, NOW + 1140)
    assert [(h.job_id, h.user, h.gpus, h.left_s) for h in told.holders] == [("1", "ada", 1, 1000.0)]
    by_type = {case.gpu_type: case for case in told.what_if}
    assert not by_type["k80"].accepted and by_type["v100"].accepted
    assert by_type["k80"].start == Interval(NOW, NOW) and by_type["k80"].end == NOW + 500
    assert by_type["v100"].start == told.start
    assert by_type["a100"].start is None and "no speed above zero is known" in by_type["a100"].why


def test_no_answer_for_jobs_that_are_not_steered() -> None:
    """Nor for those that are not there; one that runs has an end and nothing else."""
    seen = snapshot(job("1", 10, pinned="pin=yes in its comment"), runs("2", 100, {"b": {"k80": 1}}))
    peek = Peek(seen, get("fifo"))

    assert answer(peek, "1", config()) is None and answer(peek, "3", config()) is None
    told = answer(peek, "2", config())
    assert told.runs and told.start is None and told.end == Interval(NOW + 90, NOW + 110) and told.what_if == ()


def test_errors_of_what_is_known() -> None:
    """A stated length on a measured speed is the surest, a predicted one half as sure, an unknown one hardly at all."""
    stated, unknown = runs("1", 10, {"a": {"v100": 1}}), runs("1", None, {"a": {"v100": 1}})
    guessed = replace(stated, speeds={"v100": Speed(10.0, error=0.3)})

    assert uncertainty(stated) == LEAST_ERROR and uncertainty(guessed) == pytest.approx(0.3)
    assert uncertainty(replace(unknown, predicted_steps=100.0)) == pytest.approx(0.5)
    assert uncertainty(unknown) == 0.9 and remaining_s(unknown, 7200.0) == 7200.0
    assert remaining_s(replace(stated, speeds={}), 3600.0) == float("inf")


def test_weeks_are_played_in_few_rounds() -> None:
    """One job after the other, of 60 days each: rounds in which nothing changes are skipped, and each end is found."""

    class Counted(Policy):
        name = "counted"
        inner, rounds = get("fifo"), 0

        def allocate(self, snapshot: Snapshot) -> Plan:
            Counted.rounds += 1
            return self.inner.allocate(snapshot)

    days = 60 * 86400.0
    jobs = [job(str(n), 10.0 * days, types=frozenset({"v100"})) for n in (1, 2, 3)]
    fates = play(snapshot(*jobs), Counted(), config()).fates

    ends = [(fates[j.job_id].end or 0.0) - NOW for j in jobs]
    assert ends == pytest.approx([days, 2 * days, 3 * days], rel=0.02)
    assert Counted.rounds < 1000  # of 260,000


def test_time_runs_out() -> None:
    """Without CPU time there is no future, and with little the horizon is said."""
    seen = snapshot(runs("1", 1000, {"a": {"v100": 1}}), job("2", 500, types=frozenset({"v100"})))

    assert play(seen, get("fifo"), config(), cpu_s=0.0).until == NOW
    assert starts(Peek(seen, get("fifo")), config(), cpu_s=0.0) == {}
    assert starts(Peek(seen, get("fifo")), config(), cpu_s=60.0) == {"2": Interval(NOW + 120, NOW + 120)}


@examples(25)
@given(seen=snapshots(), name=st.sampled_from(POLICIES), lean=st.sampled_from((-1.0, 0.0, 1.0)))
def test_any_snapshot_has_a_future(seen: Snapshot, name: str, lean: float) -> None:
    """It ends, starts come before ends and not before now, and the same is foreseen twice."""
    terms = config("controller.round_s=600")
    future = play(seen, get(name), terms, lean=lean)

    for fate in future.fates.values():
        assert fate.start is None or seen.time <= fate.start <= future.until
        assert fate.end is None or (fate.start or seen.time) <= fate.end <= future.until
    assert play(seen, get(name), terms, lean=lean) == future


def test_rounds_leave_when_waiting_jobs_start(bench: Any) -> None:
    """More jobs than GPUs: who waits is seen to start when others are done; not so when it may take no time."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    jobs = [b.slurm.submit(gpus=1, comment=f"hadar:model=resnet18,batch=64,steps={n}000") for n in range(1, 7)]
    b.new_controller("controller.round_s=600").run_round()

    waiting = {job: wait for job in jobs if (wait := b.journal.wait(job))}
    assert len(waiting) >= 2
    for wait in waiting.values():
        low, high = wait["starts"]
        assert time.time() < low < high
    b.new_controller("controller.foresee_s=0").run_round()
    assert not any("starts" in (b.journal.wait(job) or {}) for job in jobs)


def test_a_limit_is_free_again_when_who_held_it_ends() -> None:
    """The second job of a user who may have one starts when the first has ended, though GPUs are free all the time."""
    needs = Needs(draws=(Draw("one each", "gpu"),))
    speeds = {"v100": Speed(1.0)}
    held = Placement.of({"n": {"v100": 1}})
    first = Job(
        "1",
        Form(1),
        state=JobState.RUNNING,
        started=0.0,
        placement=held,
        speeds=speeds,
        total_steps=500.0,
        unmovable="so",
        needs=needs,
    )
    waits = [Job(str(i), Form(1), speeds=speeds, total_steps=500.0, arrival=float(i), needs=needs) for i in (2, 3)]
    quota = Quota("one each", 0.0, "one GPU each")
    snapshot = Snapshot(0.0, (Node("n", {"v100": 4}),), (first, *waits), round_s=60.0, quotas=(quota,))

    found = play(snapshot, get("fifo"), config()).fates

    starts = [found[i].start or 0.0 for i in ("2", "3")]
    assert 500.0 <= starts[0] <= 620.0 and 1000.0 <= starts[1] <= 1240.0


def test_three_on_a_gpu_end_by_what_they_keep_and_one_of_them_is_the_host_of_the_others() -> None:
    """As the simulator plays it: each has a third of the time until the first ends, and then what it wants."""
    there = {"n1": {"v100": 1}}
    small = {"model": "m", "duty": {"v100": 0.4}, "slow_down": 2.0}
    hosts = {"1": None, "2": "1", "3": "1"}
    jobs = [
        runs(job_id, steps, there, host=hosts[job_id], **small)
        for job_id, steps in (("1", 1e5), ("2", 1.2e5), ("3", 3e5))
    ]
    pairs = {("m", "m", "v100"): (0.5, 0.5)}
    snapshot = Snapshot(NOW, (Node("n1", {"v100": 1}),), tuple(jobs), pairings=pairs, turns=True)

    fates = play(snapshot, get("fifo"), config()).fates

    ends = [(fates[j].end or 0.0) - NOW for j in "123"]
    assert ends == pytest.approx([1.2e4, 1.4e4, 3.2e4], abs=120.0)


def test_who_looks_ahead_for_long_rests_from_it(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds may come every few seconds; looking ahead after each would keep the processor busy."""
    b = bench({"v100-1": ("v100", 1)})
    for _ in range(2):
        b.slurm.submit()
    controller, now, looks = b.new_controller(), [100.0], []

    def look(*_: Any) -> None:
        looks.append(now[0])
        now[0] += 2.0

    monkeypatch.setattr("slurm_hadar.controller.record.recorder.JournalRecorder.foresee", look)
    monkeypatch.setattr("slurm_hadar.controller.loop.time", SimpleNamespace(monotonic=lambda: now[0]))
    for moment in (100.0, 110.0, 129.0, 131.0):
        now[0] = moment
        controller.run_round()
    assert looks == [100.0, 131.0]

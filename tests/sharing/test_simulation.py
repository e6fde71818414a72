"""The simulator of one GPU, against one that goes iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import TraceError
from slurm_hadar.sharing.entry import Applicant, let_in
from slurm_hadar.sharing.lanes import Demand, GpuMemory, at_boundary, release
from slurm_hadar.sharing.simulation.lane import LaneClock, Session
from slurm_hadar.sharing.simulation.run import ShareOptions, simulate
from slurm_hadar.sharing.simulation.trace import NS, ShareJob
from slurm_hadar.sharing.turns import EqualShareClock, Policy, Standing, rank, stride

CAPACITY = 100
ONE_LANE = [p for p in Policy if p is not Policy.PACK]


class _StepByStep:
    """One lane, an iteration after the other, decided by the same functions."""

    def __init__(self, jobs: Sequence[ShareJob], policy: Policy, weights: dict[str, int]) -> None:
        self.policy, self.weights, self.clock = policy, weights, EqualShareClock()
        self.coming = sorted(jobs, key=lambda job: job.arrival_ns)
        self.jobs = {job.job_id: job for job in jobs}
        self.memory, self.waiting, self.inside = GpuMemory(CAPACITY), list[Applicant](), dict[str, Standing]()
        self.left = {job.job_id: job.iterations for job in jobs}
        self.ends: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.switches, self.now, self.arrived = 0, 0, 0

    def arrivals(self, until: int) -> None:
        """All up to a moment, each let in at its own."""
        while self.coming and self.coming[0].arrival_ns <= until:
            moment = self.coming[0].arrival_ns
            while self.coming and self.coming[0].arrival_ns == moment:
                job = self.coming.pop(0)
                tag = self.clock.arrive(moment, job.total_ns)
                weight = self.weights.get(job.group, 1)
                standing = Standing(self.arrived, job.total_ns, tag, group=job.group, weight=weight)
                self.waiting.append(Applicant(job.job_id, job.demand, standing))
                self.arrived += 1
            self.enter()

    def enter(self) -> None:
        self.memory, entered, self.waiting = let_in(self.policy, self.memory, self.waiting, list(self.inside.values()))
        for applicant in entered:
            applicant.standing.passed = min((s.passed for s in self.inside.values()), default=0)
            self.inside[applicant.name] = applicant.standing

    def run(self) -> None:
        last = None
        while self.coming or self.inside:
            if not self.inside:
                self.now, last = self.coming[0].arrival_ns, None
                self.arrivals(self.now)
            name = min(self.inside, key=lambda n: rank(self.policy, self.inside[n]))
            job, standing = self.jobs[name], self.inside[name]
            self.switches += last not in (None, name)
            last = name
            self.starts.setdefault(name, self.now)
            peers = sum(s.group == standing.group for s in self.inside.values())
            standing.passed += stride(self.policy, job.iteration_ns, standing, peers)
            standing.left_ns -= job.iteration_ns
            self.left[name] -= 1
            self.arrivals(self.now + job.iteration_ns - 1)
            self.now += job.iteration_ns
            if not self.left[name]:
                self.ends[name] = self.now
                del self.inside[name]
                number = self.memory.lane_of(name).number
                self.memory = at_boundary(release(self.memory, name), number)
                if not self.inside:
                    last = None
                if not (self.coming and self.coming[0].arrival_ns == self.now):
                    self.enter()
            self.arrivals(self.now)


def _jobs(drawn: list[tuple[int, int, int, int, int, str]]) -> list[ShareJob]:
    return [
        ShareJob(f"j{i}", arrival, iterations, length, Demand(persistent, ephemeral), group)
        for i, (arrival, iterations, length, persistent, ephemeral, group) in enumerate(drawn)
    ]


job_lists = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 9), st.integers(1, 8), st.integers(0, 30), st.integers(0, 70),
        st.sampled_from(["", "gold"]),
    ),
    min_size=1, max_size=9,
).map(_jobs)  # fmt: skip


@pytest.mark.parametrize("policy", ONE_LANE)
@given(jobs=job_lists)
def test_whole_stretches_are_what_single_iterations_add_up_to(policy: Policy, jobs: list[ShareJob]) -> None:
    weights = {"gold": 3} if policy is Policy.PRIORITY else {}
    slow = _StepByStep(jobs, policy, weights)
    slow.run()

    fast = simulate(jobs, policy, ShareOptions(CAPACITY, weights=weights))

    assert {t.job_id: t.completion_ns for t in fast.times} == slow.ends
    assert {t.job_id: t.first_start_ns for t in fast.times} == slow.starts
    assert fast.switches == slow.switches
    assert fast.violations == 0 and fast.peak_bytes <= CAPACITY and fast.lanes_max == 1


@pytest.mark.parametrize("policy", Policy)
@given(jobs=job_lists, percent=st.integers(50, 300))
def test_everybody_ends_and_work_is_conserved(policy: Policy, jobs: list[ShareJob], percent: int) -> None:
    """Under every policy, with lanes beside each other too: no deadlock, no job faster than alone, no memory beyond
    the GPU's, and as much done in all as the gain allows."""
    gain = Fraction(percent, 100)
    result = simulate(jobs, policy, ShareOptions(CAPACITY, gain))

    assert result.violations == 0 and result.peak_bytes <= CAPACITY and len(result.times) == len(jobs)
    total = {job.job_id: job.total_ns for job in jobs}
    assert all(t.completion_ns - t.first_start_ns >= total[t.job_id] for t in result.times)
    work = sum(total.values())
    rounding = len(jobs) * 4  # each event rounds up by less than a nanosecond, and lanes down
    assert result.makespan_ns >= work / max(gain, 1) - rounding
    idle = max(job.arrival_ns for job in jobs)
    assert result.makespan_ns <= idle + work / min(gain, 1) + rounding


def _trace(*jobs: tuple[float, int, float], ephemeral: int = 50) -> list[ShareJob]:
    """Each by arrival and length of an iteration in seconds, and iterations."""
    return [
        ShareJob(str(i), round(arrival * NS), iterations, round(length * NS), Demand(10, ephemeral))
        for i, (arrival, iterations, length) in enumerate(jobs)
    ]


def _ends(jobs: list[ShareJob], policy: Policy, gain: Fraction = Fraction(1)) -> list[float]:
    return [t.completion_ns / NS for t in simulate(jobs, policy, ShareOptions(1000, gain)).times]


def test_ends_that_can_be_worked_out_by_hand() -> None:
    jobs = _trace((0, 10, 1.0), (2.5, 2, 1.0))

    assert _ends(jobs, Policy.FIFO) == [10, 12]
    assert _ends(jobs, Policy.SRTF) == [12, 5]
    assert _ends(jobs, Policy.FAIR) == [12, 7]
    assert _ends(jobs, Policy.RR) == [12, 7]


def test_jobs_beside_each_other() -> None:
    """Two alone take 10 s and 4 s: with the time conserved they share it, with a gain of 2 neither loses any."""
    jobs = _trace((0, 10, 1.0), (0, 4, 1.0))

    assert _ends(jobs, Policy.PACK) == [14, 8]
    assert _ends(jobs, Policy.PACK, Fraction(2)) == _ends(jobs, Policy.PACK, Fraction(5)) == [10, 4]
    result = simulate(jobs, Policy.PACK, ShareOptions(120, Fraction(2)))
    assert (result.lanes_max, result.peak_bytes, result.switches) == (2, 120, 0)


def test_three_equal_jobs_that_join_share_equally() -> None:
    """Salus, figure 9: at 0, 15 and 30 s; shares of 1, 1/2 and 1/3, and the same in all."""
    lane = LaneClock(Policy.FAIR)
    sessions = [Session(str(i), 362_000_000, 10**6, Standing(i)) for i in range(3)]
    done = []
    for session in sessions:
        lane.join(session)
        before = [s.left for s in sessions]
        lane.advance(15 * NS)
        done.append([b - s.left for b, s in zip(before, sessions, strict=True)])

    in_all = 15 / 0.362
    for joined, counts in enumerate(done, 1):
        assert sum(counts) == pytest.approx(in_all, rel=0.03)
        for count in counts[:joined]:  # whole iterations
            assert count == pytest.approx(in_all / joined, abs=1)
        assert counts[joined:] == [0] * (3 - joined)


def test_classes_have_their_shares_of_the_time() -> None:
    """3 to 1, in whatever iterations they spend it, and equal shares within a class."""
    lane = LaneClock(Policy.PRIORITY)
    sessions = [
        Session("gold1", 7, 10**9, Standing(0, group="gold", weight=3)),
        Session("gold2", 3, 10**9, Standing(1, group="gold", weight=3)),
        Session("lead", 5, 10**9, Standing(2, group="lead", weight=1)),
    ]
    for session in sessions:
        lane.join(session)
    lane.advance(10**7)

    spent = [(10**9 - s.left) * s.iteration_ns for s in sessions]
    assert spent == pytest.approx([3.75e6, 3.75e6, 2.5e6], rel=1e-4)


def test_no_job_ends_later_than_under_equal_shares() -> None:
    """What FSP is for, where memory is no limit."""
    jobs = _trace((0, 900, 0.1), (3, 40, 0.2), (5, 700, 0.1), (6, 20, 0.1), (60, 10, 1.0))

    fair, fsp = _ends(jobs, Policy.FAIR), _ends(jobs, Policy.FSP)

    longest_s = 1.0
    assert all(mine <= equal + longest_s for mine, equal in zip(fsp, fair, strict=True)) and sum(fsp) < sum(fair)


@pytest.mark.parametrize(
    "policy", [Policy.RR, *(pytest.param(p, marks=pytest.mark.thorough) for p in Policy if p is not Policy.RR)]
)
def test_a_hundred_million_iterations_are_not_counted_one_by_one(policy: Policy) -> None:
    """A hundred jobs of a million iterations each; one by one they would take minutes."""
    jobs = _trace(*((i, 10**6 + i, 0.001 * (1 + i % 3)) for i in range(100)), ephemeral=5)

    result = simulate(jobs, policy, ShareOptions(10**6))

    assert result.makespan_ns >= sum(job.total_ns for job in jobs) / 1.07 - 1
    if policy is Policy.RR:  # all join soon, and none ends before all have had their turns
        assert result.switches > 0.99 * sum(job.iterations for job in jobs)


def test_a_job_that_can_never_run_is_named() -> None:
    with pytest.raises(TraceError, match="job '0' needs 60 bytes by itself, and the GPU has 59: give --memory 60"):
        simulate(_trace((0, 1, 1.0)), Policy.FAIR, ShareOptions(59))

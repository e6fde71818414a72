"""One GPU that the jobs of a trace share: events in, completion times out.

An event is an arrival or an end; in between nothing is decided anew, and lanes are run forward by arithmetic
(:mod:`slurm_hadar.sharing.simulation.stretch`), so that the cost does not depend on the number of iterations.

**Lanes beside each other.** A GPU's compute is shared: n busy lanes have a speed of ``parallel_gain`` / n each, at most
1, and a lane alone 1. With a gain of 1 time is conserved: lanes beside each other are then worth nothing but earlier
starts. Switching costs nothing: Salus keeps P on the GPU, and printed no cost of a switch.

Times are whole nanoseconds. With one lane they are exact; with several, each event rounds a lane's progress by less
than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from slurm_hadar.errors import TraceError
from slurm_hadar.sharing.entry import Applicant, let_in
from slurm_hadar.sharing.lanes import GpuMemory, at_boundary, is_safe, release
from slurm_hadar.sharing.simulation.lane import LaneClock, Session
from slurm_hadar.sharing.simulation.result import JobTimes, ShareResult
from slurm_hadar.sharing.simulation.trace import ShareJob
from slurm_hadar.sharing.turns import EqualShareClock, Policy, Standing

__all__ = ["PARALLEL_GAIN", "ShareOptions", "simulate"]

#: What lanes beside each other do in all, against one lane alone: the least gain that Salus reports (section 5.2), for
#: the makespan of 300 jobs of ResNet-50, by its figure 612.4 min against 572.1 min with lanes; 2.38 was the greatest.
PARALLEL_GAIN = Fraction(107, 100)


@dataclass(frozen=True)
class ShareOptions:
    """The GPU, and how it is shared. ``weights`` are those of classes under policy ``priority``; others have 1."""

    memory_bytes: int
    parallel_gain: Fraction = PARALLEL_GAIN
    weights: Mapping[str, int] = field(default_factory=dict)


def simulate(jobs: Sequence[ShareJob], policy: Policy, options: ShareOptions) -> ShareResult:
    """Run all jobs. Raises TraceError naming a job that does not fit on the GPU even alone."""
    for job in jobs:
        if job.demand.alone_bytes > options.memory_bytes:
            raise TraceError(
                f"job {job.job_id!r} needs {job.demand.alone_bytes} bytes by itself, and the GPU has "
                f"{options.memory_bytes}: give --memory {job.demand.alone_bytes} or more, or take the job out"
            )
    gpu = _Gpu(policy, options)
    arrivals = sorted(jobs, key=lambda job: job.arrival_ns)
    begin = gpu.now_ns = arrivals[0].arrival_ns if arrivals else 0
    coming = 0
    while coming < len(arrivals) or gpu.busy:
        while coming < len(arrivals) and arrivals[coming].arrival_ns <= gpu.now_ns:
            gpu.arrive(arrivals[coming], coming)
            coming += 1
        gpu.let_in()
        gpu.run_until(arrivals[coming].arrival_ns if coming < len(arrivals) else None)
    return gpu.result(len(jobs), gpu.now_ns - begin)


class _Gpu:
    def __init__(self, policy: Policy, options: ShareOptions) -> None:
        self.now_ns = 0
        self._policy = policy
        self._options = options
        self._memory = GpuMemory(options.memory_bytes)
        self._lanes: dict[int, LaneClock] = {}
        self._waiting: list[Applicant] = []
        self._jobs: dict[str, ShareJob] = {}
        self._times: dict[str, JobTimes] = {}
        self._equal_shares = EqualShareClock()
        self._peak_bytes = self._lanes_max = self._violations = self._switches = 0

    @property
    def busy(self) -> bool:
        return bool(self._lanes or self._waiting)

    def arrive(self, job: ShareJob, order: int) -> None:
        weight = self._options.weights.get(job.group, 1)
        tag = self._equal_shares.arrive(job.arrival_ns, job.total_ns)
        standing = Standing(order, job.total_ns, tag, group=job.group, weight=weight)
        self._waiting.append(Applicant(job.job_id, job.demand, standing))
        self._jobs[job.job_id] = job
        self._times[job.job_id] = JobTimes(job.job_id, job.arrival_ns)

    def let_in(self) -> None:
        """Let in whom policy and memory allow."""
        inside = [s.standing for lane in self._lanes.values() for s in lane.sessions]
        self._memory, entered, self._waiting = let_in(self._policy, self._memory, self._waiting, inside)
        for applicant in entered:
            job = self._jobs[applicant.name]
            number = self._memory.lane_of(job.job_id).number
            lane = self._lanes.setdefault(number, LaneClock(self._policy))
            lane.join(Session(job.job_id, job.iteration_ns, job.iterations, applicant.standing))
        self._look()

    def run_until(self, limit_ns: int | None) -> None:
        """Let time pass until the first end, or until ``limit_ns``."""
        if not self._lanes:
            self.now_ns = limit_ns if limit_ns is not None else self.now_ns
            return
        busy = len(self._lanes)
        speed = min(self._options.parallel_gain / busy, Fraction(1)) if busy > 1 else Fraction(1)
        ends = {number: lane.next_end_ns() for number, lane in self._lanes.items()}
        passed = -(-min(ends.values()) * speed.denominator // speed.numerator)
        if limit_ns is not None:
            passed = min(passed, limit_ns - self.now_ns)
        work = passed * speed.numerator // speed.denominator
        for number, lane in list(self._lanes.items()):
            for name, after in lane.advance(min(work, ends[number])).items():
                times = self._times[name]
                if times.first_start_ns is None:
                    times.first_start_ns = self.now_ns + -(-after * speed.denominator // speed.numerator)
        self.now_ns += passed
        for number, lane in list(self._lanes.items()):
            self._end(number, lane)

    def _end(self, number: int, lane: LaneClock) -> None:
        for session in lane.take_ended():
            self._times[session.name].completion_ns = self.now_ns
            self._memory = at_boundary(release(self._memory, session.name), number)
            self._look()
        if not lane.sessions:
            self._switches += lane.switches
            del self._lanes[number]

    def _look(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._memory.reserved_bytes)
        self._lanes_max = max(self._lanes_max, len(self._memory.lanes))
        self._violations += not is_safe(self._memory)

    def result(self, jobs: int, makespan_ns: int) -> ShareResult:
        return ShareResult(
            self._policy, jobs, makespan_ns, tuple(self._times.values()), self._peak_bytes, self._lanes_max,
            self._switches, self._violations,
        )  # fmt: skip

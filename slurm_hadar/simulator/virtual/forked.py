"""Forked jobs in the virtual cluster: copies that share their parent's steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_hadar.forks import OVERHEAD
from slurm_hadar.model import Fork, Job, Node, Placement
from slurm_hadar.simulator.virtual.jobs import VirtualJob

__all__ = ["Consolidation", "ForkedJob", "VirtualCopy", "best_rates", "copies_for"]


@dataclass(frozen=True, slots=True)
class Consolidation:
    """What it costs to bring the copies' weights together.

    ``overhead``: share of its time that each copy loses while more than one trains. ``period_s``: between two of them;
    what a copy did since the last is lost with its node.
    """

    overhead: float = OVERHEAD
    period_s: float = 60.0


def copies_for(job: Job, nodes: Sequence[Node]) -> int:
    """One copy for each node that can hold the whole gang; 0 if none can."""
    form = job.form
    if form.min_nodes > 1:
        return 0
    return sum(1 for node in nodes if _best_on(job, node) > 0)


def best_rates(job: Job, nodes: Sequence[Node], count: int) -> list[float]:
    """The rates that ``count`` copies alone on the cluster do not exceed: at most one per node, on the fastest nodes.

    Where one may span nodes, on which none could be alone, each counts as on the fastest type.
    """
    if job.form.max_nodes > 1:
        known = [s.steps_per_s for size in job.form.gang_sizes for s in job.speeds_at(size).values()]
        return [max(known, default=0.0)] * count
    return sorted((_best_on(job, node) for node in nodes), reverse=True)[:count]


def _best_on(job: Job, node: Node) -> float:
    """The fastest single-type gang of the job on the empty node; 0 if there is none."""
    if not job.form.admits_node(node.name):
        return 0.0
    rates = (
        job.rate(Placement.of({node.name: {gpu_type: size}}))
        for gpu_type, there in node.gpus.items()
        for size in job.form.gang_sizes
        if size <= there and job.form.admits_type(gpu_type)
    )
    return max(rates, default=0.0)


class ForkedJob:
    """The parent: what its copies have done together, and what is told of it as one job.

    ``done`` steps are as of ``at``. Steps are made at the sum of the rates of the copies that train, less the
    consolidations' share while more than one does. So the end is known exactly as long as nothing changes. Counts of
    restarts, moves and preemptions are sums over the copies; ``held_s`` is the time in which at least one held GPUs.
    """

    def __init__(self, plain: VirtualJob, fork: Fork, count: int, consolidation: Consolidation) -> None:
        self.trace, self.job_id, self.total, self.arrival = plain.trace, plain.job_id, plain.total, plain.arrival
        self.template = replace(plain.template, fork=fork)
        self.consolidation = consolidation
        self.done = self.at = self.held_s = self.lost_steps = 0.0
        self.held_since = 0.0
        self.first_start: float | None = None
        self.completion: float | None = None
        self.training: list[VirtualCopy] = []
        self.copies = tuple(VirtualCopy(self, plain, number) for number in range(count))

    # What is told of it as of one job

    @property
    def starts(self) -> int:
        """1 and every start of a copy that had started before; 0 if none has."""
        return 0 if self.first_start is None else 1 + sum(max(0, c.starts - 1) for c in self.copies)

    @property
    def moves(self) -> int:
        """Of all its copies."""
        return sum(c.moves for c in self.copies)

    @property
    def preemptions(self) -> int:
        """Of all its copies."""
        return sum(c.preemptions for c in self.copies)

    @property
    def busy(self) -> dict[str, float]:
        """GPU-seconds per type, of all copies."""
        found: dict[str, float] = {}
        for copy in self.copies:
            for gpu_type, seconds in copy.busy.items():
                found[gpu_type] = found.get(gpu_type, 0.0) + seconds
        return found

    # What its copies do

    def _speeds(self) -> list[tuple[float, float]]:
        """From when on which speed, of all copies together: (time, steps/s), from ``at`` to for ever."""
        training = sorted(self.training, key=lambda c: c.since)
        found, rate = [(self.at, 0.0)], 0.0
        for number, copy in enumerate(training):
            rate += copy.rate
            factor = 1.0 - self.consolidation.overhead if number else 1.0
            begin = max(self.at, copy.since)
            if begin == found[-1][0]:
                found.pop()
            found.append((begin, rate * factor))
        return found

    def done_at(self, now: float) -> float:
        """Steps that all copies have done by ``now``."""
        speeds, done = self._speeds(), self.done
        for (begin, rate), end in zip(speeds, [*(b for b, _ in speeds[1:]), math.inf], strict=True):
            if begin < now:
                done += (min(end, now) - begin) * rate
        return min(self.total, done)

    @property
    def finish(self) -> float:
        """When the last step is made if nothing changes."""
        speeds, done = self._speeds(), self.done
        for (begin, rate), end in zip(speeds, [*(b for b, _ in speeds[1:]), math.inf], strict=True):
            if rate > 0 and done + (end - begin) * rate >= self.total:
                return begin + (self.total - done) / rate
            done += (end - begin) * rate if rate > 0 else 0.0
        return math.inf

    def join(self, copy: VirtualCopy, now: float) -> None:
        """A copy has got GPUs."""
        self._advance(now)
        if not self.training:
            self.held_since = now
        if self.first_start is None:
            self.first_start = now
        self.training.append(copy)
        self._set_ends()

    def leave(self, copy: VirtualCopy, now: float, lost: float = 0.0) -> None:
        """A copy has given its GPUs up; ``lost`` steps of it were in no consolidation."""
        self._advance(now)
        self.training.remove(copy)
        lost = min(lost, self.done)
        self.done -= lost
        self.lost_steps += lost
        if not self.training:
            self.held_s += now - self.held_since
        self._set_ends()

    def complete(self, now: float) -> None:
        """The last step is made; what trains stops then."""
        self.done, self.at, self.completion = self.total, now, now
        if self.training:
            self.held_s += now - self.held_since
            self.training.clear()

    def _advance(self, now: float) -> None:
        if now > self.at:
            self.done, self.at = self.done_at(now), now

    def _set_ends(self) -> None:
        finish = self.finish
        for copy in self.training:
            copy.finish = finish


class VirtualCopy(VirtualJob):
    """One copy: placed by itself, with the steps of its parent."""

    __slots__ = ("parent",)

    def __init__(self, parent: ForkedJob, plain: VirtualJob, number: int) -> None:
        super().__init__(*plain.made_of)
        self.parent = parent
        self.job_id = f"{plain.job_id}_{number}"
        self._fixed |= {"job_id": self.job_id, "array_id": plain.job_id, "fork": parent.template.fork}
        self.template = replace(self.template, job_id=self.job_id, array_id=plain.job_id, fork=parent.template.fork)
        self.idle = self._as_waiting()

    @property
    def family(self) -> Sequence[VirtualJob]:
        return (self, *(c for c in self.parent.copies if c is not self))

    def resumes(self, now: float) -> bool:
        """Not with the parent's first copies, which start from nothing together."""
        return self.parent.first_start is not None and self.parent.first_start < now

    def done_at(self, now: float) -> float:
        return self.parent.done_at(now)

    def waiting(self, now: float) -> Job:
        done = self.done_at(now)
        if done != self.idle.done_steps:
            self.idle = replace(self.idle, done_steps=done)
        return self.idle

    def start(self, now: float, placement: Placement, delay_s: float) -> None:
        super().start(now, placement, delay_s)
        self.parent.join(self, now)

    def stop(self, now: float) -> None:
        self.parent.leave(self, now)
        super().stop(now)

    def crash(self, now: float, checkpoint_s: float) -> None:
        """What this copy did since the last consolidation is lost; of the only one, since the last checkpoint."""
        every_s = self.parent.consolidation.period_s if len(self.parent.training) > 1 else checkpoint_s
        ran_s = max(0.0, now - self.since)
        lost = self.rate * (ran_s % every_s) if every_s > 0 else 0.0
        self.parent.leave(self, now, lost)
        self.done = self.parent.done
        self._release(now)

    def complete(self) -> None:
        """The parent's last step is made; of a copy that does not run, nothing changes but that it is gone."""
        end = self.parent.completion if self.parent.completion is not None else self.finish
        if self.parent.completion is None:
            self.parent.complete(end)
        self.done, self.completion = self.total, end
        if self.started is not None:
            self._release(end)

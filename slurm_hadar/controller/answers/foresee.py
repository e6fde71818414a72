"""What comes next if nothing else is submitted: the policy's own rounds, played forward from one snapshot.

A policy is a pure function, so its future can be looked at as well as its present: the jobs that run are let end when
they are expected to, and the policy decides again, round by round, under the limits of the configuration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.answers.lengths import leaning_steps
from slurm_hadar.controller.cluster import SETTLE_S
from slurm_hadar.controller.safety.guard import Change, ChangeKind, changes_of, limit
from slurm_hadar.model import EMPTY, Job, JobState, Node, Placement, Plan, Snapshot, Tier
from slurm_hadar.policies.base import UNKNOWN_RUNTIME_S, Policy
from slurm_hadar.policies.toolkit.admission import drawn
from slurm_hadar.policies.toolkit.shared_gpus.company import shares_kept

__all__ = ["Fate", "Future", "play", "remaining_s", "unknown_runtime_s"]

HORIZON_S = 365 * 86400.0
_NEVER_S = 360 * 86400.0  # Slurm says a year where it knows no end; what waits for that is not foreseen to start
_YOUNG = "is younger than guard.min_run_s"
# while nothing changes, rounds may be as far apart as this part of the time that was played: what is told is as exact
_APART, _APART_IN_A_HURRY = 0.02, 0.1
_PATIENCE_ROUNDS = 200  # without anything that runs and ends; waiting rules may end in that time


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one job, in epoch seconds; None = not in the time that was played. ``start`` is that of a job
    that waited at the beginning, ``where`` the placement it starts on."""

    start: float | None = None
    end: float | None = None
    where: Placement = EMPTY


@dataclass(frozen=True)
class Future:
    """The fates of all steerable jobs, played until ``until`` (epoch seconds). ``first`` is the plan of the first
    round."""

    fates: Mapping[str, Fate]
    until: float
    first: Plan = field(default_factory=lambda: Plan(""))

    def cannot_run(self, job_id: str) -> str:
        """Why the job could never run as it is; "" if it could."""
        wait = self.first.waits.get(job_id)
        return wait.why if wait is not None and wait.tier is Tier.CANNOT_RUN else ""


def unknown_runtime_s(policy: Policy) -> float:
    """What the policy assumes of a job whose length nobody knows; the others' common assumption where it makes none."""
    return float(getattr(policy, "unknown_runtime_s", UNKNOWN_RUNTIME_S))


def remaining_s(job: Job, unknown_s: float) -> float:
    """Seconds that the job still needs: where it runs, else on its fastest type; with ``unknown_s`` assumed on its
    fastest type where nobody knows. Infinite where no speed is known."""
    rate = job.rate(job.placement) if job.running else job.best_rate()
    return job.steps_to_go(job.best_rate(), unknown_s) / rate if rate > 0 else math.inf


def play(
    snapshot: Snapshot,
    policy: Policy,
    config: Config,
    *,
    stays: Collection[str] = (),
    lean: float = 0.0,
    left: Mapping[str, float] | None = None,
    wanted: Collection[str] | None = None,
    cpu_s: float = math.inf,
) -> Future:
    """Play on until all jobs, or the ``wanted`` ones, are done.

    ``stays``: jobs that keep their place once they run. ``lean``: whether all take as long as expected (0), are early
    (-1) or late (1), as in :func:`leaning_steps`; or ``left`` says how many steps each has left, by parent. ``cpu_s``:
    CPU seconds after which it stops with what it knows by then. Jobs that are not steered hold their GPUs until their
    time limit; those of them that wait are taken to go on waiting. While nothing changes rounds are skipped, for a
    fiftieth of the time played so far, for a tenth once half of ``cpu_s`` is used.
    """
    if left is None:
        unknown_s = unknown_runtime_s(policy)
        left = {j.parent: leaning_steps(j, unknown_s, lean) for j in snapshot.steerable_jobs}
    game = _Game(snapshot, policy, config, stays, left)
    began = time.thread_time()
    goal = {j.job_id for j in snapshot.steerable_jobs} if wanted is None else set(wanted)
    while not game.done(goal) and (used_s := time.thread_time() - began) < cpu_s and game.turn(used_s > cpu_s / 2):
        pass
    return Future(game.fates, game.now, game.first or Plan(policy.name))


class _Game:
    """The state of one play. Jobs of one family (the copies of a forked job) share what is left."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        config: Config,
        stays: Collection[str],
        left: Mapping[str, float],
    ) -> None:
        self.now = snapshot.time
        self.first: Plan | None = None
        self._origin = snapshot.time
        self._snapshot = snapshot
        self._policy = policy
        self._config = config
        self._stays = stays
        self._memory = snapshot.memory
        self._nodes = {n.name: n for n in snapshot.nodes}
        self._jobs = {j.job_id: j for j in snapshot.steerable_jobs}
        self.fates = dict.fromkeys(self._jobs, Fate())
        self._left = {**left}
        self._ready: dict[str, float] = {}
        self._idle = 0
        self._held = drawn(snapshot.jobs)
        self._leaving = [  # running jobs that are not steered: until when, and what they hold
            (max(self.now, job.started + job.time_limit_s), job.held)
            for job in snapshot.jobs
            if job.pinned is not None and job.placement and job.started is not None and job.time_limit_s is not None
        ]

    def done(self, wanted: set[str]) -> bool:
        return not wanted & self._jobs.keys()

    def turn(self, hurry: bool) -> bool:
        """One round and the time until the next, longer in a ``hurry``. False when nothing can happen any more."""
        held = drawn(self._jobs.values())
        shown = replace(
            self._snapshot,
            time=self.now,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._shown(j) for j in self._jobs.values()),
            memory=self._memory,
            quotas=tuple(
                replace(q, left=q.left + self._held.get(q.name, 0.0) - held.get(q.name, 0.0))
                for q in self._snapshot.quotas
            ),
        )
        plan = self._policy.allocate(shown)
        self._memory = plan.memory
        if self.first is None:
            self.first = plan
        if plan.abstains:
            return False
        changes = limit(shown, changes_of(shown, plan), self._config)
        changed = [c for c in changes if c.old != c.new or c.host != self._jobs[c.job_id].host or self._turned(c)]
        for change in changed:
            self._apply(change)
        return self._let_pass(0.0 if changed else _APART_IN_A_HURRY if hurry else _APART)

    def _turned(self, change: Change) -> bool:
        """Whether a guest has another share of the turns."""
        return change.host is not None and change.turns != self._jobs[change.job_id].turns

    def _shown(self, job: Job) -> Job:
        """The job with the limit on young runs as it is by now; what kept it back at first is taken to pass, at the
        next round where nobody knows when. Nodes that it was kept off are its own again in time."""
        over = job.blocked_until is None or self.now >= job.blocked_until
        if job.blocked is not None and self.first is not None and over:
            job = replace(job, blocked=None)
        if (nodes := job.form.nodes) is not None and any(at <= self.now for at in job.opens.values()):
            nodes |= {node for node, at in job.opens.items() if at <= self.now}
            job = replace(job, form=replace(job.form, nodes=nodes))
        if not job.running or job.job_id in self._stays:
            return job
        since = self.now if job.started is None else job.started  # its nodes are made ready for it
        young = self.now - since < self._config.guard.min_run_s
        return replace(job, unmovable=_YOUNG if young else None)

    def _apply(self, change: Change) -> None:
        job = self._jobs[change.job_id]
        if not change.new:
            self._jobs[job.job_id] = replace(job, state=JobState.PENDING, placement=EMPTY, started=None, host=None)
            return
        if change.kind is ChangeKind.STAY:
            self._jobs[job.job_id] = replace(job, host=change.host, turns=change.turns)
            return
        again = job.running or job.done_steps > 0
        self._ready[job.job_id] = self.now + (job.restart_cost_s if again else 0.0)
        fixed = "keeps its place once it runs" if job.job_id in self._stays else None
        self._jobs[job.job_id] = replace(
            job,
            state=JobState.RUNNING,
            placement=change.new,
            started=self.now,
            whole=_whole(self._nodes, change.new) if job.needs.exclusive else EMPTY,
            unmovable=fixed,
            host=change.host,
            turns=change.turns,
        )
        fate = self.fates[job.job_id]
        seen = self.now < self._origin + _NEVER_S
        if seen and fate.start is None and not self._snapshot.job[job.job_id].running:
            self.fates[job.job_id] = replace(fate, start=self.now, where=change.new)

    def _let_pass(self, apart: float) -> bool:
        """Time passes until the next round that may decide something else: the next one, or the first after this part
        of the time played so far."""
        settings = self._config.controller
        ends = self._ends()
        leave = [moment for moment, _ in self._leaving]
        opens = (at for j in self._jobs.values() for at in (j.blocked_until, *j.opens.values()))
        open_ = [at for at in opens if at is not None and at > self.now]
        first = min([*ends.values(), *leave, *open_], default=math.inf)
        due = self.now + settings.round_s * max(1, int(apart * (self.now - self._origin) / settings.round_s))
        self._idle = self._idle + 1 if math.isinf(first) else 0
        if self._idle > _PATIENCE_ROUNDS:
            return False
        if settings.event_round_s and first < math.inf:
            due = min(due, max(self.now + settings.event_round_s, first + SETTLE_S))
        elif first < due:  # the first whole round after it
            due = self.now + settings.round_s * max(1, math.ceil((first - self.now) / settings.round_s))
        self._advance(due, ends)
        return self.now < self._origin + HORIZON_S

    def _ends(self) -> dict[str, float]:
        """When each family that runs is done, if it goes on where it is."""
        speed: dict[str, float] = {}
        kept = shares_kept(self._snapshot, self._jobs)
        lost: dict[str, float] = {}  # steps that are not made while copies get ready
        for job in self._jobs.values():
            if job.running and (rate := job.rate(job.placement) * kept.get(job.job_id, 1.0)) > 0:
                speed[job.parent] = speed.get(job.parent, 0.0) + rate
                wait_s = max(0.0, self._ready.get(job.job_id, 0.0) - self.now)
                lost[job.parent] = lost.get(job.parent, 0.0) + rate * wait_s
        return {f: self.now + (max(0.0, self._left[f]) + lost[f]) / rate for f, rate in speed.items()}

    def _advance(self, moment: float, ends: Mapping[str, float]) -> None:
        kept = shares_kept(self._snapshot, self._jobs)
        for job in list(self._jobs.values()):
            if job.state is JobState.COMPLETING:
                del self._jobs[job.job_id]
            elif ends.get(job.parent, math.inf) <= moment:
                self.fates[job.job_id] = replace(self.fates[job.job_id], end=ends[job.parent])
                del self._jobs[job.job_id]
            elif job.running:
                worked_s = max(0.0, moment - max(self.now, self._ready.get(job.job_id, 0.0)))
                steps = worked_s * job.rate(job.placement) * kept.get(job.job_id, 1.0)
                self._left[job.parent] -= steps
                used = job.attained_s + job.placement.workers * (moment - self.now)
                lost_s = job.held_up_s + worked_s * (1.0 - kept.get(job.job_id, 1.0))
                done = job.done_steps + steps
                self._jobs[job.job_id] = replace(job, done_steps=done, attained_s=used, held_up_s=lost_s)
        self._pass_on()
        for _, placement in [entry for entry in self._leaving if entry[0] <= moment]:
            for node, gpu_type, count in placement.items():
                self._nodes[node] = _given_back(self._nodes[node], gpu_type, count)
        self._leaving = [entry for entry in self._leaving if entry[0] > moment]
        self.now = moment

    def _pass_on(self) -> None:
        """Of guests whose host is gone the first is the host of the others."""
        heirs: dict[str, str] = {}
        for job in [j for j in self._jobs.values() if j.host is not None and j.host not in self._jobs]:
            heir = heirs.setdefault(job.host or "", job.job_id)
            self._jobs[job.job_id] = replace(job, host=None if heir == job.job_id else heir)


def _whole(nodes: Mapping[str, Node], placement: Placement) -> Placement:
    return Placement.of({name: nodes[name].steerable_gpus for name in placement.nodes})


def _given_back(node: Node, gpu_type: str, count: int) -> Node:
    taken = {**node.taken, gpu_type: max(0, node.taken.get(gpu_type, 0) - count)}
    return replace(node, taken=taken, tenants=node.tenants if any(taken.values()) else frozenset())

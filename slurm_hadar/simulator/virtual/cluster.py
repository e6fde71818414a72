"""The virtual cluster: another cluster behind the controller's loop, with a clock that jumps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_hadar.config import GuardSection
from slurm_hadar.controller.cluster import SETTLE_S, Cluster, Outcome
from slurm_hadar.controller.journal import Event
from slurm_hadar.controller.safety.guard import Change, ChangeKind, unmovable_reason
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.model import Node, Placement, Snapshot
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.unsteered import place_by_slurm
from slurm_hadar.simulator.virtual.faults import Faults
from slurm_hadar.simulator.virtual.foresight import Foresight
from slurm_hadar.simulator.virtual.jobs import VirtualJob
from slurm_hadar.simulator.virtual.usage import UsageSums

__all__ = ["Interval", "Scenario", "Observation", "Timing", "VirtualCluster"]

#: Rounds without a single step before the simulation jumps ahead or gives up; more where starts and jobs take long.
_PATIENCE_ROUNDS = 200
_MOST_MORE = 10_000  # rounds of more patience where jobs are long
_PATIENCE_JUMPS = 20  # jumps without a single step between them before it gives up


@dataclass(frozen=True, slots=True)
class Timing:
    """When things happen.

    ``event_round_s``: a job that arrives, ends, or reports for the first time after a start, brings the next round
    forward, but not closer than this to the last; 0 = never. ``asked_s``: new jobs are asked for so often, from
    :data:`SETTLE_S` before a round may come; 0 = they are noticed at once. ``early_end``: a round is over when all that
    run are done. ``on_grid``: after an idle time the next round is a whole number of rounds after the last; else it is
    when the next job arrives. ``save_s``: in a round that stops jobs, all starts wait so long for their checkpoints.
    ``self_start_s``: Slurm itself starts a job so long after its arrival, where GPUs are free, unless a round comes
    first; None = it leaves all jobs to the rounds. A round is due at ``phase``, and whole rounds before and after it;
    None = at the first arrival. ``at_once``: the scheduler is inside Slurm: it looks whenever a job arrives or ends,
    and once more at the next whole multiple of ``round_s``.
    """

    round_s: float = 360.0
    event_round_s: float = 0.0
    asked_s: float = 0.0
    early_end: bool = False
    on_grid: bool = True
    save_s: float = 0.0
    self_start_s: float | None = None
    phase: float | None = None
    at_once: bool = False
    max_rounds: int = 5_000_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """What there is and what comes: the nodes, the jobs, and the ids of those (``wanted``) after whose end the
    simulation ends. ``origin``: the zero of the trace on the virtual clock, from which the times of ``faults`` count.
    ``foresight`` predicts the jobs' steps, which are hidden then.
    """

    nodes: Sequence[Node]
    jobs: Sequence[VirtualJob]
    wanted: Sequence[str]
    origin: float
    faults: Faults
    foresight: Foresight | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """GPUs of one type on one node that a job, or a copy of it, held from ``start_s`` to ``end_s``."""

    job_id: str
    node: str
    gpu_type: str
    count: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What the loop is shown in one round."""

    snapshot: Snapshot
    finished: tuple[tuple[str, str], ...] = ()
    events: tuple[Event, ...] = ()
    stays: frozenset[str] = frozenset()
    read_s: float = 0.0

    def with_snapshot(self, snapshot: Snapshot) -> Observation:
        """The same look, with another snapshot for the policy."""
        return replace(self, snapshot=snapshot)


class VirtualCluster(Cluster[Observation]):
    """Nodes and jobs that exist only on a virtual clock.

    A job that is done in the middle of a round is done at its exact time; its GPUs go to others at the next round.
    Times without any job are skipped.
    """

    def __init__(self, scenario: Scenario, timing: Timing, guard: GuardSection, usage_half_life_s: float) -> None:
        nodes, jobs, faults, origin = scenario.nodes, scenario.jobs, scenario.faults, scenario.origin
        self._foresight = scenario.foresight
        self.isolated = Quarantine(self.now)
        self._nodes = {n.name: n for n in nodes}
        self._queue = sorted(jobs, key=lambda j: j.arrival)[::-1]
        self._wanted = {*scenario.wanted}
        self._timing = timing
        self._guard = guard
        self._faults = faults
        outages = [(origin + o.down_s, False, o.node) for o in faults.outages]
        outages += [(origin + o.up_s, True, o.node) for o in faults.outages]
        self._outages = sorted(outages, reverse=True)
        self._now = self._began = self._last_round_before(self._queue[-1].arrival, timing.phase) if jobs else origin
        self._event = self._now
        self._active: dict[str, VirtualJob] = {}
        self._running: dict[str, VirtualJob] = {}
        self._finished: list[tuple[str, str]] = []
        self._patience, self._last_patience = _patience(jobs, timing)
        self._usage = {"user": UsageSums(usage_half_life_s), "account": UsageSums(usage_half_life_s)}
        self._shown_nodes: tuple[Node, ...] = tuple(nodes)
        self._idle_rounds = self._vain_jumps = self._rounds = 0
        self._reports: list[float] = []
        self._stopped = not self._wanted
        self.busy: dict[str, int] = {t: 0 for n in nodes for t in n.gpus}
        self.intervals: list[Interval] = []
        self.gave_up = False
        self._happen(self._now)

    # The seam

    def now(self) -> float:
        return self._now

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        self._stopped = True

    @property
    def active(self) -> tuple[VirtualJob, ...]:
        """Jobs that have arrived and are not done."""
        return tuple(self._active.values())

    @property
    def running_jobs(self) -> int:
        """How many jobs run; the copies of a forked job count once."""
        return len({job.trace.job_id for job in self._running.values()})

    @property
    def active_jobs(self) -> int:
        """How many jobs have arrived and are not done; the copies of a forked job count once."""
        return len({job.trace.job_id for job in self._active.values()})

    @property
    def to_go(self) -> int:
        """How many of the wanted jobs are not done."""
        return len(self._wanted)

    def close(self) -> None:
        """Note what running jobs hold at the end."""
        for job in list(self._running.values()):
            self._leave(job, self._now)
            job.stop(self._now)

    def observe(self, acting_only: bool) -> Observation:
        del acting_only  # there are no partitions here that are in a mode of their own
        self._began = self._now
        self._rounds += 1
        self._admit()
        jobs = tuple(
            j.waiting(self._now) if j.started is None else j.view(self._now, self._unmovable(j))
            for j in self._active.values()
        )
        self._book_running()
        users, accounts = (self._usage[kind].at(self._now) for kind in ("user", "account"))
        snapshot = Snapshot(self._now, self._shown_nodes, jobs, (), self._timing.round_s, users, accounts)
        finished, self._finished = tuple(self._finished), []
        return Observation(snapshot, finished)

    def circuit_open(self) -> str:
        return ""

    def carry_out(self, _number: int, _seen: Observation, changes: Sequence[Change]) -> Outcome:
        stops = [c for c in changes if c.kind.stops]
        for change in stops:
            self._stop_job(self._active[change.job_id], change.kind)
        delay_s = self._timing.save_s if stops else 0.0
        for change in changes:
            if change.kind.occupies:
                self._start_job(self._active[change.job_id], change.new, delay_s)
        return Outcome(list(changes))

    def conclude(self, seen: Observation) -> None:
        """Nothing: the jobs themselves remember."""

    def pause(self) -> None:
        """Let time pass until the next round."""
        if self._timing.at_once:
            self._pause_until_event()
            return
        began, timing = self._began, self._timing
        due = began + timing.round_s
        if timing.early_end and self._running:
            due = min(due, max(job.finish for job in self._running.values()))
        worked = False
        while (event := min(self._next_event(), arrival := self._next_arrival())) <= due and not self._stopped:
            self._now = event
            reported, freed, came = self._hear_reports(), self._happen(event), event == arrival
            worked = worked or freed or not (reported or came)
            if (reported or freed or came) and timing.event_round_s > 0:
                noticed = event if reported or freed else self._noticed(event)
                due = min(due, max(noticed + SETTLE_S, began + timing.event_round_s))
        if self._stopped:
            return
        self._now = due
        self._watch(worked or self._gets_on(due))
        if not self._active:
            self._skip_to_arrival()
        self._stopped = self._stopped or self._rounds >= timing.max_rounds

    def _pause_until_event(self) -> None:
        """Let time pass until something happens, or until the look that follows what happened last."""
        timing = self._timing
        again = (math.floor(self._event / timing.round_s) + 1) * timing.round_s
        arrival = self._queue[-1].arrival if self._queue else math.inf
        event = min(self._next_event(), arrival)
        due = min(event, again if again > self._now else math.inf)
        if math.isinf(due):
            self._stopped = self.gave_up = True
            return
        self._now = due
        if due == event:
            self._event = event
        self._happen(due)
        self._stopped = self._stopped or self._rounds >= timing.max_rounds

    # Time

    def _next_event(self) -> float:
        ends = min((job.finish for job in self._running.values()), default=math.inf)
        report = min(self._reports, default=math.inf)
        return min(ends, report, self._outages[-1][0] if self._outages else math.inf, self._next_self_start())

    def _next_arrival(self) -> float:
        """When a job comes next that no round has seen; only where that brings a round forward."""
        if self._timing.event_round_s <= 0:
            return math.inf
        return next((job.arrival for job in reversed(self._queue) if job.arrival > self._now), math.inf)

    def _noticed(self, arrival: float) -> float:
        """When it is seen that a job has come."""
        first, every_s = self._began + self._timing.event_round_s - SETTLE_S, self._timing.asked_s
        return first + max(0, math.ceil((arrival - first) / every_s)) * every_s if every_s else arrival

    def _next_self_start(self) -> float:
        """When Slurm next looks at a job for the first time."""
        if (delay_s := self._timing.self_start_s) is None:
            return math.inf
        return next((j.arrival + delay_s for j in reversed(self._queue) if j.arrival + delay_s > self._now), math.inf)

    def _hear_reports(self) -> bool:
        """Whether a job that has started reports by now."""
        heard = len(self._reports)
        self._reports = [r for r in self._reports if r > self._now]
        return len(self._reports) < heard

    def _happen(self, now: float) -> bool:
        """Everything due by ``now``; whether a job ended or was stopped."""
        freed = False
        for job in [j for j in self._running.values() if j.finish <= now]:
            if job.job_id in self._active:  # unless it has ended with another copy
                self._end_job(job)
            freed = True
        while self._outages and self._outages[-1][0] <= now:
            _, back, name = self._outages.pop()
            freed = self._switch(name, back) or freed
        if self._timing.self_start_s is not None:
            self._start_by_itself(self._timing.self_start_s)
        return freed

    def _start_by_itself(self, delay_s: float) -> None:
        """What Slurm does with jobs that no round has seen: each starts where there is room for it."""
        seen = [j for j in reversed(self._queue) if j.arrival + delay_s <= self._now]
        if not seen:
            return
        arena = Arena.of(Snapshot(self._now, self._shown_nodes, ()))
        ledger = Ledger(arena)
        for job in self._running.values():
            ledger.take(arena.gang(job.placement))
        for job in seen:
            placement = place_by_slurm(ledger, job.template)
            if placement:
                self._queue.remove(job)
                self._enter(job)
                self._start_job(job, placement, 0.0)
                ledger.take(arena.gang(placement))

    def _switch(self, name: str, back: bool) -> bool:
        """A node fails or comes back; whether jobs were thrown off it."""
        node = self._nodes[name]
        state, reason = ("idle", "") if back else ("down", "failed")
        self._nodes[name] = replace(node, available=back, state=state, reason=reason)
        self._shown_nodes = tuple(self._nodes.values())
        hit = [] if back else [j for j in self._running.values() if name in j.placement.nodes]
        for job in hit:
            self._leave(job, self._now)
            job.crash(self._now, self._faults.checkpoint_s)
        return bool(hit)

    def _gets_on(self, due: float) -> bool:
        """Whether steps are made by then; where nobody is to come, not in vain: those who would end after the last
        round do not count."""
        last = due + (self._timing.max_rounds - self._rounds) * self._timing.round_s
        more = bool(self._queue or self._outages)
        return any(job.since < due and (more or job.finish <= last) for job in self._running.values())

    def _watch(self, worked: bool) -> None:
        """Count rounds in which nothing got on; jump to what comes next, or give up, when there are too many."""
        if worked or not self._active:
            self._idle_rounds = self._vain_jumps = 0
            return
        self._idle_rounds += 1
        if self._idle_rounds < self._patience:
            return
        ahead = [self._queue[-1].arrival] if self._queue else []
        ahead += [moment for moment, back, name in self._outages if back and not self._nodes[name].available]
        starting = any(job.since >= self._now for job in self._running.values())
        if not ahead and not starting and self._idle_rounds < self._last_patience:
            return
        self._idle_rounds = 0
        self._vain_jumps += 1
        if not ahead or self._vain_jumps > _PATIENCE_JUMPS:
            self._stopped = self.gave_up = True
        elif not self._running:
            self._jump(min(ahead))

    def _skip_to_arrival(self) -> None:
        if not self._queue:
            self._stopped = True
        elif self._timing.self_start_s is None:
            self._jump(self._queue[-1].arrival)
        else:  # the last round before the arrival has nothing to do, but the next one is a round away from it
            self._jump(self._last_round_before(self._queue[-1].arrival, self._now))

    def _last_round_before(self, moment: float, phase: float | None) -> float:
        if phase is None:
            return moment
        return phase + math.floor((moment - phase) / self._timing.round_s) * self._timing.round_s

    def _jump(self, moment: float) -> None:
        """Go on at ``moment``, or at the next fixed round where nothing brings one forward. Nothing runs till then."""
        if moment <= self._now:
            return
        if self._timing.on_grid and self._timing.event_round_s <= 0:
            rounds = math.ceil((moment - self._now) / self._timing.round_s - 1e-9)
            moment = self._now + rounds * self._timing.round_s
        self._now = moment
        self._happen(moment)

    # Jobs

    def _admit(self) -> None:
        while self._queue and self._queue[-1].arrival <= self._now:
            self._enter(self._queue.pop())

    def _enter(self, job: VirtualJob) -> None:
        self._active[job.job_id] = job
        if self._foresight is not None:
            self._foresight.arrived(job)

    def _start_job(self, job: VirtualJob, placement: Placement, delay_s: float) -> None:
        cost_s = job.terms.restart_s if job.resumes(self._now) else job.terms.start_s
        job.start(self._now, placement, delay_s + cost_s)
        self._running[job.job_id] = job
        if self._timing.event_round_s > 0 and not self._timing.at_once:  # a scheduler inside Slurm hears no reports
            self._reports.append(job.reports)
        for gpu_type, count in job.by_type.items():
            self.busy[gpu_type] += count

    def _stop_job(self, job: VirtualJob, kind: ChangeKind) -> None:
        if kind is ChangeKind.MOVE:
            job.moves += 1
        else:
            job.preemptions += 1
        self._leave(job, self._now)
        job.stop(self._now)

    def _end_job(self, job: VirtualJob) -> None:
        """The job is done, and with it all copies of a forked job, those that do not run included."""
        end = job.finish
        if self._foresight is not None:
            self._foresight.ended(job)
        for member in job.family:
            if member.job_id in self._running:
                self._leave(member, end)
            member.complete()
            if self._active.pop(member.job_id, None) is None:
                self._queue.remove(member)
            self._finished.append((member.job_id, "COMPLETED"))
        self._wanted.discard(job.trace.job_id)
        self._stopped = self._stopped or not self._wanted

    def _leave(self, job: VirtualJob, now: float) -> None:
        """Note what the job held, and that it holds it no more."""
        self._note(job, now)
        self._book(job, now)
        for gpu_type, count in job.by_type.items():
            self.busy[gpu_type] -= count
        del self._running[job.job_id]

    def _note(self, job: VirtualJob, now: float) -> None:
        for node, gpu_type, count in job.placement.items():
            self.intervals.append(Interval(job.trace.job_id, node, gpu_type, count, job.owned, now))

    def _book_running(self) -> None:
        for job in self._running.values():
            self._book(job, self._now)

    def _book(self, job: VirtualJob, now: float) -> None:
        if job.trace.user or job.trace.account:
            held = {gpu_type: count * job.charged for gpu_type, count in job.by_type.items()}
            self._usage["user"].add(job.trace.user, held, job.booked, now)
            self._usage["account"].add(job.trace.account, held, job.booked, now)
            job.booked = now

    def _unmovable(self, job: VirtualJob) -> str | None:
        since = math.floor(job.held)  # Slurm tells times of starts in whole seconds
        young = unmovable_reason(self._guard, job.moves + job.preemptions, since, self._now)
        return job.fixed or young or job.measuring(self._now)


def _patience(jobs: Sequence[VirtualJob], timing: Timing) -> tuple[int, int]:
    """Rounds without a step after which nobody will make one: starts take their time. And those where nobody runs, or
    in vain, and nothing is to come: a policy such as strict A-SRPT starts nobody until the first would have ended
    elsewhere."""
    starting_s = timing.save_s + max((max(job.terms.restart_s, job.terms.start_s) for job in jobs), default=0.0)
    longest_s = max((job.total / rate for job in jobs if (rate := job.template.best_rate()) > 0), default=0.0)
    starting, longest = (math.ceil(span_s / timing.round_s) for span_s in (starting_s, longest_s))
    return _PATIENCE_ROUNDS + starting, _PATIENCE_ROUNDS + starting + min(_MOST_MORE, longest)

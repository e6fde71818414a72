"""Carry out a round's changes, verify each by reading back, and undo what did not take.

Order: ask the jobs to be stopped for a checkpoint and wait for their word; then one batch with the requeues, the
starts and the leases; when the stopped jobs have left their nodes, a second batch that places or leases them; then
read back. Killed at any point, what is left is a queue that goes on by itself: nothing is ever held.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.comment import read
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.act.verify import Pace, ReadBack, overdue, verdict
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.cluster import OVERTAKEN, Outcome
from slurm_hadar.controller.journal import JobRecord, WriteRecord
from slurm_hadar.controller.observe.observer import AVOID_ROUNDS, PASS_ROUNDS, Observation
from slurm_hadar.controller.safety.guard import Change, ChangeKind, fit
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.bounds import Lessons, keeps_back
from slurm_hadar.controller.steering.rules import LAUNCH_FAILED, TRANSIENT_HOLDS, may_relaunch
from slurm_hadar.controller.steering.time_limits import goes_on, left_s
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.errors import SlurmError, StoreError
from slurm_hadar.model import Job, JobState
from slurm_hadar.slurm.base import Backend
from slurm_hadar.slurm.state import SlurmJob, Write, WriteResult

__all__ = ["Actor"]

CHECKPOINT_SIGNAL = "USR2"
LEAST_LEASE_S = 20.0  # rounds shorter than the time a move takes must not let leases run out in between
PROMPT_S = 1.0  # a round waits so long for checkpoints; slower ones are looked for again, and rounds go on meanwhile
UNSAVED_S, LONGEST_UNSAVED_S = 600.0, 86400.0
POLL_S = 0.05
_FAILED_AT_ONCE = "it failed in the moment of a restart"
_SAVING = "its checkpoint is being written; it is stopped when that is there"
_FINISHES = "it has made its last step and ends by itself"
DENIED = ("Invalid user id", "Access/permission denied")
_HELD_BY_OTHERS = ("JobHeldAdmin", "JobHeldUser")


@dataclass(frozen=True, slots=True)
class _Planned:
    """A write, and what is to be remembered of its jobs once Slurm has taken it: whether node list and shape are ours,
    and for how many seconds from then the job is deferred (None = its start time is not touched). ``why``, where no
    decision about the job says it."""

    write: Write
    steered: bool = False
    defer_s: float | None = None
    placed: bool = False
    why: str = ""

    def note(self, record: JobRecord, sent: float, answered: float) -> None:
        """Slurm took it, at some moment between these two."""
        if self.write.verb == "update":
            record.steered, record.placed = self.steered, self.placed
            if self.defer_s is not None:
                record.lease_low, record.lease = sent + self.defer_s, answered + math.ceil(self.defer_s)
        elif self.write.verb == "release":
            record.relaunched += 1


@dataclass(frozen=True, slots=True)
class _Asked:
    """A job that was asked for a checkpoint: in which run, when, and until when it may take."""

    restarts: int
    at: float
    deadline: float


class Actor:
    """Everything that writes to Slurm. ``stopping`` says whether to end after the current write; ``alive`` is called
    again and again while something is waited for; ``announce`` is told of each write before it is sent."""

    def __init__(
        self,
        backend: Backend,
        config: Config,
        book: ReportBook,
        channel: Channel | None,
        spool: SpoolReader,
        stopping: Callable[[], bool] = lambda: False,
        alive: Callable[[], None] = lambda: None,
        announce: Callable[[Iterable[WriteRecord]], object] = list,
        seal: Seal | None = None,
        quarantine: Quarantine | None = None,
        lessons: Lessons | None = None,
    ) -> None:
        self._seal = seal or Seal()
        self._quarantine = quarantine or Quarantine()
        self._lessons = lessons or Lessons()
        self._asked: dict[str, _Asked] = {}
        self._at_limit: dict[str, _Asked] = {}
        self._heard: set[str] = set()
        self._backend = backend
        self._config = config
        self._book = book
        self._channel = channel
        self._spool = spool
        self._stopping = stopping
        self._alive = alive
        self._announce = announce
        #: What the last read showed since :meth:`carry_out` began; empty = there was none.
        self.shown = ReadBack()

    def reconfigure(self, config: Config) -> None:
        """Go by another configuration. Between rounds only."""
        self._config = config

    @property
    def lease_s(self) -> float:
        return max(LEAST_LEASE_S, self._config.controller.lease_rounds * self._config.controller.round_s)

    @property
    def longest_defer_s(self) -> float:
        """From the begin of a round to the latest start time that it may give a job."""
        jobs = self._config.jobs
        return jobs.ack_timeout_s + jobs.end_timeout_s + jobs.start_timeout_s + self.lease_s + 30.0

    def carry_out(self, seen: Observation, changes: Sequence[Change], outcome: Outcome) -> None:
        """Do it all, noting it in ``outcome``.

        Raises SlurmUnavailable if slurmctld goes away; what was done until then stands, and is in ``outcome``.
        """
        began = time.monotonic()
        self.shown = ReadBack()
        ready, vetoed = self._save(seen, [c for c in changes if c.kind.stops])
        outcome.marks["saved"] = time.time()
        outcome.changes = fit(seen.snapshot, changes, vetoed)
        stopped = {c.job_id for c in outcome.changes if c.kind.stops}
        self._let_go(set(ready) - stopped)
        try:
            self._batch(seen, outcome)
        except (SlurmError, StoreError):
            self._let_go(set(ready) & stopped)  # who was not stopped after all must not wait for the end of its pause
            raise
        for job_id in stopped:
            self._asked.pop(job_id, None)
        outcome.act_s = time.monotonic() - began
        self._verify(seen, outcome)
        outcome.verify_s = time.monotonic() - began - outcome.act_s

    # Checkpoints

    def answered(self) -> bool:
        """Whether a job that was asked has saved since, so that it can be moved now; said once of each save."""
        asked = [*self._asked.items(), *self._at_limit.items()]
        saved = {j for j, a in asked if self._book.saved_since(j, a.restarts, a.at)}
        news, self._heard = saved - self._heard, saved
        return bool(news)

    @property
    def waits(self) -> bool:
        """Whether any job was asked for a checkpoint that is not there yet."""
        return bool(self._asked or self._at_limit)

    def _save(self, seen: Observation, stops: Sequence[Change]) -> tuple[list[str], dict[str, str]]:
        """Ask for checkpoints; returns the jobs that have saved and, for those that may not be stopped yet, why.

        Checkpoints take as long as they take, and some never come: a round waits for the prompt ones alone.
        """
        vetoed: dict[str, str] = {}
        wanted: list[str] = []
        for change in stops:
            record = seen.records[change.job_id]
            if self._finishes(seen, change.job_id):
                vetoed[change.job_id] = _FINISHES
            elif record.resumable:  # else it saves by itself on TERM, or its owner lets it lose progress
                if self._is_asked(change.job_id, record) or self._ask(change.job_id, change.why, record.restarts):
                    wanted.append(change.job_id)
                else:
                    vetoed[change.job_id] = "its agent cannot be reached to save a checkpoint"
        self._await_saves(seen, wanted)
        for job_id in wanted:
            veto = self._unsaved(seen, job_id)
            if veto is not None:
                vetoed[job_id] = veto
        # what it has saved may be its end; stopped now, its script would come to its end once more
        vetoed.update({j: _FINISHES for j in wanted if self._finishes(seen, j)})
        if self._stopping():
            vetoed.update({c.job_id: "the controller is stopping" for c in stops})
        self._let_go(set(self._asked) - {j for j in wanted if j not in vetoed or vetoed[j] == _SAVING})
        return [j for j in wanted if j not in vetoed], vetoed

    def _is_asked(self, job_id: str, record: JobRecord) -> bool:
        asked = self._asked.get(job_id)
        return asked is not None and asked.restarts == record.restarts

    def _unsaved(self, seen: Observation, job_id: str) -> str | None:
        """Why the job cannot be stopped: it has not saved yet, or not in time, which costs it its word for a while."""
        record, asked = seen.records[job_id], self._asked[job_id]
        if self._book.saved_since(job_id, asked.restarts, asked.at):
            record.unsaved = 0
            return None
        if time.monotonic() < asked.deadline:
            return _SAVING
        record.unsaved += 1
        wait_s = min(LONGEST_UNSAVED_S, UNSAVED_S * 2 ** (record.unsaved - 1))
        record.unsaved_until = time.time() + wait_s
        return f"no checkpoint within jobs.ack_timeout_s = {self._config.jobs.ack_timeout_s:g}"

    def _let_go(self, job_ids: Collection[str]) -> None:
        """These are not stopped after all, or were lost to other reasons: they need not wait any longer."""
        for job_id in sorted(job_ids):
            del self._asked[job_id]
            self._go_on(job_id)

    def _finishes(self, seen: Observation, job_id: str) -> bool:
        return self._book.finishes(job_id, seen.records[job_id].restarts)

    def _await_saves(self, seen: Observation, wanted: Sequence[str]) -> None:
        """Until all have saved or ended, for a moment."""
        deadline = time.monotonic() + min(PROMPT_S, self._config.jobs.ack_timeout_s)
        while time.monotonic() < deadline and not self._stopping():
            waiting = [j for j in wanted if not self._book.saved_since(j, self._asked[j].restarts, self._asked[j].at)]
            if all((news := self._book.get(j)) is None or news.ended for j in waiting):
                return
            for job_id in waiting:
                self._listen(seen, job_id)
            self._alive()
            time.sleep(POLL_S)

    def _listen(self, seen: Observation, job_id: str) -> None:
        """An agent without a connection answers through its spool file."""
        news = self._book.get(job_id)
        if news is not None and not news.live:
            self._spool.read(job_id, seen.raw[job_id].work_dir, seen.raw[job_id].user)

    def _ask(self, job_id: str, why: str, restarts: int, pause_s: float | None = None) -> bool:
        """Ask by message, and by signal where the agent is not connected; False if neither can reach it.
        ``pause_s``: how long it makes no more steps then; None = as long as a move may take."""
        news = self._book.get(job_id)
        if news is None or news.ended or news.report.restart != restarts:
            return False
        jobs, now = self._config.jobs, time.time()
        if pause_s is None:
            pause_s = jobs.ack_timeout_s + jobs.end_timeout_s
        sent = self._channel.order(job_id, "save", why, pause_s) if self._channel else False
        if not sent and news.report.step is not None:
            self._backend.signal([news.report.step], CHECKPOINT_SIGNAL)
            sent = True
        if sent:
            self._asked[job_id] = _Asked(restarts, now, time.monotonic() + jobs.ack_timeout_s)
        return sent

    def _go_on(self, job_id: str) -> None:
        if self._channel is not None:
            self._channel.order(job_id, "go_on", "not moved after all")

    # Writes

    def _batch(self, seen: Observation, outcome: Outcome) -> None:
        stops = [c for c in outcome.changes if c.kind.stops]
        batch = [_Planned(w) for w in writes.requeue(c.job_id for c in stops)]
        batch += [
            _Planned(Write("release", (c.job_id,)))
            for c in outcome.changes
            if c.kind in (ChangeKind.START, ChangeKind.WAIT)
            and may_relaunch(seen.raw[c.job_id], seen.records[c.job_id])
        ]
        for change in outcome.changes:
            if change.kind is ChangeKind.START:
                with self._quarantine.over(change.job_id, "starting it"):
                    batch += self._start(seen, change)
        leases = self._leases(seen, [c.job_id for c in outcome.changes if c.kind is ChangeKind.WAIT])
        outcome.leases = sum(len(planned.write.job_ids) for planned in leases)
        refused = self._write(seen, [*batch, *leases], outcome)
        outcome.marks["written"] = time.time()
        for change in stops:
            if change.job_id in refused:
                self._go_on(change.job_id)
        self._after_stop(seen, [c for c in stops if c.job_id not in refused], outcome)

    def _start(self, seen: Observation, change: Change) -> list[_Planned]:
        """Nothing is written for a job that waits for exactly this placement already."""
        job, record = seen.raw[change.job_id], seen.records[change.job_id]
        just_stopped = job.restarts > 0 and job.submit is not None and time.time() - job.submit < RESTART_GAP_S
        gap_s = RESTART_GAP_S if just_stopped else 0.0
        write = writes.place(job, record, change.new, self._seal, gap_s)
        shaped = any(name == "NumNodes" for name, _ in write.fields)
        deferred = job.eligible is None or job.eligible > time.time()
        if not shaped and not deferred and record.steered and set(job.req_nodes) == set(change.new.nodes):
            return []
        return [_Planned(write, steered=True, defer_s=gap_s, placed=True)]

    def _leases(self, seen: Observation, job_ids: Sequence[str]) -> list[_Planned]:
        """Renew leases that would not last until the round after next; free steered jobs of their node lists."""
        lease_s, now = self.lease_s, time.time()
        plain, steered = [], []
        for job_id in job_ids:
            job, record = seen.raw[job_id], seen.records[job_id]
            if record.steered:
                with self._quarantine.over(job_id, "putting it off"):
                    steered.append(writes.defer(job, record, lease_s))
                continue
            ours = job.eligible is not None and job.eligible > now and record.deferred(job.eligible)
            if not ours or record.lease is None or record.lease - now < 0.75 * lease_s:
                plain.append(job_id)
        return [_Planned(w, defer_s=lease_s) for w in (*steered, *writes.lease(plain, lease_s))]

    def _after_stop(self, seen: Observation, stops: Sequence[Change], outcome: Outcome) -> None:
        """When the stopped jobs are back in the queue, say where or when each starts again."""
        if not stops:
            return
        left = self._await_end([c.job_id for c in stops])
        outcome.marks["left"] = time.time()
        batch = []
        for change in stops:
            job, record = left.get(change.job_id), seen.records[change.job_id]
            if job is None or job.state is not JobState.PENDING:
                outcome.log.append(_not_requeued(change.job_id, job))
                continue
            record.moves += 1
            with self._quarantine.over(change.job_id, "moving it"):
                if change.kind is ChangeKind.MOVE:
                    gap_s = _gap_s(change, seen.snapshot.job[change.job_id])
                    write = writes.place(job, record, change.new, self._seal, gap_s)
                    batch.append(_Planned(write, steered=True, defer_s=gap_s, placed=True))
                else:
                    batch.append(_Planned(writes.defer(job, record, self.lease_s), defer_s=self.lease_s))
        self._write(seen, batch, outcome)

    def _await_end(self, job_ids: Sequence[str]) -> dict[str, SlurmJob]:
        """The stopped jobs' records once none of them runs or ends any more, or time is up; ended jobs are left out."""
        deadline = time.monotonic() + self._config.jobs.end_timeout_s
        pace, wanted = Pace(), set(job_ids)
        while True:
            self._alive()
            jobs = {j.job_id: j for j in self._backend.each_job() if j.job_id in wanted and j.state.active}
            busy = [j for j in jobs.values() if j.state is not JobState.PENDING]
            if not busy or time.monotonic() > deadline:
                return jobs
            pace.sleep()

    def _write(self, seen: Observation, batch: Sequence[_Planned], outcome: Outcome) -> set[str]:
        """One batch; returns the jobs that were refused. What is remembered changes only with what Slurm took."""
        if not batch:
            return set()
        planned = {id(p.write): p for p in batch}
        refused, sent = set(), time.time()
        results = self._send([p.write for p in batch], outcome)
        answered = time.time()
        for result in results:
            outcome.log.append(_entry(result, planned[id(result.write)].why))
            record = seen.records[result.job_id]
            if result.error is None:
                planned[id(result.write)].note(record, sent, answered)
                continue
            refused.add(result.job_id)
            if result.error in DENIED:
                outcome.denied[result.job_id] = result.error
        return refused

    def _send(self, batch: Sequence[Write], outcome: Outcome) -> list[WriteResult]:
        with self._announced(lambda: (_record(w, j, "sent") for w in batch for j in w.job_ids), outcome):
            return self._backend.write(batch)

    def restart(self, seen: Observation, outcome: Outcome) -> None:
        """Put the jobs that failed in the moment of a restart back into the queue. Tried once, whatever Slurm says.
        Raises as :meth:`carry_out`."""
        for job_id in seen.retries:
            seen.records[job_id].relaunched += 1
        self._write(seen, [_Planned(w, why=_FAILED_AT_ONCE) for w in writes.restart(seen.retries)], outcome)

    def cancel(self, jobs: Mapping[str, str], outcome: Outcome) -> None:
        """End jobs; ``jobs`` says why. Raises as :meth:`carry_out`."""
        with self._announced(lambda: (WriteRecord(j, "cancel", "sent", why) for j, why in jobs.items()), outcome):
            self._backend.cancel(sorted(jobs))
        outcome.log += [WriteRecord(job_id, "cancel", "ok", why) for job_id, why in jobs.items()]

    @contextlib.contextmanager
    def _announced(self, sent: Callable[[], Iterable[WriteRecord]], outcome: Outcome) -> Iterator[None]:
        """Around whatever goes to Slurm. The journal is told before: a kill in between must leave no change
        unexplained."""
        outcome.commands += 1
        self._announce(sent())
        try:
            yield
        except BaseException:
            outcome.unanswered = list(sent())
            raise

    # Read back

    def _verify(self, seen: Observation, outcome: Outcome) -> None:
        """Wait until every placed job runs where it should; undo what Slurm will not do."""
        refused = {w.job_id for w in outcome.log if w.outcome in ("refused", OVERTAKEN)}
        open_ = {c.job_id: c for c in outcome.changes if c.kind.occupies and c.job_id not in refused}
        deadline = time.monotonic() + self._config.jobs.start_timeout_s
        jobs: dict[str, SlurmJob] = {}
        pace, nudged = Pace(), set()
        while outcome.log or open_:
            self._alive()
            jobs = self._look(outcome, refused)
            for job_id, change in list(open_.items()):
                found = verdict(jobs.get(job_id), change, seen.raw[job_id].reason)
                if found is not None:
                    del open_[job_id]
                    self._conclude(seen, outcome, change, jobs.get(job_id), found)
            if not open_ or time.monotonic() > deadline or self._stopping():
                break
            late = [i for i in open_ if i not in nudged and overdue(jobs[i])]
            nudged.update(late)
            self._nudge(late, outcome)
            pace.sleep(until=min((jobs[i].eligible or 0.0 for i in open_), default=0.0))
        for change in open_.values():
            reason = jobs[change.job_id].reason if change.job_id in jobs else "gone"
            self._late(seen, outcome, change, jobs.get(change.job_id), reason)
        for job_id in sorted(refused - outcome.denied.keys()):
            self._refused(seen, outcome, job_id, jobs.get(job_id))
        if any(w.outcome == "undone" for w in outcome.log):
            self._look(outcome, refused)
        self._check_leases(seen, outcome)

    def _look(self, outcome: Outcome, refused: Collection[str]) -> dict[str, SlurmJob]:
        wanted = {c.job_id for c in outcome.changes if c.kind is not ChangeKind.WAIT}.union(refused)
        self.shown = ReadBack.of(self._backend.each_job(), wanted, {w.job_id for w in outcome.log})
        return self.shown.jobs

    def _nudge(self, job_ids: Sequence[str], outcome: Outcome) -> None:
        """A start time that passes is no event to Slurm: with little else going on it starts the job half a minute
        late. An update is one. A refusal only says that the job has started meanwhile: it is told, and no failure."""
        if job_ids:
            for result in self._send(writes.lease(job_ids, 0), outcome):
                why = f"needless: {result.error}" if result.error else ""
                outcome.log.append(_record(result.write, result.job_id, "ok", why))

    def _conclude(
        self, seen: Observation, outcome: Outcome, change: Change, job: SlurmJob | None, verdict: str
    ) -> None:
        if verdict == "ok":
            seen.records[change.job_id].slow = 0
            return
        outcome.log.append(WriteRecord(change.job_id, f"place {change.new}", "ineffective", verdict))
        if job is not None and job.state is JobState.PENDING:
            self._undo(seen, outcome, change, job)

    def _late(self, seen: Observation, outcome: Outcome, change: Change, job: SlurmJob | None, reason: str) -> None:
        """A job that only waits its turn gets one more round; after that the placement counts as not working."""
        record = seen.records[change.job_id]
        outcome.log.append(WriteRecord(change.job_id, f"place {change.new}", "slow", f"not started yet: {reason}"))
        record.slow += 1
        kept_back = job is not None and keeps_back(job.reason)
        if (record.slow > 2 or kept_back) and job is not None and job.state is JobState.PENDING:
            self._undo(seen, outcome, change, job)

    def _refused(self, seen: Observation, outcome: Outcome, job_id: str, job: SlurmJob | None) -> None:
        """Slurm said no: give the job back its own shape, and do not try these nodes again for a while."""
        change = next((c for c in outcome.changes if c.job_id == job_id and c.kind.occupies), None)
        if change is not None and job is not None and job.state is JobState.PENDING:
            self._undo(seen, outcome, change, job, refused=True)

    def _undo(self, seen: Observation, outcome: Outcome, change: Change, job: SlurmJob, refused: bool = False) -> None:
        """Give the job back what its owner asked for. What keeps it back is no matter of these nodes, and its like are
        not tried for a while; anything else is, and the nodes are not."""
        record, now = seen.records[change.job_id], time.time()
        round_s = self._config.controller.round_s
        if keeps_back(job.reason) and not _about_nodes(job.reason) and not job.held:
            self._lessons.learn(job, job.reason, now, round_s, tried=True)
        else:
            rounds = AVOID_ROUNDS if refused or job.held or keeps_back(job.reason) else PASS_ROUNDS
            record.keep_off(change.new.nodes, now + rounds * round_s)
        record.slow = 0
        theirs = job.eligible is not None and job.eligible > now and not record.deferred(job.eligible)
        if theirs or (job.held and job.reason in _HELD_BY_OTHERS):
            planned = _Planned(writes.give_back(job, record))  # the hold, and when it starts, are others' now
        else:
            planned = _Planned(writes.defer(job, record, self.lease_s), defer_s=self.lease_s)
        ours = job.held and job.reason in TRANSIENT_HOLDS  # what we asked of Slurm made it hold the job
        batch = [planned.write, *([Write("release", (job.job_id,))] if ours else [])]
        sent = time.time()
        for result in self._send(batch, outcome):
            outcome.log.append(WriteRecord(result.job_id, str(result.write), "undone", result.error or ""))
            if result.error is None and result.write is planned.write:
                planned.note(record, sent, time.time())

    def give_back(self, seen: Observation, outcome: Outcome) -> None:
        """Jobs that wait, and are not to be steered any more, get their owners' shape and every node back: their node
        list is this controller's doing. Raises as :meth:`carry_out`."""
        batch = []
        for job in seen.snapshot.jobs:
            record, raw = seen.records.get(job.job_id), seen.raw.get(job.job_id)
            if job.pinned is None or record is None or raw is None or not record.steered or raw.fault is not None:
                continue
            if raw.state is JobState.PENDING and raw.req_nodes and self._config.mode(raw.partition) is Mode.ACT:
                with self._quarantine.over(job.job_id, "giving it back"):
                    batch.append(_Planned(writes.give_back(raw, record), why=job.pinned))
        self._write(seen, batch, outcome)

    def before_limits(self, seen: Observation, outcome: Outcome) -> None:
        """Jobs that come to their time limit save, and go back into the queue where their owners let them. Raises as
        :meth:`carry_out`."""
        over, left = [], left_s(seen.snapshot, seen.raw, time.time())
        self._at_limit = {j: a for j, a in self._at_limit.items() if j in left and time.monotonic() < a.deadline}
        for job_id, rest_s in left.items():
            if rest_s > self._config.jobs.limit_grace_s or job_id in outcome.stopped:
                continue
            record, comment = seen.records[job_id], read(seen.raw[job_id].comment)[0]
            on = goes_on(comment, record)
            if record.resumable and record.limit_asked is None:
                if self._ask(job_id, "its time limit", record.restarts, rest_s if on else 0.0):
                    self._at_limit[job_id] = self._asked.pop(job_id)  # no move waits for it
                record.limit_asked = time.time()
            saved = self._book.saved_since(job_id, record.restarts, record.limit_asked or math.inf)
            if on and (saved or not record.resumable) and not self._finishes(seen, job_id):
                over.append(job_id)
        why = "its time limit; it goes on in another run"
        refused = self._write(seen, [_Planned(w, why=why) for w in writes.requeue(over)], outcome)
        for job_id in set(over) - refused:
            self._at_limit.pop(job_id, None)
            seen.records[job_id].ran_on = ()  # its run ends by our order: it may come back to its nodes

    def _check_leases(self, seen: Observation, outcome: Outcome) -> None:
        """A leased job must be pending and not yet eligible; one that started all the same is only worth a note."""
        for write in [w for w in outcome.log if w.command.startswith("update") and "StartTime=now+" in w.command]:
            record, begin = seen.records.get(write.job_id), self.shown.begin(write.job_id)
            if record is None or record.lease is None or not self.shown.waits(write.job_id):
                continue
            if begin is None or begin < time.time():
                record.lease = None
                outcome.log.append(WriteRecord(write.job_id, write.command, "ineffective", f"eligible: {begin}"))


def _gap_s(change: Change, job: Job) -> float:
    """None is needed on nodes where the job was not killed just now: neither in this run, nor in one before that ended
    this very second."""
    elsewhere = set(change.old.nodes).isdisjoint(change.new.nodes)
    fresh = job.restarts > 0 and (job.started is None or time.time() - job.started < RESTART_GAP_S)
    return 0.0 if elsewhere and not fresh else RESTART_GAP_S


def _about_nodes(reason: str) -> bool:
    """Whether Slurm keeps a job back for the nodes that it was given, not for what it is."""
    return reason.startswith(("ReqNodeNotAvail", "Reservation", "BadConstraints", "NodeDown", LAUNCH_FAILED))


def _not_requeued(job_id: str, job: SlurmJob | None) -> WriteRecord:
    if job is None:
        return WriteRecord(job_id, f"requeue {job_id}", "ok", "ended")
    return WriteRecord(job_id, f"requeue {job_id}", "ineffective", f"still {job.state_text.lower()} when time was up")


def _entry(result: WriteResult, why: str = "") -> WriteRecord:
    outcome = OVERTAKEN if result.overtaken else "refused" if result.error else "ok"
    return _record(result.write, result.job_id, outcome, result.error or why)


def _record(write: Write, job_id: str, outcome: str, detail: str = "") -> WriteRecord:
    """What the journal has of a write about one of its jobs."""
    return WriteRecord(job_id, str(Write(write.verb, (job_id,), write.fields)), outcome, detail)

"""Slurm behind the loop: reading it, the reports of its jobs, and the hands that write to it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_hadar.comment import is_ours
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.act.actor import Actor
from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.act.refusals import TOLD, Refusals
from slurm_hadar.controller.act.turns import TurnOrders
from slurm_hadar.controller.agents.fork_tracker import JobTracker
from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.agents.user_files import UserFiles
from slurm_hadar.controller.cluster import SETTLE_S, Cluster, Outcome, asked_every_s
from slurm_hadar.controller.journal import JobRecord, Stage, WriteOutcome, WriteRecord
from slurm_hadar.controller.observe.graphs import GraphBook
from slurm_hadar.controller.observe.jobs.newcomers import Newcomers
from slurm_hadar.controller.observe.jobs.vacancies import Vacancies
from slurm_hadar.controller.observe.observer import Observation, Observer
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.observe.sources import PAST, Sources
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.safety.clock import ClockWatch
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.controller.steering.lessons import Lessons
from slurm_hadar.controller.steering.rules import may_end
from slurm_hadar.controller.steering.time_limits import left_s, until_save_s
from slurm_hadar.errors import ChannelError
from slurm_hadar.forks import PeriodPlan
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import ClusterState, SlurmJob
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.profiles import ProfileStore
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

__all__ = ["SlurmCluster"]

log = logging.getLogger(__name__)
_STANDS = "; restart slurmctld, which starts nothing before its clock is where it was"  # 22.05
_WARNED = (WriteOutcome.REFUSED, WriteOutcome.INEFFECTIVE, WriteOutcome.UNDONE)
_LEAVES_WITHIN_S = 120.0  # epilogs may take their time; who goes on much longer does something else
_WATCHFUL_S = 0.1  # while a job that was asked to save may say any moment that it has
_READING_SHARE = 0.05  # reads take at most this share of the time, when events bring the rounds forward
_IDLE_S = 1.0  # the loop's callbacks come at least as often between two rounds
_SILENT_S = 30.0  # after this long without a word on the channel, a running job's spool file is read


class SlurmCluster(Cluster[Observation]):
    """A live Slurm, read and told through ``parts``."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        journal, book = parts.journal, parts.book
        self._usage = UsageBook(journal, config.fairness.half_life_h * 3600.0)
        self.files = UserFiles()
        self._graphs = GraphBook(config.network, self.files)
        self.isolated, lessons = Quarantine(), Lessons()
        store = ThroughputStore(journal.connection)
        sources = Sources(
            book,
            Estimator(reference(), store),
            journal.load_jobs(),
            self._usage,
            self._graphs,
            parts.forecaster if config.predict.enabled else None,
            store,
            parts.best_effort,
            parts.seal,
            self.isolated,
            lessons,
            ProfileStore(journal.connection),
        )
        sources.past.extend(journal.last_ended(PAST))
        sources.recall = journal.job
        self._observer = Observer(config, sources)
        self._newcomers, self._vacancies = Newcomers(parts.backend), Vacancies(parts.backend)
        self.spool = SpoolReader(book, self.files)
        self._tracker = JobTracker(self._pass_on, journal.forks())
        book.listener = self._tracker.hear
        if parts.once:  # what they have left in files is read before a round says that they are known
            book.expect(dict.fromkeys(sources.records))
        self._stop = threading.Event()
        context = ActContext(
            parts.backend, config, book, parts.seal, self.isolated, lessons, self._stop.is_set, parts.callbacks.alive,
            parts.once,
        )  # fmt: skip
        self._actor = Actor(context, parts.channel, self.spool, self._announce)
        self._turns = TurnOrders(parts.channel)
        self._clock = ClockWatch(parts.backend)
        self._refusals = Refusals(self.isolated)
        self._number = 0
        self._over: list[JobRecord] = []  # ended, and not yet written down as such
        self._limit_due: float | None = None
        self._began = time.monotonic()
        self._read_s = 0.0

    def now(self) -> float:
        return time.time()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """End after the current write. Safe to call from a signal handler."""
        self._stop.set()
        self._parts.book.event.set()

    def pause(self) -> None:
        """Until the next round is due, or an event brings it forward: a job that ends, begins to report, or is
        submitted; twice as long where Slurm answers slowly. A job that has saved since it was asked to, and stands
        still until it is moved, brings it forward at once."""
        until, ask = None, 0.0  # the first is set by an event
        while not self._stop.is_set() and not self._actor.answered():
            if self._parts.channel is not None:
                self._parts.channel.check()
            self._parts.callbacks.idle()  # which may change the length of a round
            settings, now = self._config.controller, time.monotonic()
            slow = self._read_s > self._config.slurm.slow_read_s
            due = self._began + settings.round_s * (2 if slow else 1)
            early = due
            if settings.event_round_s and not slow:
                early = self._began + max(settings.event_round_s, self._read_s / _READING_SHARE)
            came, ask = self._parts.book.event.is_set(), max(ask, early - SETTLE_S)
            if ask <= now < due and early < due and until is None and not came:
                ask = now + asked_every_s(settings.event_round_s)
                came = self._newcomers.come() or self._vacancies.come()
            if until is None and came:
                until = max(early, now + SETTLE_S)
            left = min(due, due if until is None else until) - now
            if self._limit_due is not None:
                left = min(left, max(early - now, self._limit_due - time.time()))
            if left <= 0:
                break
            nap_s = min(left, _WATCHFUL_S if self._actor.waits else _IDLE_S, ask - now if ask > now else _IDLE_S)
            if until is None:
                self._parts.book.event.wait(nap_s)
            else:
                self._stop.wait(nap_s)
        self._parts.book.event.clear()

    def reconfigure(self, config: Config) -> None:
        """Go by another configuration, as far as it does not need a restart. Between rounds only."""
        self._config = config
        self._usage.reconfigure(config.fairness.half_life_h * 3600.0)
        self._observer.reconfigure(config, self._parts.forecaster if config.predict.enabled else None)
        self._actor.context.config = config
        if self._parts.trainer is not None:
            self._parts.trainer.reconfigure(config.predict)
        if self._parts.leadership is not None:
            self._parts.leadership.reset(config.controller.ha)

    def standby(self) -> str:
        """By :class:`Leadership`. Who takes over tells the jobs where to report to, and who acts sees to it that they
        are told so."""
        standby = self._parts.leadership.standby() if self._parts.leadership is not None else ""
        if self._parts.channel is not None:
            if standby:
                self._parts.channel.quiet = True
            elif self._parts.channel.quiet:
                try:
                    self._parts.channel.tell_jobs()
                except ChannelError as error:  # jobs leave word in their directories then; tried again each round
                    log.error("jobs cannot be told to report here: %s", error)
            elif self._parts.channel_file is not None:
                self._parts.channel_file.look_after()
        return standby

    def observe(self, acting_only: bool) -> Observation:
        self._began, self._read_s = time.monotonic(), 0.0
        if self._config.controller.event_round_s:
            self._newcomers.begin()
        self._read_spools()  # first: it may take seconds, and what Slurm shows is soon out of date
        state = self._parts.backend.read()
        if self._parts.once:  # else the next round is soon enough
            self._read_first_words(state)
        if self._parts.leadership is not None:
            self._parts.leadership.answered()
        self._read_s = state.read_s
        self._vacancies.begin(state.nodes)
        was_set = self._clock.check()  # in each mode: what is written down, and for how long, goes by this clock, too
        if was_set is not None:
            log.warning("the clock of this host was set by %+.0f s, slurmctld's with it%s", was_set.by_s,
                        _STANDS if was_set.by_s < 0 else "")  # fmt: skip
            self._observer.clock_set(was_set.by_s)
            self._parts.book.clock_set(*was_set)
        view = SlurmView.of(state, self._config.gpus.memory_gb)
        self._graphs.survey_if_named(self._parts.backend, view)
        seen = self._track(self._observer.observe(view, acting_only=acting_only))
        self._over += [record for record, _ in seen.ended]
        return seen

    def _track(self, seen: Observation) -> Observation:
        """Let the job tracker look at the copies of forked jobs, and show all of them how far their job is."""
        copies = [job for job in seen.snapshot.jobs if job.fork is not None]
        if copies:
            known = {r.job_id for r in seen.records.values() if r.first_seen < seen.state.time}
            self._tracker.forget({j.parent for j in copies} - {j.parent for j in copies if j.job_id in known})
        self._tracker.take_in((job, seen.comments[job.job_id]) for job in copies)
        for job in copies:
            news = self._parts.book.get(job.job_id)
            if job.running and news is not None and news.report.restart == job.restarts:
                self._tracker.hear(news.report)
        if not copies:
            return seen
        jobs = [self._tracker.with_progress(j) if j.fork is not None else j for j in seen.snapshot.jobs]
        return seen.with_snapshot(seen.snapshot.with_jobs(jobs))

    def _pass_on(self, job_id: str, plan: PeriodPlan) -> bool:
        return self._parts.channel is not None and self._parts.channel.order(
            job_id, "plan", "shares of the next periods", plan=plan.to_json()
        )

    def circuit_open(self) -> str:
        return self._refusals.circuit_open(time.monotonic())

    def carry_out(self, number: int, seen: Observation, changes: Sequence[Change]) -> Outcome:
        if self._parts.leadership is not None and not self._parts.leadership.sure():
            self._actor.let_go()
            return Outcome(list(changes), acted=False)
        # Saved before anything is written to Slurm: after a kill the next start must know which node lists and start
        # times are ours.
        now = time.time()
        for change in changes:
            record, put_off = seen.records[change.job_id], change.kind is not ChangeKind.STAY
            record.steered = record.steered or change.kind.occupies
            record.given = sorted({*record.given, *change.new.nodes})
            record.reshaped |= change.kind.occupies
            record.defer_from = now if put_off else None
            record.defer_until = now + self._actor.context.longest_defer_s if put_off else None
            if change.kind.stops:
                record.ran_on = ()  # it is waited for until it has left them
        self._parts.journal.save_jobs(seen.records.values())  # what cannot be written down is not done
        outcome, self._number = Outcome(list(changes)), number
        try:
            self._actor.carry_out(seen, changes, outcome)
            self._turns.tell(seen, outcome.changes, self._config.controller.round_s)
            self._actor.restart(seen, outcome)
            self._actor.before_limits(seen, outcome)
            self._actor.give_back(seen, outcome)
            self._end_copies(seen, outcome)
        finally:  # slurmctld may go away in the middle: what was done until then is not forgotten
            if not outcome.unanswered:  # then each record has the start time that Slurm took
                for change in changes:
                    seen.records[change.job_id].defer_from = seen.records[change.job_id].defer_until = None
            with self._parts.best_effort():
                self._parts.journal.settle_writes(number, time.time(), [*outcome.log, *outcome.unanswered])
                self._parts.journal.save_jobs(seen.records.values())
            self._parts.callbacks.wrote(number, seen, outcome)
        self._judge(seen, outcome)
        if self._config.controller.event_round_s and any(not change.new for change in outcome.changes):
            self._watch_nodes(outcome)
        return outcome

    def hold_off(self) -> None:
        self._actor.let_go()

    def _watch_nodes(self, outcome: Outcome) -> None:
        failed, started = {w.job_id for w in outcome.log if w.outcome.failed}, Counter[str]()
        for change in outcome.changes:
            if change.kind is ChangeKind.START and change.host is None and change.job_id not in failed:
                for node, _, count in change.new.items():
                    started[node] += count
        stopped = {n for c in outcome.changes if c.kind.stops for n in (*c.old.nodes, *c.new.nodes)}
        self._vacancies.settle(started, stopped)

    def _end_copies(self, seen: Observation, outcome: Outcome) -> None:
        """Cancel the copies that are not needed any more, of those that this controller looks after; not again those of
        which Slurm refuses that."""
        over = {
            job_id: why
            for job_id, why in self._tracker.to_cancel(time.monotonic()).items()
            if job_id in seen.raw
            and may_end(seen.raw[job_id], seen.comments[job_id], self._config)
            and not self._observer.is_denied(job_id)
            and self.isolated.step(job_id) != TOLD
        }
        if over:
            self._actor.cancel(over, outcome)

    def _announce(self, writes: Iterable[WriteRecord]) -> None:
        """Into the journal before it goes to Slurm; what came of it replaces it when the round's changes are done."""
        self._clock.before_writing()
        self._parts.journal.add_writes(self._number, time.time(), writes)

    def _judge(self, seen: Observation, outcome: Outcome) -> None:
        """Count failures, warn about them, and leave alone from now on what is not ours to change."""
        users = {job_id: job.user for job_id, job in seen.raw.items()}
        settings = self._config.guard.max_failed_writes, self._config.controller.round_s
        self._refusals.record_round(outcome, users, time.monotonic(), *settings)
        self._observer.deny(outcome.denied)
        _warn(outcome)

    def conclude(self, seen: Observation) -> None:
        self._limit_due = self._next_limit(seen)
        if any(self._leaves(job) for job in seen.raw.values()):
            # its GPUs will be free in a moment: the next round shall not be a whole one away
            self._parts.book.event.set()
        if self._parts.once:
            self._observer.hear_out()
        with self._parts.best_effort():
            self._parts.journal.save_forks(self._tracker.state())
            self._parts.journal.save_jobs([*self._over, *seen.records.values()])
            self._over.clear()
        if self._parts.trainer is not None:
            with self._parts.best_effort():
                self._parts.trainer.check(time.time())
        self._parts.best_effort.round_over()

    def _next_limit(self, seen: Observation) -> float | None:
        """When the next job is to save before its time limit, in epoch seconds; None if no limit is known."""
        grace_s, now = self._config.jobs.limit_grace_s, time.time()
        due = [
            now + until_save_s(rest_s, seen.raw[job_id], seen.records[job_id], grace_s)
            for job_id, rest_s in left_s(seen.snapshot, seen.raw, now).items()
            if grace_s > 0
            and seen.records[job_id].limit_asked is None
            and self._config.mode(seen.raw[job_id].partition) is Mode.ACT
        ]
        return min(due, default=None)

    def _leaves(self, job: SlurmJob) -> bool:
        """Whether the job has said goodbye lately, and Slurm still has it on its nodes."""
        news = self._parts.book.get(job.job_id)
        if news is None or news.report.kind != "bye" or news.report.restart != job.restarts:
            return False
        return job.state is not JobState.PENDING and time.time() - news.heard < _LEAVES_WITHIN_S

    def _read_spools(self) -> None:
        """Jobs that run and are silent on the channel may have left word in their directories."""
        now, silent = time.time(), []
        for record in self._observer.records.values():
            if record.stage is not Stage.RUNNING:
                continue
            news = self._parts.book.get(record.job_id)
            if news is None or not news.live or now - news.heard > _SILENT_S:
                silent.append((record.job_id, record.work_dir, record.user))
        self.spool.forget(self._observer.records)
        self.spool.read_all(silent)

    def _read_first_words(self, state: ClusterState) -> None:
        """What jobs that have begun since the last round have left in their directories."""
        known = {j for j, record in self._observer.records.items() if record.stage is Stage.RUNNING}
        running = [j for j in state.jobs if j.state is JobState.RUNNING and is_ours(j.comment)]
        self.spool.read_all((j.job_id, j.work_dir, j.user) for j in running if j.job_id not in known)


def _warn(outcome: Outcome) -> None:
    if outcome.denied:
        first, why = next(iter(outcome.denied.items()))
        log.warning(
            "%d jobs are left alone since they are not this controller's to change, such as %s (%s); "
            "controller.users limits it to some users' jobs",
            len(outcome.denied),
            first,
            why,
        )
    for write in outcome.log:
        if write.outcome in _WARNED and write.job_id not in outcome.denied:
            log.warning(
                "job %s: %s %s %s",
                write.job_id,
                write.command,
                write.outcome,
                write.detail,
                extra={"event": "write", "job_id": write.job_id},
            )

"""Slurm behind the loop: reading it, the reports of its jobs, and the hands that write to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from slurm_hadar.comment import read
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.act import Actor
from slurm_hadar.controller.channel import Channel
from slurm_hadar.controller.clock import ClockWatch
from slurm_hadar.controller.cluster import SETTLE_S, Cluster, Outcome
from slurm_hadar.controller.forecasts import Forecaster
from slurm_hadar.controller.guard import Change, ChangeKind
from slurm_hadar.controller.job_graphs import GraphBook
from slurm_hadar.controller.journal import JobRecord, Journal, WriteRecord
from slurm_hadar.controller.observe import Observation, Observer, workload_of
from slurm_hadar.controller.reports import ReportBook, SpoolReader
from slurm_hadar.controller.steering import node_facts
from slurm_hadar.controller.tracker import JobTracker
from slurm_hadar.controller.training import Trainer
from slurm_hadar.controller.usage import Usage
from slurm_hadar.forks import PeriodPlan
from slurm_hadar.model import JobState
from slurm_hadar.slurm.base import Backend
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

__all__ = ["SlurmCluster"]

log = logging.getLogger(__name__)
_LEAVES_WITHIN_S = 120.0  # epilogs may take their time; who goes on much longer does something else
_SILENT_S = 30.0  # after this long without a word on the channel, a running job's spool file is read


class SlurmCluster(Cluster[Observation]):
    """A live Slurm.

    Parameters
    ----------
    backend: how to talk to Slurm. config: limits and intervals. journal: what is remembered of jobs.
    book, channel: reports from jobs; ``channel`` may be None.
    forecaster, trainer: say what jobs are expected to be, and learn it; None = nobody does.
    """

    def __init__(
        self, backend: Backend, config: Config, journal: Journal, book: ReportBook, channel: Channel | None = None,
        forecaster: Forecaster | None = None, trainer: Trainer | None = None,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._config = config
        self._journal = journal
        self._book = book
        self._store = ThroughputStore(journal.connection)
        usage = Usage(journal, config.fairness.half_life_h * 3600.0)
        self._graphs = GraphBook(config.network)
        estimator = Estimator(reference(), self._store)
        self._observer = Observer(config, book, estimator, journal.load_jobs(), usage, forecaster, self._graphs)
        self._trainer = trainer
        self._spool = SpoolReader(book)
        self._tracker = JobTracker(lambda job_id, plan: self._pass_on(channel, job_id, plan), journal.forks())
        self._book.listener = self._tracker.hear
        self._stop = threading.Event()
        self._actor = Actor(backend, config, book, channel, self._spool, self._stop.is_set, self._announce)
        self._clock = ClockWatch(backend)
        self._number = 0
        self._over: list[JobRecord] = []  # ended, and not yet written down as such
        self._failed_in_a_row = 0
        self._began = time.monotonic()
        self._slow = False

    def now(self) -> float:
        return time.time()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """End after the current write. Safe to call from a signal handler."""
        self._stop.set()
        self._book.event.set()

    def pause(self) -> None:
        """Until the next round is due, or an event brings it forward; twice as long where Slurm answers slowly."""
        settings = self._config.controller
        due = self._began + settings.round_s * (2 if self._slow else 1)
        early = self._began + settings.event_round_s if settings.event_round_s and not self._slow else due
        while not self._stop.is_set() and (now := time.monotonic()) < due:
            if self._book.event.wait(due - now):
                self._stop.wait(min(due, max(early, time.monotonic() + SETTLE_S)) - time.monotonic())
                break
        self._book.event.clear()

    def observe(self, acting_only: bool) -> Observation:
        self._began, self._slow = time.monotonic(), False
        state = self._backend.read()
        self._slow = state.read_s > self._config.slurm.slow_read_s
        if acting_only:
            self._clock.check()
        self._read_spools()
        if any("graph=" in job.comment for job in state.jobs):
            facts = node_facts(state.nodes)
            self._graphs.survey(self._backend, {n: (f.gpu_type, f.gpus) for n, f in facts.items() if f.gpu_type})
        seen = self._track(self._observer.observe(state, acting_only=acting_only))
        self._over += [record for record, _ in seen.ended]
        self._learn(seen)
        return seen

    def _track(self, seen: Observation) -> Observation:
        """Let the job tracker look at the copies of forked jobs, and show all of them how far their job is."""
        copies = [job for job in seen.snapshot.jobs if job.fork is not None]
        self._tracker.look((job, read(seen.raw[job.job_id].comment)[0]) for job in copies)
        for job in copies:
            news = self._book.get(job.job_id)
            if job.running and news is not None and news.report.restart == job.restarts:
                self._tracker.hear(news.report)
        if not copies:
            return seen
        jobs = [self._tracker.with_progress(j) if j.fork is not None else j for j in seen.snapshot.jobs]
        return replace(seen, snapshot=seen.snapshot.with_jobs(jobs))

    @staticmethod
    def _pass_on(channel: Channel | None, job_id: str, plan: PeriodPlan) -> bool:
        return channel is not None and channel.order(job_id, "plan", "shares of the next periods", plan=plan.to_json())

    def out_of_order(self) -> str:
        if self._failed_in_a_row < self._config.guard.max_failed_writes:
            return ""
        return (
            f"stopped acting after {self._failed_in_a_row} failed writes in a row "
            "(guard.max_failed_writes); restart the controller when the cause is mended"
        )

    def carry_out(self, number: int, seen: Observation, changes: Sequence[Change]) -> Outcome:
        # Saved before anything is written to Slurm: after a kill the next start must know which node lists and start
        # times are ours.
        latest = time.time() + self._actor.longest_defer_s
        for change in changes:
            record = seen.records[change.job_id]
            record.steered = record.steered or change.kind.occupies
            record.defer_until = None if change.kind is ChangeKind.STAY else latest
            if change.kind.stops:
                record.ran_on = []  # it is waited for until it has left them
        self._journal.save_jobs(seen.records.values())
        outcome, self._number = Outcome(list(changes)), number
        try:
            self._actor.carry_out(seen, changes, outcome)
            self._end_copies(seen, outcome)
        finally:  # slurmctld may go away in the middle: what was done until then is not forgotten
            self._journal.settle_writes(number, time.time(), [*outcome.log, *outcome.unanswered])
            self._journal.save_jobs(seen.records.values())
        self._judge(outcome)
        return outcome

    def _end_copies(self, seen: Observation, outcome: Outcome) -> None:
        """Cancel the copies that are not needed any more, in the partitions where this controller acts."""
        over = {
            job_id: why
            for job_id, why in self._tracker.to_cancel(time.time()).items()
            if job_id in seen.raw and self._config.mode(seen.raw[job_id].partition) is Mode.ACT
        }
        if over:
            outcome.commands += 1
            announced = [WriteRecord(job_id, "cancel", "sent", why) for job_id, why in over.items()]
            self._announce(announced)
            outcome.unanswered = announced
            self._backend.cancel(sorted(over))
            outcome.unanswered = []
            outcome.log += [WriteRecord(job_id, "cancel", "ok", why) for job_id, why in over.items()]

    def _announce(self, writes: Sequence[WriteRecord]) -> None:
        """Into the journal before it goes to Slurm; what came of it replaces it when the round's changes are done."""
        self._clock.before_writing()
        self._journal.add_writes(self._number, time.time(), writes)

    def _judge(self, outcome: Outcome) -> None:
        """Count failures, warn about them, and leave alone from now on what is not ours to change."""
        refused = sum(1 for w in outcome.log if w.outcome == "refused" and w.job_id not in outcome.denied)
        self._failed_in_a_row = self._failed_in_a_row + refused if refused else 0
        self._observer.deny(outcome.denied)
        if outcome.denied:
            first, why = next(iter(outcome.denied.items()))
            log.warning(
                "%d jobs are left alone since they are not this controller's to change, such as %s (%s); "
                "controller.users limits it to some users' jobs", len(outcome.denied), first, why,
            )  # fmt: skip
        for write in outcome.log:
            if write.outcome in ("refused", "ineffective", "undone") and write.job_id not in outcome.denied:
                log.warning("job %s: %s %s %s", write.job_id, write.command, write.outcome, write.detail)

    def conclude(self, seen: Observation) -> None:
        if any(self._leaves(job) for job in seen.raw.values()):
            self._book.event.set()  # its GPUs will be free in a moment: the next round shall not be a whole one away
        self._journal.save_forks(self._tracker.state())
        self._journal.save_jobs([*seen.records.values(), *self._over])
        self._over.clear()
        if self._trainer is not None:
            self._trainer.look(time.time())

    def _leaves(self, job: SlurmJob) -> bool:
        """Whether the job has said goodbye lately, and Slurm still has it on its nodes."""
        news = self._book.get(job.job_id)
        if news is None or news.report.kind != "bye" or news.report.restart != job.restarts:
            return False
        return job.state is not JobState.PENDING and time.time() - news.heard < _LEAVES_WITHIN_S

    def _learn(self, seen: Observation) -> None:
        """File the measured speed of every job that runs and reports one."""
        for job in seen.snapshot.jobs:
            news = self._book.get(job.job_id)
            if not job.running or news is None or not news.speeds or len(job.placement.by_type) != 1:
                continue
            if news.report.restart != job.restarts:
                continue
            (gpu_type,) = job.placement.by_type
            speeds, news.speeds = news.speeds, []
            self._store.record(
                workload_of(job),
                gpu_type,
                job.placement.workers,
                sum(speeds) / len(speeds),
                seen.snapshot.time,
                spread=len(job.placement.nodes) > 1,
                nodes=len(job.placement.nodes) if job.graph else None,
            )

    def _read_spools(self) -> None:
        """Jobs that run and are silent on the channel may have left word in their directories."""
        now = time.time()
        for record in self._observer.records.values():
            if record.run_since is None:
                continue
            news = self._book.get(record.job_id)
            if news is None or not news.live or now - news.heard > _SILENT_S:
                self._spool.read(record.job_id, record.work_dir)

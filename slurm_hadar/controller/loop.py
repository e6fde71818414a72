"""The controller: one round after the other, each of them observe, estimate, decide, guard, act, verify, record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.act import Actor, Outcome
from slurm_hadar.controller.channel import Channel
from slurm_hadar.controller.guard import Change, ChangeKind, changes_of, limit
from slurm_hadar.controller.journal import Decision, Journal, RoundRecord
from slurm_hadar.controller.observe import Observation, Observer, workload_of
from slurm_hadar.controller.reports import ReportBook, SpoolReader
from slurm_hadar.controller.steering import read_comment
from slurm_hadar.errors import SlurmError, SlurmUnavailable
from slurm_hadar.model import EMPTY, Plan
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.check import check_plan
from slurm_hadar.slurm.base import Backend
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

__all__ = ["Controller", "RoundResult"]

log = logging.getLogger(__name__)
_SILENT_S = 30.0  # after this long without a word on the channel, a running job's spool file is read


@dataclass(frozen=True)
class RoundResult:
    """One finished round, for who calls the loop: its record, plan and changes. ``plan`` is None if Slurm was away."""

    number: int
    record: RoundRecord
    seen: Observation | None = None
    plan: Plan | None = None
    changes: tuple[Change, ...] = ()
    outcome: Outcome | None = None


class Controller:
    """Steers one cluster. Everything it talks to is passed in, so the simulator and the tests use the same class.

    Parameters
    ----------
    backend: the cluster. policy: who decides. config: limits and modes. journal: the memory.
    book, channel: reports from jobs; ``channel`` may be None.
    on_round: called after each round (live tables, tests).
    """

    def __init__(
        self,
        backend: Backend,
        policy: Policy,
        config: Config,
        journal: Journal,
        book: ReportBook,
        channel: Channel | None = None,
        on_round: Callable[[RoundResult], None] | None = None,
    ) -> None:
        self._backend = backend
        self._policy = policy
        self._config = config
        self._journal = journal
        self._book = book
        self._store = ThroughputStore(journal.connection)
        self._observer = Observer(config, book, Estimator(reference(), self._store), journal.load_jobs())
        self._spool = SpoolReader(book)
        self._stop = threading.Event()
        self._actor = Actor(backend, config, book, channel, self._spool, self._stop.is_set)
        self._on_round = on_round
        self._failed_in_a_row = 0
        self._last_change: dict[str, tuple[str, str]] = {}
        self._expired = 0.0

    def stop(self) -> None:
        """End after the current write. Safe to call from a signal handler."""
        self._stop.set()
        self._book.event.set()

    def run(self) -> None:
        """Rounds until :meth:`stop`. slurmctld being away is waited out; nothing is touched meanwhile."""
        while not self._stop.is_set():
            began = time.monotonic()
            result = self.run_round()
            if self._on_round is not None:
                self._on_round(result)
            self._pause(began, slow=result.record.read_s > self._config.slurm.slow_read_s)

    def _pause(self, began: float, slow: bool) -> None:
        """Until the next round is due, or an event brings it forward; twice as long where Slurm answers slowly."""
        settings = self._config.controller
        due = began + settings.round_s * (2 if slow else 1)
        early = began + settings.event_round_s if settings.event_round_s and not slow else due
        while not self._stop.is_set() and (now := time.monotonic()) < due:
            if self._book.event.is_set() and now >= early:
                break
            wait_for_event = now >= early and not self._book.event.is_set()
            if wait_for_event:
                self._book.event.wait(min(due - now, 5.0))
            else:
                self._stop.wait(min(due, early if self._book.event.is_set() else due, now + 0.25) - now)
        self._book.event.clear()

    def run_round(self) -> RoundResult:
        """One round. Returns instead of raising when Slurm is away or its answer is not understood."""
        mode = self._overall_mode()
        try:
            result = self._round(mode)
        except SlurmError as error:
            kind = "away" if isinstance(error, SlurmUnavailable) else "unclear"
            log.warning("round skipped, Slurm is %s: %s", kind, error)
            record = RoundRecord(time.time(), mode, self._policy.name, note=f"skipped: {error}")
            return RoundResult(self._journal.add_round(record), record)
        self._expire()
        return result

    def _overall_mode(self) -> Mode:
        modes = [self._config.controller.mode, *(p.mode for p in self._config.partitions.values())]
        order = (Mode.OBSERVE, Mode.ADVISE, Mode.ACT)
        return max(modes, key=order.index)

    def _round(self, mode: Mode) -> RoundResult:
        state = self._backend.read()
        self._read_spools()
        acting = mode is Mode.ACT and self._failed_in_a_row < self._config.guard.max_failed_writes
        seen = self._observer.observe(state, acting_only=mode is Mode.ACT)
        self._learn(seen)
        began = time.monotonic()
        plan, fault = self._decide(seen)
        decide_s = time.monotonic() - began
        changes = limit(seen.snapshot, changes_of(seen.snapshot, plan), self._config)
        record = RoundRecord(
            state.time, mode, self._policy.name, len(state.nodes), len(seen.raw), len(seen.snapshot.steerable_jobs),
            sum(1 for j in seen.snapshot.jobs if j.running), read_s=state.read_s, decide_s=decide_s,
            note=self._note(fault, mode, acting),
        )  # fmt: skip
        number = self._journal.add_round(record)
        self._remember_plan(number, seen, plan, changes)
        outcome = Outcome(list(changes))
        if acting and not plan.abstains and not fault:
            outcome = self._carry_out(number, seen, changes)
        record = self._conclude(number, record, seen, outcome)
        return RoundResult(number, record, seen, plan, tuple(outcome.changes), outcome)

    def _note(self, fault: str, mode: Mode, acting: bool) -> str:
        if fault:
            return fault
        if mode is Mode.ACT and not acting:
            return (
                f"stopped acting after {self._failed_in_a_row} failed writes in a row "
                "(guard.max_failed_writes); restart the controller when the cause is mended"
            )
        return ""

    def _decide(self, seen: Observation) -> tuple[Plan, str]:
        """The policy's plan; an abstaining one, and what is wrong, where it breaks the contract."""
        plan = self._policy.allocate(seen.snapshot)
        problems = check_plan(seen.snapshot, plan)
        if not problems:
            return plan, ""
        fault = (
            f"policy {self._policy.name} broke its contract, nothing was done: {problems[0]} ({len(problems)} in all)"
        )
        log.error("%s", fault)
        return Plan(self._policy.name, abstains=True), fault

    def _carry_out(self, number: int, seen: Observation, changes: list[Change]) -> Outcome:
        # Saved before anything is written to Slurm: after a kill the next start must know which node lists are ours.
        for change in changes:
            if change.kind.occupies:
                seen.records[change.job_id].steered = True
        self._journal.save_jobs(seen.records.values())
        outcome = Outcome(list(changes))
        try:
            self._actor.carry_out(seen, changes, outcome)
        finally:  # slurmctld may go away in the middle: what was done until then is not forgotten
            self._journal.add_writes(number, time.time(), outcome.log)
            self._journal.save_jobs(seen.records.values())
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
        return outcome

    def _conclude(self, number: int, record: RoundRecord, seen: Observation, outcome: Outcome) -> RoundRecord:
        record = replace(
            record,
            starts=outcome.count(ChangeKind.START),
            moves=outcome.count(ChangeKind.MOVE),
            preemptions=outcome.count(ChangeKind.PREEMPT),
            leases=outcome.leases,
            writes=len(outcome.log),
            failed=outcome.failed,
            act_s=outcome.act_s,
            verify_s=outcome.verify_s,
        )
        self._journal.update_round(number, record)
        self._note_decisions(number, record.time, seen, outcome)
        self._journal.save_jobs([*seen.records.values(), *(r for r, _ in seen.ended)])
        log.info(
            "round %d (%s, %s): %d jobs, %d steered, %d running; %d start, %d move, %d stop, %d leases, %d failed; "
            "read %.3f s, decide %.3f s, act %.3f s, verify %.3f s",
            number, record.mode, record.policy, record.jobs, record.steered, record.running, record.starts,
            record.moves, record.preemptions, record.leases, record.failed, record.read_s, record.decide_s,
            record.act_s, record.verify_s,
        )  # fmt: skip
        return record

    def _remember_plan(self, number: int, seen: Observation, plan: Plan, changes: list[Change]) -> None:
        """Why each job that does not run waits, pinned ones included, and what the GPUs cost: what explain shows."""
        vetoes = {c.job_id: c.why for c in changes if c.kind is ChangeKind.WAIT and c.why.startswith("put off")}
        waits = {
            job_id: {
                "tier": str(w.tier), "why": vetoes.get(job_id, w.why), "price": w.price, "payoff": w.payoff,
                "wanted": w.wanted.as_dict(),
            }
            for job_id, w in plan.waits.items()
        }  # fmt: skip
        for job in seen.snapshot.jobs:
            if job.pinned is not None:
                waits[job.job_id] = {"tier": "pinned", "why": job.pinned}
        self._journal.replace_waits(number, waits)
        self._journal.replace_prices(plan.prices)

    def _note_decisions(self, number: int, now: float, seen: Observation, outcome: Outcome) -> None:
        """Record changes, and reasons of waiting when they change; staying needs no word."""
        decisions = []
        for change in outcome.changes:
            key = (str(change.kind), change.why)
            if change.kind is ChangeKind.STAY or self._last_change.get(change.job_id) == key:
                continue
            self._last_change[change.job_id] = key
            decisions.append(
                Decision(change.job_id, change.kind, change.old, change.new, change.why, change.price, change.payoff)
            )
        for record, final in seen.ended:
            self._last_change.pop(record.job_id, None)
            decisions.append(Decision(record.job_id, "end", EMPTY, EMPTY, final.lower()))
        self._journal.add_decisions(number, now, decisions)

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
                workload_of(seen.raw[job.job_id], read_comment(seen.raw[job.job_id])[0]),
                gpu_type,
                job.placement.workers,
                sum(speeds) / len(speeds),
                seen.snapshot.time,
                spread=len(job.placement.nodes) > 1,
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

    def _expire(self) -> None:
        """Once an hour, forget what is older than the configuration says."""
        now = time.time()
        if now - self._expired > 3600:
            self._expired = now
            self._journal.expire(now - self._config.controller.keep_days * 86400)

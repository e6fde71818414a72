"""What is kept of each round: by the journal in real life, by the simulator for its metrics."""

from __future__ import annotations

import abc
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

from slurm_hadar.config import Config
from slurm_hadar.controller.answers.expectation import Peek, starts
from slurm_hadar.controller.cluster import Outcome, Seen, SeenT
from slurm_hadar.controller.journal import Decision, Journal, RoundRecord
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.controller.journal.memory import memory_of, owner_of
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.observe.passed_over import PassedOver
from slurm_hadar.controller.record.dashboard_rows import DashboardRows, gpu_use
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.model import EMPTY, Plan, Snapshot, Tier, Wait

__all__ = ["JournalRecorder", "Recorder"]

log = logging.getLogger(__name__)
# how long something is still to be waited for: another round says another number, and nothing else has changed
_COUNTDOWN = re.compile(r"\b(in|another) \d+ (s|min)\b")
# kinds of reasons: whether those before a job in the queue hold the GPUs already or get them next goes to and fro
_TURN = "waits-for-its-turn"
_GROUNDS = {Tier.CANNOT_RUN: "cannot-run", Tier.CAPACITY: _TURN, Tier.POLICY: _TURN, Tier.TRANSIENT: "kept-out"}


class Recorder(abc.ABC, Generic[SeenT]):
    """Told of every round: :meth:`begin`, then :meth:`planned`, and after the cluster has acted :meth:`conclude`. A
    round that was skipped only begins."""

    @abc.abstractmethod
    def begin(self, record: RoundRecord) -> int:
        """A round has begun; returns its number."""

    @abc.abstractmethod
    def planned(self, number: int, snapshot: Snapshot, plan: Plan, changes: Sequence[Change]) -> None:
        """What the policy wants, and what of it the guard lets pass."""

    @abc.abstractmethod
    def conclude(self, number: int, record: RoundRecord, seen: SeenT, outcome: Outcome) -> None:
        """What was done."""

    def foresee(self, _peek: Peek, _config: Config, _cpu_s: float) -> None:
        """The moment to work out when the jobs that wait will start, in so many CPU seconds."""
        return

    def reconfigure(self, _policy: str, _params: Mapping[str, Any], _keep_s: float) -> None:
        """Another policy decides from now on, or with other parameters; what is older than so many seconds is
        forgotten."""
        return

    @abc.abstractmethod
    def recall(self) -> Mapping[str, Any]:
        """The policy's memory as it was last kept; empty if there is none of this policy with these parameters."""

    @abc.abstractmethod
    def keep(self, memory: Mapping[str, Any]) -> None:
        """Keep the policy's memory."""


class JournalRecorder(Recorder[Observation]):
    """Writes rounds, reasons, prices and decisions to the journal, and forgets what is older than ``keep_s``.

    ``policy`` and ``params`` say whose memory is kept (:func:`owner_of`); another's is dropped.
    ``keeping`` is where a journal that cannot be written is complained of.
    """

    def __init__(
        self,
        journal: Journal,
        policy: str,
        params: Mapping[str, Any],
        keep_s: float,
        best_effort: BestEffort | None = None,
    ) -> None:
        self._journal = journal
        self._best_effort = best_effort or BestEffort()
        self._number = 0
        self.reconfigure(policy, params, keep_s)
        # what was told last of each job, as hashes since jobs are many; None: as the journal has it
        self._told: dict[str, int] | None = None
        self._expired = 0.0
        self._kept: Mapping[str, Any] = {}
        self._dashboard = DashboardRows(journal)
        self._planned: tuple[Plan, Mapping[str, dict[str, Any]]] = Plan(policy, abstains=True), {}

    def reconfigure(self, policy: str, params: Mapping[str, Any], keep_s: float) -> None:
        self._owner = owner_of(policy, params)
        self._keep_s = keep_s

    def begin(self, record: RoundRecord) -> int:
        self._number += 1  # where the journal cannot give one
        with self._best_effort():
            self._number = self._journal.add_round(record)
        return self._number

    def planned(self, number: int, snapshot: Snapshot, plan: Plan, changes: Sequence[Change]) -> None:
        """Why each job that does not run waits, pinned ones included, and what the GPUs cost: what explain shows."""
        waits = _Waits(plan, snapshot, changes)
        self._planned = plan, waits
        with self._best_effort():
            self._journal.replace_waits(number, waits)
            self._journal.replace_prices(plan.prices)

    def conclude(self, number: int, record: RoundRecord, seen: Observation, outcome: Outcome) -> None:
        with self._best_effort():
            self._journal.update_round(number, replace(record, use=gpu_use(seen.snapshot)))
            self._dashboard.update(record.mode, seen, *self._planned, outcome)
            self._planned = Plan("", abstains=True), {}
            self._journal.add_events(number, record.time, seen.events)
            self._note_decisions(number, record, seen, outcome)
            if record.time - self._expired > 3600:
                self._expired = record.time
                self._journal.expire(record.time - self._keep_s)

    def foresee(self, peek: Peek, config: Config, cpu_s: float) -> None:
        found = starts(peek, config, cpu_s)
        with self._best_effort():
            self._journal.note_starts({j: (i.low, i.high) for j, i in found.items() if i.high is not None})

    def _note_decisions(self, number: int, record: RoundRecord, seen: Seen, outcome: Outcome) -> None:
        """Record changes, and reasons of waiting, or of staying against the plan, when they are of another kind: who
        holds the GPUs, and for how long, is said differently in each round, and nothing has happened. Staying by the
        plan needs no word; what was said only, and is done now, does."""
        told = self._told
        if told is None:
            told = {job_id: _key(seen, job_id, *news) for job_id, news in self._journal.last_news().items()}
        self._told = None  # until it is written
        self._journal.add_decisions(number, record.time, _decisions(record.mode, seen, outcome, told))
        self._told = told

    def recall(self) -> Mapping[str, Any]:
        self._kept = memory_of(self._journal, self._owner)
        return self._kept

    def keep(self, memory: Mapping[str, Any]) -> None:
        if memory == self._kept:
            return
        try:
            text = json.dumps(memory)
        except (TypeError, ValueError) as error:  # a plug-in's fault must not end the controller
            log.warning("the policy's memory cannot be written as JSON (%s); a restart will lose it", error)
            self._kept = memory
            return
        with self._best_effort():
            self._journal.save_memory(self._owner, text)
            self._kept = memory


def _key(seen: Seen, job_id: str, *news: object) -> int:
    """With the job's arrival, since its number may have been another's a round ago."""
    job = seen.snapshot.job.get(job_id)
    return hash((None if job is None else job.arrival, news))


def _decisions(mode: str, seen: Seen, outcome: Outcome, told: dict[str, int]) -> Iterator[Decision]:
    """What is news after what was ``told`` of each job, which is brought up to date."""
    for change in outcome.changes:
        if change.kind is ChangeKind.STAY and not change.veto:
            continue
        ground = _COUNTDOWN.sub("", change.veto) or ("" if change.tier is None else _GROUNDS[change.tier])
        decision = Decision(
            change.job_id, str(change.kind), change.old, change.new, change.why, change.price, change.payoff, ground
        )
        key = _key(seen, change.job_id, mode, *decision.news)
        if told.get(change.job_id) != key:
            told[change.job_id] = key
            yield decision
    for job_id, final in seen.finished:
        told.pop(job_id, None)
        yield Decision(job_id, "end", EMPTY, EMPTY, final.lower())


class _Waits(Mapping[str, dict[str, Any]]):
    """Why each job waits, or is left to Slurm, as the journal has it. Made when asked for: all at once are large."""

    def __init__(self, plan: Plan, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        stay = {c.job_id for c in changes if c.kind is ChangeKind.STAY}  # some of them against the plan
        self._waits = {job_id: wait for job_id, wait in plan.waits.items() if job_id not in stay}
        put_off = (c for c in changes if c.kind is ChangeKind.WAIT and c.veto)
        self._waits |= {c.job_id: Wait(Tier.TRANSIENT, c.why) for c in put_off}
        self._pinned = {j.job_id: j.pinned for j in snapshot.jobs if j.pinned is not None}
        self._jobs, self._passed_over = snapshot.job, PassedOver(snapshot, changes)

    def __getitem__(self, job_id: str) -> dict[str, Any]:
        if job_id in self._pinned:
            return {"tier": "pinned", "why": self._pinned[job_id]}
        wait = self._waits[job_id]
        return {
            "tier": str(wait.tier),
            "why": self._why(job_id, wait),
            "price": wait.price,
            "payoff": wait.payoff,
            "wanted": wait.wanted.as_dict(),
        }

    def _why(self, job_id: str, wait: Wait) -> str:
        job = self._jobs.get(job_id)
        return wait.why + (self._passed_over.words(job, wait) if job is not None else "")

    def __iter__(self) -> Iterator[str]:
        yield from self._pinned
        yield from (job_id for job_id in self._waits if job_id not in self._pinned)

    def __len__(self) -> int:
        return len(self._pinned.keys() | self._waits.keys())

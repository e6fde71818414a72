"""Who is asked to save before it is stopped, and who is waited for.

Checkpoints take as long as they take, and some never come: a round waits for the prompt ones alone, and looks for the
others in the rounds that follow; where none follows it waits for all.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Asked", "Checkpoints", "Saves"]

CHECKPOINT_SIGNAL = "USR2"
PROMPT_S = 1.0  # a round waits so long for checkpoints; slower ones are looked for again, and rounds go on meanwhile
UNSAVED_S, LONGEST_UNSAVED_S = 600.0, 86400.0
POLL_S = 0.05
_SAVING = "its checkpoint is being written; it is stopped when that is there"
_FINISHES = "it has made its last step and ends by itself"


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that was asked for a checkpoint: in which run, when (epoch seconds), and until when it may take (monotonic
    seconds)."""

    restarts: int
    at: float
    deadline: float


@dataclass(frozen=True)
class Saves:
    """``ready``: the jobs that have saved since they were asked to. ``vetoed``: why others may not be stopped yet."""

    ready: frozenset[str]
    vetoed: Mapping[str, str]


class _State(enum.Enum):
    SAVED = enum.auto()
    SAVING = enum.auto()
    FAILED = enum.auto()  # not in time, which costs the job its word for a while
    LOADING = enum.auto()  # not in time either, which breaks no promise


class Checkpoints:
    """Asks jobs to save. ``channel`` and ``spool`` are the ways in which they answer."""

    def __init__(self, context: ActContext, channel: Channel | None, spool: SpoolReader) -> None:
        self._context = context
        self._channel = channel
        self._spool = spool
        self._asked: dict[str, Asked] = {}

    @property
    def asked(self) -> Mapping[str, Asked]:
        """The jobs that are asked to save for a move."""
        return self._asked

    def has_saved(self, job_id: str, asked: Asked) -> bool:
        """Whether a checkpoint of the run that was asked has come since."""
        return self._context.book.saved_since(job_id, asked.restarts, asked.at)

    def finishes(self, seen: Observation, job_id: str) -> bool:
        """Whether the job has made its last step."""
        return self._context.book.finishes(job_id, seen.records[job_id].restarts)

    def save(self, seen: Observation, stops: Sequence[Change]) -> Saves:
        """Ask the jobs that are to be stopped for checkpoints, and wait a moment for them."""
        vetoed: dict[str, str] = {}
        wanted: list[str] = []
        for change in stops:
            record = seen.records[change.job_id]
            if self.finishes(seen, change.job_id):
                vetoed[change.job_id] = _FINISHES
            elif record.resumable:  # else it saves by itself on TERM, or its owner lets it lose progress
                if self._is_asked(record) or self._ask_for_move(seen.raw[change.job_id], change, record):
                    wanted.append(change.job_id)
                else:
                    vetoed[change.job_id] = "its agent cannot be reached to save a checkpoint"
        self._await_prompt(seen, wanted)
        states = {job_id: self._judge(seen.records[job_id]) for job_id in wanted}
        limit_s = self._context.config.jobs.ack_timeout_s
        late = f"no checkpoint within jobs.ack_timeout_s = {limit_s:g}"
        words = {_State.SAVING: _SAVING, _State.FAILED: late, _State.LOADING: f"{late}: its training has not begun"}
        vetoed.update({j: words[state] for j, state in states.items() if state is not _State.SAVED})
        # what it has saved may be its end; stopped now, its script would come to its end once more
        finishing = {j for j in wanted if self.finishes(seen, j)}
        vetoed.update(dict.fromkeys(finishing, _FINISHES))
        pending = {j for j, state in states.items() if state in (_State.SAVED, _State.SAVING)} - finishing
        if self._context.stopping():
            vetoed.update({c.job_id: "the controller is stopping" for c in stops})
            pending.clear()
        self.let_go(set(self._asked) - pending)
        return Saves(frozenset(wanted) - vetoed.keys(), vetoed)

    def let_go(self, job_ids: Collection[str]) -> None:
        """These are not stopped after all, or were lost to other reasons: they need not wait any longer."""
        for job_id in sorted(job_ids):
            del self._asked[job_id]
            self.tell_to_go_on(job_id)

    def forget(self, job_ids: Collection[str]) -> None:
        """These were stopped."""
        for job_id in job_ids:
            self._asked.pop(job_id, None)

    def ask(self, job: SlurmJob, why: str, restarts: int, pause_s: float | None = None) -> Asked | None:
        """Ask by message, and by signal where the agent is not connected; None if neither can reach it.
        ``pause_s``: how long it makes no more steps then; None = as long as a move may take."""
        context, job_id = self._context, job.job_id
        news = context.book.get(job_id)
        if news is None or news.ended or news.report.restart != restarts:
            return None
        jobs, now = context.config.jobs, time.time()
        if pause_s is None:
            pause_s = jobs.ack_timeout_s + jobs.end_timeout_s
        sent = self._channel.order(job_id, "save", why, pause_s) if self._channel else False
        step = news.report.step
        # another job's may be killed by it, and a report may say anything
        if not sent and step is not None and step.partition(".")[0] == str(job.raw_id):
            context.backend.signal([step], CHECKPOINT_SIGNAL)
            sent = True
        return Asked(restarts, now, time.monotonic() + jobs.ack_timeout_s) if sent else None

    def tell_to_go_on(self, job_id: str) -> None:
        """The job stays after all: it need not wait for its end any longer."""
        if self._channel is not None:
            self._channel.order(job_id, "go_on", "not moved after all")

    def _is_asked(self, record: JobRecord) -> bool:
        asked = self._asked.get(record.job_id)
        return asked is not None and asked.restarts == record.restarts

    def _ask_for_move(self, job: SlurmJob, change: Change, record: JobRecord) -> bool:
        asked = self.ask(job, change.why, record.restarts)
        if asked is not None:
            self._asked[change.job_id] = asked
        return asked is not None

    def _judge(self, record: JobRecord) -> _State:
        """How far an asked job is; its record says until when it is not asked again."""
        asked = self._asked[record.job_id]
        if self.has_saved(record.job_id, asked):
            record.unsaved = 0
            return _State.SAVED
        if time.monotonic() < asked.deadline:
            return _State.SAVING
        if not self._context.book.begun(record.job_id, record.restarts):
            record.unsaved, record.unsaved_until = 0, time.time() + self._context.config.jobs.ack_timeout_s
            return _State.LOADING
        record.unsaved += 1
        record.unsaved_until = time.time() + min(LONGEST_UNSAVED_S, UNSAVED_S * 2 ** (record.unsaved - 1))
        return _State.FAILED

    def _await_prompt(self, seen: Observation, wanted: Sequence[str]) -> None:
        """Until all have saved or ended, for a moment, or as long as that may take."""
        context = self._context
        limit_s = context.config.jobs.ack_timeout_s
        deadline = time.monotonic() + (limit_s if context.once else min(PROMPT_S, limit_s))
        while time.monotonic() < deadline and not context.stopping():
            waiting = [j for j in wanted if not self.has_saved(j, self._asked[j])]
            if all((news := context.book.get(j)) is None or news.ended for j in waiting):
                return
            for job_id in waiting:
                self._read_spool(seen, job_id)
            context.alive()
            time.sleep(POLL_S)

    def _read_spool(self, seen: Observation, job_id: str) -> None:
        """An agent without a connection answers through its spool file."""
        news = self._context.book.get(job_id)
        if news is not None and not news.live:
            self._spool.read(job_id, seen.raw[job_id].work_dir, seen.raw[job_id].user)

"""Writes to Slurm in batches: told to the journal before they are sent, and remembered once Slurm has taken them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import JobRecord, Purpose, WriteOutcome, WriteRecord
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import Write, WriteResult

__all__ = ["PlannedWrite", "Writer", "outcome_of"]


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """A write and what it is for. ``defer_s``: for how many seconds from then its jobs are put off; None = their start
    time is not touched. ``why``, where no decision about the job says it."""

    write: Write
    purpose: Purpose
    defer_s: float | None = None
    why: str = ""

    def remember(self, record: JobRecord, sent: float, answered: float) -> None:
        """Slurm took it, at some moment between these two (epoch seconds)."""
        if self.purpose is Purpose.RELEASE:
            record.relaunched += 1
        elif self.purpose in (Purpose.PLACE, Purpose.LEASE, Purpose.DEFER, Purpose.GIVE_BACK):
            record.placed = self.purpose is Purpose.PLACE
            if self.purpose is not Purpose.LEASE:  # which leaves the shape and the nodes as they are
                record.steered = record.placed
                record.given = record.given if record.steered else ()
                record.reshaped |= record.steered
            if self.defer_s is not None:
                record.lease_low, record.lease = sent + self.defer_s, answered + math.ceil(self.defer_s)

    def entry(self, job_id: str, outcome: WriteOutcome, detail: str = "") -> WriteRecord:
        """What the journal has of it about one of its jobs."""
        command = str(Write(self.write.verb, (job_id,), self.write.fields))
        return WriteRecord(job_id, command, outcome, detail, self.purpose, self.defer_s or 0.0)


class Writer:
    """``announce`` is told of each write before it is sent."""

    def __init__(self, backend: Backend, announce: Callable[[Iterable[WriteRecord]], object] = list) -> None:
        self._backend = backend
        self._announce = announce

    def write(
        self, batch: Sequence[PlannedWrite], records: Mapping[str, JobRecord], outcome: Outcome
    ) -> frozenset[str]:
        """One batch; returns the jobs that were refused. What is remembered changes only with what Slurm took."""
        if not batch:
            return frozenset()
        refused, sent = set(), time.time()
        results = self.send(batch, outcome)
        answered = time.time()
        for planned, result in results:
            outcome.log.append(planned.entry(result.job_id, outcome_of(result), result.error or planned.why))
            if result.error is None:
                planned.remember(records[result.job_id], sent, answered)
                continue
            refused.add(result.job_id)
            if result.denied:
                outcome.denied[result.job_id] = result.error
        return frozenset(refused)

    def send(self, batch: Sequence[PlannedWrite], outcome: Outcome) -> list[tuple[PlannedWrite, WriteResult]]:
        """Announce a batch and send it; the answers by write and job. Nothing is remembered yet."""
        planned = {(p.write.verb, job_id): p for p in batch for job_id in p.write.job_ids}
        with self._announced(lambda: (p.entry(j, WriteOutcome.SENT) for p in batch for j in p.write.job_ids), outcome):
            results = self._backend.write([p.write for p in batch])
        return [(planned[r.write.verb, r.job_id], r) for r in results]

    def cancel(self, jobs: Mapping[str, str], outcome: Outcome) -> None:
        """End jobs; ``jobs`` says why."""

        def entry(job_id: str, what: WriteOutcome, why: str) -> WriteRecord:
            return WriteRecord(job_id, "cancel", what, why, Purpose.CANCEL)

        with self._announced(lambda: (entry(j, WriteOutcome.SENT, why) for j, why in jobs.items()), outcome):
            results = self._backend.cancel(sorted(jobs))
        for result in results:
            outcome.log.append(entry(result.job_id, outcome_of(result), result.error or jobs[result.job_id]))
            if result.denied:
                outcome.denied[result.job_id] = result.error or ""

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


def outcome_of(result: WriteResult) -> WriteOutcome:
    """What came of a write, by Slurm's answer."""
    if result.overtaken:
        return WriteOutcome.OVERTAKEN
    return WriteOutcome.REFUSED if result.error else WriteOutcome.OK

"""Jobs that come to their time limit: they save before it, and go on in another run where their owners let them."""

from __future__ import annotations

import math
import time

from slurm_hadar.controller.act import batches
from slurm_hadar.controller.act.checkpoints import Asked, Checkpoints
from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.act.writer import Writer
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.steering.time_limits import goes_on, left_s, until_save_s

__all__ = ["LimitSaves"]

_WHY = "its time limit; it goes on in another run"


class LimitSaves:
    """Whom the round asks to save before a time limit; no move waits for them."""

    def __init__(self, context: ActContext, checkpoints: Checkpoints, writer: Writer) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._writer = writer
        self.asked: dict[str, Asked] = {}

    def carry_out(self, seen: Observation, outcome: Outcome) -> None:
        """Raises what the backend raises."""
        grace_s = self._context.config.jobs.limit_grace_s
        left = left_s(seen.snapshot, seen.raw, time.time())
        self.asked = {j: a for j, a in self.asked.items() if j in left and time.monotonic() < a.deadline}
        over = []
        for job_id, rest_s in left.items():
            until_s = until_save_s(rest_s, seen.raw[job_id], seen.records[job_id], grace_s)
            near = until_s <= 0 and job_id not in outcome.stopped
            if near and self._is_over(seen, job_id, rest_s):
                over.append(job_id)
        refused = self._writer.write(batches.requeues(over, _WHY), seen.records, outcome)
        for job_id in set(over) - refused:
            self.asked.pop(job_id, None)
            seen.records[job_id].ran_on = ()  # its run ends by our order: it may come back to its nodes

    def let_go(self) -> None:
        """Nobody is put back into the queue for now."""
        for job_id in sorted(self.asked):
            self._checkpoints.tell_to_go_on(job_id)
        self.asked.clear()

    def _is_over(self, seen: Observation, job_id: str, rest_s: float) -> bool:
        """Whether the job may be put back into the queue now; it is asked to save where it was not yet."""
        record = seen.records[job_id]
        on = goes_on(seen.comments[job_id], record)
        if seen.comments[job_id].fork is not None:  # a copy has nothing to save: it offers its steps as it is ended
            record.limit_asked = record.limit_asked or time.time()
            return on
        saved = self._context.book.saved_since(job_id, record.restarts, record.limit_asked or math.inf)
        if record.resumable and not saved and job_id not in self.asked:  # it may have been loading when it was asked
            asked = self._checkpoints.ask(seen.raw[job_id], "its time limit", record.restarts, rest_s if on else 0.0)
            if asked is not None:
                self.asked[job_id] = asked
            record.limit_asked = record.limit_asked or time.time()
        return on and (saved or not record.resumable) and not self._checkpoints.finishes(seen, job_id)

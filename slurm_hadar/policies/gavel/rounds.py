"""Gavel's round mechanism: how target shares become placements, round after round.

Source: Gavel (OSDI 2020), section 5, and its simulator. Each round, a job's priority on a GPU type is its target share
there over the time it has received there since the targets were set. The types are given out one after the other, to
the jobs in the order of their priorities; GPUs that nobody is due go to whoever can use them. New targets are computed
only when jobs or GPUs have come or gone, and not more often than every ``reset_s`` seconds.

A packed allocation has rows of two jobs on one GPU besides, which count as one of them does.

What lasts from round to round is a :class:`ShareTally`, which travels in ``Plan.memory``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.model import Job
from slurm_hadar.policies.gavel.analytic_centre import Field
from slurm_hadar.policies.toolkit.plan_builder import PlanBuilder

__all__ = ["Row", "ShareTally", "place_by_share"]

Row = tuple[Job, ...]


@dataclass
class ShareTally:
    """Target shares in force, and what has been received of them. Arrays have the shape (rows, types); a row is a job,
    or two jobs that share a GPU.

    Attributes
    ----------
    since: when the targets were set (UTC epoch seconds); None if there are none yet.
    stale: whether jobs or GPUs have come or gone since then.
    rows: the ids of a row's jobs, joined by "+".
    share: target shares of time; 0 for jobs that came later.
    got: seconds received since then.
    owed: seconds that the row should have received on the type under earlier targets, less what it did receive.
    """

    types: tuple[str, ...]
    gpus: Field
    rows: tuple[str, ...]
    since: float | None
    stale: bool
    share: Field
    got: Field
    owed: Field

    @classmethod
    def read(
        cls, memory: Mapping[str, Any], rows: Sequence[Row], types: tuple[str, ...], gpus: Field, now: float
    ) -> ShareTally:
        """The tally of this round: what was remembered, plus the time that has passed on the jobs' placements.

        Memory that is missing, or that knows other GPU types, is as good as none: targets will be set anew.
        """
        kept = memory.get("jobs", {}) if memory.get("types") == list(types) else {}
        unknown = [0.0] * (3 * len(types))
        ids = tuple("+".join(job.job_id for job in row) for row in rows)
        known = np.array([kept.get(row, unknown) for row in ids], dtype=float).reshape(len(rows), 3, len(types))
        tally = cls(types, gpus, ids, None, True, known[:, 0], known[:, 1], known[:, 2])
        if kept:
            tally.since = memory["since"]
            tally.stale = memory["stale"] or kept.keys() != set(ids) or memory["gpus"] != gpus.tolist()
            tally._credit(rows, memory["time"], now)
        return tally

    def _credit(self, rows: Sequence[Row], before: float, now: float) -> None:
        column = {t: r for r, t in enumerate(self.types)}
        shared = {job_id for row in rows for job in row if job.host for job_id in (job.job_id, job.host)}
        for row, jobs in enumerate(rows):
            together = {job.host for job in jobs} & {job.job_id for job in jobs}
            job = next((j for j in jobs if j.running), None)
            if job is not None and (together if len(jobs) > 1 else job.job_id not in shared):
                passed = max(0.0, now - (before if job.started is None else max(before, job.started)))
                by_type = job.placement.by_type
                for gpu_type, count in by_type.items():
                    if gpu_type in column:
                        self.got[row, column[gpu_type]] += passed * count / job.placement.workers

    def due(self, now: float, reset_s: float) -> bool:
        """Whether new targets shall be set; never twice at one instant, at which nobody can have received anything."""
        return self.since is None or (self.stale and now > self.since and now - self.since >= reset_s)

    def reset(self, share: Field, now: float) -> None:
        """Set new targets and start counting again; what is owed from the old ones is added up."""
        if self.since is not None:
            self.owed += self.share * (now - self.since) - self.got
        self.share, self.got = share, np.zeros_like(self.got)
        self.since, self.stale = now, False

    def memory(self, now: float) -> dict[str, Any]:
        """The tally as values that JSON can write; :meth:`read` understands them."""
        # a millionth of a share or of a second is nothing, and the text is half as long
        rows = np.concatenate([self.share, self.got, self.owed], axis=1).round(6)
        return {
            "types": list(self.types),
            "gpus": self.gpus.tolist(),
            "since": self.since,
            "stale": self.stale,
            "time": now,
            "jobs": dict(zip(self.rows, rows.tolist(), strict=True)),
        }


def place_by_share(
    builder: PlanBuilder,
    rows: Sequence[Row],
    usable: NDArray[np.bool_],
    tally: ShareTally,
    order: Sequence[int],
    round_s: float,
) -> dict[str, str]:
    """Place the jobs for one round; who is whose guest is returned.

    Parameters
    ----------
    rows: those of the tally, in order of arrival; ``usable`` (rows, types) says where each can run. Two jobs come
        together only as far as their share is due, so that nobody shares a GPU for no gain.
    order: in which order the types are given out, as columns of the tally.
    round_s: a job counts as having received half a round on every type, so that new targets do not start with ties.
    """
    priority = tally.share / (tally.got + round_s / 2)
    usable = usable & (np.array([len(jobs) == 1 for jobs in rows], bool)[:, None] | (tally.share > 0))
    placed: set[str] = set()
    guests: dict[str, str] = {}
    for column in order:
        gpu_type = tally.types[column]
        ranked = np.lexsort((-tally.share[:, column], -tally.owed[:, column], -priority[:, column]))
        hosts = []
        for row in ranked[usable[ranked, column]].tolist():
            if not builder.ledger.by_type[gpu_type]:
                break
            if placed.isdisjoint(job.job_id for job in rows[row]):
                host, *others = sorted(rows[row], key=lambda job: gpu_type not in job.placement.by_type)
                if builder.place(host, gpu_type):
                    hosts.append(host)
                    placed.update(job.job_id for job in rows[row])
                    guests.update((job.job_id, host.job_id) for job in others)
        builder.repack(hosts, gpu_type)
    for job in (job for jobs in rows if len(jobs) == 1 for job in jobs if job.job_id in guests):
        builder.let_go(job)
    return guests

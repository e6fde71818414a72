"""Gavel's packed objectives: target shares of time for single jobs and for pairs of jobs on one GPU.

Source: Gavel (OSDI 2020), section 3.1 "Space sharing": an allocation has a row for every job combination besides those
of the jobs, a job's time over all of its rows is at most 1, and its rate is the sum over them. Which pairs are looked
at is our definition: of jobs with one GPU each that together do more than one alone, for each job those with most.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from slurm_hadar.model import Job, Snapshot
from slurm_hadar.policies.gavel.analytic_centre import Field
from slurm_hadar.policies.gavel.lp import Load, isolated_rates, solved
from slurm_hadar.policies.toolkit.shared_gpus.company import keep_together, pairs_like

__all__ = ["Combinations", "max_min"]

_PARTNERS = 16  # pairs of a job that are looked at
_GAIN = 1.0  # what both must make together, each against its own speed alone
_SECOND = 1e-3  # what the total counts beside the least, so that nothing that could be used is left


@dataclass(frozen=True)
class Combinations:
    """Rows of a packed allocation: first the jobs, then pairs of them.

    ``members[c]``: indices of the jobs; ``rates[c, m, r]``: steps/s of member ``m`` on type ``r``, 0 where it cannot
    run, or the row is of one job.
    """

    members: tuple[tuple[int, ...], ...]
    rates: NDArray[np.float64]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Where each row can run, shape (rows, types)."""
        usable: NDArray[np.bool_] = self.rates.max(axis=1) > 0
        return usable

    @classmethod
    def of(cls, snapshot: Snapshot | None, jobs: Sequence[Job], types: Sequence[str], rates: Field) -> Combinations:
        """The jobs, and which of them the snapshot's pairings let share a GPU: nobody without one. Who could not be
        moved any more shares with nobody either."""
        able = [i for i, job in enumerate(jobs) if job.form.workers == 1 and job.unmovable is None]
        if snapshot is None or not snapshot.pairings:
            return cls(tuple((i,) for i in range(len(jobs))), rates[:, None, :])
        pairs = sorted(_best_pairs(snapshot, jobs, able, types), key=lambda pair: pair[:2])
        both = np.zeros((len(jobs) + len(pairs), 2, len(types)))
        both[: len(jobs), 0] = rates
        for row, (i, k, kept) in enumerate(pairs, len(jobs)):
            together = kept * rates[[i, k]]
            both[row] = np.where(together.min(axis=0) > 0, together, 0.0)
        return cls((*((i,) for i in range(len(jobs))), *((i, k) for i, k, _ in pairs)), both)


def _kept(snapshot: Snapshot, one: Job, other: Job, types: Sequence[str]) -> Field:
    """What each keeps of its speed on each type, shape (2, types); 0 where they cannot be together."""
    found = [keep_together(snapshot, one, other, gpu_type) or (0.0, 0.0) for gpu_type in types]
    return np.array(found).reshape(len(types), 2).T


def _best_pairs(
    snapshot: Snapshot, jobs: Sequence[Job], able: Sequence[int], types: Sequence[str]
) -> Iterator[tuple[int, int, Field]]:
    """Pairs with what both keep, those that do most first, no more than so many of each job. Jobs that pair alike are
    looked up once, so that it takes about O(pairs + sorts of jobs squared)."""
    sorts: dict[Hashable, list[int]] = {}
    for i in able:
        sorts.setdefault(pairs_like(snapshot, jobs[i]), []).append(i)
    kept = [
        (_kept(snapshot, jobs[one[0]], jobs[other[0]], types), one, other)
        for one, other in itertools.combinations_with_replacement(sorts.values(), 2)
    ]
    partners = dict.fromkeys(able, 0)
    for found, one, other in sorted(kept, key=lambda row: -row[0].sum(axis=0).max(initial=0.0)):
        if found.sum(axis=0).max(initial=0.0) <= _GAIN:
            return
        begin = 0
        for at, i in enumerate(one):
            while begin < len(other) and partners[other[begin]] >= _PARTNERS:
                begin += 1
            after = range(max(begin, at + 1) if one is other else begin, len(other))
            open_to = (other[at_other] for at_other in after if partners[other[at_other]] < _PARTNERS)
            for k in itertools.islice(open_to, max(0, _PARTNERS - partners[i])):
                partners[i] += 1
                partners[k] += 1
                yield (i, k, found) if i < k else (k, i, found[::-1])


def max_min(load: Load, rows: Combinations, demand: Field) -> Field:
    """The shares, of shape (rows, types), that raise the smallest ratio of a job's rate to its ``demand`` as far as it
    goes, and then, by a thousandth as much, the mean of the ratios. ``demand`` is positive.

    One linear programme with a variable for each row and type.
    """
    jobs, types = len(load.gang), len(load.gpus)
    fair = isolated_rates(load)
    scale = float((fair / demand).min())
    row, kind = np.nonzero(rows.usable)
    level = len(row)
    of, at, ratio = [], [], []
    for variable, (c, r) in enumerate(zip(row.tolist(), kind.tolist(), strict=True)):
        for member, job in enumerate(rows.members[c]):
            of.append(job)
            at.append(variable)
            ratio.append(rows.rates[c, member, r] / (demand[job] * scale))
    jobs_of, variables, ratios = np.array(of), np.array(at), np.array(ratio)
    gang = np.array([load.gang[rows.members[c][0]] for c in row.tolist()])
    matrix = csr_array(
        (
            np.concatenate([-ratios, np.ones(jobs), np.ones(len(of)), gang]),
            (
                np.concatenate([jobs_of, np.arange(jobs), jobs + jobs_of, 2 * jobs + kind]),
                np.concatenate([variables, np.full(jobs, level), variables, np.arange(level)]),
            ),
        ),
        shape=(2 * jobs + types, level + 1),
    )
    cost = np.zeros(level + 1)
    np.add.at(cost, variables, -_SECOND * ratios / np.maximum(1.0, ratios.max()) / jobs)
    cost[level] = -1.0
    result = solved(cost, matrix, np.concatenate([np.zeros(jobs), np.ones(jobs), load.gpus]))
    shares = np.zeros((len(rows.members), types))
    shares[row, kind] = np.clip(result.x[:level], 0.0, 1.0)
    return shares

"""AlloX: minimum average completion time by matching jobs to positions on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from slurm_hadar.errors import ConfigError
from slurm_hadar.policies.base import UNKNOWN_RUNTIME_S
from slurm_hadar.policies.gavel.analytic_centre import Field
from slurm_hadar.policies.gavel.shares import SharePolicy, Targets

__all__ = ["AlloX", "match", "start"]


@dataclass(frozen=True)
class AlloX(SharePolicy):
    """Jobs are matched to places in the queues of GPUs so that the average completion time is least.

    Source: Le et al., "AlloX" (EuroSys 2020).

    A job that is the k-th from the last on a GPU delays k completions by its run time there, its own included; so the
    cost of a matching is ``k * run time``, and the cheapest one is a minimum-weight bipartite matching. Who comes first
    on a free GPU is committed to its type to the end; the others are matched anew next time. As in Gavel's
    implementation, only the GPUs without a committed job are matched, and GPUs that nobody is committed to are lent: to
    jobs that wait, and to jobs committed to a slower type.

    Gangs are our extension (AlloX has single-GPU jobs only): see :func:`match`.

    Parameters
    ----------
    aware: know the speeds; false takes all types for equally fast where the job can run.
    reset_s: match at most this often, and only when jobs or GPUs have come or gone.
    window: at most so many jobs are matched at a time, those that came first.
    unknown_runtime_s: the run time on the best type that is assumed of a job whose steps nobody states or predicts.

    Complexity: O(types * window^3) at worst.
    """

    name: ClassVar[str] = "allox"

    aware: bool = True
    reset_s: float = 0.0
    window: int = 500
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ConfigError(f"policy {self.name}: window={self.window} must be at least 1")

    def shares(self, targets: Targets) -> tuple[Field, dict[str, Any]]:
        """A share of 1 on its type for each committed job; the commitments are what is noted."""
        load, column = targets.load, {t: r for r, t in enumerate(targets.types)}
        kind = np.array([column.get(targets.noted.get(job.job_id, ""), -1) for job in targets.jobs], dtype=int)
        kind[(kind >= 0) & (load.rates[np.arange(len(kind)), kind] <= 0)] = -1
        held = kind >= 0
        free = load.gpus - np.bincount(kind[held], weights=load.gang[held], minlength=len(load.gpus))
        waiting = np.flatnonzero(~held)[: self.window]
        rates = load.rates[waiting]
        times = np.divide(targets.remaining[waiting, None], rates, out=np.full(rates.shape, np.inf), where=rates > 0)
        for row, where in start(times, load.gang[waiting], free):
            kind[waiting[row]] = where
        share = np.zeros(load.rates.shape)
        chosen = np.flatnonzero(kind >= 0)
        share[chosen, kind[chosen]] = 1.0
        return share, {targets.jobs[row].job_id: targets.types[kind[row]] for row in chosen}


def match(times: Field, gang: Field, free: Field) -> NDArray[np.int64]:
    """The GPU type on which each job shall run some time, -1 for none: the cheapest matching.

    A type with ``free`` GPUs has ``n = free / mean gang`` queues (all its GPUs for single-GPU jobs), and the job k-th
    from the last of a queue costs ``time * (1 + (k - 1) * gang * n / free)``: its own run time, plus the delay for
    those after it, in proportion to the part of the type that it occupies. For single-GPU jobs this is AlloX's ``k *
    time``. No queue is longer than it has to be if all jobs were on its type, which keeps the matrix at about jobs *
    (types * jobs).

    Parameters
    ----------
    times: (jobs, types) seconds, inf where the job cannot run. gang: (jobs,) GPUs. free: (types,) GPUs.
    """
    jobs = len(times)
    if not jobs:
        return np.empty(0, dtype=int)
    costs, kinds = [np.empty((jobs, 0))], [np.empty(0, dtype=int)]
    for kind in np.flatnonzero(free > 0):
        queues = max(1, int(free[kind] / gang.mean()))
        behind = np.repeat(np.arange(-(-jobs // queues)), queues)
        costs.append(times[:, kind, None] * (1.0 + behind * (gang[:, None] * queues / free[kind])))
        kinds.append(np.full(len(behind), kind))
    cost, kind_of = np.concatenate(costs, axis=1), np.concatenate(kinds)
    chosen = np.full(jobs, -1)
    able = np.flatnonzero(np.isfinite(cost).any(axis=1))
    if not len(able):
        return chosen
    cost = cost[able]
    finite = np.isfinite(cost)
    cost[~finite] = cost[finite].max() * (jobs + 1)
    row, column = linear_sum_assignment(cost)
    good = finite[row, column]
    chosen[able[row[good]]] = kind_of[column[good]]
    return chosen


def start(times: Field, gang: Field, free: Field) -> list[tuple[int, int]]:
    """Who of the matched jobs starts now, and on which type: (job, type) pairs.

    On each type the jobs with the least GPU time go first, as many as fit. A gang that comes first and does not fit yet
    keeps those behind it from being committed there.
    """
    started, kinds = [], match(times, gang, free)
    for kind in np.flatnonzero(free > 0):
        left = free[kind]
        members = np.flatnonzero(kinds == kind)
        for row in members[np.argsort(times[members, kind] * gang[members], kind="stable")]:
            if gang[row] > left:
                break
            left -= gang[row]
            started.append((int(row), int(kind)))
    return started

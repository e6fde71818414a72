"""Gavel's allocation problems as linear programmes over the shares of time that each job spends on each GPU type.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI 2020),
sections 3 and 4. A *share* ``x[j, r]`` in [0, 1] is the part of its time that job ``j`` shall spend on GPU type ``r``.
It is feasible if no job is given more than all of its time, and no type is asked for more GPUs than there are:

    sum_r x[j, r] <= 1 for each job,    sum_j gang[j] * x[j, r] <= gpus[r] for each type,    x >= 0.

HiGHS finds the optimal value, and of the many shares that reach all but a thousandth of it the analytic centre is taken
(:mod:`slurm_hadar.policies.gavel.analytic_centre`). Arrays are of shape (jobs, types), (jobs,) or (types,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, linprog
from scipy.sparse import csr_array

from slurm_hadar.errors import PolicyError
from slurm_hadar.policies.gavel.analytic_centre import Field, Limits, analytic_centre

__all__ = ["Load", "fair_finish", "isolated_rates", "max_min", "max_total", "proportional_rates", "solved"]

_GIVEN_UP = 1e-3
_MOST_RATIO = 1e6
_MOST_STEPS = 20
_CLOSE = 1e-4
_LEAST_SLOPE = 1e-6
_LONGEST = 3.0


@dataclass(frozen=True)
class Load:
    """Jobs and GPUs of one allocation problem.

    ``rates`` are steps/s of the whole gang, 0 where the job cannot run, and above 0 somewhere for each job; ``gang``
    are GPUs per job; ``gpus`` GPUs per type, above 0 where any job can run.
    """

    rates: Field
    gang: Field
    gpus: Field


def proportional_rates(rates: Field, gpus: Field) -> Field:
    """Each job's rate if it divided its time among the types in proportion to their GPUs; shape (jobs,)."""
    shared: Field = rates @ (gpus / gpus.sum())
    return shared


def isolated_rates(load: Load) -> Field:
    """Each job's rate on an equal part of the cluster: ``gpus / jobs`` of every type; shape (jobs,).

    A job whose part holds more GPUs than its gang needs spends all of its time on the types in proportion.
    """
    part = load.gpus / (len(load.gang) * load.gang[:, None])
    part = part / np.maximum(part.sum(axis=1), 1.0)[:, None]
    isolated: Field = (load.rates * part).sum(axis=1)
    return isolated


def max_min(load: Load, demand: Field) -> tuple[Field, float]:
    """The shares that raise the smallest ratio of rate to demand as far as it goes, and that ratio.

    ``demand`` is positive. With what a job is entitled to as its demand this is max-min fairness; with its remaining
    steps, the ratio is one over the makespan.
    """
    shares, level, _ = _max_min_corner(load, demand)
    return _centred(load, demand * level, shares), level


def max_total(load: Load, value: Field) -> tuple[Field, float]:
    """The shares with the largest total of ``value[j, r] * x[j, r]``, and that total; none where the rate is 0."""
    usable = load.rates > 0
    some, of, counts = _alike(np.column_stack([np.where(usable, value, 0.0), usable, load.gang]))
    job, kind = np.nonzero(usable[some])
    pairs, groups = np.arange(len(job)), len(some)
    matrix = csr_array(
        (
            np.concatenate([np.ones(len(job)), (counts * load.gang[some])[job]]),
            (np.concatenate([job, groups + kind]), np.concatenate([pairs, pairs])),
        ),
        shape=(groups + len(load.gpus), len(job)),
    )
    worth = value[some][job, kind]
    result = solved(-worth * counts[job] / worth.max(), matrix, np.concatenate([np.ones(groups), load.gpus]))
    shares = np.zeros((groups, len(load.gpus)))
    shares[job, kind] = result.x
    total = float((value * shares[of]).sum())
    rows, bounds = _capacity(load)
    reached = np.where(usable, -value / total, 0.0)
    common = np.concatenate([rows, reached[None]]), np.append(bounds, _GIVEN_UP - 1.0)
    limits = Limits(usable, [(usable.astype(float), np.ones(len(load.gang)))], common)
    return np.clip(analytic_centre(limits, _inside(load, shares[of])), 0.0, 1.0), total


def fair_finish(load: Load, remaining: Field, elapsed: Field, isolated: Field) -> tuple[Field, float]:
    """The shares that keep the largest finish-time ratio (Themis; Gavel, section 4.2) smallest, and that ratio.

    The ratio of job j is ``rho_j = (elapsed[j] + remaining[j] / rate_j) / isolated[j]``, where ``isolated`` is what the
    whole job takes on an equal part of the cluster. ``rho_j <= rho`` is linear in the shares for a given ``rho``:
    ``rate_j >= remaining[j] / (rho * isolated[j] - elapsed[j])``. So the largest common multiple of these demands that
    can be met is a linear programme, and the ``rho`` at which it is 1 is found by Newton's method, kept in a bracket,
    on the logarithms of that multiple and of the margin of ``rho`` over the largest ``elapsed / isolated``.

    Parameters
    ----------
    remaining: steps, positive. elapsed: seconds since the arrival. isolated: seconds, positive.
    """
    longest = int((elapsed / isolated).argmax())
    least = float(elapsed[longest] / isolated[longest])
    ahead = np.maximum(0.0, least * isolated - elapsed)  # by itself: beside it a small margin would be lost in rounding
    ahead[longest] = 0.0
    above = float(((remaining / isolated_rates(load) - ahead) / isolated).max())
    low, high, margin = 0.0, above, above
    for _ in range(_MOST_STEPS):
        spare = ahead + margin * isolated
        demand = remaining / spare
        shares, level, duals = _max_min_corner(load, demand)
        if abs(level - 1.0) <= _CLOSE:
            break
        low, high = (low, margin) if level > 1.0 else (margin, high)
        slope = float(duals @ (demand * isolated / spare)) * margin / level
        following = margin * np.exp(-np.clip(np.log(level) / max(slope, _LEAST_SLOPE), -_LONGEST, _LONGEST))
        margin = float(following) if low < following < high else (low + high) / 2
    return _centred(load, demand * level, shares, times=2), least + margin


def _max_min_corner(load: Load, demand: Field) -> tuple[Field, float, Field]:
    """Optimal shares, their smallest ratio, and by how much the ratio falls per unit of each job's demand."""
    # HiGHS works to absolute tolerances, so ratios must be near 1: count them in what equal parts would reach, and cap
    # those of jobs that could exceed the highest possible level more than a million times
    ratios = load.rates / (demand * (isolated_rates(load) / demand).min())[:, None]
    ratios = np.minimum(ratios, _MOST_RATIO * ratios.max(axis=1).min())
    some, of, counts = _alike(np.column_stack([ratios, load.gang]))
    job, kind = np.nonzero(ratios[some])
    pairs, groups = np.arange(len(job)), len(some)
    level = len(job)
    matrix = csr_array(
        (
            np.concatenate(
                [-ratios[some][job, kind], np.ones(groups), np.ones(level), (counts * load.gang[some])[job]]
            ),
            (
                np.concatenate([job, np.arange(groups), groups + job, 2 * groups + kind]),
                np.concatenate([pairs, np.full(groups, level), pairs, pairs]),
            ),
        ),
        shape=(2 * groups + len(load.gpus), level + 1),
    )
    cost = np.zeros(level + 1)
    cost[level] = -1.0
    result = solved(cost, matrix, np.concatenate([np.zeros(groups), np.ones(groups), load.gpus]))
    shares = np.zeros((groups, len(load.gpus)))
    shares[job, kind] = result.x[:level]
    shares = shares[of]
    reached = float(((load.rates * shares).sum(axis=1) / demand).min())
    return shares, reached, (-result.ineqlin.marginals[:groups] / counts)[of] * reached / demand


def _alike(rows: Field) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Jobs with equal rows count as one, since an optimum may treat them alike: one job of each group, the group of
    each job, and how many there are in each. It is the group that holds ``count * gang`` GPUs then."""
    _, some, of, counts = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return some, of.reshape(-1), counts


def _centred(load: Load, demand: Field, shares: Field, times: int = 1) -> Field:
    """The centre of the shares that give every job its demand, which ``shares`` do, less a thousandth.

    The demands count ``times`` over. Gavel's form of finish-time fairness bounds ``1 / rate`` by a variable of its own;
    the barrier ``log(rate * y - 1) + log(1 / demand - y)`` is largest where it holds the slack of the rate twice.
    """
    usable = load.rates > 0
    enough = -load.rates / demand[:, None], np.full(len(demand), _GIVEN_UP - 1.0)
    limits = Limits(usable, [(usable.astype(float), np.ones(len(demand))), *[enough] * times], _capacity(load))
    return np.clip(analytic_centre(limits, _inside(load, shares)), 0.0, 1.0)


def _capacity(load: Load) -> tuple[Field, Field]:
    """The rows that keep the GPUs in use within those there are; types that no job can use have none."""
    usable = load.rates > 0
    used = np.flatnonzero(usable.any(axis=0))
    rows = np.zeros((len(used), *usable.shape))
    for row, kind in enumerate(used):
        rows[row, :, kind] = load.gang * usable[:, kind]
    return rows, load.gpus[used]


def _inside(load: Load, shares: Field) -> Field:
    """A point strictly inside, next to feasible ``shares``: of what is given up, part is slack and part goes to all."""
    usable = load.rates > 0
    least = min(1.0 / usable.shape[1], float(load.gpus[usable.any(axis=0)].min()) / float(load.gang.sum()))
    return np.where(usable, np.maximum(shares, 0.0) * (1.0 - _GIVEN_UP / 2) + least * _GIVEN_UP / 4, 0.0)


def solved(cost: Field, matrix: csr_array, bounds: Field) -> OptimizeResult:
    """The non-negative numbers of least ``cost`` for which ``matrix`` times them is at most ``bounds``."""
    result = linprog(cost, A_ub=matrix, b_ub=bounds, method="highs")
    if result.status != 0:
        raise PolicyError(f"an allocation problem with {len(bounds)} rows could not be solved: {result.message}")
    return result

"""How much a second of delay costs, per job: the objectives as weights of completion times.

Hadar maximises a sum of utilities of completion times. Near a plan, a utility acts through its slope: the cost of one
more second. These slopes are the weights of Smith's rule and of the look-ahead prices (the generalised c-mu rule, van
Mieghem 1995). They are worked out anew each round, so that a weight may grow with the age of a job. The forms below are
our definition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slurm_hadar.model import Snapshot
from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Outlook

__all__ = ["FAIR_SHARES", "chance_late", "delay_costs", "due_s", "hastened", "loss_late"]

FAIR_SHARES = ("none", "user", "account")
_FAIREST = 8.0  # nobody's jobs count more than this many times as much, or as little, as they would
_URGENT = 10.0  # times as much as others counts who would keep its deadline only if it ran at once
_MISSED = 10.0  # mean run times: what a deadline that is missed costs in completion time
_SOON = 4.0  # mean run times: a deadline that is further off leaves time for others first


def delay_costs(
    outlook: Outlook,
    objective: str,
    fairness: float,
    fair_share: str,
    type_value: Mapping[str, float],
    hurry: Floats | float = 1.0,
) -> Floats:
    """The weight of each job, shape (n,), positive and 1 on average.

    * ``jct``, ``ttd``, ``deadline``: the job's own weight (:func:`hastened` makes it that of its deadline).
    * ``ftf`` (finish-time fairness): times ``2 rho / T_iso``, the slope of ``rho^2`` with ``rho = JCT / T_iso``; T_iso
      is the best run time of the whole job times the contention of the cluster.
    * ``fairness`` in 0..1: with ``jct``, so much of the weight is that of ``ftf``, each being 1 on average.
    * ``fair_share``: times ``fair share / actual share`` of the user's or account's recent GPU time, where a GPU-second
      counts as ``type_value`` of its type; between an eighth and eight.
    * ``hurry``: times this, of each job that has waited too long.
    """
    snapshot = outlook.arena.snapshot
    if not outlook.jobs:
        return np.ones(0)
    weights = np.array([j.weight for j in outlook.jobs], float)
    if objective == "ftf" or fairness > 0:
        unfairness = _unfairness(outlook)
        share = 1.0 if objective == "ftf" else fairness
        weights = weights * (1.0 - share + share * unfairness / max(float(unfairness.mean()), 1e-300))
    if fair_share != "none":
        weights = weights * _shares(outlook, snapshot, fair_share, type_value)
    return _relative(weights * hurry)


def due_s(outlook: Outlook) -> Floats:
    """Seconds until each job's deadline, shape (n,); infinite where it has none."""
    now = outlook.arena.snapshot.time
    return np.array([np.inf if j.deadline is None else j.deadline - now for j in outlook.jobs], float)


def chance_late(outlook: Outlook, end_s: Floats, due_s: Floats) -> Floats:
    """How likely it is that each job ends after its deadline, if it is expected to end ``end_s`` seconds from now, of
    shape (..., n) as that: ``1 / (1 + exp((due_s - end_s) / s))`` with a softness ``s`` of a tenth of ``end_s``, at
    least half a round; 1 where the deadline has passed."""
    softness = np.maximum(0.1 * end_s, 0.5 * outlook.arena.snapshot.round_s)
    chance = 1.0 / (1.0 + np.exp(np.clip((due_s - end_s) / softness, -700.0, 700.0)))
    return np.where(due_s > 0, chance, 1.0)


def loss_late(outlook: Outlook) -> float:
    """What a deadline that is missed costs, in seconds of a job's completion time: ten mean run times."""
    return _MISSED * float(outlook.best_s.mean())


def hastened(weights: Floats, outlook: Outlook, due_s: Floats) -> Floats:
    """The weights with what a deadline adds, 1 on average, shape (n,): nine times as much for a job that would keep it
    if it ran at once; less, the further off it is, as jobs have time until it is close (the apparent tardiness cost of
    Vepsalainen and Morton, Management Science 1987); nothing where it is lost."""
    left_s = outlook.best_s
    close = np.exp(-np.maximum(0.0, due_s - left_s) / (_SOON * max(1.0, float(left_s.mean()))))
    return _relative(weights * (1.0 + (_URGENT - 1.0) * close * (1.0 - chance_late(outlook, left_s, due_s))))


def _relative(weights: Floats) -> Floats:
    weights = np.maximum(weights, 1e-9)
    relative: Floats = weights / weights.mean()
    return relative


def _unfairness(outlook: Outlook) -> Floats:
    left_s = outlook.best_s
    wanted = outlook.workers.max(axis=1, initial=0.0).sum()
    contention = max(1.0, wanted / max(1.0, outlook.gpus.sum()))
    isolated_s = np.maximum(1.0, left_s * outlook.grown * contention)
    unfairness: Floats = 2.0 * (np.maximum(0.0, outlook.age_s) + left_s) / isolated_s / isolated_s
    return unfairness


def _shares(outlook: Outlook, snapshot: Snapshot, fair_share: str, type_value: Mapping[str, float]) -> Floats:
    """Fair share over actual share of each job's user or account, among those that have active jobs."""
    usage = snapshot.user_usage if fair_share == "user" else snapshot.account_usage
    names = [j.user if fair_share == "user" else j.account for j in outlook.jobs]
    value = {
        name: sum(type_value.get(t, 1.0) * gpu_s for t, gpu_s in usage.get(name, {}).items()) for name in set(names)
    }
    total = sum(value.values())
    if total <= 0 or len(value) < 2:
        return np.ones(len(names))
    factor = {
        n: float(np.clip(total / len(value) / max(v, 1e-9 * total), 1 / _FAIREST, _FAIREST)) for n, v in value.items()
    }
    return np.array([factor[n] for n in names])

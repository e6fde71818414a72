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

__all__ = ["FAIR_SHARES", "delay_costs"]

FAIR_SHARES = ("none", "user", "account")
_FAIREST = 8.0  # nobody's jobs count more than this many times as much, or as little, as they would


def delay_costs(
    outlook: Outlook,
    objective: str,
    fairness: float,
    fair_share: str,
    type_value: Mapping[str, float],
    hurry: Floats | float = 1.0,
) -> Floats:
    """The weight of each job, shape (n,), positive and 1 on average.

    * ``jct``, ``ttd``: the job's own weight.
    * ``ftf`` (finish-time fairness): times ``2 rho / T_iso``, the slope of ``rho^2`` with ``rho = JCT / T_iso``; T_iso
      is the best run time of the whole job times the contention of the cluster.
    * ``deadline``: times ``1 + 9 / (1 + exp((t - d) / s))`` for a job that would end ``t`` seconds from now and has
      ``d`` seconds left; softness ``s`` is a tenth of t, at least half a round. Who keeps a deadline is worth ten jobs
      without one; who has missed it, one.
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
    elif objective == "deadline":
        weights = weights * _urgency(outlook)
    if fair_share != "none":
        weights = weights * _shares(outlook, snapshot, fair_share, type_value)
    weights = np.maximum(weights * hurry, 1e-9)
    relative: Floats = weights / weights.mean()
    return relative


def _unfairness(outlook: Outlook) -> Floats:
    left_s = outlook.best_s
    wanted = outlook.workers.max(axis=1, initial=0.0).sum()
    contention = max(1.0, wanted / max(1.0, outlook.gpus.sum()))
    isolated_s = np.maximum(1.0, left_s * outlook.grown * contention)
    unfairness: Floats = 2.0 * (np.maximum(0.0, outlook.age_s) + left_s) / isolated_s / isolated_s
    return unfairness


def _urgency(outlook: Outlook) -> Floats:
    now = outlook.arena.snapshot.time
    left_s = outlook.best_s
    due_s = np.array([np.inf if j.deadline is None else j.deadline - now for j in outlook.jobs], float)
    softness = np.maximum.reduce([0.1 * left_s, np.full_like(left_s, 0.5 * outlook.arena.snapshot.round_s)])
    late = np.clip((left_s - np.where(np.isfinite(due_s), due_s, 0.0)) / np.maximum(softness, 1.0), -700.0, 700.0)
    return 1.0 + np.where(np.isfinite(due_s), 9.0 / (1.0 + np.exp(late)), 0.0)


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

"""The settings of Hadar with look-ahead prices."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rules"]


@dataclass(frozen=True)
class Rules:
    """As the parameters of :class:`slurm_hadar.policies.hadar.policy.Hadar`; ``frontier`` is 1 with ``ttd``, and 0 with
    what aims at no makespan."""

    objective: str
    frontier: float
    fairness: float
    fair_share: str
    switch_gain: float
    unknown_runtime_s: float
    patience_s: float
    overdue: float = 0.0

"""The settings of Hadar with look-ahead prices."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rules"]


@dataclass(frozen=True)
class Rules:
    """As the parameters of :class:`slurm_hadar.policies.hadar.policy.Hadar`; ``frontier`` is 0 but with ``jct``."""

    objective: str
    frontier: float
    fairness: float
    fair_share: str
    switch_gain: float
    unknown_runtime_s: float
    patience_s: float

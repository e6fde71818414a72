"""What copies are dealt out on top of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.model import Plan
from slurm_hadar.policies.toolkit.arena import Arena

__all__ = ["BasePlan"]


@dataclass(frozen=True)
class BasePlan:
    """Hadar's plan for plain jobs and one copy of each parent, and how it was made.

    ``arena``: of the snapshot that it was made for. ``weights``: of its jobs. ``priced``: its prices are those of
    GPU-seconds, so that it can be said what taking GPUs from others costs. ``longest_first``: idle GPUs go to the
    parent with the longest time to go (for the total time), else to where they do most of a job (for the completion
    times).
    ``unknown_runtime_s``: the run time on the best type that is assumed where nobody knows the steps.
    """

    arena: Arena
    plan: Plan
    weights: Mapping[str, float]
    priced: bool
    longest_first: bool
    unknown_runtime_s: float

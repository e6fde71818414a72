"""What is searched, and how far."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_hadar.tuning.study.book import Algorithm

__all__ = ["Search"]


@dataclass(frozen=True, slots=True)
class Search:
    """What ``hadar tune run`` was asked for.

    Parameters
    ----------
    trials: how many in all.
    eta: of how many trials of a rung one goes on.
    first_rung: reports to the first rung; of PBT: between two perturbations.
    longest: reports of a whole trial, where that is less than the objective makes.
    learns: trials are drawn by what was seen of earlier ones, so that brackets come one after the other.
    deadline_s: of each group. seed: of PBT's perturbations. population: of PBT.
    """

    algorithm: Algorithm
    trials: int
    eta: int = 3
    first_rung: int = 1
    longest: int | None = None
    learns: bool = False
    deadline_s: float | None = None
    seed: int | None = None
    population: int = 8

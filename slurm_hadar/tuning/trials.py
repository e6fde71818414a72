"""A trial, and how long it takes at a width.

The width of a trial is what it has of its GPUs' type: ``1/p`` where p trials share one GPU, a whole number where it is
distributed over so many. Overheads are those of Fluid (Yu et al., MLSys 2021, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Trial", "height", "heights", "packing_limit"]

Floats = npt.NDArray[np.float64]
_Values = TypeVar("_Values", Floats, np.float64)


@dataclass(frozen=True, slots=True)
class Trial:
    """``budget_s``: run time at width 1 on the fastest type. ``alpha``: by how much each further trial on the same GPU
    slows this one. ``beta``: by how much each further GPU slows it against perfect scaling. Both are at least 1.
    ``batch``: what its GPUs share equally, so that it can have no other number of them; 1: it can have one only."""

    trial_id: str
    budget_s: float
    alpha: float = 1.0
    beta: float = 1.0
    batch: int | None = None

    def takes(self, width: Fraction) -> bool:
        """Whether it can have so many GPUs."""
        return width <= 1 or self.batch is None or self.batch % int(width) == 0


def heights(budgets_s: _Values, alphas: _Values, betas: _Values, width: Fraction) -> _Values:
    """Run times in seconds at ``width`` on the fastest type, of trials with these budgets and overheads:
    ``h alpha^(1/w - 1)`` below 1, ``(h/w) beta^(w - 1)`` from 1 on (Fluid, section 4.2.2)."""
    if width < 1:
        return budgets_s * alphas ** (width.denominator / width.numerator - 1)
    with np.errstate(over="ignore"):
        return budgets_s / float(width) * betas ** (float(width) - 1)


def height(trial: Trial, width: Fraction) -> float:
    """Run time of one trial in seconds at ``width`` on the fastest type."""
    # NumPy's numbers: what is too large is infinite, as for many
    return float(heights(np.float64(trial.budget_s), np.float64(trial.alpha), np.float64(trial.beta), width))


def packing_limit(iteration_s: Sequence[float]) -> int:
    """The most trials worth packing on one GPU, by measured times per iteration of 1, 2, ... trials side by side.

    The largest p for which the marginal benefit ``O_p = 1 - ((p - 1) / p) T_p / T_(p-1)`` is above 0 for it and
    all smaller ones (Fluid, section 4.2.2; the paper's threshold is not published, 0 asks for any gain).
    """
    limit = 1
    for p in range(2, len(iteration_s) + 1):
        if 1 - (p - 1) / p * iteration_s[p - 1] / iteration_s[p - 2] <= 0.0:
            break
        limit = p
    return limit

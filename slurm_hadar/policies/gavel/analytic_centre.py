"""The analytic centre of a set of feasible shares: one solution out of many equally good ones, whatever the solver.

A linear programme over shares often has many optima: where the slowest job cannot be helped any further, the others may
have what is left in any proportion. A simplex solver returns a corner, which leaves it to a few jobs or to nobody;
which corner, depends on its version. The analytic centre (Boyd and Vandenberghe, "Convex Optimization", section 8.5.3)
is unique and spreads what is left over all jobs, as the interior-point solver of Gavel's own implementation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Field", "Limits", "analytic_centre"]

Field = NDArray[np.float64]

_MOST_STEPS = 60
_CLOSE = 1e-2
_HALVINGS = 12
_NEARLY_ALL = 0.98


@dataclass(frozen=True)
class Limits:
    """A set of shares ``x`` (jobs, types): 0 where ``usable`` is false, positive elsewhere, within two kinds of rows.

    ``own`` are pairs of coefficients (jobs, types) and bounds (jobs,): ``sum_r a[j, r] x[j, r] <= b[j]``. ``common``
    are coefficients (rows, jobs, types) and bounds (rows,): ``sum_jr a[k, j, r] x[j, r] <= b[k]``.
    """

    usable: NDArray[np.bool_]
    own: Sequence[tuple[Field, Field]]
    common: tuple[Field, Field]

    def slacks(self, x: Field) -> list[Field]:
        """How far from each limit ``x`` is: the shares themselves, then each ``own``, then ``common``."""
        coefficients, bound = self.common
        inner = [b - (a * x).sum(axis=1) for a, b in self.own]
        return [x[self.usable], *inner, bound - np.einsum("kjr,jr->k", coefficients, x)]


def analytic_centre(limits: Limits, start: Field) -> Field:
    """The shares that maximise the sum of the logarithms of all slacks.

    Newton's method from ``start``, which must lie strictly inside the limits. The Hessian is one small block per job
    plus a few common rows, so a step costs O(jobs * types^3) by the Woodbury identity; 10 to 30 steps are usual.
    """
    x = start
    for _ in range(_MOST_STEPS):
        slacks = limits.slacks(x)
        step, decrement = _newton_step(limits, x, slacks)
        if decrement <= _CLOSE:
            break
        change = [s - t for s, t in zip(limits.slacks(x + step), slacks, strict=True)]
        x = x + _length(np.concatenate(slacks), np.concatenate(change)) * step
    return x


def _newton_step(limits: Limits, x: Field, slacks: list[Field]) -> tuple[Field, float]:
    """The ascent direction and its Newton decrement."""
    usable, (rows, _) = limits.usable, limits.common
    inverse = np.where(usable, 1.0 / np.where(usable, x, 1.0), 0.0)
    gradient = inverse - np.einsum("kjr,k->jr", rows, 1.0 / slacks[-1])
    types = x.shape[1]
    block = np.zeros((*x.shape, types))
    block[:, range(types), range(types)] = np.where(usable, inverse**2, 1.0)
    for (a, _), slack in zip(limits.own, slacks[1:-1], strict=True):
        scaled = a / slack[:, None]
        gradient -= scaled
        block += scaled[:, :, None] * scaled[:, None, :]
    block = np.linalg.inv(block)
    pulled = np.einsum("jrs,kjs->kjr", block, rows)
    inner = np.einsum("kjr,ljr->kl", rows, pulled) + np.diag(slacks[-1] ** 2)
    plain = np.einsum("jrs,js->jr", block, gradient)
    weights = np.linalg.solve(inner, np.einsum("kjr,jr->k", rows, plain))
    step = plain - np.einsum("kjr,k->jr", pulled, weights)
    return step, float(np.sqrt(max(0.0, (gradient * step).sum())))


def _length(slacks: Field, change: Field) -> float:
    """How far to go along a step: to the maximum on the line, by halving, and never out of the set."""
    falling = change < 0
    low, high = 0.0, _NEARLY_ALL * float((-slacks[falling] / change[falling]).min(initial=2.0))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (change / (slacks + middle * change)).sum() > 0:
            low = middle
        else:
            high = middle
    return low or high

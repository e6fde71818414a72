"""What the runs of the map say: one policy against the best of all others, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.regimes.cells import AXES, Cell
from benchmarks.regimes.play import BOUND

__all__ = ["METRICS", "Duel", "Map", "Score", "by_value", "geometric"]

#: What is compared, with its name on the page; less is better.
METRICS = {"avg_jct_s": "average JCT", "p95_jct_s": "95 % JCT", "ttd_s": "TTD"}


@dataclass(frozen=True)
class Duel:
    """In one cell, the means over the seeds of one policy and of the best of its rivals. ``error``: the standard error
    of their ratio, from other draws of the jobs; NaN of one draw."""

    cell: Cell
    ours: float
    rival: str
    theirs: float
    error: float = math.nan

    @property
    def ratio(self) -> float:
        """Above 1 = ours is better."""
        return self.theirs / self.ours


@dataclass(frozen=True)
class Score:
    """What duels in many cells come to; NaN and None of none."""

    mean: float
    worst: Duel | None
    ahead: int
    count: int

    @classmethod
    def of(cls, duels: Collection[Duel]) -> Score:
        worst = min(duels, key=lambda d: d.ratio, default=None)
        return cls(geometric(d.ratio for d in duels), worst, sum(d.ratio >= 1 for d in duels), len(duels))


class Map:
    """The runs by cell and policy, each a list over seeds.

    A policy that was too slow, failed, or left jobs undone with any seed is not judged in that cell, and where it lacks
    a seed that others have it is not either, so that all are judged by the same draws.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]
        self._runs: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
        self._bounds: dict[str, dict[int, float]] = {}
        for row in self.rows:
            if row["policy"] == BOUND:
                self._bounds.setdefault(row["cell"], {})[row["seed"]] = row["avg_jct_s"]
            else:
                self._runs.setdefault(row["cell"], {}).setdefault(row["policy"], {})[row["seed"]] = row
        self.cells = [Cell.named(name) for name in self._runs]
        self.policies = [p for p in dict.fromkeys(row["policy"] for row in self.rows) if p != BOUND]

    def mean(self, cell: Cell, policy: str, metric: str) -> float | None:
        """The mean over the seeds; None where the policy is not judged."""
        own = self._runs[cell.name].get(policy, {})
        if own.keys() != self._seeds(cell) or any("avg_jct_s" not in row or row["unfinished"] for row in own.values()):
            return None
        return fmean(row[metric] for row in own.values())

    def _seeds(self, cell: Cell) -> set[int]:
        return {seed for by_seed in self._runs[cell.name].values() for seed in by_seed}

    def bound(self, cell: Cell) -> float | None:
        """What no policy's average JCT can be below, a mean over the seeds; None where it is not known of each."""
        bounds = self._bounds.get(cell.name, {})
        return fmean(bounds.values()) if bounds.keys() == self._seeds(cell) else None

    def best(self, cell: Cell, policies: Iterable[str], metric: str) -> tuple[str, float] | None:
        """Who is best in a cell, and how good."""
        found = [(value, p) for p in policies if (value := self.mean(cell, p, metric)) is not None]
        if not found:
            return None
        value, policy = min(found)
        return policy, value

    def duels(self, policy: str, metric: str, rivals: Callable[[str], bool] = lambda _: True) -> list[Duel]:
        """``policy`` against the best of ``rivals`` in each cell where both are judged."""
        found = []
        others = [p for p in self.policies if p != policy and rivals(p)]
        for cell in self.cells:
            ours, theirs = self.mean(cell, policy, metric), self.best(cell, others, metric)
            if ours is not None and theirs is not None:
                found.append(Duel(cell, ours, *theirs, self._error(cell, policy, theirs[0], metric)))
        return found

    def _error(self, cell: Cell, policy: str, rival: str, metric: str) -> float:
        """The standard error of the ratio of two means over the same draws, by the jackknife (Efron and Stein 1981)."""
        runs, seeds = self._runs[cell.name], sorted(self._seeds(cell))
        if len(seeds) < 2:
            return math.nan
        ours, theirs = (np.array([runs[p][seed][metric] for seed in seeds]) for p in (policy, rival))
        without = (theirs.sum() - theirs) / (ours.sum() - ours)
        return float(np.sqrt((len(seeds) - 1) / len(seeds) * ((without - without.mean()) ** 2).sum()))

    @property
    def fewest_and_most_seeds(self) -> tuple[int, int]:
        counts = [len(self._seeds(cell)) for cell in self.cells]
        return min(counts), max(counts)

    def absent(self, policy: str) -> list[Cell]:
        """Where it was not run at all."""
        return [cell for cell in self.cells if policy not in self._runs[cell.name]]

    def unjudged(self, policy: str) -> list[Cell]:
        return [cell for cell in self.cells if self.mean(cell, policy, "avg_jct_s") is None]


def geometric(ratios: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(fmean(logs)) if logs else math.nan


def by_value(duels: Sequence[Duel]) -> list[tuple[str, str, list[float]]]:
    """The ratios of the map's cells with each value of each axis: (axis, value, ratios)."""
    found = []
    on_map = [duel for duel in duels if len(duel.cell.values) == len(AXES)]
    for axis, values in AXES.items():
        for value in values:
            ratios = [duel.ratio for duel in on_map if duel.cell[axis] == value]
            if ratios:
                found.append((axis, value, ratios))
    return found

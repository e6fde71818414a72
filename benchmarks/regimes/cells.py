"""The cells of the map: axes, and designs that cover every pair of their values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["AXES", "Cell", "Value", "chosen", "covering", "draws"]

#: A value of an axis, as it stands in the names of cells.
Value = str

#: What cells differ in, and the values; in the order in which they stand in a cell's name.
AXES: Mapping[str, tuple[Value, ...]] = {
    "gpus": ("12", "60", "240"),
    "shares": ("equal", "unequal"),
    "load": ("0.6", "0.9", "1.2", "once"),
    "restart": ("0.5%", "5%", "20%"),
    "movable": ("all", "half", "none"),
    "gangs": ("rigid", "elastic"),
    "lengths": ("stated", "predicted", "unknown"),
    "median": ("10min", "2h"),
    "speeds": ("known", "wrong"),
}
_TIMES, _TIMES_FULL = 3, 9  # how often each pair is covered, at least
_DRAWS, _DRAWS_OF_FEW = 3, 9  # of the jobs of a cell; a cell of 12 GPUs has few, and a long one decides its figures


@dataclass(frozen=True, order=True)
class Cell:
    """A value of each axis of :data:`AXES`."""

    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        return "-".join(self.values)

    @classmethod
    def named(cls, name: str) -> Cell:
        return cls(tuple(name.split("-")))

    def __getitem__(self, axis: str) -> Value:
        return self.values[list(AXES).index(axis)]


def covering(axes: Mapping[str, Sequence[Value]], times: int = 1) -> list[Cell]:
    """Few cells in which every pair of values of two axes stands ``times`` times, or as often as there are such cells.

    Greedy, one cell after the other: that which has most pairs that are still wanted, among equals the first in an
    order that is shuffled with a fixed seed. Deterministic.
    """
    every = [Cell(values) for values in itertools.product(*axes.values())]
    random.Random("regimes").shuffle(every)
    pairs: dict[tuple[int, str, int, str], int] = {}
    held = [
        [pairs.setdefault((a, cell.values[a], b, cell.values[b]), len(pairs)) for a, b in _places(len(axes))]
        for cell in every
    ]
    has = np.zeros((len(every), len(pairs)), dtype=np.int32)
    for row, columns in enumerate(held):
        has[row, columns] = 1
    wanted = np.minimum(times, has.sum(axis=0))
    found = []
    while wanted.any():
        best = int(np.argmax(has @ (wanted > 0)))
        found.append(every[best])
        wanted = np.maximum(0, wanted - has[best])
        has[best] = 0
    return sorted(found, key=_order)


def _places(axes: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(axes), 2))


def _order(cell: Cell) -> tuple[int, ...]:
    return tuple(values.index(value) for value, values in zip(cell.values, AXES.values(), strict=True))


def chosen(*, quick: bool = False, full: bool = False) -> list[Cell]:
    """The cells of the map, ``full`` of a larger one, ``quick`` of one of 12 GPUs in which every pair stands once."""
    if quick:
        return covering({**AXES, "gpus": ("12",)})
    return covering(AXES, _TIMES_FULL if full else _TIMES)


def draws(cell: Cell) -> int:
    """With how many seeds a cell is drawn."""
    return _DRAWS_OF_FEW if cell["gpus"] == "12" else _DRAWS

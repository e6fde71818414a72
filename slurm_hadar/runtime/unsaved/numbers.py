"""Numbers of datasets that change while a training goes on, as a size of images that grows, or a count of epochs.

A run that is resumed does again what the script does before an epoch's batches. So a number that is set there at one
epoch after the other, as by ``dataset.set_epoch(epoch)``, is no loss; one that is set in a certain epoch alone is.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

__all__ = ["REMEDY", "Numbers"]

REMEDY = "(set them in every run by run.step, or by the epoch at the beginning of each turn of run.epochs())"


class Numbers:
    """``of``: what tells them (``get_state``), by what they are called."""

    def __init__(self, of: Mapping[str, Any]) -> None:
        self._of = of
        self._known: dict[str, bytes] = {}
        self._ahead: dict[str, bytes] = {}
        self._once, self._each, self._lost = set[str](), set[str](), set[str]()

    def begin(self) -> None:
        """The first turn is over."""
        self._known = self._now()

    def before_epoch(self) -> None:
        """The script is about to be given an epoch."""
        self._ahead = self._now()

    def begin_epoch(self) -> None:
        """It asks for the epoch's first batch."""
        ahead, self._ahead = self._ahead, {}
        now = self._now() if ahead else {}
        for name, before in ahead.items():
            if now[name] == before:
                self._lost |= {name} & (self._once - self._each)
                continue
            (self._each if name in self._once else self._once).add(name)
            if self._known.get(name) == before:
                self._known[name] = now[name]

    def found(self) -> set[str]:
        """Those that a resumed run would not have, and what helps."""
        now = self._now() if self._known else {}
        lost = self._lost | {name for name, known in self._known.items() if now[name] != known}
        return {f"{name} {REMEDY}" for name in lost}

    def _now(self) -> dict[str, bytes]:
        return {name: pickle.dumps(numbers.get_state()) for name, numbers in self._of.items()}

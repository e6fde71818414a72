"""Numbers of datasets that change while a training goes on, as a size of images that grows, or a count of epochs.

A run that is resumed does again what the script does before an epoch's batches. So a number that is set there, as by
``dataset.set_epoch(epoch)``, is no loss; whether it is set so in a certain epoch alone, a resumed run sees
(:mod:`slurm_hadar.runtime.unsaved.settings`).
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
        self._known |= {name: now[name] for name, before in ahead.items() if self._known.get(name) == before}

    def found(self) -> set[str]:
        """Those that a resumed run would not have, and what helps."""
        now = self._now() if self._known else {}
        return {f"{name} {REMEDY}" for name, known in self._known.items() if now[name] != known}

    def _now(self) -> dict[str, bytes]:
        return {name: pickle.dumps(numbers.get_state()) for name, numbers in self._of.items()}

"""Other callbacks of a trainer that hold tensors which go on with the training, as an average of its weights, and which
no checkpoint has: each is told of once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime.unsaved.carried import Known
from slurm_hadar.runtime.unsaved.held import Held

__all__ = ["Others"]

_LOOK_AT = (1, 2, 3, 10, 100, 1000)  # batches of this run; and before saves


class Others:
    """``advice``: what helps."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._held: dict[int, Held] = {}
        self._told: set[int] = set()
        self._batch = 0

    def look(self, callbacks: Iterable[Any], model: Any, saving: bool) -> None:
        """Between two batches, when all callbacks are done with the last one. ``callbacks``: those without a state;
        they are gone through only where they are looked at."""
        self._batch += 1
        if not saving and self._batch not in _LOOK_AT:
            return
        known, names = Known([model]), {name for name, _ in model.named_parameters()}
        for one in callbacks:
            held = self._held.setdefault(id(one), Held(one, modules=True))
            held.look(known, names)
            if held.gone_on and id(one) not in self._told:
                self._told.add(id(one))
                say(
                    f"WARNING: not saved, so a move or a restart sets it back: {held.gone_on} of the callback "
                    f"{type(one).__name__}. {self._advice}"
                )

"""Loaders that Accelerate has prepared: they fetch a batch ahead of the one that they give.

Of that batch a training that is resumed would see the same samples, but other random numbers, where those are drawn in
its own process: they were drawn before the last step, and would be drawn behind it. So the random states before each
fetch are kept with the position.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.lists import short

__all__ = ["Fetched", "base_of"]

_NONE: Any = object()


def base_of(loader: Any) -> Any:
    """The plain ``DataLoader`` from which Accelerate's takes its batches, one ahead; None for any other loader, and for
    one whose batches another worker fetches."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return None
    from torch.utils.data import DataLoader

    kind = type(loader)  # not isinstance: these loaders say that they are of their base's class
    shard = issubclass(kind, accelerate.DataLoaderShard)
    alone = issubclass(kind, accelerate.DataLoaderDispatcher) and loader.state.num_processes == 1
    base = loader.base_dataloader if shard or alone else None
    if type(base) is Fetched:
        base = base.loader
    return base if type(base) is DataLoader else None


class Fetched:
    """In the place of the loader from which Accelerate's takes its batches: keeps the random states before each.

    ``before``: how many of the pass were fetched before the last one, and the states then.
    """

    def __init__(self, loader: Any, generators: Sequence[Any]) -> None:
        self.loader, self._generators = loader, short(generators)
        self.before: tuple[int, dict[str, Any]] | None = None
        self._again: tuple[int, dict[str, Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The loader's: Accelerate's says that it is of its base's class, and scripts ask for that."""
        return type(self.loader)

    def again(self, before: tuple[int, dict[str, Any]] | None) -> None:
        """In the next pass the batch behind so many is fetched from these states (:attr:`before`)."""
        self._again = before

    def __iter__(self) -> Iterator[Any]:
        again, self._again = self._again, None
        batches = iter(self.loader)
        for number in count():
            now = rng.capture(self._generators)
            states = again[1] if again is not None and number == again[0] else now
            self.before = number, states
            if states is not now:
                rng.restore(states, self._generators)
            try:
                batch = next(batches, _NONE)
            finally:
                if states is not now:
                    rng.restore(now, self._generators)
            if batch is _NONE:
                return
            yield batch

"""``DataLoader``s of the script's own that keep their workers (``persistent_workers=True``), as for evaluation.

To start workers draws a number from PyTorch's generator, which such a loader does in its first epoch alone. In a
training that is resumed its workers are started once more: what that draws is put back, as often as there were such
loaders when the checkpoint was saved, so that dropout and shuffles go on as they would have.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, ClassVar

from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.generators import generators_of

__all__ = ["Kept", "mark_ours"]

_GET = "_get_iterator"  # PyTorch has no other place
_OURS = "_hadar_own"


class Kept:
    """Of this process. ``owed``: how many loaders are still to start the workers that they had when it was saved."""

    owed: ClassVar[int] = 0
    _begun: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    @classmethod
    def watch(cls) -> None:
        """See from now on which loaders start workers that they keep. Where PyTorch has not that place, they draw."""
        from torch.utils.data import DataLoader

        given = getattr(DataLoader, _GET, None)
        if given is None or hasattr(given, "watched"):
            return

        @functools.wraps(given)
        def get_iterator(loader: Any) -> Any:
            if not _draws_once(loader):
                return given(loader)
            cls._begun.add(loader)
            if not cls.owed:
                return given(loader)
            cls.owed -= 1
            generators = generators_of(loader)
            states = rng.capture(generators)
            started = given(loader)
            rng.restore(states, generators)
            started._reset(loader)  # noqa: SLF001 - as in every epoch but the first: then samplers draw
            return started

        get_iterator.watched = True  # type: ignore[attr-defined]
        setattr(DataLoader, _GET, get_iterator)

    @classmethod
    def count(cls) -> int:
        """Loaders that have drawn in the training so far: their workers are here, or were before it was resumed."""
        return cls._here() + cls.owed

    @classmethod
    def _here(cls) -> int:
        return sum(getattr(loader, "_iterator", None) is not None for loader in cls._begun)

    @classmethod
    def resume(cls, count: int) -> None:
        """The training goes on from where so many had drawn."""
        cls.owed = max(0, count - cls._here())


def mark_ours(loader: Any) -> None:
    """A loader of ours, whose place in the data is restored otherwise."""
    setattr(loader, _OURS, True)


def _draws_once(loader: Any) -> bool:
    """Whether it draws from PyTorch's generator, not its own, in its first epoch alone."""
    kept = getattr(loader, "persistent_workers", False) and loader.generator is None
    return bool(kept) and not hasattr(loader, _OURS)

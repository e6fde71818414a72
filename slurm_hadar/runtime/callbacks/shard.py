"""Hugging Face's batches of a training, with a position that can be gone back to.

The Trainer itself begins the epoch that it resumes from other random numbers, and so in another order where they decide
it; it fetches a batch ahead, whose random numbers (augmentation) it draws anew; and it takes the passes over a stream,
whose length it does not know, for one. Here, as in :mod:`slurm_hadar.runtime.batches.data`, the epoch is begun again
from the random states of its beginning, the batches that were used are left out, and the one that was fetched ahead is
fetched from the states of that moment.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.fetched import base_of
from slurm_hadar.runtime.batches.generators import generators_of
from slurm_hadar.runtime.batches.lists import short
from slurm_hadar.runtime.batches.positioned import enter, warm_up
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["Place", "Placed"]

_NONE: Any = object()
_REPLACED = ("get_train_dataloader", "_init_training_state", "_run_epoch")


@dataclass(frozen=True, slots=True)
class Place:
    """Of one worker: the epoch, and how many of its batches were used; its random states at the epoch's beginning,
    before the batch that was fetched ahead, and now. At the beginning of an epoch the Trainer has its own, but for
    those of generators that the data hold."""

    epoch: int
    used: int = 0
    begun: dict[str, Any] | None = None
    ahead: dict[str, Any] | None = None
    now: dict[str, Any] | None = None


class _Batches:
    """In the place of the loader from which accelerate's ``DataLoaderShard`` takes its batches, one ahead.

    ``start``: where the first pass begins. Draws as the loader itself does.
    """

    def __init__(self, loader: Any, start: Place | None) -> None:
        self._loader, self._start = loader, start
        self._generators = generators_of(loader)
        self._drawn = short(self._generators)
        self._begun: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._fetched, self.ended = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches, now = self._enter()
        while True:
            self._before = rng.capture(self._drawn)
            batch = next(batches, _NONE)
            if now is not None:  # the steps that were made since it was fetched the first time
                rng.restore(now, self._generators)
                now = None
            if batch is _NONE:
                self.ended = True
                return
            self._fetched += 1
            yield batch

    def _enter(self) -> tuple[Iterator[Any], dict[str, Any] | None]:
        """A pass, and the random states behind its first batch where they are others than that leaves."""
        start, self._start = self._start, None
        self.ended, self._fetched = False, 0
        if start is not None and start.epoch:
            warm_up(self._loader)
        if start is None or start.begun is None:
            if start is not None and start.now is not None:
                rng.restore_held(start.now, self._generators)
            self._begun = rng.capture(self._generators)
            return iter(self._loader), None
        self._begun, self._fetched = start.begun, start.used
        rng.restore(start.begun, self._generators)
        batches = enter(self._loader, start.used, first=not start.epoch)
        if batches is None:
            batches = iter(self._loader)
            for _ in range(start.used):
                next(batches, None)
        else:
            warm_up(self._loader)  # for the epochs that follow: this one is gone through by a copy of it
        assert start.ahead is not None
        rng.restore(start.ahead, self._generators)
        return batches, start.now

    def place(self, epoch: int) -> Place | None:
        """After a step, when all that the Trainer was given is used, and one is fetched ahead. None: the epoch is gone
        through by another loader."""
        if self._begun is None:
            return None
        if self.ended:
            return self.over(epoch)
        return Place(epoch, self._fetched - 1, self._begun, self._before, rng.capture(self._generators))

    def over(self, epoch: int) -> Place:
        """When all of an epoch is used: the beginning of the next one."""
        return Place(epoch + 1, now=rng.capture(self._generators))


class Placed:
    """Sees to it that a Trainer's batches have a place, by replacing methods of this Trainer alone.

    ``start``: where the training was; None: it begins, or nobody knows.
    """

    def __init__(self, trainer: Any, gang: Gang, start: Place | None) -> None:
        self._trainer, self._gang, self._start = trainer, gang, start
        self._epoch = 0
        self._batches: _Batches | None = None
        given = {name: getattr(trainer, name) for name in _REPLACED}

        def get_train_dataloader() -> Any:
            loader = given["get_train_dataloader"]()
            self._take(loader)
            return loader

        def init_training_state(*args: Any, **kwargs: Any) -> Any:
            found = given["_init_training_state"](*args, **kwargs)
            if self._batches is None or self._start is None:
                return found
            return self._start.epoch, self._start.used

        def run_epoch(**kwargs: Any) -> Any:
            self._epoch = kwargs["epoch"]
            start, self._start = self._start, None
            resumed = self._batches is not None and start is not None and start.used > 0
            with self._entered() if resumed else contextlib.nullcontext():
                return given["_run_epoch"](**kwargs)

        trainer.get_train_dataloader = get_train_dataloader
        trainer._init_training_state, trainer._run_epoch = init_training_state, run_epoch

    def _take(self, loader: Any) -> None:
        """A stream that one worker reads for all is not placed: what its loader draws, the others do not see."""
        base = base_of(loader)
        if base is not None:
            self._batches = loader.base_dataloader = _Batches(base, self._start)
            return
        warm_up(getattr(loader, "base_dataloader", loader))
        if self._gang.leads:
            say("WARNING: only the Trainer itself can find its place in these batches: resumed, it may see others")

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """The Trainer's own ways to find its place in an epoch do nothing."""
        trainer = self._trainer
        home: Any = sys.modules["transformers.trainer"]
        skip = home.skip_first_batches
        home.skip_first_batches = lambda loader, _count: loader
        trainer._load_rng_state = lambda _checkpoint: None
        try:
            yield
        finally:
            home.skip_first_batches = skip
            del trainer._load_rng_state

    @property
    def pass_over(self) -> bool:
        """Whether the epoch has no further batch; the Trainer has still to end it."""
        return self._batches is not None and self._batches.ended

    def place(self, epoch_over: bool) -> Place | None:
        """Where the training is now; None if only the Trainer knows."""
        if self._batches is None:
            return None
        if epoch_over:
            return self._batches.over(self._epoch)
        return self._batches.place(self._epoch)

    def leave(self) -> None:
        """Give the Trainer its own methods back."""
        for name in _REPLACED:
            self._trainer.__dict__.pop(name, None)

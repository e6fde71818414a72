"""Lightning's loader of training batches, with a position in the epoch that can be gone back to.

Lightning itself begins an epoch anew when it resumes in the midst of one, and counts on from the old place. Here, as in
:mod:`slurm_hadar.runtime.batches.data`, the epoch is begun again from the random states of its beginning, and the
batches that were used are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.generators import generators_of
from slurm_hadar.runtime.batches.positioned import enter, length_of, warm_up

__all__ = ["Position", "entered", "positioned"]


@dataclass(slots=True)
class Position:
    """Batches of the epoch that were used; this worker's random states at the epoch's beginning, and now; whether its
    loaders keep workers since an epoch before it; whether those of the validation do; of each loader that begins again
    in the midst of the epoch, the random states before its latest passes, by their numbers.

    Where a batch is fetched ahead, ``ahead`` are the states before it, ``now`` those before the one that follows it,
    and ``after`` those behind that. ``now`` None: the epoch has not begun yet.
    """

    used: int
    epoch: dict[str, Any] | None
    now: dict[str, Any] | None
    begun: int = 0  # of an older version: the epoch's number
    validated: bool = False
    passes: list[dict[int, dict[str, Any]]] = field(default_factory=list)
    ahead: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class _Cycled:
    """One of several loaders, which begins again when it is used up before the others are.

    Its order is then drawn while the model draws, so that the states are kept, and a resumed run goes on with them.
    """

    def __init__(self, loader: Any, generators: Callable[[], list[Any]]) -> None:
        self._loader, self._generators, self._number = loader, generators, 0
        self.passes: dict[int, dict[str, Any]] = {}
        self.start: dict[int, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        self._number += 1
        if self._number in self.start:
            rng.restore(self.start.pop(self._number), self._generators())
        if self._number > 1:  # the first is the epoch's own; two, since one may be of a batch that is fetched ahead
            self.passes = dict([*self.passes.items(), (self._number, rng.capture(self._generators()))][-2:])
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


class _Begun:
    """An iterator where Lightning wants an iterable, with the length of the whole."""

    def __init__(self, batches: Iterator[Any], length: int) -> None:
        self._batches, self._length = batches, length

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __len__(self) -> int:
        return self._length


class _Positions:
    """In front of a ``CombinedLoader``: an epoch begins when its first batch is asked for, not before.

    Lightning tells samplers the epoch's number only after it has made the first iterator.
    """

    _mode: str
    _limits: Any
    flattened: list[Any]
    _iterator: Any
    _cycled: list[_Cycled]
    start: Position | None = None
    epoch_states: dict[str, Any] | None = None
    states: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    begun = False
    fetches_ahead = False
    _held: list[Any]
    _then: dict[str, Any] | None = None
    _begun = True
    _wanted = False

    def __iter__(self) -> Any:
        if not self._begun and self.start is None:  # Lightning begins with loaders made anew twice: that draws, too
            iter(self._iterator)
        self._cycled = [_Cycled(loader, self.generators) for loader in self.flattened] if self._cycles() else []
        self._iterator = _iterator_class(self)(self._cycled or self.flattened, self._limits)
        self._begun = False
        return self

    def __next__(self) -> Any:
        if not self._begun:
            self._begun = True
            self._begin()
        elif self._then is not None:
            rng.restore(self._then, self._held)
            self._then = None
        if self.fetches_ahead:
            self.before, self.states = self.states, rng.capture(self._held)
        elif self._wanted:
            self._wanted, self.states = False, rng.capture(self.generators())
        return super().__next__()  # type: ignore[misc]

    def generators(self) -> list[Any]:
        """The user's own generators, whose states belong to the position."""
        return [g for loader in self.flattened for g in generators_of(loader)]

    def _cycles(self) -> bool:
        return self._mode == "max_size_cycle" and len(self.flattened) > 1

    @property
    def passes(self) -> list[dict[int, dict[str, Any]]]:
        return [loader.passes for loader in self._cycled]

    def capture_next(self) -> None:
        """Keep the random states just before the next batch is fetched, in ``states``.

        Where a batch is fetched ahead, that was done before a save was due: those of the last two are always kept.
        """
        self._wanted = True
        if not self.fetches_ahead:
            self.states = None

    def _begin(self) -> None:
        start, self.start = self.start, None
        if start is not None and start.begun:
            for loader in self.flattened:
                warm_up(loader)
        self.begun = entered(self)
        if start is not None and start.epoch is not None:
            rng.restore(start.epoch, self.generators())
        self.epoch_states = rng.capture(self.generators())
        for loader, passes in zip(self._cycled, start.passes if start is not None else (), strict=False):
            loader.start = dict(passes)
        if start is None or not start.used:
            iter(self._iterator)
        else:
            self._leave_out(start.used, first=not start.begun)
        # Lightning fetches a batch ahead, to know which one is the last
        self._held, self.fetches_ahead = self.generators(), length_of(self) is None
        if start is not None and start.ahead is not None:
            rng.restore(start.ahead, self._held)
            self._then = start.now
        elif start is not None and start.now is not None:
            rng.restore(start.now, self._held)

    def _leave_out(self, used: int, first: bool) -> None:
        batches = enter(self.flattened[0], used, first) if len(self.flattened) == 1 else None
        if batches is None:
            iter(self._iterator)
            for _ in range(used):
                super().__next__()  # type: ignore[misc]
            return
        warm_up(self.flattened[0])  # for the epochs that follow: this one is gone through by a copy of it
        self._iterator.iterables = [_Begun(batches, len(self.flattened[0]))]
        iter(self._iterator)
        self._iterator._idx = used


def entered(combined_loader: Any) -> bool:
    """Whether some of its loaders keep the workers that they were gone through with."""
    return any(getattr(loader, "_iterator", None) is not None for loader in combined_loader.flattened)


def positioned(source: Any, combined_loader: type) -> Any:
    """``source`` (a loader, or what ``combined_loader`` takes of several) as a CombinedLoader with positions."""
    mode = "max_size_cycle"  # what Lightning takes for training
    if isinstance(source, combined_loader):
        source, mode = source.iterables, source._mode  # type: ignore[attr-defined]
    made = type("PositionedLoader", (_Positions, combined_loader), {})
    return made(source, mode)


def _iterator_class(loader: Any) -> Any:
    (base,) = [c for c in type(loader).__mro__ if c.__name__ == "CombinedLoader"]
    return sys.modules[base.__module__]._SUPPORTED_MODES[loader._mode]["iterator"]

"""What a loop over the run itself keeps in numbers of the script's: a best value, an exploration's epsilon, counts,
lists of losses. No checkpoint holds those that were not given to ``train``.

A variable counts if it changes, and the loop reads it before it sets it anew
(:mod:`slurm_hadar.runtime.unsaved.liveness`); but not if the loop sets it to a constant, too, as a sum that is printed
now and then (:mod:`slurm_hadar.runtime.unsaved.stores`), unless that is done where a better value is kept (a patience).
Nor the times of a clock. An attribute of an object of a class of the script's counts if a method, or the loop itself,
reckons it from what it was, and none sets it to a constant.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import CO_GENERATOR
from typing import Any, NamedTuple

from slurm_hadar.runtime.unsaved.carried import Carried, variables_of
from slurm_hadar.runtime.unsaved.liveness import live, named
from slurm_hadar.runtime.unsaved.stores import Stores, stores_of
from slurm_hadar.runtime.unsaved.tallies import (
    Content,
    attributes_of,
    counted_by,
    is_librarys,
    numbers_in,
    objects_in,
    went,
)

__all__ = ["Flat"]

_OURS = "slurm_hadar.runtime"
_LOOP = "_loop"
_FRAMES = 16
_LONG_AGO_S = 30 * 86400.0
_NONE: Any = object()


class _Place(NamedTuple):
    """A frame, its variables, and what its loop sets."""

    frame: types.FrameType
    variables: Mapping[str, Any]
    stores: Stores


class Flat:
    """``carried``: knows where ``train`` was called; None where nothing is looked at. mine: what the training saves."""

    def __init__(self, carried: Carried | None, mine: Callable[[], Iterable[Any]] = tuple) -> None:
        self._carried, self._mine = carried, mine
        self._first: dict[str, Any] | None = None
        self._with_it = dict[str, set[str]]()
        self._turns, self._counts = 0, dict[str, bool]()  # of what has changed: whether it counts the turns

    def begin(self) -> None:
        """The first turn is about to begin."""
        if self._first is None:
            self._try(self._begin)

    def leave(self) -> None:
        """The script goes through epochs: another looks."""
        self._carried = None

    def look(self, turns: int) -> None:
        """So many turns of this run are over; called by what waits for the next one."""
        self._turns = turns
        if self._first is not None:
            self._try(self._look)

    def found(self) -> dict[str, bool]:
        """Their names, and whether it is a count of the turns."""
        return dict(self._counts)

    def _try(self, look: Callable[[], None]) -> None:
        if self._carried is not None and not went(look):
            self._carried = None

    def _begin(self) -> None:
        self._first = self._now()

    def _look(self) -> None:
        first, now = self._first, self._now()
        assert first is not None
        for name, value in now.items():
            before = first.setdefault(name, value)
            if isinstance(value, Content) or isinstance(before, Content):
                if not (isinstance(value, Content) and isinstance(before, Content) and value.of == before.of):
                    first[name] = value  # another list
                    continue
                before, value = before.word, value.word
            if not _differ(before, value) or _is_time(value):
                continue
            counts = type(before) is type(value) is int and value - before == self._turns
            self._counts[name] = counts and self._counts.get(name, True)
        beside = {name for best in self._counts for name in self._with_it.get(best, ())}
        for name in sorted(beside & now.keys()):  # a patience may be 0 whenever it is looked at
            if not _is_time(now[name]):
                self._counts.setdefault(name, False)

    def _now(self) -> dict[str, Any]:
        frames = self._frames()
        running = {frame.f_code for frame in frames}
        stores = [stores_of(frame.f_code, frame.f_lasti, frame.f_globals) for frame in frames]
        anew = {path for of in stores for path in of.anew if path.startswith("self.")}
        found, mine = dict[str, Any](), list(self._mine())
        for place in _places(frames, stores):
            held = objects_in({**place.frame.f_globals, **place.variables}, place.variables.get("self"))
            held = {name: one for name, one in held.items() if name not in place.stores.stored}
            kinds = {kind: _begun_anew(kind, running) for kind in {type(one) for one in held.values()}}
            out = anew | place.stores.anew
            out |= {f"{name}.{attribute}" for name, one in held.items() for attribute in kinds[type(one)]}
            words = attributes_of(held, mine, counted_by)
            found |= {name: word for name, word in words.items() if name not in out}
            there = {name: _value(place, name) for name in sorted(_names(place, out))}
            self._with_it |= place.stores.with_it
            found |= numbers_in(there, mine)
        return found

    def _frames(self) -> list[types.FrameType]:
        """That which goes through the loop, and those around it up to the one that has called ``train``."""
        frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the script's is behind ours
        within = False
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
            within = within or frame.f_code.co_name == _LOOP
            frame = frame.f_back
        found = list[types.FrameType]()
        while within and frame is not None and len(found) < _FRAMES:
            if not is_librarys(frame):
                found.append(frame)
            assert self._carried is not None
            if frame.f_locals is frame.f_globals:  # what imports or runs a module is none of its business
                break
            if id(frame) == self._carried.frame and frame.f_code is self._carried.code:
                break
            frame = frame.f_back
        return found


def _places(frames: list[types.FrameType], stores: list[Stores]) -> Iterator[_Place]:
    """But generators, which mostly print, and functions that another's loop calls: these begin anew in each call."""
    for n, (frame, of) in enumerate(zip(frames, stores, strict=True)):
        is_modules = frame.f_locals is frame.f_globals
        if not frame.f_code.co_flags & CO_GENERATOR and (is_modules or not any(one.again for one in stores[n + 1 :])):
            yield _Place(frame, variables_of(frame), of)


def _names(place: _Place, anew: set[str]) -> set[str]:
    """Variables, and attributes of what they name, that go on from turn to turn."""
    code, of = place.frame.f_code, place.stores
    alive = live(code, place.frame.f_lasti)
    out = anew | of.places | of.given
    kept = {
        name for name in of.stored if name in alive or ("." in name and (name in of.reckoned or name in of.with_it))
    }
    kept -= out
    kept |= {name for best in kept for name in of.with_it.get(best, ()) if name in alive and name not in of.given}
    filled = (alive & named(code)[0]) - out
    lists = {name for name in kept | filled if isinstance(_value(place, name), (list, dict))}
    return (kept - lists) | {name for name in lists if name not in of.stored or name in of.added}


def _value(place: _Place, path: str) -> Any:
    """Of a variable, or of an attribute that the object itself holds."""
    name, *attributes = path.split(".")
    value = place.variables.get(name, place.frame.f_globals.get(name, _NONE))
    for attribute in attributes:
        value = getattr(value, "__dict__", {}).get(attribute, _NONE)
    return value


def _begun_anew(kind: type, running: set[types.CodeType]) -> set[str]:
    """Attributes that methods of a class set to constants, but for those that run right now."""
    found = set[str]()
    for of in kind.__mro__:
        for method in vars(of).values():
            if not isinstance(method, types.FunctionType) or method.__name__ == "__init__":
                continue
            if method.__code__ not in running:
                found |= stores_of(method.__code__, None, method.__globals__).anew
    return {path.removeprefix("self.") for path in found if path.startswith("self.")}


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other) and not (one != one and other != other)  # of two that are no numbers


def _is_time(value: Any) -> bool:
    """Whether it is one of the clock's, of late."""
    ago = time.time_ns() / 1e9 - (value / 1e9 if type(value) is int else value if type(value) is float else 0)
    return 0 <= ago < _LONG_AGO_S

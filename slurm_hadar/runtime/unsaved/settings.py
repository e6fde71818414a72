"""What a script sets in its data from epoch to epoch: a transform, a switch, a list of samples, a size of images.

A run that is resumed does again what the script does before an epoch's batches. What is set there by the epoch's
number is as it was; what was set in a certain epoch, or behind one, is not. So what there is when an epoch's batches
begin is noted in each checkpoint, in words, and a resumed run that begins with something else says so. What changes
while batches are made is the data's own business: files that are opened lazily, caches, counts.
"""

from __future__ import annotations

import functools
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_hadar.runtime.batches.generators import used_by

__all__ = ["Settings", "words_of"]

_MOST, _DEEPEST, _WIDEST, _ENDS, _LOOKED_AT = 2000, 6, 64, 500, 1 << 16
_PLAIN = (bool, int, float, str, type(None))
_NAMED = 3
_OURS = "slurm_hadar"


class Settings:
    """``source``: of the batches."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._begun: dict[str, str] = {}
        self._own = set[str]()  # what the data change by themselves
        self._within = False
        self._then: Mapping[str, list[str]] = {}
        self._ahead: dict[str, str] | None = None  # None: resumed in the midst of an epoch

    def resumed(self, then: Mapping[str, list[str]], within_epoch: bool) -> None:
        """``then``: what a checkpoint holds, made in the midst of an epoch or between two."""
        self._then, self._ahead = then, None if within_epoch else _words(self._source)

    def begin_epoch(self) -> list[str]:
        """The script asks for an epoch's first batch. In a resumed run: what it has not set as it was."""
        self._begun, self._within = _words(self._source), True
        then, self._then = self._then, {}
        lost = {name for name, was in then.items() if self._begun.get(name, was[0]) not in was}
        if self._ahead is not None:  # what the script has set for this epoch is another matter
            lost = {name for name in lost if self._ahead.get(name) == self._begun[name]}
        return sorted(lost)

    def end_epoch(self) -> None:
        """Its batches are used up, or left."""
        self._see()
        self._within = False

    def saved(self) -> dict[str, list[str]]:
        """As a checkpoint holds it: how the epoch began and, between two, what there is behind it, which is another
        where a validation uses the same data. Nothing where no epoch has begun: only epochs compare it."""
        if not self._begun:
            return {}
        self._see()
        held = self._begun if self._within else _words(self._source)
        known = {name: word for name, word in held.items() if name not in self._own}
        return {name: sorted({word, self._begun.get(name, word)}) for name, word in known.items()}

    def _see(self) -> None:
        if self._within:
            now = _words(self._source)
            self._own |= {name for name in {*now, *self._begun} if now.get(name) != self._begun.get(name)}


def words_of(lost: list[str]) -> str:
    """What is told of it."""
    names = ", ".join(lost[:_NAMED]) + (", ..." if lost[_NAMED:] else "")
    return (
        f"WARNING: data are not as they were when the run before began this epoch, or ended the last one: {names}. So "
        "the training goes on otherwise than it would have. What changes from epoch to epoch is to be set at the "
        "beginning of each turn of run.epochs(), by the epoch; or give lists and dicts to train() as also=, and make "
        "the data of what they hold"
    )


def _words(source: Any) -> dict[str, str]:
    """What is held by the data sets, or read by the function that makes the batches, by name."""
    try:
        found, left = dict[str, str](), _MOST
        for name, value in _held(source):
            for path, word in _told(name, value, 0):
                found[path] = word
                if (left := left - 1) <= 0:
                    return found
        return found
    except Exception:  # whatever a script's objects think of being looked at
        return {}


def _held(source: Any) -> Iterator[tuple[str, Any]]:
    function = isinstance(source, types.FunctionType)
    queue = list(used_by(source)) if function else [("", getattr(source, "dataset", None))]
    known = set[int]()
    for called, one in queue:  # which grows meanwhile
        own = getattr(one, "__dict__", None)
        if isinstance(own, dict) and _is_data(type(one)):
            if id(one) not in known:
                known.add(id(one))
                queue += [("", own.get("dataset")), *(("", inner) for inner in own.get("datasets") or ())]
                yield from ((f"{type(one).__name__}.{name}", value) for name, value in own.items())
        elif called:
            yield called, one


def _is_data(kind: type) -> bool:
    goes = hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")
    return (
        goes and not issubclass(kind, type) and not hasattr(kind, "is_cuda") and not kind.__module__.startswith(_OURS)
    )


def _told(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """What a value is, in words that are the same in another process. Of what can be called, as transforms, also what
    it holds; of anything else that is no plain data, nothing."""
    if type(value) in _PLAIN:
        yield path, repr(value)
    elif isinstance(value, types.FunctionType):
        yield path, _function(value)
    elif isinstance(value, functools.partial):
        yield from _told(path, value.func, depth)
    elif isinstance(value, (list, tuple)):
        yield path, _items(value)
        for n, inner in enumerate(value) if len(value) <= _WIDEST and depth < _DEEPEST else ():
            if callable(inner):
                yield from _told(f"{path}[{n}]", inner, depth + 1)
    elif depth == 0 and (_is_tensor(value) or type(value).__name__ == "ndarray"):
        yield path, _numbers(value)
    elif callable(value) and not isinstance(value, type):
        yield path, f"{type(value).__module__}.{type(value).__qualname__}"
        for name, inner in _within(value).items() if depth < _DEEPEST else ():
            yield from _told(f"{path}.{name}", inner, depth + 1)


def _within(one: Any) -> dict[str, Any]:
    """What a transform holds; of a model with weights, nothing."""
    if any(True for _ in getattr(one, "parameters", tuple)()):
        return {}
    held = {**getattr(one, "__dict__", {}), **getattr(one, "_modules", {})}
    return {name: value for name, value in held.items() if name != "training"}


def _items(some: Any) -> str:
    ends = (*some[:_ENDS], *some[-_ENDS:])
    told = zlib.crc32(repr(ends).encode()) if all(type(one) in (int, str) for one in ends) else ""
    return f"{len(some)} items {told}"


def _function(one: types.FunctionType) -> str:
    code = one.__code__
    alike = f" {zlib.crc32(code.co_code)} {code.co_names}" if one.__name__ == "<lambda>" else ""
    return f"{one.__module__}.{one.__qualname__}{alike}"


def _is_tensor(one: Any) -> bool:
    return hasattr(type(one), "is_cuda")


def _numbers(one: Any) -> str:
    """Of a tensor in main memory, or an array that is no file: its size, and a sum of its first numbers."""
    if _is_tensor(one):
        if one.device.type != "cpu" or type(one).__name__ != "Tensor" or one.layout != sys.modules["torch"].strided:
            return ""
        first = one.detach().reshape(-1) if one.numel() <= _LOOKED_AT else one.detach()[:1].reshape(-1)
        one = first[:_LOOKED_AT].contiguous().view(sys.modules["torch"].uint8).numpy() if len(first) else first.numpy()
    if one.dtype.kind not in "biufc":
        return ""
    return f"{one.shape} {zlib.crc32(one.ravel()[:_LOOKED_AT].tobytes())}"

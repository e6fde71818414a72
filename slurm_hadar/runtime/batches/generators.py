"""The random number generators that a script gives its loaders and samplers."""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
import weakref
from collections.abc import Iterable
from typing import Any

__all__ = ["generators_of"]


_first: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()  # as a sampler was first seen


def generators_of(source: Any) -> list[Any]:
    """What the script draws its order from, whose states belong to the position: generators of PyTorch, NumPy and
    Python in its loaders, samplers, datasets and functions, and what its samplers count.

    Each has ``get_state``, ``set_state`` and ``manual_seed``. PyTorch's that are named ``generator`` come first, as in
    all versions.
    """
    held = [] if hasattr(source, "sampler") else _held_by(source)
    loaders = [source, *_loaders_in(held)]
    samplers = [sampler for loader in loaders for sampler in _samplers_of(loader)]
    named = [getattr(holder, "generator", None) for holder in (*loaders, *samplers)]
    for holder in (*loaders, *samplers, *(getattr(loader, "dataset", None) for loader in loaders)):
        held += [value for _, value in sorted(getattr(holder, "__dict__", {}).items())]
    unique = {id(one): one for one in (*named, *held)}
    found = [known for one in unique.values() if (known := _followed(one)) is not None]
    counting = {id(sampler): sampler for sampler in samplers if hasattr(sampler, "__dict__")}
    return [*found, *(_Counts(sampler) for sampler in counting.values())]


def _followed(one: Any) -> Any:
    """Something of which a state can be kept; None for anything else."""
    if isinstance(one, random.Random):
        return _Python(one)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, numpy.random.Generator):
        return _NumPy(one.bit_generator)
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return _NumPy(one._bit_generator)  # noqa: SLF001 - get_state() is for MT19937 alone
    return one if all(hasattr(one, name) for name in ("get_state", "set_state", "manual_seed")) else None


class _Python:
    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def get_state(self) -> Any:
        return self._generator.getstate()

    def set_state(self, state: Any) -> None:
        version, keys, gauss = state
        self._generator.setstate((version, tuple(keys), gauss))

    def manual_seed(self, seed: int) -> None:
        self._generator.seed(seed)


class _NumPy:
    def __init__(self, bits: Any) -> None:
        self._bits = bits

    def get_state(self) -> Any:
        return self._bits.state

    def set_state(self, state: Any) -> None:
        self._bits.state = state

    def manual_seed(self, seed: int) -> None:
        self._bits.state = type(self._bits)(seed).state


class _Counts:
    """The whole numbers of a sampler that are not what they were at first, as of one that counts its own epochs."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        with contextlib.suppress(TypeError):  # one that cannot be known again
            _first.setdefault(holder, self._numbers())

    def get_state(self) -> dict[str, int]:
        first = _first.get(self._holder, {})
        return {name: value for name, value in self._numbers().items() if first.get(name, value) != value}

    def set_state(self, state: dict[str, int]) -> None:
        for name in state.keys() & self._numbers().keys():
            setattr(self._holder, name, state[name])

    def manual_seed(self, seed: int) -> None:
        """What it counts is no chance."""

    def _numbers(self) -> dict[str, int]:
        return {name: value for name, value in vars(self._holder).items() if type(value) is int}


def _samplers_of(loader: Any) -> list[Any]:
    batches = getattr(loader, "batch_sampler", None)
    return [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]


def _held_by(source: Any) -> list[Any]:
    """What a function, or an object of the training's own, goes through; in an order of their names."""
    if inspect.isfunction(source):
        names = inspect.getclosurevars(source)
        held = {**names.globals, **names.nonlocals}
    else:
        held = getattr(source, "__dict__", {})
    found: list[Any] = []
    for _, value in sorted(held.items()):
        found += value if isinstance(value, (list, tuple)) else (value,)
    return found


def _loaders_in(held: Iterable[Any]) -> list[Any]:
    from torch.utils.data import DataLoader

    return [one for one in held if isinstance(one, DataLoader)]

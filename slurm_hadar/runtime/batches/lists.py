"""Which samples are drawn, where a script changes that in its loop: the indices of its subsets (active learning, mining
of hard examples), and lists of a sampler's or a dataset's that it changes in place: indices, labels, names of files, or
buckets of indices.

What is as it was at first is not saved. What has changed belongs to the position, as random states do: as it was when
the epoch began, of which the order follows, and as it is. A list that has become one of other things than numbers and
texts, as a cache of samples, is left alone.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

__all__ = ["changed_lists", "short"]

_first: dict[int, tuple[Any, Any, list[Any]]] = {}  # a subset, its indices as they were first seen, and their numbers
_WHOSE = (".sampler", ".batch_sampler", ".dataset")
_PLAIN = (bool, int, float, str, type(None))
_WORD = 1 << 63
_LEFT_ALONE = False  # the state of what is no list of plain data any more


def changed_lists(held: Iterable[tuple[str, Any]]) -> Iterator[Any]:
    """Of what a loader holds, by path."""
    data = sys.modules.get("torch.utils.data")
    within = set[int]()  # of buckets: they are kept with the list that they are in
    for path, one in held:
        if data is not None and isinstance(one, data.Subset):
            yield _Chosen(path, one)
        elif type(one) is list and path.startswith(_WHOSE) and id(one) not in within:
            if _is_of_numbers(one):
                yield _List(path, one)
            elif _is_of_buckets(one):
                within.update(map(id, one))
                yield _Buckets(path, one)


def short(held: Iterable[Any]) -> list[Any]:
    """Without lists, which may be as long as the data: what can be asked for its state at each batch."""
    return [one for one in held if not isinstance(one, (_Chosen, _List, _Buckets))]


def _is_of_numbers(one: list[Any]) -> bool:
    return bool(one) and (all(type(n) is int for n in one) or all(type(n) is str for n in one))


def _is_of_buckets(one: list[Any]) -> bool:
    return bool(one) and all(type(part) is list and all(type(n) is int for n in part) for part in one)


class _Chosen:
    """A subset's indices: others, or other ones in the same list."""

    def __init__(self, path: str, subset: Any) -> None:
        self.path, self.of = f"{path}%", subset
        known, *_ = _first.get(id(subset), (None,))
        if known is None or known() is not subset:
            key = id(subset)
            gone = weakref.ref(subset, lambda _: _first.pop(key, None))
            _first[key] = gone, subset.indices, _numbers(subset.indices)

    def get_state(self) -> Any:
        _, own, first = _first[id(self.of)]
        now = _numbers(self.of.indices)
        if _are_alike(now, first):
            return None
        packed = _packed(now)
        return packed if packed is _LEFT_ALONE else {"indices": packed, "in_place": self.of.indices is own}

    def set_state(self, state: Any) -> None:
        if _is_left_alone(self, state):
            return
        _, own, first = _first[id(self.of)]
        if state is None or state["in_place"]:
            self.of.indices = own
        indices = first if state is None else _unpacked(state["indices"])
        if _numbers(self.of.indices) == indices:
            return
        if hasattr(own, "new_tensor"):
            self.of.indices = own.new_tensor(indices)
        elif hasattr(own, "tolist"):  # NumPy's
            self.of.indices = sys.modules["numpy"].array(indices)
        elif type(own) is list and (state is None or state["in_place"]):
            own[:] = indices  # the script has it under another name, it may be
        else:
            self.of.indices = list(indices)

    def manual_seed(self, seed: int) -> None:
        """They are no chance."""


def _numbers(indices: Any) -> list[Any]:
    return list(indices.tolist() if hasattr(indices, "tolist") else indices)


class _List:
    """One that a sampler shuffles in place. One that it makes anew in each epoch stays as it is."""

    def __init__(self, path: str, held: list[Any]) -> None:
        self.path, self.of, self._first = f"{path}%", held, list(held)

    def get_state(self) -> Any:
        return None if _are_alike(self.of, self._first) else _packed(self.of)

    def set_state(self, state: Any) -> None:
        if not _is_left_alone(self, state):
            self.of[:] = self._first if state is None else _unpacked(state)

    def manual_seed(self, seed: int) -> None:
        """They are no chance."""


class _Buckets:
    """A list of lists of indices, which a sampler shuffles, it may be with what is in them."""

    def __init__(self, path: str, held: list[list[int]]) -> None:
        self.path, self.of, self._first = f"{path}%", held, [(bucket, list(bucket)) for bucket in held]

    def get_state(self) -> Any:
        if _are_alike(self.of, [numbers for _, numbers in self._first]):
            return None
        if not all(type(part) is list for part in self.of):
            return _LEFT_ALONE
        packed = _packed(list(chain.from_iterable(self.of)))
        return packed if packed is _LEFT_ALONE else {"sizes": _packed(list(map(len, self.of))), "indices": packed}

    def set_state(self, state: Any) -> None:
        if _is_left_alone(self, state):
            return
        for bucket, numbers in self._first:
            bucket[:] = numbers
        self.of[:] = [bucket for bucket, _ in self._first]
        if state is not None:
            indices = iter(_unpacked(state["indices"]))
            self.of[:] = [list(islice(indices, size)) for size in _unpacked(state["sizes"])]

    def manual_seed(self, seed: int) -> None:
        """They are no chance."""


def _is_left_alone(one: _Chosen | _List | _Buckets, state: Any) -> bool:
    """Whether what was saved of it, or what it holds now, is no plain data."""
    return state is _LEFT_ALONE or one.get_state() is _LEFT_ALONE


def _are_alike(one: list[Any], other: list[Any]) -> bool:
    try:
        return one == other
    except Exception:  # whatever else is in it now, as arrays, thinks of being compared
        return False


def _packed(values: list[Any]) -> Any:
    """As a tensor where it can be: a checkpoint of long lists takes long. _LEFT_ALONE where they are no plain data."""
    import torch

    plain = [one.item() if getattr(one, "ndim", None) == 0 else one for one in values]
    if not all(isinstance(one, _PLAIN) for one in plain):
        return _LEFT_ALONE
    if plain and all(type(one) is int and -_WORD <= one < _WORD for one in plain):
        return torch.tensor(plain, dtype=torch.int64)
    return plain


def _unpacked(state: Any) -> list[Any]:
    return list(state.tolist() if hasattr(state, "tolist") else state)

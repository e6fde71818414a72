"""Plain tensors and arrays of a script that go on from turn to turn, in its variables or in dicts, lists and deques:
a hidden state, an average of weights, a memory of transitions. No checkpoint holds what was not given to ``train``.
So it is with attributes of objects of the script's own that have no ``state_dict``, as a memory in a class.

A variable counts if it was there before the first turn, its values are others after several turns, and the loop reads
it before it sets it anew (:mod:`slurm_hadar.runtime.unsaved.liveness`). Values are compared by sums, so that nothing
of the script's is kept alive.
"""

from __future__ import annotations

import inspect
import sys
import types
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from slurm_hadar.runtime.checkpoint.states import sharded
from slurm_hadar.runtime.checkpoint.states.by_worker import sums_of
from slurm_hadar.runtime.unsaved.liveness import live, named

__all__ = ["Carried", "Known", "is_the_scripts", "leaves_within", "remedy", "sameness", "sums", "variables_of"]

_SEVERAL = 2  # looks between which a variable has changed
_WIDEST, _ENDS, _DEEPEST = 64, 16, 3  # of containers: those that are longer are looked at at both ends
_MOST, _LOOKED_AT = 2000, 1 << 16  # tensors and arrays at a look; elements of one
_MOST_KNOWN = 20_000  # objects that are saved
_FRAMES = 16
_NAMED = 3  # variables, in the remedy
_OURS = "slurm_hadar.runtime"
_MUTABLE = (dict, list, deque)
_OBJECTS, _WITHIN = 500, 2  # of the script's that are looked into; how deep one is in another
_NOT_THE_SCRIPTS = frozenset({"abc", "builtins", "numpy", "slurm_hadar", "torch"})  # classes of objects
_SAVED_OTHERWISE = ("state_dict", "__getitem__", "__iter__")  # looked at by others: what has a state, and data
_NOT_VARIABLES = frozenset({"_", "In", "Out"})  # of an interactive session


class _Place(NamedTuple):
    """A variable. live: whether the loop reads it before it sets it; None where the loop itself does neither. sets:
    whether it sets it at all."""

    value: Any
    live: bool | None
    sets: bool


@dataclass
class _Seen:
    """Of a variable at the last look."""

    same: Callable[[Any], bool]
    sums: Any
    size: int
    held: bool  # whether there were tensors or arrays before the first turn
    changes: int = 0
    what: str = ""


@dataclass
class Carried:
    """Those of the frame that calls ``train``, of the frame that goes through the loop, and of their module.

    mine: what the training saves: objects, and containers of plain data.
    """

    frame: int
    code: types.CodeType
    mine: Callable[[], Iterable[Any]]
    _seen: dict[Any, _Seen] = field(default_factory=dict)
    _on: bool = True

    @classmethod
    def of(cls, frame: types.FrameType, mine: Callable[[], Iterable[Any]]) -> Carried:
        return cls(id(frame), frame.f_code, mine)

    def begin(self) -> None:
        """The first turn is about to begin."""
        if not self._seen:
            self._try(first=True)

    def look(self) -> None:
        """A turn is over."""
        self._try(first=False)

    def found(self) -> dict[str, str]:
        """What goes on, by the variable's name."""
        return {name: seen.what for (_, name), seen in self._seen.items() if seen.changes >= _SEVERAL and seen.what}

    def _try(self, first: bool) -> None:
        if not self._on or "torch" not in sys.modules:
            return
        try:
            self._look(first)
        except Exception:  # whatever a script's objects think of being looked at
            self._on = False

    def _look(self, first: bool) -> None:
        places = _places(*self._frames())
        if not first:
            places = {key: place for key, place in places.items() if key in self._seen and place.live is not False}
        known = Known(self.mine())
        leaves = {key: known.without(_leaves(place)) for key, place in places.items()}
        summed = sums(leaves)
        for key, place in places.items():
            held, value = summed.get(key, {}), place.value
            size = len(value) if isinstance(value, _MUTABLE) else 0
            before = self._seen.get(key)
            now = _Seen(sameness(value), held, size, bool(held))
            if before is not None:
                now.held, now.changes, now.what = before.held, before.changes, before.what
                if id(value) not in known.ids and _has_gone_on(before, now, place):
                    now.changes += 1
                    now.what = f"the {_kind(value)} {key[1]}"
            self._seen[key] = now

    def _frames(self) -> list[types.FrameType]:
        """That which goes through the loop, and those around it up to the one that has called ``train``."""
        frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the script's is behind ours
        within = False
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
            within = within or frame.f_code.co_name == "_loop"
            frame = frame.f_back
        if frame is None or not within:
            return []
        found = [frame]
        while frame is not None and len(found) < _FRAMES:
            if id(frame) == self.frame and frame.f_code is self.code:
                return found
            frame = frame.f_back
            if frame is not None:
                found.append(frame)
        return found[:1]


def _has_gone_on(before: _Seen, now: _Seen, place: _Place) -> bool:
    if not now.sums or now.sums == before.sums:
        return False
    if isinstance(place.value, _MUTABLE) and (not place.sets or before.same(place.value)):
        # what is empty at first and has as much after each turn is filled anew in each, as by hooks
        return before.same(place.value) and (before.held or now.size > before.size or _is_full(place.value))
    return bool(place.live) or before.same(place.value)


def _is_full(value: Any) -> bool:
    return isinstance(value, deque) and value.maxlen is not None and len(value) == value.maxlen


def _kind(value: Any) -> str:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return "tensor"
    kinds = (dict, list, tuple, deque, *((type(value),) if isinstance(value, Mapping) else ()))
    return next((kind.__name__ for kind in kinds if isinstance(value, kind)), "array")


def sameness(value: Any) -> Callable[[Any], bool]:
    """Tells whether another value is the same object, which is not kept."""
    try:
        kept = weakref.ref(value)
    except TypeError:
        key = id(value)
        return lambda other: id(other) == key
    return lambda other: kept() is other


def _places(*frames: types.FrameType) -> dict[Any, _Place]:
    """By where it is and its name."""
    found: dict[Any, _Place] = {}
    spaces: dict[int, Mapping[str, Any]] = {}
    verdicts: dict[tuple[int, str], tuple[bool, bool]] = {}  # whether it is read first, and whether it is set
    for frame in frames:
        own = variables_of(frame)
        module, local = id(frame.f_globals), id(frame.f_code)
        spaces[module] = frame.f_globals
        if own is not frame.f_globals:
            spaces[local] = {**own, **_attributes(own.get("self"), "self")}
        alive, (_, sets) = live(frame.f_code, frame.f_lasti), named(frame.f_code)
        for name in alive | sets:
            space = local if name.partition(".")[0] in own and own is not frame.f_globals else module
            reads, was_set = verdicts.get((space, name), (False, False))
            verdicts[space, name] = reads or name in alive, was_set or name in sets
    for space, variables in spaces.items():
        for name, value in variables.items():
            if name.startswith("__") or name in _NOT_VARIABLES or not _may_hold(value):
                continue
            found[space, name] = _Place(value, *verdicts.get((space, name), (None, False)))
    named_before = set[int]()
    for space, variables in reversed(spaces.items()):  # where train() was called has the names that its call can take
        for path, value in _within_objects(variables):
            if id(value) not in named_before:
                found.setdefault((space, path), _Place(value, None, sets=False))
            named_before.add(id(value))
    return found


def _within_objects(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What attributes hold of objects in these variables, and of objects in those, by its path."""
    todo = deque((name, value, 0) for name, value in variables.items() if not name.startswith("__"))
    known = set[int]()
    while todo and len(known) < _OBJECTS:
        path, one, depth = todo.popleft()
        if id(one) in known or not is_the_scripts(one):
            continue
        known.add(id(one))
        for name, value in _attributes(one, path).items():
            if value is not None and _may_hold(value):
                yield name, value
            elif depth + 1 < _WITHIN:
                todo.append((name, value, depth + 1))


def is_the_scripts(one: Any) -> bool:
    """Whether it is an object of which nobody else knows what goes on in it. Metrics begin anew by themselves."""
    kind = type(one)
    if isinstance(one, type) or str(kind.__module__).partition(".")[0] in _NOT_THE_SCRIPTS:
        return False
    is_metric = hasattr(kind, "compute") and hasattr(kind, "reset")
    return not is_metric and not any(hasattr(kind, name) for name in _SAVED_OTHERWISE)


def variables_of(frame: types.FrameType) -> Mapping[str, Any]:
    """Those of a function, without keeping them: until Python 3.12 its frame holds a copy of all that was asked for."""
    there = frame.f_locals
    if there is frame.f_globals or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return there
    found = {name: value for name, value in there.items() if value is not there}  # by locals()
    nobody_elses = 3  # the frame's, ours, and the one that counts
    if type(there) is dict and sys.gettrace() is None and sys.getrefcount(there) <= nobody_elses:
        there.clear()
    return found


def _attributes(one: Any, path: str) -> dict[str, Any]:
    try:
        held = one.__dict__
    except Exception:  # whatever a script's objects think of being looked at
        return {}
    return {f"{path}.{name}": value for name, value in held.items()} if isinstance(held, dict) else {}


def _may_hold(value: Any) -> bool:
    return value is None or isinstance(value, (tuple, Mapping, *_MUTABLE)) or _is_leaf(value)


def _is_leaf(value: Any) -> bool:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return isinstance(value, torch.Tensor) or (numpy is not None and isinstance(value, numpy.ndarray))


def _leaves(place: _Place) -> dict[str, Any]:
    """Tensors and arrays of more than one element, by where they are in the variable. In a container that is only
    filled what has a history of gradients is made anew in each turn."""
    all_of_it = place.sets or not isinstance(place.value, _MUTABLE)
    return {
        path: one for path, one in leaves_within("", place.value) if all_of_it or getattr(one, "grad_fn", None) is None
    }


def leaves_within(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Tensors and arrays of more than one element that a value is or, if it is a container, holds."""
    if isinstance(value, (tuple, Mapping, *_MUTABLE)):
        if depth < _DEEPEST:
            for key, inner in _some_of(value):
                yield from leaves_within(f"{path}.{key}", inner, depth + 1)
    elif _is_leaf(value) and _is_readable(value):
        yield path, value


def _some_of(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        if len(value) <= _WIDEST:
            return list(value.items())
        keys = [*islice(value, _ENDS), *islice(reversed(value), _ENDS)]
        return [(key, value[key]) for key in keys]
    if isinstance(value, Mapping):  # a TensorDict's length is that of its batch
        return list(islice(value.items(), _WIDEST))
    if len(value) <= _WIDEST:
        return list(enumerate(value))
    return [(n, value[n]) for n in (*range(_ENDS), *range(-_ENDS, 0))]


def _is_readable(one: Any) -> bool:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    if isinstance(one, torch.Tensor):
        odd = sharded.is_sharded(one) or one.layout != torch.strided or one.is_quantized or one.is_meta
        return not odd and one.numel() > 1 and not isinstance(one, torch.nn.Parameter)
    return numpy is not None and one.size > 1 and one.dtype.kind in "biufc" and not isinstance(one, numpy.memmap)


def sums(leaves: Mapping[Any, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    """What tells the values of each variable's from others."""
    torch = sys.modules["torch"]
    found: dict[Any, dict[str, Any]] = {key: {} for key in leaves}
    tensors, where = dict[str, Any](), dict[str, tuple[Any, str]]()
    for key, path, one in islice(((k, p, o) for k, held in leaves.items() for p, o in held.items()), _MOST):
        if not isinstance(one, torch.Tensor):
            found[key][path] = _sum_of_array(one)
            continue
        large = one.numel() > _LOOKED_AT
        # what autograd counts changes by
        found[key][path] = one._version if large and not one.is_inference() else 0  # noqa: SLF001
        if not large or one.is_contiguous():
            where[str(len(where))] = key, path
            tensors[str(len(tensors))] = one.detach().reshape(-1)[:_LOOKED_AT] if large else one
    for number, total in sums_of(tensors).items():
        key, path = where[number]
        found[key][path] = found[key][path], total
    return found


def _sum_of_array(one: Any) -> int:
    if one.size > _LOOKED_AT:
        flat = one.ravel(order="K") if one.flags.contiguous or one.flags.f_contiguous else one[:1].ravel()
        step = max(1, flat.size // _LOOKED_AT)
        return zlib.crc32(flat[::step].tobytes(), zlib.crc32(flat[:_LOOKED_AT].tobytes()))
    return zlib.crc32(one.tobytes())


class Known:
    """What is saved: containers by their ids, and tensors and arrays by where their memory is."""

    def __init__(self, mine: Iterable[Any]) -> None:
        self.ids = set[int]()
        self._memory = set[int | None]()
        for one in mine:
            self._add(one, 0)

    def _add(self, one: Any, depth: int) -> None:
        if id(one) in self.ids or len(self.ids) > _MOST_KNOWN:
            return
        self.ids.add(id(one))
        if isinstance(one, Mapping):
            held: Iterable[Any] = one.values()
        elif isinstance(one, (list, tuple, deque)):
            held = one
        elif _is_leaf(one):
            self._memory.add(_memory(one))
            held = [one.grad] if getattr(one, "is_leaf", False) and one.grad is not None else ()
        elif hasattr(one, "named_parameters") and hasattr(one, "named_buffers"):
            held = [t for pairs in (one.named_parameters(), one.named_buffers()) for _, t in pairs]
        elif isinstance(getattr(one, "__dict__", None), dict):
            held = vars(one).values()
        else:
            return
        for inner in held if depth <= 2 * _DEEPEST else ():
            self._add(inner, depth + 1)

    def without(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Those ``leaves``, by path, whose memory belongs to none of the known."""
        return {path: one for path, one in leaves.items() if _memory(one) not in self._memory}


def _memory(one: Any) -> int | None:
    """Where it is, or this worker's part of it; None where it has no place of its own, as what is lazy."""
    if hasattr(type(one), "untyped_storage"):
        try:
            own = one.to_local() if sharded.is_sharded(one) else one
            return int(own.untyped_storage().data_ptr())
        except (RuntimeError, ValueError):
            return None
    while type(one.base) is type(one):
        one = one.base
    return int(one.__array_interface__["data"][0])


def remedy(found: Mapping[str, str]) -> str:
    """What helps, as it is written in the script."""
    owners = sorted({name.rpartition(".")[0] for name in found if _is_of_an_object(name)})
    names = [name.rpartition(".")[2] for name in found if not _is_of_an_object(name)]
    advice = [_as_also(owners)] if owners else []
    return ". ".join([_as_state(names, found.values()), *advice] if names else advice)


def _is_of_an_object(name: str) -> bool:
    return "." in name.removeprefix("self.")


def _as_also(owners: list[str]) -> str:
    given = ", ".join(f"{owner.rpartition('.')[2]!r}: {owner}" for owner in owners[:_NAMED])
    return (
        f"Write the methods state_dict() and load_state_dict() for its class, and give it to train() as also={{{given}"
        f"{', ...' if owners[_NAMED:] else ''}}}; what each turn fills anew needs neither"
    )


def _as_state(names: list[str], what: Iterable[str]) -> str:
    given = ", ".join(f"{name!r}: {name}" for name in names[:_NAMED]) + (", ..." if names[_NAMED:] else "")
    several = any(one.startswith("the deque ") and not _is_of_an_object(one.split()[-1]) for one in what)
    return (
        f"Give it to train() as state={{{given}}}: lists and dicts get their content back in place, tensors, arrays "
        f"and tuples are to be read and set as run.state[{names[0]!r}]"
        + (", and a deque, which no checkpoint holds, is to be a list" if several else "")
    )

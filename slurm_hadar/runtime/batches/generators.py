"""The random number generators that a script draws its data from, and what its data count, wherever they are held.

A loader, a sampler, a dataset, a function or an object of the script's own may hold them at any depth: a ``Subset`` of
a dataset whose transform has one, a function that calls another, which has one in its closure. So all that is held is
gone through, as far as it is Python's (our definition).
"""

from __future__ import annotations

import copy
import functools
import math
import os
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_hadar.runtime.batches.fetched import Fetched
from slurm_hadar.runtime.batches.lists import changed_lists

__all__ = [
    "counts_of_data",
    "followed",
    "generators_in",
    "generators_of",
    "generators_within",
    "has_spawned",
    "held_by",
    "used_by",
]

_MOST = 20_000  # of objects that are looked at: some milliseconds
_WIDEST = 1024  # of lists and dicts: longer ones are data
_DEEPEST = 12
_FEW, _NEAR = 2000, 5  # the same where nothing says that it is of the data
_SPAWNED = "spawned"
_WITHIN = "\0"  # between the name of a dict and a name in it
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, types.BuiltinFunctionType)
#: What a loader makes for itself, and what other libraries' functions and our own objects hold is not the script's.
_NOT_HELD = frozenset({"_iterator"})
_LIBRARIES = frozenset({"torch", "numpy", "slurm_hadar"})

_first: dict[int, tuple[weakref.ref[Any], dict[str, float]]] = {}  # what counts, as it was first seen


def generators_of(source: Any) -> list[Any]:
    """What the script draws its order from, whose states belong to the position: generators of PyTorch, NumPy and
    Python, and the numbers of its samplers and data, the lists of samplers and the indices of subsets that change.

    Each is ``of`` something that is held at ``path``, and has ``get_state``, ``set_state`` and ``manual_seed``.
    PyTorch's that are named ``generator``, of loader and samplers, come first, as in all versions.
    """
    found = list(_held(source))
    batches = getattr(source, "batch_sampler", None)
    holders = (source, getattr(source, "sampler", None), batches, getattr(batches, "sampler", None))
    named = [id(g) for holder in holders if (g := getattr(holder, "generator", None)) is not None]
    known = {id(one): drawn for _, one, drawn in found if drawn is not None}
    first = [known[key] for key in dict.fromkeys(named) if key in known]
    rest = [drawn for drawn in known.values() if drawn not in first]
    data = [(path, one) for path, one, _ in found if _is_data(one)]
    stateful = [_Stateful(path, one) for path, one in data if _keeps_state(one)]
    by_itself, said_for = {id(one.of) for one in stateful}, [one.path.rstrip("$") + "." for one in stateful]
    return [
        *first,
        *rest,
        *(_Weights(path, one) for path, one in data if _is_weighted(one)),
        *stateful,
        *(_Counts(path, one) for path, one in data if id(one) not in by_itself),
        *changed_lists((path, one) for path, one, _ in found if not path.startswith(tuple(said_for))),
    ]


def held_by(source: Any) -> list[Any]:
    """All that it holds, itself first."""
    return [one for _, one, _ in _held(source)]


def generators_in(models: Mapping[str, Any]) -> list[Any]:
    """Those that models, or parts of them, hold, as for noise."""
    inside = {
        "model " + ".".join(filter(None, (name, part, attribute))): one
        for name, model in models.items()
        for part, module in (model.named_modules() if hasattr(model, "named_modules") else ())
        for attribute, one in vars(module).items()
        if not attribute.startswith("_") and not isinstance(one, _PLAIN)
    }
    found = {id(drawn.of): drawn for _, _, drawn in _held(_Inside(inside)) if drawn is not None}
    return list(found.values())


def generators_within(named: Mapping[str, Any]) -> list[Any]:
    """Those that objects of the script hold, as an environment does; ``path`` begins with the object's name. Not those
    of models, of libraries' objects, and of functions."""
    found, left, known = dict[int, Any](), _MOST, _everybodys()
    for name, one in named.items():
        try:
            held = list(_held(_Inside({name: one}), min(left, _FEW), _NEAR)) if _is_an_object(one) else []
        except Exception:  # whatever an object of the script thinks of being looked at
            continue
        left = max(1, left - len(held))
        found |= {id(drawn.of): drawn for _, _, drawn in held if drawn is not None and id(drawn.of) not in known}
    return list(found.values())


def _is_an_object(one: Any) -> bool:
    if isinstance(one, (*_PLAIN, types.FunctionType, types.MethodType)):
        return False
    return not hasattr(type(one), "named_parameters") and not _is_of_a_library(type(one), *_LIBRARIES)


def _everybodys() -> set[int]:
    """The generators of Python and NumPy themselves, which are saved in any case."""
    numpy = sys.modules.get("numpy")
    own = getattr(getattr(numpy, "random", None), "mtrand", None)
    rand = getattr(own, "_rand", None)
    return {id(getattr(random, "_inst", None)), id(rand), id(getattr(rand, "_bit_generator", None))}


class _Inside:
    """A root of what is gone through, however much there is."""

    __module__ = "models"  # what is ours is not gone through

    def __init__(self, named: Mapping[str, Any]) -> None:
        vars(self).update(named)


def counts_of_data(source: Any) -> dict[str, Any]:
    """The numbers of datasets with indices: those that they count by themselves, or that a script changes in its loop.
    They may be anything, so they are not put back."""
    found, queue = dict[str, Any](), [getattr(source, "dataset", None)]
    while queue:
        one = queue.pop()
        own = getattr(one, "__dict__", None)
        if isinstance(own, dict) and hasattr(type(one), "__getitem__") and not _is_data(one):
            found[f"numbers of {type(one).__name__}"] = _Counts("", one)
            queue += [own.get("dataset"), *(own.get("datasets") or ())]
    return found


def _held(source: Any, most: int = _MOST, deepest: int = _DEEPEST) -> Iterator[tuple[str, Any, Any]]:
    """All that is held, each once: the shortest path to it, itself, and what :func:`followed` makes of it."""
    seen = {id(source)}
    queue: deque[tuple[str, int, Any]] = deque([("", 0, source)])
    while queue and len(seen) < most:
        path, depth, one = queue.popleft()
        drawn = followed(path, one)
        yield path, one, drawn
        if depth == deepest or drawn is not None:
            continue
        for name, value in _inside(one):
            if type(value) is Fetched:  # it stands for the loader
                value = value.loader
            if not isinstance(value, _PLAIN) and id(value) not in seen:
                seen.add(id(value))
                queue.append((f"{path}.{name}", depth + 1, value))


def _inside(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        yield from ((str(key), value) for key, value in (one.items() if len(one) <= _WIDEST else ()))
    elif isinstance(one, (list, tuple, set, frozenset, deque)):
        yield from ((str(n), value) for n, value in enumerate(one if len(one) <= _WIDEST else ()))
    elif isinstance(one, functools.partial):
        yield from (("func", one.func), ("args", one.args), ("keywords", one.keywords))
    elif isinstance(one, types.MethodType):
        yield from (("self", one.__self__), ("func", one.__func__))
    elif isinstance(one, types.FunctionType):
        yield from used_by(one)
    elif not _is_of_a_library(type(one), "slurm_hadar"):
        yield from _attributes(one)


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    """Those that are stored, without calling anything of it."""
    for cls in type(one).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = vars(cls).get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield name, member.__get__(one)
                except AttributeError:  # it has no value yet
                    continue
    own = getattr(one, "__dict__", None)
    if isinstance(own, dict):
        yield from ((name, value) for name, value in own.items() if name not in _NOT_HELD)


def used_by(one: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What it has in its closure and as defaults, and the names of its module that it uses."""
    if _is_of_a_library(one, *_LIBRARIES):
        return
    for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield from ((str(n), value) for n, value in enumerate(one.__defaults__ or ()))
    yield from (one.__kwdefaults__ or {}).items()
    for name in sorted(_names(one.__code__)):
        if name in one.__globals__:
            yield name, one.__globals__[name]


def _names(code: types.CodeType) -> set[str]:
    """Those that it and the functions within it use."""
    within = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*within)


def _is_of_a_library(one: Any, *roots: str) -> bool:
    return str(getattr(one, "__module__", "")).partition(".")[0] in roots


def _is_data(one: Any) -> bool:
    """Whether it is gone through, and may count how often: no container, loader or model. What counts the samples that
    it is asked for is another matter: those that a resume leaves out are not loaded."""
    kind = type(one)
    goes = hasattr(kind, "__iter__")
    other = isinstance(one, (dict, list, tuple, set, frozenset, deque)) or _is_of_a_library(kind, "slurm_hadar")
    model = hasattr(kind, "named_parameters") or hasattr(kind, "num_workers") or hasattr(kind, "is_cuda")
    return goes and not other and not model and isinstance(getattr(one, "__dict__", None), dict)


def _is_weighted(one: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(one, data.WeightedRandomSampler)


def _keeps_state(one: Any) -> bool:
    """Whether a sampler of the script's own has states to be asked for, of plain data. Those of loaders, streams and
    libraries' samplers are where the next epoch is to begin, which is not where they are."""
    kind = type(one)
    if not (hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")):
        return False
    if hasattr(one, "dataset") or hasattr(kind, "__getitem__") or _is_of_a_library(kind, *_LIBRARIES, "torchdata"):
        return False
    if (data := sys.modules.get("torch.utils.data")) is not None and isinstance(one, data.IterableDataset):
        return False
    try:
        return _is_plain(one.state_dict())
    except Exception:  # of the script: it is not ready to be asked
        return False


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold it."""
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, bytes, type(None))) or hasattr(type(value), "is_cuda")


def followed(path: str, one: Any) -> Any:
    """A generator of random numbers, of which a state can be kept; None for anything else."""
    found = _generator(path, one)
    try:
        state = None if found is None else found.get_state()
    except Exception:  # none that has a state (the system's), or a class of the script's by the same names
        return None
    return found if state is not None and (not isinstance(found, _Torch) or _is_plain(state)) else None


def _generator(path: str, one: Any) -> Any:
    if isinstance(one, random.Random):
        return _Python(path, one)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, numpy.random.Generator):
        return _NumPy(path, one.bit_generator)
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return _RandomState(path, one)
    kind = type(one)
    return _Torch(path, one) if all(hasattr(kind, n) for n in ("get_state", "set_state", "manual_seed")) else None


class _Torch:
    def __init__(self, path: str, generator: Any) -> None:
        self.path, self.of = path, generator
        self.get_state, self.set_state = generator.get_state, generator.set_state
        self.manual_seed = generator.manual_seed


class _Python:
    def __init__(self, path: str, generator: random.Random) -> None:
        self.path, self.of = path, generator

    def get_state(self) -> Any:
        return self.of.getstate()

    def set_state(self, state: Any) -> None:
        version, keys, gauss = state
        self.of.setstate((version, tuple(keys), gauss))

    def manual_seed(self, seed: int) -> None:
        self.of.seed(seed)


class _NumPy:
    def __init__(self, path: str, bits: Any) -> None:
        self.path, self.of = path, bits

    def get_state(self) -> Any:
        spawned = self._spawned()
        return {**self.of.state, _SPAWNED: spawned} if spawned else self.of.state

    def set_state(self, state: Any) -> None:
        self.of.state = state
        for _ in range(state.get(_SPAWNED, 0) - self._spawned()):  # it cannot be set
            self.of.seed_seq.spawn(1)

    def manual_seed(self, seed: int) -> None:
        self.of.state = type(self.of)(seed).state

    def _spawned(self) -> int:
        """How many generators were made of it."""
        return getattr(getattr(self.of, "seed_seq", None), "n_children_spawned", 0)


def has_spawned(state: Any) -> bool:
    """Whether a generator of this state cannot go back to where it had made fewer of itself."""
    return isinstance(state, dict) and _SPAWNED in state


class _RandomState:
    """NumPy's of old: it keeps every second normal number, beside its bits."""

    def __init__(self, path: str, generator: Any) -> None:
        self.path, self.of = path, generator

    def get_state(self) -> Any:
        return self.of.get_state(legacy=False)

    def set_state(self, state: Any) -> None:
        self.of.set_state(state)

    def manual_seed(self, seed: int) -> None:
        self.of.set_state(type(self.of._bit_generator)(seed).state)  # noqa: SLF001 - seed() is for MT19937 alone


class _Weights:
    """Those of a sampler that draws by them, where a script changes them in its loop."""

    def __init__(self, path: str, sampler: Any) -> None:
        self.path, self.of = f"{path}*", sampler
        self._first = sampler.weights.clone()

    def get_state(self) -> Any:
        now, first = self.of.weights, self._first
        same = (now.dtype, now.device) == (first.dtype, first.device) and now.equal(first)
        return None if same else now.clone()

    def set_state(self, state: Any) -> None:
        weights = self._first if state is None else state
        if (weights.shape, weights.dtype) == (self.of.weights.shape, self.of.weights.dtype):
            self.of.weights.copy_(weights)  # the script may write to them under another name
        else:
            self.of.weights = weights.clone()

    def manual_seed(self, seed: int) -> None:
        """They are no chance."""


class _Stateful:
    """A sampler, or data, by its own word."""

    def __init__(self, path: str, holder: Any) -> None:
        self.path, self.of = f"{path}$", holder

    def get_state(self) -> Any:
        return copy.deepcopy(self.of.state_dict())

    def set_state(self, state: Any) -> None:
        self.of.load_state_dict(copy.deepcopy(state))

    def manual_seed(self, seed: int) -> None:
        """What it counts is no chance."""


class _Counts:
    """The numbers of a sampler or of data that are not what they were at first: those of one that counts its
    epochs, or how far it is."""

    def __init__(self, path: str, holder: Any) -> None:
        self.path, self.of = f"{path}#", holder
        known, _ = _first.get(id(holder), (None, None))
        if known is None or known() is not holder:
            key = id(holder)
            try:
                _first[key] = weakref.ref(holder, lambda _: _first.pop(key, None)), self._numbers()
            except TypeError:  # one that cannot be known again
                _first.pop(key, None)

    def get_state(self) -> dict[str, float]:
        first = self._at_first()
        return {name: value for name, value in self._numbers().items() if first.get(name, value) != value}

    def set_state(self, state: dict[str, float]) -> None:
        """What is not in it is what it was at first."""
        changed = self.get_state()
        state = {name: value for name, value in self._at_first().items() if name in changed} | state
        for name in state.keys() & self._numbers().keys():
            holder, _, key = name.rpartition(_WITHIN)
            own = self.of.__dict__[holder] if holder else self.of.__dict__
            if hasattr(own[key], "fill_"):  # a tensor
                own[key].fill_(state[name])
            else:
                own[key] = _as_before(own[key], state[name])

    def manual_seed(self, seed: int) -> None:
        """What it counts is no chance."""

    def _at_first(self) -> dict[str, float]:
        _, first = _first.get(id(self.of), (None, self._numbers()))
        return first

    def _numbers(self) -> dict[str, float]:
        """But for the number of a process; also those in a dict that it has."""
        own = self.of.__dict__
        held = [(f"{name}{_WITHIN}", of) for name, of in own.items() if type(of) is dict and len(of) <= _WIDEST]
        return {
            f"{prefix}{name}": number
            for prefix, of in [("", own), *held]
            for name, value in of.items()
            if type(name) is str and (number := _number(value)) is not None and number != os.getpid()
        }


def _as_before(held: Any, value: float) -> Any:
    """The number in the kind of the one that is held, if that kind has it: a whole one may have become a fraction."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    kept = type(held)(value)
    return kept if kept == value else value


def _number(value: Any) -> float | None:
    """Of Python's, NumPy's, or a tensor that is one; None for anything else."""
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, (numpy.integer, numpy.floating)):
        return value.item()  # type: ignore[no-any-return]
    whole = torch is not None and isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"
    return value.item() if whole and not value.is_complex() else None

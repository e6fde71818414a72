"""What a script keeps count of from epoch to epoch in numbers of its own: the best value so far, a patience, steps,
lists of losses. No checkpoint holds those that were not given to ``train``: after a move a worse model takes the best
one's place, say.

A variable of the function that goes through ``run.epochs()`` counts if it reads it before it sets it anew
(:mod:`slurm_hadar.runtime.unsaved.liveness`), and an attribute of an object there, of a class of the script's, if one
of its methods does so; but not where each epoch's beginning sets it back, as sums, nor if the class has a ``reset``.
In any loop a variable of the module counts that a function adds to (``global``), as the steps of an exploration.
"""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from slurm_hadar.runtime.unsaved.carried import is_the_scripts, variables_of
from slurm_hadar.runtime.unsaved.liveness import live, named
from slurm_hadar.runtime.unsaved.stores import stores_of

__all__ = [
    "Content",
    "Tallies",
    "advice",
    "attributes_of",
    "counted_by",
    "is_librarys",
    "numbers_in",
    "objects_in",
    "went",
]

_OURS = "slurm_hadar.runtime"
_NUMBERS = (bool, int, float, type(None))
_DEEPEST, _WIDEST = 2, 64  # of lists and dicts
_NAMED = 3
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))
_NONE: Any = object()


class Content(NamedTuple):
    """Of a list or a dict that no method sets: it counts as long as it is the same one."""

    of: int
    word: Any


class Tallies:
    """``mine``: what the training saves: objects, and containers of plain data."""

    def __init__(self, mine: Callable[[], Iterable[Any]] = tuple) -> None:
        self._mine = mine
        self._held, self._counted = dict[str, Any](), dict[type, set[str]]()
        self._first: dict[str, Any] | None = None  # at the beginning of the first epoch's batches
        self._ahead: dict[str, Any] = {}
        self._global: dict[str, Any] | None = None  # after the first turn
        self._found = dict[str, None]()  # in the order in which they were found
        self._on = True

    def between_epochs(self) -> None:
        """The script is about to be given an epoch, or is done with one; called by what gives it."""
        self._on = self._on and went(self._see_epoch)

    def begin_epoch(self) -> None:
        """It asks for the epoch's first batch: what is elsewhere than at the first's, and was not set for this one."""
        self._on = self._on and went(self._see_batches)

    def end_turn(self) -> None:
        """A turn is over; called by what waits for the next one."""
        self._on = self._on and went(self._see_globals)

    def found(self) -> list[str]:
        """Their names."""
        return list(self._found)

    def _see_epoch(self) -> None:
        frame = _frame()
        own = variables_of(frame)
        variables = {**own, **{n: v for n, v in frame.f_globals.items() if n not in own}}
        self._held = objects_in(variables, own.get("self"))
        there = {n: variables.get(n, _NONE) for n in live(frame.f_code, frame.f_lasti) & named(frame.f_code)[0]}
        now = self._values(there)
        if self._first is None:
            self._first = dict(now)
        else:
            self._note(now)
        self._ahead = self._attributes()

    def _see_batches(self) -> None:
        ahead, self._ahead = self._ahead, {}
        if self._first is None or not ahead:
            return
        now, self._held = self._attributes(), {}
        for name, value in now.items():
            if name not in self._first:
                self._first[name] = value
        self._note({name: value for name, value in now.items() if ahead.get(name, _NONE) == value})

    def _see_globals(self) -> None:
        frame = _frame()
        module = frame.f_globals
        numbers = {name for name, value in module.items() if type(value) in (int, float)}
        codes = [one.__code__ for one in module.values() if isinstance(one, types.FunctionType)]
        added = {name for code in codes if numbers.intersection(code.co_names) for name in _added_to(code)}
        if added:  # a sum that is set back somewhere is none that goes on
            setting = [code for code in codes if added.intersection(code.co_names)]
            added -= stores_of(frame.f_code, frame.f_lasti, module).anew
            added = added.difference(*(stores_of(code, None, module).anew for code in setting))
        now = self._values({name: module.get(name, _NONE) for name in added})
        self._global = now if self._global is None else self._global
        for name, value in now.items():
            if self._global.get(name, value) != value:
                self._found[name] = None

    def _note(self, now: Mapping[str, Any]) -> None:
        assert self._first is not None
        for name, value in now.items():
            first = self._first.get(name, value)
            if isinstance(value, Content) and isinstance(first, Content) and value.of != first.of:
                self._first[name] = value
            elif first != value:
                self._found[name] = None

    def _attributes(self) -> dict[str, Any]:
        return attributes_of(self._held, self._mine(), self._counted_by)

    def _counted_by(self, kind: type) -> set[str]:
        if kind not in self._counted:
            self._counted[kind] = counted_by(kind)
        return self._counted[kind]

    def _values(self, there: Mapping[str, Any]) -> dict[str, Any]:
        return numbers_in(there, self._mine())


def went(look: Callable[[], None]) -> bool:
    """Whether it raised nothing: a script's objects may do anything when they are looked at."""
    try:
        look()
    except Exception:
        return False
    return True


def advice(names: list[str], turns: Container[str] = ()) -> str:
    """What helps against losing these. turns: those that count the loop's turns."""
    turns = [name for name in names if name in turns]
    own = [name for name in names if "." not in name and name not in turns]
    owners = list(dict.fromkeys(name.partition(".")[0] for name in names if "." in name and name not in turns))
    words = f" For {' and '.join(turns[:_NAMED])} take run.step, which counts the turns and goes on." if turns else ""
    if own:
        given = ", ".join(f"{name!r}: {name}" for name in own[:_NAMED]) + (", ..." if own[_NAMED:] else "")
        words += (
            f" Give it to train() as also={{{given}}}: lists and dicts get their content back in place, numbers are to "
            f"be read and set as run.also[{own[0]!r}] (a count of steps is run.step)."
        )
    if owners:
        words += (
            f" What {' and '.join(owners[:_NAMED])} count{'' if owners[1:] else 's'} goes on if the class has the "
            "methods state_dict() and load_state_dict() and the object is given to train() as also=, or if it is read "
            "and set in run.also."
        )
    return words


def attributes_of(
    held: Mapping[str, Any], mine: Iterable[Any], counted_in: Callable[[type], set[str]]
) -> dict[str, Any]:
    """Of these objects, by their names, what is told of numbers that their classes count, and of what fills."""
    counted, filled = dict[str, Any](), dict[str, Any]()
    for name, one in held.items():
        names = counted_in(type(one))
        for attribute, value in vars(one).items():
            if attribute in names:
                counted[f"{name}.{attribute}"] = value
            elif isinstance(value, (list, dict)):
                filled[f"{name}.{attribute}"] = value
    mine = list(mine)
    contents = {name: Content(id(filled[name]), word) for name, word in numbers_in(filled, mine).items()}
    return {**numbers_in(counted, mine), **contents}


def numbers_in(there: Mapping[str, Any], mine: Iterable[Any]) -> dict[str, Any]:
    """Of those that are numbers, or hold some, and are not saved."""
    saved, ids, todo = set[float](), set[int](), [(one, 0) for one in mine]
    while todo:
        one, depth = todo.pop()
        ids.add(id(one))
        if type(one) in (int, float):
            saved.add(one)
        elif isinstance(one, dict) and depth <= _DEEPEST:
            todo += [(inner, depth + 1) for inner in one.values()]
        elif isinstance(one, (list, tuple)) and depth <= _DEEPEST:
            todo += [(inner, depth + 1) for inner in one if isinstance(inner, (dict, list))]
    words = {name: _word(value, 0) for name, value in there.items() if id(value) not in ids}
    return {name: word for name, word in words.items() if word is not _NONE and word not in saved}


def _frame() -> types.FrameType:
    """The script's that goes through the epochs."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the script's is behind ours
    while frame is not None and (str(frame.f_globals.get("__name__")).startswith(_OURS) or is_librarys(frame)):
        frame = frame.f_back  # as of a progress bar
    if frame is None:
        raise LookupError("no frame of a script's")
    return frame


def objects_in(variables: Mapping[str, Any], own: Any) -> dict[str, Any]:
    """Those of classes of the script's, each by one name."""
    there = dict(variables)
    there |= {f"self.{name}": value for name, value in getattr(own, "__dict__", {}).items()}
    found = dict[int, tuple[str, Any]]()
    for name, one in there.items():
        if isinstance(getattr(one, "__dict__", None), dict) and is_the_scripts(one) and not _is_known(type(one)):
            found.setdefault(id(one), (name, one))
    return dict(found.values())


def is_librarys(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _is_known(kind: type) -> bool:
    """Whether it is a library's, or begins anew by itself."""
    if hasattr(kind, "reset"):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return isinstance(one := kind.__module__, str) and (file.startswith(_LIBRARIES) or one == "builtins")


def counted_by(kind: type) -> set[str]:
    """Attributes that a method reads before it sets them."""
    found = set[str]()
    for of in kind.__mro__:
        for method in vars(of).values():
            if isinstance(method, types.FunctionType) and method.__name__ != "__init__":
                code = method.__code__
                found |= live(code, -1) & named(code)[1]
    return {name.removeprefix("self.") for name in found if name.startswith("self.")}


def _added_to(code: types.CodeType) -> set[str]:
    """Variables of the module that a function reads before it sets them."""
    return {name for name in live(code, -1) & named(code)[1] if name in code.co_names}


def _word(value: Any, depth: int) -> Any:
    """What tells a number, or what a list or a dict has of them, from others; _NONE for anything else."""
    if type(value) in _NUMBERS:
        return value
    if _is_one_number(value):
        return value.item()
    if isinstance(value, list) and all(type(one) in _NUMBERS or _is_one_number(one) for one in value[-_WIDEST:]):
        return ("list", len(value))
    if isinstance(value, dict) and len(value) <= _WIDEST and depth < _DEEPEST:
        words = {key: word for key, inner in value.items() if (word := _word(inner, depth + 1)) is not _NONE}
        return tuple(sorted(words.items(), key=repr)) if len(words) == len(value) else _NONE
    return _NONE


def _is_one_number(value: Any) -> bool:
    return hasattr(type(value), "item") and getattr(value, "ndim", 1) == 0

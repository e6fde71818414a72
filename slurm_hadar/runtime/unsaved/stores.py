"""What a loop sets its variables to, by its bytecode: which begin anew in it now and then, as a sum that is printed and
set to 0, and which cannot but go on.

Values are followed through the stack within each straight piece of code, as far as is asked here: constants, what a
``for`` gives next, the place of the training (``run.step``), what the training holds (``run.also``), and the names that
a value was reckoned from.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slurm_hadar.runtime.unsaved.liveness import Flow, Step

__all__ = ["Stores", "stores_of"]

_CONSTANT, _NEXT, _PLACE, _GIVEN, _OTHER = "constant", "next", "place", "given", "other"
_OF_PLACES, _OF_WHAT_IS_GIVEN = frozenset({"step", "epoch"}), frozenset({"also", "state", "start"})
_KINDS = ("_FAST", "_NAME", "_GLOBAL", "_DEREF")
_EMPTIES = frozenset({"clear", "zero_"})
_BUILT = ("BUILD_LIST", "BUILD_MAP", "BUILD_SET")
_NOTHING = frozenset({"NOP", "RESUME", "NOT_TAKEN", "EXTENDED_ARG", "CACHE", "KW_NAMES"})
_ONLY_TAKE = ("POP_", "JUMP", "RETURN_", "LIST_", "SET_ADD", "SET_UPDATE", "MAP_ADD", "DICT_", "END_", "RAISE_")


class _Value(NamedTuple):
    """On the stack. path: the variable or attribute that it is; names: those that it was reckoned from, is_sum:
    by ``+`` or the like."""

    kind: str = _OTHER
    path: str = ""
    names: frozenset[str] = frozenset()
    is_sum: bool = False


@dataclass
class Stores:
    """Of variables, and of attributes (``agent.epsilon``) of objects in them.

    again: whether there is a loop at all. stored: those that the loop sets. anew: to a constant, at times, or by a
    ``for`` (an outer one, over epochs). reckoned: from what they were before; added: as a sum of it. given: before the
    loop from what the training has. places: to the training's place alone, with which nothing is reckoned. with_it: of
    each that is compared before it is set, what is set along with it, as ``bad = 0`` under
    ``if loss < best: best = loss``.
    """

    again: bool = False
    stored: set[str] = field(default_factory=set)
    anew: set[str] = field(default_factory=set)
    reckoned: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    with_it: dict[str, set[str]] = field(default_factory=dict)


def stores_of(code: types.CodeType, at: int | None, names: Mapping[str, Any]) -> Stores:
    """Of the loop around the instruction at offset ``at``; of all the code without it. names: the module's. Not to be
    changed: who asks again is given the same."""
    return _stores_of(code, at, _Module(names))


class _Module:
    """The names of a module, told from another's by which they are."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Module) and self.names is other.names

    def __hash__(self) -> int:
        return id(self.names)


@functools.lru_cache(maxsize=256)
def _stores_of(code: types.CodeType, at: int | None, module: _Module) -> Stores:
    flow, names = Flow.of(code), module.names
    within = _within(flow, at)
    found = Stores(bool(within))
    follow = _Follow(flow, names, _fixed(_Follow(flow, names, frozenset()), within))
    kinds = dict[str, set[str]]()
    for n, path, value in follow.stored:
        if n not in within:
            if value.kind in (_GIVEN, _PLACE):
                found.given.add(path)
            continue
        found.stored.add(path)
        kinds.setdefault(path, set()).add(value.kind)
        if path in value.names:
            found.reckoned.add(path)
            if value.is_sum:
                found.added.add(path)
    found.anew = {path for path, of in kinds.items() if of & {_CONSTANT, _NEXT}}
    found.anew |= {path for n, path in follow.emptied if n in within}
    for inner in code.co_consts:  # a function within that sets back what it shares with this one
        if isinstance(inner, types.CodeType) and inner.co_freevars:
            found.anew |= stores_of(inner, None, names).anew & set(inner.co_freevars)
    going = {path for n, paths in follow.added if n in within for path in paths}
    found.places = {path for path, of in kinds.items() if of == {_PLACE} and path not in going}
    for n, end, tested in follow.tests:
        inner = {path for m, path, _ in follow.stored if n < m < end and m in within}
        for path in tested & inner:
            found.with_it.setdefault(path, set()).update(inner - {path})
    return found


def _fixed(follow: _Follow, within: set[int]) -> frozenset[str]:
    """Variables that the loop sets to constants alone, as the time: what they are copied to is none of its own."""
    others = {path for n, path, value in follow.stored if n in within and value.kind != _CONSTANT}
    return frozenset(path for n, path, _ in follow.stored if n in within and path not in others)


def _within(flow: Flow, at: int | None) -> set[int]:
    """Instructions of the loop: they come behind that at ``at``, and it comes behind them."""
    if at is None:
        return set(range(len(flow.steps)))
    head = max((n for n, step in enumerate(flow.steps) if step.offset <= at), default=0)
    before: list[list[int]] = [[] for _ in flow.steps]
    for n, ways in enumerate(flow.after):
        for m, _ in ways:
            before[m].append(n)
    return _reached(head, lambda n: [m for m, _ in flow.after[n]]) & _reached(head, lambda n: before[n])


def _reached(begin: int, ways: Callable[[int], list[int]]) -> set[int]:
    found, todo = set[int](), ways(begin)[:]
    while todo:
        n = todo.pop()
        if n not in found:
            found.add(n)
            todo += ways(n)
    return found


class _Follow:
    """Goes through the instructions as they stand; where a jump arrives, nothing is known of the stack.

    stored, emptied, added, tests: with the instruction's number, what is set and to what, what is emptied, what is
    reckoned with, and up to which instruction a condition holds that names were asked for in.
    """

    def __init__(self, flow: Flow, names: Mapping[str, Any], fixed: frozenset[str]) -> None:
        self._names, self._fixed, self._stack = names, fixed, list[_Value]()
        self.stored: list[tuple[int, str, _Value]] = []
        self.emptied: list[tuple[int, str]] = []
        self.added: list[tuple[int, frozenset[str]]] = []
        self.tests: list[tuple[int, int, frozenset[str]]] = []
        arrived = {m for ways in flow.after for m, jumps in ways if jumps}
        for n, step in enumerate(flow.steps):
            if n in arrived:
                self._stack.clear()
            self._do(n, step, next((m for m, jumps in flow.after[n] if jumps), -1))

    def _do(self, n: int, step: Step, jump: int) -> None:
        name, about = step.name, step.about
        if name in _NOTHING:
            return
        if name.startswith(("LOAD_CONST", "LOAD_SMALL_INT", "PUSH_NULL")):
            self._stack.append(_Value(_CONSTANT))
        elif name.startswith("LOAD_") and any(kind in name for kind in _KINDS) and isinstance(about, str):
            value = _Value(_CONSTANT) if self._is_fixed(name, about) else _Value(_OTHER, about, frozenset({about}))
            self._stack += [value] * max(1, step.pushes(jumps=False))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._attribute(n, step)
        elif name.startswith("STORE_") or name == "DELETE_SUBSCR":
            self._store(n, name, about)
        else:
            self._move(n, step, jump)

    def _move(self, n: int, step: Step, jump: int) -> None:
        name = step.name
        if name == "COPY" and step.number:
            self._stack.append(self._at(step.number))
        elif name == "SWAP" and step.number:
            self._swap(step.number)
        elif name == "UNPACK_SEQUENCE" and step.number:
            value = self._pop()
            self._stack += [_Value(value.kind if value.kind in (_CONSTANT, _NEXT) else _OTHER)] * step.number
        elif name == "FOR_ITER":
            self._stack.append(_Value(_NEXT))
        elif name.startswith(_BUILT) and step.number == 0:
            self._stack.append(_Value(_CONSTANT))
        else:
            self._reckon(n, step, jump)

    def _is_fixed(self, kind: str, name: str) -> bool:
        """Whether it names a module, a class or a function of C: ``float("inf")`` is as good as a constant."""
        if name in self._fixed:
            return True
        if not any(one in kind for one in ("_GLOBAL", "_NAME")):
            return False
        value = self._names.get(name, getattr(builtins, name, None))
        return isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType))

    def _attribute(self, n: int, step: Step) -> None:
        of, kind = self._pop(), _OTHER
        if step.about in _OF_WHAT_IS_GIVEN or of.kind == _GIVEN:
            kind = _GIVEN
        elif step.about in _OF_PLACES:
            kind = _PLACE
        elif of.kind == _CONSTANT:
            kind = _CONSTANT
        if step.about in _EMPTIES and of.path:
            self.emptied.append((n, of.path))
        path = f"{of.path}.{step.about}" if of.path else ""
        value = _Value(kind, path, frozenset({path}) if path else of.names)
        self._stack += [value] * (1 + max(0, step.pushes(jumps=False)))

    def _store(self, n: int, name: str, about: Any) -> None:
        """Where a part is set to a constant or taken out, the whole is taken to begin anew."""
        if name == "STORE_ATTR":
            owner, value = self._pop(), self._pop()
            if owner.path:
                self.stored.append((n, f"{owner.path}.{about}", value))
            return
        if any(kind in name for kind in _KINDS):
            self.stored.append((n, about, self._pop()))
            return
        for _ in range(2 if name == "STORE_SLICE" else 1):
            self._pop()
        of = self._pop()
        value = _Value(_CONSTANT) if name == "DELETE_SUBSCR" else self._pop()
        if of.path and value.kind == _CONSTANT:
            self.emptied.append((n, of.path))

    def _reckon(self, n: int, step: Step, jump: int) -> None:
        effect, makes = step.pushes(jumps=False), not step.name.startswith(_ONLY_TAKE)
        taken = [self._pop() for _ in range(max(0, makes - effect))]
        names = frozenset[str]().union(*(one.names for one in taken))
        is_sum = step.name.startswith("BINARY_OP")
        if is_sum:
            self.added.append((n, names))
        if jump > n and "_IF_" in step.name:
            self.tests.append((n, jump, names))
        if not makes:
            return
        kinds, kind = {one.kind for one in taken}, _OTHER
        if _GIVEN in kinds:
            kind = _GIVEN
        elif taken and kinds <= {_CONSTANT, _PLACE}:
            kind = _PLACE if _PLACE in kinds else _CONSTANT
        self._stack += [_Value(kind, "", names, is_sum)] * max(1, effect)

    def _pop(self) -> _Value:
        return self._stack.pop() if self._stack else _Value()

    def _at(self, depth: int) -> _Value:
        return self._stack[-depth] if depth <= len(self._stack) else _Value()

    def _swap(self, depth: int) -> None:
        while len(self._stack) < depth:
            self._stack.insert(0, _Value())
        self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]

"""Which variables a loop carries from turn to turn: those that it reads before it sets them anew.

What is asked is the bytecode of the function that runs the loop. From the place where it waits for the next batch all
ways are followed, but for those past loops within that make no turn: a variable is *live* if one of them reads it
before it is set (the usual definition of compilers).
One that is set first, as an output or what a batch was unpacked into, begins anew in each turn by itself.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any, NamedTuple

__all__ = ["Flow", "Step", "live", "named"]

_MOST = 20_000  # instructions
_ENDS = ("RETURN_", "RAISE_", "RERAISE")
_JUMPS_ALWAYS = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_WHOLE = frozenset({"copy_", "zero_", "fill_", "clear"})  # methods by which all that was there is gone
_PUT_ASIDE = "LOAD_FAST_AND_CLEAR"  # since Python 3.12: a variable whose name a comprehension takes
_READ, _SET = "read", "set"


class Step(NamedTuple):
    """An instruction that does one thing."""

    offset: int
    name: str
    code: int
    number: int | None
    about: Any

    def pushes(self, jumps: bool) -> int:
        """How many more values there are on the stack after it."""
        return dis.stack_effect(self.code, self.number, jump=jumps)


class Flow(NamedTuple):
    """Instructions, and which may follow each: the next one, and that which it jumps to."""

    steps: list[Step]
    after: list[list[tuple[int, bool]]]

    @classmethod
    def of(cls, code: types.CodeType) -> Flow:
        steps, place = list[Step](), dict[int, int]()
        for found in dis.get_instructions(code):
            if len(steps) >= _MOST:
                break
            place[found.offset] = len(steps)
            if isinstance(found.argval, tuple) and "_FAST_" in found.opname:  # two in one, since Python 3.13
                kinds = [f"{part}_FAST" for part in found.opname.split("_") if part in ("LOAD", "STORE")]
                both = zip(kinds, found.argval, strict=True)
                steps += [Step(found.offset, kind, dis.opmap[kind], 0, name) for kind, name in both]
            elif found.opname != "EXTENDED_ARG":  # of the next one
                steps.append(Step(found.offset, found.opname, found.opcode, found.arg, found.argval))
        return cls(steps, [_after(n, step, place, len(steps)) for n, step in enumerate(steps)])

    def lives(self, n: int) -> tuple[set[int], set[int]]:
        """Of the uppermost value on the stack after an instruction: the instructions while it, or what is made of it,
        is there, and those that take it away."""
        within, ends = set[int](), set[int]()
        todo = [(m, 0) for m, _ in self.after[n]]
        while todo:
            m, above = todo.pop()
            if m in within or m in ends:
                continue
            step = self.steps[m]
            if step.name == "SWAP" and step.number is not None:
                above = {0: step.number - 1, step.number - 1: 0}.get(above, above)
            ways = [(way, above + step.pushes(jumps)) for way, jumps in self.after[m]]
            if any(left < 0 for _, left in ways) or not ways:
                ends.add(m)
            else:
                within.add(m)
                todo += ways
        return within, ends


@functools.lru_cache(maxsize=64)
def live(code: types.CodeType, at: int) -> frozenset[str]:
    """Names that are live after the instruction at offset ``at``: of variables, and ``self.name`` of attributes."""
    flow = Flow.of(code)
    steps, deeds = flow.steps, _deeds(flow)
    bits = {name: 1 << n for n, name in enumerate(dict.fromkeys(name for found in deeds for _, name in found))}
    alive = [0] * len(steps)  # sets of names
    changed = True
    while changed:  # against the flow, until nothing is new
        changed = False
        for n in range(len(steps) - 1, -1, -1):
            names = 0
            for m, _ in flow.after[n]:
                enters = steps[n].name == "GET_ITER" and steps[m].name == "FOR_ITER"  # a loop, of one turn at least
                names |= alive[m + enters]
            for kind, name in reversed(deeds[n]):
                names = names | bits[name] if kind == _READ else names & ~bits[name]
            if names != alive[n]:
                alive[n], changed = names, True
    begin = next((alive[n] for n, step in enumerate(steps) if step.offset > at), 0)
    return frozenset(name for name, bit in bits.items() if begin & bit)


@functools.lru_cache(maxsize=64)
def named(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """All names that it reads, and all that it sets."""
    deeds = [deed for found in _deeds(Flow.of(code)) for deed in found]
    return frozenset(n for kind, n in deeds if kind == _READ), frozenset(n for kind, n in deeds if kind == _SET)


def _after(n: int, step: Step, place: dict[int, int], count: int) -> list[tuple[int, bool]]:
    """The instructions that may follow, and whether by a jump."""
    if step.name.startswith(_ENDS):
        return []
    jumps = step.code in dis.hasjrel or step.code in dis.hasjabs
    ways = [(place[step.about], True)] if jumps and step.about in place else []
    if step.name not in _JUMPS_ALWAYS and n + 1 < count:
        ways.append((n + 1, False))
    return ways


def _deeds(flow: Flow) -> list[list[tuple[str, str]]]:
    """What each instruction reads and sets, in this order."""
    steps = flow.steps
    deeds: list[list[tuple[str, str]]] = [[] for _ in steps]
    for n, step in enumerate(steps):
        name = step.about
        if step.name.startswith("LOAD_") and isinstance(name, types.CodeType):
            deeds[n] += [(_READ, inner) for inner in _read_within(name)]
        if not _is_variable(step.name):
            continue
        if step.name.startswith(("STORE_", "DELETE_")):
            deeds[n].append((_SET, name))
        elif written := _written_whole(flow, n):
            for end in written:
                deeds[end].append((_SET, name))
        else:
            deeds[n].append((_READ, name))
            if name == "self" and n + 1 < len(steps) and steps[n + 1].name.endswith("_ATTR"):
                sets = steps[n + 1].name == "STORE_ATTR"
                deeds[n + 1].append((_SET if sets else _READ, f"self.{steps[n + 1].about}"))
            elif name == "self" and _adds_to_attribute(steps[n + 1 : n + 3]):
                attribute = f"self.{steps[n + 2].about}"
                deeds[n + 2] += [(_READ, attribute), (_SET, attribute)]
    _leave_out_comprehensions(flow, deeds)
    return deeds


def _leave_out_comprehensions(flow: Flow, deeds: list[list[tuple[str, str]]]) -> None:
    """Until a variable is back that was put aside, its name is that of another; but the module's goes on beside it."""
    steps = flow.steps
    for n, step in enumerate(steps):
        if step.name == _PUT_ASIDE:
            for m in set[int]().union(*flow.lives(n)):
                if not any(kind in steps[m].name for kind in ("_NAME", "_GLOBAL")):
                    deeds[m] = [deed for deed in deeds[m] if deed[1] != step.about]
        elif step.name == "RERAISE":  # an exception puts it back, too
            first = n
            while steps[first - 1].name == "STORE_FAST":
                first -= 1
            if [one.name for one in steps[first - 3 : first]] == ["SWAP", "POP_TOP", "SWAP"]:
                deeds[first:n] = [[] for _ in deeds[first:n]]


def _adds_to_attribute(following: list[Step]) -> bool:
    """Whether an object is loaded for ``self.x += y``: once to read the attribute, and once to set it."""
    return [step.name for step in following] == ["COPY", "LOAD_ATTR"]


def _is_variable(operation: str) -> bool:
    if operation == _PUT_ASIDE:
        return False
    kinds = ("_FAST", "_NAME", "_GLOBAL", "_DEREF", "_CLOSURE")
    return operation.startswith(("LOAD_", "STORE_", "DELETE_")) and any(kind in operation for kind in kinds)


def _written_whole(flow: Flow, n: int) -> set[int]:
    """The instructions by which a value is written over as a whole that is loaded here for it (``x.copy_(y)``,
    ``x[:] = y``); none where it is read."""
    following = [step for step in flow.steps[n + 1 : n + 5] if step.name not in ("PRECALL", "PUSH_NULL")]
    if following and following[0].name in ("LOAD_METHOD", "LOAD_ATTR") and following[0].about in _WHOLE:
        return flow.lives(n)[1]
    for m, step in enumerate(following):
        if step.name in ("STORE_SUBSCR", "STORE_SLICE"):
            return {n + 1 + m}
        if step.name == "BUILD_SLICE" or (step.name == "LOAD_CONST" and step.about in (None, ..., slice(None))):
            continue
        break
    return set()


def _read_within(code: types.CodeType) -> set[str]:
    """Names of the module, or of the function around it, that a function within reads: not its own, which one
    within it reads in turn."""
    found = {s.argval for s in dis.get_instructions(code) if s.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")}
    inner = (_read_within(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return {name for name in found.union(*inner) if isinstance(name, str)} - set(code.co_cellvars)

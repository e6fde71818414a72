"""Which variables a loop carries from turn to turn: those that it reads before it sets them anew.

What is asked is the bytecode of the function that runs the loop. From the place where it waits for the next batch all
ways are followed: a variable is *live* if one of them reads it before it is set (the usual definition of compilers).
One that is set first, as an output or what a batch was unpacked into, begins anew in each turn by itself.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator

__all__ = ["live", "named"]

_MOST = 20_000  # instructions
_ENDS = ("RETURN_", "RAISE_", "RERAISE")
_JUMPS_ALWAYS = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_WHOLE = frozenset({"copy_", "zero_", "fill_", "clear"})  # methods by which all that was there is gone
_READ, _SET = "read", "set"


@functools.lru_cache(maxsize=64)
def live(code: types.CodeType, at: int) -> frozenset[str]:
    """Names that are live after the instruction at offset ``at``: of variables, and ``self.name`` of attributes."""
    steps = list(dis.get_instructions(code))[:_MOST]
    place = {step.offset: n for n, step in enumerate(steps)}
    deeds = _deeds(steps)
    after = [_after(n, step, place) for n, step in enumerate(steps)]
    bits = {name: 1 << n for n, name in enumerate(dict.fromkeys(name for found in deeds for _, name in found))}
    alive = [0] * len(steps)  # sets of names
    changed = True
    while changed:  # against the flow, until nothing is new
        changed = False
        for n in range(len(steps) - 1, -1, -1):
            names = 0
            for m in after[n]:
                names |= alive[m]
            for kind, name in reversed(deeds[n]):
                names = names | bits[name] if kind == _READ else names & ~bits[name]
            if names != alive[n]:
                alive[n], changed = names, True
    begin = next((alive[n] for n, step in enumerate(steps) if step.offset > at), 0)
    return frozenset(name for name, bit in bits.items() if begin & bit)


@functools.lru_cache(maxsize=64)
def named(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """All names that it reads, and all that it sets."""
    deeds = [deed for found in _deeds(list(dis.get_instructions(code))[:_MOST]) for deed in found]
    return frozenset(n for kind, n in deeds if kind == _READ), frozenset(n for kind, n in deeds if kind == _SET)


def _after(n: int, step: dis.Instruction, place: dict[int, int]) -> list[int]:
    """The instructions that may follow."""
    if step.opname.startswith(_ENDS):
        return []
    jumps = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
    ways = [place[step.argval]] if jumps and step.argval in place else []
    if step.opname not in _JUMPS_ALWAYS and n + 1 < len(place):
        ways.append(n + 1)
    return ways


def _deeds(steps: list[dis.Instruction]) -> list[list[tuple[str, str]]]:
    """What each instruction reads and sets, in this order."""
    deeds: list[list[tuple[str, str]]] = [[] for _ in steps]
    for n, step in enumerate(steps):
        name = step.argval
        if step.opname.startswith("LOAD_") and isinstance(name, types.CodeType):
            deeds[n] += [(_READ, inner) for inner in _read_within(name)]
        if not _is_variable(step.opname):
            continue
        if isinstance(name, tuple):  # two in one, since Python 3.13
            first, second = (_SET if part == "STORE" else _READ for part in _parts(step.opname))
            deeds[n] += [(first, name[0]), (second, name[1])]
        elif step.opname.startswith(("STORE_", "DELETE_")):
            deeds[n].append((_SET, name))
        elif (end := _written_whole(steps, n)) is not None:
            deeds[end].append((_SET, name))
        else:
            deeds[n].append((_READ, name))
            if name == "self" and n + 1 < len(steps) and steps[n + 1].opname.endswith("_ATTR"):
                sets = steps[n + 1].opname == "STORE_ATTR"
                deeds[n + 1].append((_SET if sets else _READ, f"self.{steps[n + 1].argval}"))
    return deeds


def _is_variable(operation: str) -> bool:
    if operation == "LOAD_FAST_AND_CLEAR":  # what a comprehension puts aside
        return False
    kinds = ("_FAST", "_NAME", "_GLOBAL", "_DEREF", "_CLOSURE")
    return operation.startswith(("LOAD_", "STORE_", "DELETE_")) and any(kind in operation for kind in kinds)


def _parts(operation: str) -> Iterator[str]:
    return (part for part in operation.split("_") if part in ("LOAD", "STORE"))


def _written_whole(steps: list[dis.Instruction], n: int) -> int | None:
    """The instruction by which a value is written over as a whole that is loaded here for it (``x.copy_(y)``,
    ``x[:] = y``); None where it is read."""
    following = [step for step in steps[n + 1 : n + 5] if step.opname not in ("PRECALL", "PUSH_NULL")]
    if not following:
        return None
    if following[0].opname in ("LOAD_METHOD", "LOAD_ATTR") and following[0].argval in _WHOLE:
        return next((m for m in range(n + 1, len(steps)) if steps[m].opname == "POP_TOP"), None)
    for m, step in enumerate(following):
        if step.opname in ("STORE_SUBSCR", "STORE_SLICE"):
            return n + 1 + m
        if step.opname == "BUILD_SLICE" or (step.opname == "LOAD_CONST" and step.argval in (None, ..., slice(None))):
            continue
        break
    return None


def _read_within(code: types.CodeType) -> set[str]:
    """Names of the module, or of the function around it, that a function within reads."""
    found = {s.argval for s in dis.get_instructions(code) if s.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")}
    inner = (_read_within(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return {name for name in found.union(*inner) if isinstance(name, str)}

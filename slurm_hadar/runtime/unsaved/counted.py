"""A loop that sets its optimizer's numbers, as the learning rate, or steps it in some turns only, and that counts its
batches by ``enumerate``, which begins at 0 in each run of a job: what follows from that count is another after a move.

That it does the first is seen by the optimizers, and the second by the bytecode of the loop.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

__all__ = ["Counted"]

_OURS = "slurm_hadar.runtime"
_FRAMES = 8
_ENDS = ("STORE_", "POP_TOP", "FOR_ITER", "JUMP", "POP_JUMP", "RETURN", "RAISE")  # of what comes before an expression
_BY_ENUMERATE, _BY_THE_TRAINING = "by enumerate", "by the training"
_AS_A_METHOD = "NULL"  # since Python 3.12 an attribute that is called at once is not told by its instruction's name


class Counted:
    """``set_by_hand``: optimizers that no scheduler sets."""

    def __init__(self, set_by_hand: Iterable[Any]) -> None:
        self._optimizers = list(set_by_hand)
        self._stepped: frozenset[int] | None = None
        self._before: list[dict[str, Any]] | None = None
        self._told = self._looked_closer = False

    def look(self) -> str:
        """What is to be said, once; called behind a turn, by what the loop waits for."""
        now = [_numbers_of(one) for one in self._optimizers]
        before, self._before = self._before, now
        if before is None or self._told:
            return ""
        changed = [
            (type(one).__name__, name)
            for one, was, is_now in zip(self._optimizers, before, now, strict=True)
            for name in was
            if is_now.get(name, was[name]) != was[name]
        ]
        return self._words(f"sets {changed[0][1]} of {changed[0][0]}") if changed else ""

    def turn(self, stepped: frozenset[int]) -> str:
        """The same behind each turn, with the optimizers that have stepped in it. Looks closer at the first two turns
        that differ in that, since it takes long."""
        before, self._stepped = self._stepped, stepped
        if self._looked_closer or before is None or before == stepped:
            return ""
        self._looked_closer = True
        return "" if self._told or _may_leave_out_steps() else self._words("steps its optimizers in some turns only")

    def _words(self, does: str) -> str:
        ways = [_way_of_counting(frame) for frame in _frames()]
        if _BY_ENUMERATE not in ways or _BY_THE_TRAINING in ways:  # a logger counts for itself
            return ""
        self._told = True
        return (
            f"the loop {does} and counts its batches by enumerate(), which begins at 0 again when the job was moved or "
            "restarted. If the one follows from the other, go by run.step and run.epoch, which go on, or in a loop of "
            "run.epochs() begin at the batches' own start: enumerate(batches, batches.start)"
        )


def _may_leave_out_steps() -> bool:
    """Whether there is a gradient scaler, which leaves out a step whose gradients are not finite."""
    torch = sys.modules.get("torch")
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    return scaler is not None and any(issubclass(type(one), scaler) for one in gc.get_objects())


def _numbers_of(optimizer: Any) -> dict[str, Any]:
    """Of its first parameter group."""
    groups = getattr(optimizer, "param_groups", None) or [{}]
    return {name: value for name, value in groups[0].items() if type(value) in (int, float)}


def _frames() -> Iterator[types.FrameType]:
    """That which goes through the loop and, where it is a generator, those that go through this."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the script's is behind ours
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    for _ in range(_FRAMES):
        if frame is None:
            return
        yield frame
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        frame = frame.f_back


def _way_of_counting(frame: types.FrameType) -> str:
    """How the ``for`` that this frame is at counts: by ``enumerate`` from 0; by the training, where something in it
    asks for a step, or it begins at an epoch's start, also by a variable of the function; "" if it does not."""
    steps = list(dis.get_instructions(frame.f_code))
    here = max((n for n, s in enumerate(steps) if s.offset <= frame.f_lasti), default=0)
    if steps[here].opname != "FOR_ITER":
        return ""
    within = [s for s in steps[here:] if s.offset < steps[here].argval]
    if any(_asks_for(s, "step") for s in within):
        return _BY_THE_TRAINING
    started = {_names(after)[0] for asks, after in pairwise(steps) if _asks_for(asks, "start") and _sets(after)}
    while here and steps[here].opname != "GET_ITER":
        here -= 1
    for n in range(here - 1, -1, -1):
        if steps[n].opname.startswith(_ENDS):
            return ""
        if steps[n].opname.startswith("LOAD_") and steps[n].argval == "enumerate":
            return _BY_ENUMERATE
        if _asks_for(steps[n], "start") or not started.isdisjoint(_names(steps[n])):
            return _BY_THE_TRAINING  # enumerate(batches, batches.start), or a variable of that value
    return ""


def _sets(step: dis.Instruction) -> bool:
    return step.opname.startswith("STORE_") and step.opname not in ("STORE_ATTR", "STORE_SUBSCR")


def _names(step: dis.Instruction) -> tuple[Any, ...]:
    """Those that it is about: two since Python 3.13, of variables of a function."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _asks_for(step: dis.Instruction, name: str) -> bool:
    """Whether it reads an attribute, and not to call it at once."""
    return step.argval == name and step.opname == "LOAD_ATTR" and _AS_A_METHOD not in step.argrepr

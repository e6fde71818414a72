"""What goes on in a training but is in no checkpoint, so that a move would set it back: its owner is told."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime.checkpoint.turns import Turns
from slurm_hadar.runtime.progress.link import Link

__all__ = ["Forgotten"]

_CHECK_AFTER = (10, 100, 1000)  # turns of this run; and before its saves
_SHARE = 0.05  # of the time, at most, where saves follow each other closely


class Forgotten:
    """Looks for optimizers that step, for parameters that they train, and for what else PyTorch knows that goes on with
    a training (schedulers, averages of weights, gradient scalers), where ``train`` was not given them; and for what is
    switched in the objects that were given and is not in their states. Each is told once, on stderr.

    Parameters
    ----------
    saved: the objects that are saved, without wrappers. turns: sees the optimizers. link: tells the scheduler how many.
    """

    def __init__(self, saved: Iterable[Any], turns: Turns, link: Link) -> None:
        self._saved = list(saved)
        self._known = {id(inner) for one in self._saved for inner in (one, *_parts_of(one))}
        self._turns, self._link = turns, link
        self._before: dict[int, Any] | None = None
        self._given = self._switches()
        self._told: set[str] = set()
        self._next_check = 0.0

    def turn(self, turn: int) -> None:
        """So many turns of this run are over."""
        if turn == 1:
            self._before = {id(one): count for one, count in _going_on()}
        elif turn in _CHECK_AFTER:
            self.check()

    def before_save(self, awaited: bool) -> None:
        """``awaited``: somebody waits for the save, most likely to end the training."""
        if awaited or time.monotonic() >= self._next_check:
            self.check()

    def check(self) -> None:
        began = time.monotonic()
        self._check()
        now = time.monotonic()
        self._next_check = now + (now - began) / _SHARE

    def _check(self) -> None:
        found = {*self._turns.others, *self._trained(), *self._switched()}
        if self._before is not None:
            found |= {
                type(one).__name__
                for one, count in _going_on()
                if id(one) not in self._known and count is not None and self._before.get(id(one), 0) != count
            }
        new = sorted(found - self._told)
        if not new:
            return
        self._told |= found
        self._link.forgets(len(self._told))
        say(
            f"WARNING: not saved, so a move or a restart sets it back: {', '.join(new)}. Give train() all "
            "models, optimizers and schedulers (a list or a dict of them), the rest as also={'name': object}.",
        )

    def _switches(self) -> list[tuple[dict[int, bool], int]]:
        """Of each saved object: which of its parameters are trained, and how many parameter groups it has."""
        return [
            (
                {id(p): p.requires_grad for p in one.parameters()} if hasattr(one, "parameters") else {},
                len(getattr(one, "param_groups", ())),
            )
            for one in self._saved
        ]

    def _switched(self) -> Iterable[str]:
        for one, (flags, groups), (flags_now, groups_now) in zip(
            self._saved, self._given, self._switches(), strict=True
        ):
            if any(flags_now.get(p, flag) != flag for p, flag in flags.items()):
                yield f"requires_grad, switched in {type(one).__name__} (switch it in every run, by run.step)"
            if groups_now > groups:
                yield f"parameter groups, added to {type(one).__name__} (it cannot go on unless train() has them all)"

    def _trained(self) -> Iterable[str]:
        """Parameters that a saved optimizer trains, and that are in no saved model."""
        held = {id(p) for one in self._saved if hasattr(one, "parameters") for p in one.parameters()}
        for one in self._saved:
            for group in getattr(one, "param_groups", ()):
                lost = sum(id(p) not in held for p in group["params"])
                if lost:
                    yield f"{lost} parameters that {type(one).__name__} trains"


def _parts_of(one: Any) -> Iterable[Any]:
    """The schedulers that a scheduler is made of."""
    return getattr(one, "_schedulers", ())


def _going_on() -> Iterable[tuple[Any, Any]]:
    """Each of these objects in this process, and how far it has come."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    kinds = {
        torch.optim.lr_scheduler.LRScheduler: lambda one: one.last_epoch,
        torch.optim.swa_utils.AveragedModel: lambda one: int(one.n_averaged),
        torch.amp.GradScaler: lambda one: one.state_dict().get("_growth_tracker"),
    }
    known: dict[type, Any] = {}  # there are very many objects, and few classes
    for one in gc.get_objects():
        kind = type(one)
        if kind not in known:
            known[kind] = next((count for base, count in kinds.items() if issubclass(kind, base)), None)
        if known[kind] is not None:
            try:
                count = known[kind](one)
            except (AttributeError, RuntimeError, TypeError, ValueError):  # half made, or of another making
                continue
            yield one, count

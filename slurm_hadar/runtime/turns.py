"""What happens within the turns of a training loop: which optimizers step, so that a save falls between gradients.

A gradient that is summed up over several turns (gradient accumulation) stands in ``.grad``, which no checkpoint holds.
So a save waits for a turn after which none is outstanding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["MOST_TURNS", "Turns"]

#: So many turns a save waits for one after which no gradient is outstanding; who has not stepped for so long is idle.
MOST_TURNS = 256


class Turns:
    """Follows the optimizers of this process from :meth:`start` to :meth:`stop`.

    Parameters
    ----------
    optimizers: those that are saved, without wrappers; objects that are no ``torch.optim.Optimizer`` are not followed.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        torch = sys.modules.get("torch")  # who has not imported it trains without
        self._saved = [o for o in optimizers if torch is not None and isinstance(o, torch.optim.Optimizer)]
        self._turn = 0
        self._stepped: dict[int, tuple[int, Any]] = {}  # by optimizer: the turn, and the mark of its gradients then
        self._others: dict[int, str] = {}
        self._hook: Any = None

    def start(self) -> None:
        # of PyTorch 2.1; without it saves are as they were
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if self._hook is None and register is not None:
            self._hook = register(self._note)

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def end(self) -> None:
        """A turn is over."""
        self._turn += 1

    def _note(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        key = id(optimizer)
        if key not in self._stepped and key not in self._others and not _is_among(optimizer, self._saved):
            self._others[key] = _described(optimizer)
        if key not in self._others:
            self._stepped[key] = self._turn, _mark(optimizer)

    @property
    def clean(self) -> bool:
        """Whether no gradient waits for an optimizer's step, right after :meth:`end`."""
        return self._hook is None or not any(self._waits(o) for o in self._saved)

    def _waits(self, optimizer: Any) -> bool:
        turn, mark = self._stepped.get(id(optimizer), (-1, None))
        if turn == self._turn - 1 and mark == _mark(optimizer):
            return False  # what is in .grad has been used
        if self._turn - 1 - turn > MOST_TURNS:
            return False
        return any(_is_more_than_zero(p.grad) for p in _parameters(optimizer) if p.grad is not None)

    @property
    def others(self) -> tuple[str, ...]:
        """The optimizers that have stepped and are not saved, in words."""
        return tuple(self._others.values())


def _is_among(optimizer: Any, saved: list[Any]) -> bool:
    """Whether it is one of them, or is within one (a wrapper such as ZeRO's steps both)."""
    return any(o is optimizer or any(v is optimizer for v in vars(o).values()) for o in saved)


def _described(optimizer: Any) -> str:
    return f"optimizer {type(optimizer).__name__} ({sum(1 for _ in _parameters(optimizer))} parameters)"


def _parameters(optimizer: Any) -> Iterable[Any]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _local(grad: Any) -> Any:
    """What this rank has of it: to look at a sharded gradient as a whole all ranks would have to."""
    return getattr(grad, "_local_tensor", grad)


def _is_more_than_zero(grad: Any) -> bool:
    grad = _local(grad)
    return grad._nnz() > 0 if grad.is_sparse else bool(grad.any())


def _mark(optimizer: Any) -> Any:
    """Changes when a gradient is added: the first one, which a backward pass that reaches the parameters changes."""
    for parameter in _parameters(optimizer):
        if parameter.grad is not None:
            grad = _local(parameter.grad)
            return id(grad), grad._version
    return None

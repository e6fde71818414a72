"""What happens within the turns of a training loop: which optimizers step, so that a save falls between gradients.

A gradient that is summed up over several turns (gradient accumulation) stands in ``.grad``, which no checkpoint holds.
So a save waits for a turn after which none is outstanding. What a training throws away before it steps is none: in a
GAN the generator's backward pass leaves gradients in the discriminator, which are set to None before they are used.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from slurm_hadar.joblog import say

__all__ = ["Turns"]

#: So many turns a save waits for one after which no gradient is outstanding; who has not stepped for so long is idle.
MOST_TURNS = 256
#: So often an optimizer must have thrown away what was left, and never used it, before that counts as nothing.
_THROWN_AWAY = 3


_all: weakref.WeakSet[Turns] = weakref.WeakSet()  # of this process's trainings


class Turns:
    """Follows the optimizers of this process from :meth:`start` to :meth:`stop`.

    Parameters
    ----------
    optimizers: those that are saved; of an object that is no ``torch.optim.Optimizer`` those that it has are followed.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        torch = sys.modules.get("torch")  # who has not imported it trains without
        self._saved = [] if torch is None else [one for o in optimizers for one in _within(o, torch.optim.Optimizer)]
        self._owners: dict[int, Any] = {}  # by an optimizer that steps: the saved one that it is, or is within
        self._beside: dict[int, list[Any]] = {}
        _all.add(self)
        self._turn = self._waited = 0
        self._stepped: dict[int, tuple[int, Any]] = {}  # by optimizer: the turn, and the mark of its gradients then
        # a parameter, its gradient at the end of the last turn, and how often that had been changed
        self._left: dict[int, tuple[Any, Any, int]] = {}
        # by optimizer: a gradient that its last step used, and how often that had been changed
        self._used_up: dict[int, tuple[Any, int]] = {}
        self._thrown: dict[int, int] = {}  # by optimizer: how often what was left was thrown away; below 0: it was used
        self._spent: dict[int, tuple[Any, Any, int]] = {}  # the same of gradients that were used in that turn
        self._kept: dict[int, str] = {}
        self._others: dict[int, str] = {}
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Watch the steps of optimizers, by hooks of PyTorch 2.1; without these saves are as they were."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if not self._hooks and module is not None and register is not None:
            self._hooks = [register(self._after_step), module.register_optimizer_step_pre_hook(self._before_step)]

    def stop(self) -> None:
        """Watch no more, and forget what was seen."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._left, self._spent = [], {}, {}

    def end(self) -> None:
        """A turn is over. Looks at no value: on a GPU that would wait for it."""
        self._turn += 1
        for optimizer in self._saved if self._hooks else ():
            used = self._used(optimizer)
            if used or self._thrown.get(id(optimizer), 0) >= 0:
                with_gradient = (p for p in _parameters(optimizer) if p.grad is not None)
                left = min(with_gradient, key=lambda p: p.numel(), default=None)  # a gradient kept costs memory
                if left is not None and not (used and _is_gang()):
                    into = self._spent if used else self._left
                    into[id(optimizer)] = left, left.grad, _changes(left.grad)

    def _owner(self, optimizer: Any) -> Any:
        """The saved optimizer that it is, or is within: many a wrapper's step calls no hook but that of the one within.
        Itself, if there is none."""
        known = self._owners.get(id(optimizer))
        if known is None:
            mine = (o for o in self._saved if o is optimizer or _saves_within(o, optimizer))
            known = next(mine, optimizer)
            if optimizer.state:  # before it has one, any wrapper saves all of it
                self._owners[id(optimizer)] = known
        return known

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Before a step: whether the gradients that were left by the turn before are among those it uses. What has been
        added to is, also where the sum was divided into a new tensor."""
        optimizer = self._owner(optimizer)
        parameter, gradient, changes = self._spent.pop(id(optimizer), (None, None, 0))
        if parameter is not None and parameter.grad is gradient and _changes(gradient) == changes + 1:
            self._kept[id(optimizer)] = (
                f"gradients that {type(optimizer).__name__} has used and that are added to (zero_grad() in each turn)"
            )
        parameter, gradient, changes = self._left.pop(id(optimizer), (None, None, 0))
        if parameter is not None:
            thrown = parameter.grad is not gradient and _changes(gradient) == changes
            self._thrown[id(optimizer)] = self._thrown.get(id(optimizer), 0) + 1 if thrown else -1

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        optimizer = self._owner(optimizer)
        key = id(optimizer)
        if key not in self._stepped and key not in self._others and not _is_anybodys(optimizer):
            self._others[key] = _described(optimizer)
        if key not in self._others:
            self._has_used(optimizer)
        for saved in self._alongside(optimizer):  # whose step is never called: what is in .grad is used all the same
            self._has_used(saved)

    def _has_used(self, optimizer: Any) -> None:
        self._stepped[id(optimizer)] = self._turn, _mark(optimizer)
        if (gradient := _first_gradient(optimizer)) is not None:
            self._used_up[id(optimizer)] = weakref.ref(gradient), gradient._version  # noqa: SLF001

    # As by torch.compiler.disable, which would import the compiler: in a compiled step they are called, not traced.
    _before_step._torchdynamo_disable = _after_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001

    def _alongside(self, optimizer: Any) -> list[Any]:
        """The other saved optimizers of the same parameters, as one around it that steps by other names (SAM)."""
        key = id(optimizer)
        if key not in self._beside:
            own = {id(p) for p in _parameters(optimizer)}
            others = (o for o in self._saved if o is not optimizer)
            self._beside[key] = [o for o in others if any(id(p) in own for p in _parameters(o))]
        return self._beside[key]

    def ripe(self) -> bool:
        """Whether a save that is due leaves out no gradient, right after :meth:`end`; or has waited for that for too
        long, which is told."""
        if not (self._hooks and any(self._waits(o) for o in self._saved)):
            self._waited = 0
            return True
        self._waited += 1
        if self._waited == MOST_TURNS:
            say(
                f"WARNING: in {MOST_TURNS} turns there was none after which no optimizer had gradients left to "
                "use; checkpoints leave gradients out, so a move changes this training a little"
            )
        return self._waited >= MOST_TURNS

    def _waits(self, optimizer: Any) -> bool:
        if self._used(optimizer) or self._thrown.get(id(optimizer), 0) >= _THROWN_AWAY:
            return False
        if self._is_used_up(optimizer):
            return False
        if self._turn - 1 - self._stepped.get(id(optimizer), (-1, None))[0] > MOST_TURNS:
            return False
        return any(_is_more_than_zero(p.grad) for p in _parameters(optimizer) if p.grad is not None)

    def _used(self, optimizer: Any) -> bool:
        """Whether what is in .grad has been used in the turn that is over."""
        turn, mark = self._stepped.get(id(optimizer), (-1, None))
        return turn == self._turn - 1 and mark == _mark(optimizer)

    def _is_used_up(self, optimizer: Any) -> bool:
        """Whether what is in .grad was used in whichever turn, and nothing was added since: a generator's gradients
        stand there while the discriminator alone is trained."""
        used, changes = self._used_up.get(id(optimizer), (None, 0))
        gradient = _first_gradient(optimizer)
        return used is not None and gradient is not None and used() is gradient and changes == gradient._version  # noqa: SLF001

    @property
    def stepped(self) -> bool:
        """Whether a saved optimizer has stepped in the turn that is under way."""
        return any(self._stepped.get(id(o), (-1, None))[0] == self._turn for o in self._saved)

    @property
    def last(self) -> frozenset[int]:
        """Which of the saved optimizers have stepped in the turn that is over, by their ids."""
        return frozenset(id(o) for o in self._saved if self._stepped.get(id(o), (-1, None))[0] == self._turn - 1)

    @property
    def untouched(self) -> bool:
        """Whether the turn that is under way has left no gradient so far; False where that cannot be told."""
        return bool(self._saved and self._hooks) and all(self._is_untouched(o) for o in self._saved)

    def _is_untouched(self, optimizer: Any) -> bool:
        parameter, gradient, changes = self._left.get(id(optimizer), (None, None, 0))
        if parameter is not None:
            return parameter.grad is gradient and _changes(gradient) == changes
        return _mark(optimizer) in (None, self._stepped.get(id(optimizer), (-1, None))[1])

    @property
    def kept(self) -> tuple[str, ...]:
        """The gradients that are used more than once, a backward pass added to them each time, in words."""
        return tuple(self._kept.values())

    @property
    def others(self) -> tuple[str, ...]:
        """The optimizers that have stepped and are not saved, in words."""
        return tuple(self._others.values())


def _is_anybodys(optimizer: Any) -> bool:
    """Whether it is saved by one of this process's trainings, or is within an optimizer that is."""
    return any(o is optimizer or _saves_within(o, optimizer) for turns in _all for o in turns._saved)  # noqa: SLF001


def _within(one: Any, kind: type) -> list[Any]:
    """The optimizer, or what a wrapper that is none has of them."""
    return [one] if isinstance(one, kind) else [v for v in getattr(one, "__dict__", {}).values() if isinstance(v, kind)]


def _saves_within(wrapper: Any, optimizer: Any) -> bool:
    """Whether the state of an optimizer within another is in that one's ``state_dict``: that of PyTorch's own knows
    nothing of it, and many a wrapper (SAM) has no other."""
    from torch.optim import Optimizer

    if not any(v is optimizer for v in vars(wrapper).values()):
        return False
    same = getattr(wrapper, "state", None) is optimizer.state
    return same or not optimizer.state or type(wrapper).state_dict is not Optimizer.state_dict


def _described(optimizer: Any) -> str:
    return f"optimizer {type(optimizer).__name__} ({sum(1 for _ in _parameters(optimizer))} parameters)"


def _parameters(optimizer: Any) -> Iterable[Any]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _is_gang() -> bool:
    """Whether gradients may be views of buckets that several workers send round: then they are never new ones."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _local(grad: Any) -> Any:
    """What this rank has of it: to look at a sharded gradient as a whole all ranks would have to."""
    return getattr(grad, "_local_tensor", grad)


def _changes(grad: Any) -> int:
    """How often a gradient was changed in place: PyTorch's own count."""
    return int(_local(grad)._version)  # noqa: SLF001


def _is_more_than_zero(grad: Any) -> bool:
    grad = _local(grad)
    return grad._nnz() > 0 if grad.is_sparse else bool(grad.any())  # noqa: SLF001 - counts without looking at values


def _mark(optimizer: Any) -> Any:
    """Changes when a gradient is added: the first one, which a backward pass that reaches the parameters changes."""
    grad = _first_gradient(optimizer)
    return None if grad is None else (id(grad), grad._version)  # noqa: SLF001 - PyTorch's own count of changes


def _first_gradient(optimizer: Any) -> Any:
    """That of its first parameter which has one; of what is sharded, this rank's part."""
    return next((_local(p.grad) for p in _parameters(optimizer) if p.grad is not None), None)

"""Learning-rate schedules that follow the steps of the whole forked job, not those of one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Boost", "Clock", "Follower"]


class Clock:
    """How far the whole job is while one copy is at its ``made``-th step of the period, all copies going on evenly."""

    def __init__(self) -> None:
        self.begin(0, 1.0, 0)

    def begin(self, step: int, ratio: float, most: int) -> None:
        """A period begins at ``step`` of the job; while this copy makes one step all together make ``ratio``, and
        ``most`` in the whole period."""
        self._base, self._ratio, self._most = step, ratio, most
        self.made = 0

    @property
    def step(self) -> int:
        """The job's step now."""
        return self._at(self.made)

    @property
    def next_step(self) -> int:
        """The job's step when the present step is done."""
        return self._at(self.made + 1)

    def _at(self, made: int) -> int:
        return self._base + min(self._most, max(made, int(made * self._ratio)))


class Follower:
    """Makes the user's ``scheduler.step()``, called once a step, advance the schedule to where the whole job is.

    A schedule that is called at the first step of a copy follows; ``position`` is then its number of advances, else
    None, and it advances by one a call as ever (stepped by epochs). A call with arguments (``ReduceLROnPlateau``) is
    passed on.
    """

    def __init__(self, schedulers: Mapping[str, Any], clock: Clock) -> None:
        self._clock = clock
        self._schedulers = dict(schedulers)
        self._own = {name: type(scheduler) for name, scheduler in schedulers.items()}
        self.position: dict[str, int | None] = dict.fromkeys(schedulers)
        for name in schedulers:
            self._follow(name)

    def go_to(self, positions: Mapping[str, int | None], step: int) -> None:
        """After states were loaded that belong to ``positions``: go on to ``step``, from which the copies begin."""
        for name, position in positions.items():
            self.position[name] = position
            if position is not None:
                self._advance(name, step)

    def _advance(self, name: str, step: int) -> None:
        position = self.position[name] or 0
        for _ in range(step - position):
            self._own[name].step(self._schedulers[name])
        self.position[name] = max(position, step)

    def _follow(self, name: str) -> None:
        own = self._own[name]

        def step(schedule: Any, *args: Any, **kwargs: Any) -> None:
            if self.position[name] is None and self._clock.made == 0:
                self.position[name] = self._clock.step
            if args or kwargs or self.position[name] is None:
                own.step(schedule, *args, **kwargs)
            else:
                self._advance(name, self._clock.next_step)

        # a class of its own, since what is set on the object itself would be in its state_dict
        self._schedulers[name].__class__ = type(own.__name__, (own,), {"step": step})


class Boost:
    """Multiplies learning rates by ``factor`` while an optimizer makes its step, and at no other time: neither a
    schedule nor a saved state ever sees it. Optimizers without step hooks are left as they are."""

    def __init__(self, optimizers: Mapping[str, Any]) -> None:
        self.factor = 1.0
        self._before: dict[int, list[Any]] = {}
        for optimizer in optimizers.values():
            if hasattr(optimizer, "register_step_pre_hook"):
                optimizer.register_step_pre_hook(self._raise)
                optimizer.register_step_post_hook(self._restore)

    def _raise(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._before[id(optimizer)] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.factor

    def _restore(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._before.pop(id(optimizer)), strict=True):
            group["lr"] = rate

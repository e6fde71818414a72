"""Who knows more, and who knows less, of drifting run times than the scheduler learns."""

from __future__ import annotations

import math
import random

from slurm_hadar.serving.scheduling.learning import Knowledge
from slurm_hadar.serving.scheduling.orloj import Orloj
from slurm_hadar.serving.scheduling.scheduler import Scheduler

__all__ = ["DRIFT", "PERIOD_S", "Blind", "Oracle"]

DRIFT, PERIOD_S = 0.5, 7200.0
_TOLD_EACH_S = 20.0
_TIMES = {"short": 0.1, "long": 1.0}
_SPREAD = 0.05


class Oracle:
    """Tells the scheduler the true distributions of the hour, again and again."""

    def __init__(self) -> None:
        self._told_s = -math.inf
        dice = random.Random("oracle")
        self._noise = [math.exp(_SPREAD * dice.gauss(0, 1) - _SPREAD**2 / 2) for _ in range(300)]

    def tell(self, scheduled: Scheduler, now_s: float) -> None:
        if now_s < self._told_s + _TOLD_EACH_S:
            return
        self._told_s = now_s
        factor = 1 + DRIFT * math.sin(2 * math.pi * now_s / PERIOD_S)
        for policy in scheduled.policies.values():
            assert isinstance(policy, Orloj)
            policy.knowledge = Knowledge({a: [s * factor * n for n in self._noise] for a, s in _TIMES.items()})
            for application in _TIMES:
                policy.knowledge.arrived(application)
            policy.refresh(now_s)


class Blind:
    """Keeps the scheduler at what it knew at the start."""

    def __init__(self) -> None:
        self._known: Knowledge | None = None

    def tell(self, scheduled: Scheduler, now_s: float) -> None:
        for policy in scheduled.policies.values():
            assert isinstance(policy, Orloj)
            if self._known is None:
                self._known = policy.knowledge
                policy.knowledge = _Deaf(policy.knowledge)
                policy.refresh(now_s)


class _Deaf(Knowledge):
    def __init__(self, known: Knowledge) -> None:
        super().__init__({})
        self.__dict__.update(known.__dict__)

    def observe(self, application: str, seconds: float, of: int, now_s: float) -> None:
        """Not heard."""

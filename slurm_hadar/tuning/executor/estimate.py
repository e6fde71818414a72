"""What is to be expected of each trial: how much is left of it, and its overheads, from what was seen of all."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from slurm_hadar.tuning.allocation.allocator import Allocator
from slurm_hadar.tuning.allocation.pool import Limits
from slurm_hadar.tuning.executor.live import Live
from slurm_hadar.tuning.study.profile import Profile
from slurm_hadar.tuning.trials import Trial, packing_limit

__all__ = ["Estimates"]

_UNKNOWN_S = 60.0  # of a trial of which nothing is known; all are then alike


class Estimates:
    """``speeds``: of GPU types. Trials of a family scale alike; each has its own speed and length."""

    def __init__(self, profile: Profile, speeds: Mapping[str, float]) -> None:
        self._profile = profile
        self.know(speeds)
        self._learnt: set[tuple[int, tuple[int, int]]] = set()

    def know(self, speeds: Mapping[str, float]) -> None:
        """The GPU types that there are now."""
        self._speeds, self._best = speeds, max(speeds.values(), default=1.0)

    def packing(self, limits: Limits) -> int:
        """How many trials on a GPU pay, by the marginal benefit."""
        return packing_limit([self._profile.alpha**p for p in range(limits.packed)])

    def learn(self, live: Live) -> bool:
        """Whether the overheads have become known better by what this trial has shown."""
        rates, found = live.meter.rates, False
        if (alone := rates.get((1, 1))) is None:
            return False
        for key, rate in rates.items():
            if key == (1, 1) or (live.number, key) in self._learnt:
                continue
            self._learnt.add((live.number, key))
            gpus, trials = key
            if gpus == 1:
                self._profile.saw_packed(alone, rate, trials)
            else:
                self._profile.saw_wide(alone, rate, gpus)
            found = True
        return found

    def alone(self, live: Live) -> float | None:
        """Its steps per second at width 1 on the fastest type; None if nothing tells."""
        rates = live.meter.rates
        for (gpus, trials), rate in sorted(rates.items(), key=lambda item: item[0] != (1, 1)):
            if gpus == 1:
                return rate * self._profile.alpha ** (trials - 1)
            return rate * self._profile.beta ** (gpus - 1) / gpus
        return None

    def left_s(self, live: Live) -> float | None:
        """Seconds at width 1 on the fastest type until it is at its rung or over; None if nothing tells."""
        left, alone = live.meter.left(live.goal), self.alone(live)
        if left is None or alone is None:
            return None
        return max(left / alone, 1e-3) * self._factor(live)

    def _factor(self, live: Live) -> float:
        """Its speed was measured on the type that it is on."""
        kind = live.grant.gpu_type.partition("@")[0] if live.grant is not None else ""
        return self._speeds.get(kind, self._best) / self._best

    def trial(self, live: Live, group: Sequence[Live]) -> Trial:
        """As the allocator sees it; what is not known of one is as with the others."""
        left_s = self.left_s(live)
        if left_s is None:
            left_s = self._as_others(live, group)
        return Trial(live.name, left_s, self._profile.alpha, self._profile.beta, live.meter.batch or 1)

    def _as_others(self, live: Live, group: Sequence[Live]) -> float:
        """Seconds left of one whose pace, and perhaps whose length, is not known yet."""
        known = [other for other in group if self.alone(other) is not None]
        paces_s = [self._factor(other) / alone for other in known if (alone := self.alone(other)) is not None]
        left = live.meter.left(live.goal)
        lengths = [steps for other in known if (steps := other.meter.whole(live.goal)) is not None]
        if not paces_s or (left is None and not lengths):
            return _UNKNOWN_S
        return max((statistics.fmean(lengths) if left is None else left) * statistics.fmean(paces_s), 1e-3)

    def refresh(self, group: Sequence[Live], allocator: Allocator) -> bool:
        """Tell the allocator what is left of those that run; whether that is known of all."""
        complete = True
        for live in group:
            run = allocator.running.get(live.name)
            if run is None:
                continue
            left_s = self.left_s(live)
            complete &= left_s is not None
            run.trial = self.trial(live, group)
            run.left_s = run.trial.budget_s
        return complete

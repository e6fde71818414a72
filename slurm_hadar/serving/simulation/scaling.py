"""How many workers a server should have: what came of late, played again with more and with fewer. Our definition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.errors import ConfigError
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.simulation.run import play
from slurm_hadar.serving.trace import TracedRequest

__all__ = ["Bounds", "Scaling", "Wish", "scaling_of", "wanted_workers"]

_WORTH = 0.005  # of the finish rate: a worker that adds less is not worth its price


@dataclass(frozen=True)
class Bounds:
    """From ``least`` to ``most`` workers, so that ``goal`` of all requests are answered in time."""

    least: int
    most: int
    goal: float = 0.95

    @classmethod
    def read(cls, workers: str, goal: float) -> Bounds:
        """From ``2`` or ``1-4``. Raises ConfigError."""
        least, dash, most = workers.partition("-")
        try:
            found = cls(int(least), int(most if dash else least), goal)
        except ValueError:
            raise ConfigError(f"--workers {workers!r} must be a number, or two such as 1-4") from None
        if not 1 <= found.least <= found.most <= 256:
            raise ConfigError(f"--workers {workers!r} must be from 1 to 256, the smaller number first")
        return found

    def here(self, gpus: int) -> int:
        """The most workers where there are so many GPUs (0: nobody says): one each, but never fewer than may be."""
        return max(self.least, min(self.most, gpus)) if gpus else self.most


@dataclass(frozen=True)
class Scaling:
    """``expected``: finish rates by numbers of workers, as far as they were looked at; ``wanted`` is one of these."""

    wanted: int
    expected: Mapping[int, float] = field(default_factory=dict)


def scaling_of(
    seen: Sequence[TracedRequest], policy: Name, setups: Mapping[str, Setup], now: int, bounds: Bounds
) -> Scaling:
    """``seen``: requests of late, by arrival; their run times are drawn from what is known of each application. The
    server's own scheduler plays them on so many equal workers. Without any the least number will do."""
    if not seen:
        return Scaling(bounds.least)
    return wanted_workers(lambda n: play(seen, scheduler(policy, setups), (1.0,) * n).finish_rate, now, bounds)


def wanted_workers(expected: Callable[[int], float], now: int, bounds: Bounds) -> Scaling:
    """The fewest that are expected to reach the goal; fewer than ``now`` only if they reach half-way from the goal to
    1, so that the number does not swing. Where the goal cannot be reached: the fewest that come near to the most."""
    rates: dict[int, float] = {}
    for count in range(bounds.least, bounds.most + 1):
        rates[count] = expected(count)
        if rates[count] >= (bounds.goal if count >= now else (1.0 + bounds.goal) / 2.0):
            return Scaling(count, rates)
    best = max(rates.values())
    return Scaling(next(n for n, rate in rates.items() if rate > best - _WORTH), rates)


class Wish:
    """What a server tells the controller that it wants, where another number of workers is another start of its job.
    Our definition.

    More than it has: once what was lost for want of them, in seconds in which nobody would have been answered, has come
    to as much as the restart costs. That is the rule of ski rental (Karlin, Manasse, McGeoch, Owicki: Algorithmica
    1994): whatever comes, it loses at most twice what who knew it would. Fewer: once no look of the last ``memory_s``
    has wanted more.

    Parameters
    ----------
    have: workers that there is room for; before the first look it wants these.
    restart_s: what a restart costs, in seconds without answers.
    """

    def __init__(self, have: int, restart_s: float, memory_s: float, now_s: float) -> None:
        self._have, self._restart_s, self._memory_s = have, restart_s, memory_s
        self._looks: deque[tuple[float, int]] = deque([(now_s, have)])
        self._lost_s = 0.0
        self.wanted = have

    def look(self, found: Scaling, now_s: float) -> None:
        """What is expected now; :attr:`wanted` follows."""
        past_s = now_s - self._looks[-1][0]
        self._looks.append((now_s, found.wanted))
        while self._looks[0][0] < now_s - self._memory_s:
            self._looks.popleft()
        if found.wanted > self._have:
            self._lost_s += past_s * (found.expected[found.wanted] - found.expected[self._have])
            self.wanted = found.wanted if self._lost_s >= self._restart_s else self._have
        else:
            self._lost_s = 0.0
            self.wanted = min(self._have, max(wanted for _, wanted in self._looks))

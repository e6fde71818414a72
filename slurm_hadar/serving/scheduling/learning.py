"""Run times of applications from what is observed: single runs, and batches that reveal their longest request only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slurm_hadar.serving.scheduling.distribution import Distribution, mixture

__all__ = ["Knowledge", "Window"]

ATOMS = 128  # of a distribution that was learned
LONGEST = 1000  # observations in a window
_FIRST_S = 1e-3  # taken for the run time while nothing is known of any: short, so that one is tried,
_FIRST_PART = 0.01  # also of deadlines: what is longer than all of them would be past hope at once
_ENOUGH = 5  # observations from which on an application's own are taken alone
_BLEND = 64  # atoms of mixtures
_CHANGED = 2.4  # of Kolmogorov and Smirnov's statistic: at one place alone chance exceeds that 2 times in 100,000
_LEVELS = 32  # of the distribution, at which parts of a window are compared,
_PLACES = 48  # and places where they are parted


class Window:
    """The last observations of one application since its run times changed, and of how many ``requests`` they are."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=longest)
        self._untested = 0  # observations since it was looked for a change
        self._known: Distribution | None = None
        self.last_s = float("-inf")
        self.requests = 0

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, seconds: float, of: int, now_s: float) -> None:
        """The longest of so many requests took so long alone."""
        if len(self._seen) == self._seen.maxlen:
            self.requests -= self._seen[0][1]
        self.requests += of
        self._seen.append((seconds, of))
        self._untested += 1
        self._known = None
        self.last_s = now_s

    def distribution(self) -> Distribution:
        """The most likely one. Each observation says that one request took just so long and the others of its batch no
        longer: values censored from above, for which the Kaplan-Meier estimate with time reversed is the maximum of
        the likelihood (Kaplan and Meier 1958; that it serves here is our idea). Single runs only: the empirical one."""
        if self._known is None:
            times, reached, chances = self._estimate()
            if self._untested >= _ENOUGH:
                self._untested = 0
                while since := _since_change(chances):
                    for _ in range(len(self._seen) - since):
                        self.requests -= self._seen.popleft()[1]
                    times, reached, chances = self._estimate()
            self._known = Distribution(times, np.diff(reached, prepend=0.0)).thinned(ATOMS)
        return self._known

    def _estimate(self) -> tuple[Any, Any, Any]:
        """The times, ascending; the distribution function there; and by observation, in the order in which they came,
        the probability that a batch of its size takes no longer."""
        values, counts = np.array(self._seen).T
        order = np.argsort(values, kind="stable")
        times, at_risk = values[order], np.cumsum(counts[order])
        stay = 1.0 - 1.0 / at_risk  # the share below each value of what is not above it
        stay[0] = 0.0  # what is left lies at the least value
        reached = np.append(np.cumprod(stay[::-1])[::-1][1:], 1.0)
        return times, reached, reached[np.searchsorted(times, values, side="right") - 1] ** counts


def _since_change(chances: Any) -> int:
    """How many of the last observations differ the most from those before, if more than by chance; else 0. Two parts of
    a window are compared by the test of Kolmogorov and Smirnov, at many places, as a window that adapts does (ADWIN:
    Bifet and Gavalda, SDM 2007, by means); our form.

    ``chances``: of each, that a batch of its size takes no longer, so that those of all sizes can be compared.
    """
    size = len(chances)
    if size < 2 * _ENOUGH:
        return 0
    levels = np.unique(np.sort(chances)[np.linspace(0, size - 1, _LEVELS).astype(int)])
    below = np.cumsum(chances <= levels[:, None], axis=1, dtype=np.int32)  # of the first so many
    some = np.unique(np.geomspace(_ENOUGH, size - _ENOUGH, _PLACES).astype(int))
    for later in (some, np.arange(_ENOUGH, size - _ENOUGH + 1)):  # exactly where, once it is known that
        former = size - later
        before = below[:, former - 1]
        apart = np.abs((below[:, -1:] - before) / later - before / former).max(axis=0)
        apart *= np.sqrt(former * later / size)
        if apart.max() <= _CHANGED:
            return 0
    return int(later[np.argmax(apart)])


class Knowledge:
    """Distributions of one model's applications, as of the last :meth:`refresh`.

    Parameters
    ----------
    profile: seconds of single runs by application, measured beforehand.
    slo_s: the usual span from arrival to deadline.
    """

    def __init__(self, profile: Mapping[str, Iterable[float]], slo_s: float = 1.0) -> None:
        self._windows: dict[str, Window] = {}
        self._arrivals: dict[str, float] = {}
        self._changed = 0
        self._known: dict[str, Distribution] = {}
        self.overall = Distribution([min(_FIRST_S, _FIRST_PART * slo_s)])
        for application, seconds in profile.items():
            for value in seconds:
                self.observe(application, value, 1, float("-inf"))
        self.refresh()

    def observe(self, application: str, seconds: float, of: int, now_s: float) -> None:
        """The longest of ``of`` requests of one application took so long alone, on a worker of speed 1."""
        self._windows.setdefault(application, Window()).add(seconds, of, now_s)
        self._changed += 1

    def arrived(self, application: str) -> None:
        """For the shares of applications in what is queued."""
        self._arrivals[application] = self._arrivals.get(application, 0.0) + 1.0

    def known_since(self, application: str) -> float:
        """When it was last observed; minus infinity for never, or in a profile only."""
        window = self._windows.get(application)
        return float("-inf") if window is None else window.last_s

    def of(self, application: str) -> Distribution:
        """An application's own, or what is known of all."""
        return self._known.get(application, self.overall)

    def seen(self, application: str) -> int:
        """Of how many requests its observations are."""
        window = self._windows.get(application)
        return 0 if window is None else window.requests

    @property
    def applications(self) -> tuple[str, ...]:
        """Those that were observed, by the last refresh."""
        return tuple(self._known)

    def familiar(self, application: str) -> bool:
        """Whether an application's own observations are enough to tell its run times."""
        return len(self._windows.get(application, ())) >= _ENOUGH

    @property
    def changed(self) -> int:
        """Observations since the last refresh."""
        return self._changed

    def refresh(self) -> None:
        """Work the observations in: some milliseconds, to be spent when nobody waits for a decision."""
        own = {name: window.distribution() for name, window in self._windows.items() if len(window)}
        if own:
            shares = [(d, self._arrivals.get(name, 0.0) + 1e-6) for name, d in own.items()]
            self.overall = mixture(shares, _BLEND)
        self._known = {
            name: d
            if self.familiar(name)
            else mixture([(d, float(len(self._windows[name]))), (self.overall, 1.0)], _BLEND)
            for name, d in own.items()
        }
        for name in self._arrivals:
            self._arrivals[name] *= 0.5  # the mix is that of late
        self._changed = 0

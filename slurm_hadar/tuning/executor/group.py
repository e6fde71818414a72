"""Trial groups: trials whose end together counts, in the legs in which they are to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from slurm_hadar.tuning.executor.live import Live, Stage

__all__ = ["Group", "Leg"]


@dataclass(frozen=True, slots=True)
class Leg:
    """Trials that run to the report of step ``until``, or to their own end. ``onward``: asked there with the trial and
    the step of its report: the report to which it goes on at once, in the same process; None: it ends there."""

    trials: tuple[int, ...]
    until: int | None
    onward: Callable[[int, int], int | None] | None = None


_OVER = Leg((), None)


@dataclass
class Group:
    """Trials whose end together counts. ``to_come``: how many more are asked for as GPUs come free. ``courses`` run
    beside each other, each in legs (trials, and the report to which they run), the next of which it names when the
    trials of the one before are all done: brackets, say; None: it cannot say yet. ``lives``: of the whole search."""

    lives: dict[int, Live]
    deadline_s: float | None = None  # of time.monotonic()
    members: list[Live] = field(default_factory=list)
    to_come: int = 0
    new: Callable[[], int | None] | None = None
    _legs: list[tuple[Iterator[Leg | None], list[Live]]] = field(default_factory=list)

    def submit(self, number: int, until: int | None = None) -> Live:
        """A trial of the study is to run, to the report of step ``until`` or to its own end."""
        live = self.lives.setdefault(number, Live(number))
        live.until, live.onward, live.stage = until, None, Stage.WAITING
        if live not in self.members:
            self.members.append(live)
        return live

    def follow(self, course: Iterator[Leg | None]) -> None:
        """One more course."""
        self._legs.append((course, []))

    def next_legs(self) -> list[Live]:
        """Who is to run now, since its course has got so far."""
        found: list[Live] = []
        going: list[tuple[Iterator[Leg | None], list[Live]]] = []
        for course, leg in self._legs:
            while not any(live.active for live in leg):
                said = next(course, _OVER)
                if said is _OVER:
                    break
                if said is None:
                    going.append((course, []))
                    break
                leg = [] if self.late else self._begin(said)
                found += leg
            else:
                going.append((course, leg))
        self._legs = going
        return found

    def _begin(self, leg: Leg) -> list[Live]:
        lives = [self.submit(number, leg.until) for number in leg.trials]
        for live in lives:
            live.onward = leg.onward
        return lives

    def feed(self, new: Callable[[], int | None], count: int) -> None:
        """So many more trials, each made by ``new`` when GPUs are free for it; None: there is none now, and no more at
        all if nobody runs."""
        self.new, self.to_come = new, count

    @property
    def late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_s is not None and time.monotonic() > self.deadline_s

    @property
    def over(self) -> bool:
        """Whether none of its trials is to be started or goes on."""
        return not self.to_come and not self._legs and not any(live.active for live in self.members)

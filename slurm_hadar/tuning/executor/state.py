"""What the parts of the executor share: its trials and GPUs, what was measured, and how the search stands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_hadar.tuning.allocation.allocator import Allocator
from slurm_hadar.tuning.allocation.pool import Limits
from slurm_hadar.tuning.executor.estimate import Estimates
from slurm_hadar.tuning.executor.group import Group
from slurm_hadar.tuning.executor.live import Live
from slurm_hadar.tuning.executor.site import Sites
from slurm_hadar.tuning.study.book import Book
from slurm_hadar.tuning.study.profile import Profile
from slurm_hadar.tuning.study.record import Record

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["Settings", "State"]


@dataclass(frozen=True)
class Settings:
    """``hooked``: the objective uses a loop of ours, so that it may share a GPU, have several, and be moved.

    time_limit_s: of one trial's running time. target: a value at which the search is over.
    """

    file: Path
    function: str
    metric: str | None = None
    target: float | None = None
    time_limit_s: float | None = None
    packed: int = 2
    widest: int = 4
    hooked: bool = True


class State:
    """One search's. ``say``: tells the user a line."""

    def __init__(
        self, book: Book, sites: Sites, record: Record, profile: Profile, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self.book, self.sites, self.record, self.profile, self.settings = book, sites, record, profile, settings
        self.say = say
        self.lives: dict[int, Live] = {}
        self.group: Group | None = None
        self.estimates = Estimates(profile, dict(sites.speeds))
        self.allocator = self.new_allocator()
        self.changed = False  # something that widths depend on
        self.best: dict[str, Any] | None = None  # trial and value, reports counted
        self.over_before = 0  # trials that earlier tuners have finished
        self.reached: int | None = None  # the trial that has reached the target
        self.reached_value: float | None = None

    def new_allocator(self) -> Allocator:
        """With nobody on its GPUs."""
        most = self.settings.packed
        packed = min(most, self.profile.packed or most) if self.settings.hooked else 1
        limits = Limits(packed, self.settings.widest if self.settings.hooked else 1)
        return Allocator(self.sites.pool(), limits, self.profile.resize_s)

    def use(self, sites: Sites) -> list[Live]:
        """These GPUs from now on; those whose GPUs are not among them, which have none now."""
        self.sites, self.changed = sites, True
        self.estimates.know(dict(sites.speeds))
        return [self.lives[int(name)] for name in self.allocator.change_pool(sites.pool())]

    def submit(self, lives: list[Live]) -> None:
        """They wait for GPUs, beside those that do already; all are judged by what is known now."""
        group = self.group
        assert group is not None
        self.estimates.refresh(group.members, self.allocator)
        waiting = [self.lives[int(trial.trial_id)] for trial, _ in self.allocator.waiting]
        trials = [self.estimates.trial(live, group.members) for live in (*waiting, *lives)]
        self.changed = True
        self.allocator.submit(trials, time.monotonic(), group.deadline_s)

    def running(self) -> list[Live]:
        """Those with a process."""
        return [live for live in self.lives.values() if live.process is not None]

    def mates(self, live: Live) -> int:
        """Trials on its GPU, itself among them."""
        return sum(1 for other in self.running() if set(other.at) & set(live.at))

    def shared_anew(self) -> None:
        """Tell the meters who shares a GPU with whom, from now on."""
        for live in self.running():
            if live.grant is not None:
                live.meter.stretch((max(1, int(live.grant.width)), self.mates(live)))

    def valued(self, live: Live, value: float) -> None:
        """A trial has this value now."""
        live.value = value
        self._seen(live.number, value)

    def remember(self, trial: FrozenTrial) -> None:
        """What an earlier tuner has seen of a trial."""
        self.over_before += trial.state.is_finished()
        for value in (*trial.intermediate_values.values(), *(trial.values or ())):
            if math.isfinite(value) and trial.state.name != "FAIL":
                self._seen(trial.number, value)

    def _seen(self, number: int, value: float) -> None:
        if self.best is None or self.book.better(value, self.best["value"]):
            self.best = {"trial": number, "value": value}

    def hits(self, value: float | None) -> bool:
        """Whether a value is as good as the target."""
        target = self.settings.target
        return target is not None and value is not None and self.book.reaches(value, target)

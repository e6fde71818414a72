"""Who is told of what a controller does while it works, such as the service that it runs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_hadar.controller.cluster import Outcome

if TYPE_CHECKING:
    from slurm_hadar.controller.observe.observer import Observation

__all__ = ["LoopCallbacks"]


class LoopCallbacks:
    """Does nothing by itself. All methods are called on the loop's thread, and must be quick and raise nothing."""

    def alive(self) -> None:
        """The loop goes on: called at least every few seconds, also amid long waits for jobs."""

    def idle(self) -> None:
        """Between two rounds, at least every few seconds: the moment to change the configuration."""

    def began(self, number: int) -> None:
        """Round ``number`` has looked and decided, and is about to act."""

    def wrote(self, number: int, seen: Observation, outcome: Outcome) -> None:
        """What round ``number`` did to Slurm, also where it broke off."""

    def asking(self, verb: str, words: Sequence[str]) -> None:
        """As :class:`slurm_hadar.slurm.backend.watched.Watcher` says."""

    def called(self, name: str, seconds: float, failed: bool) -> None:
        """As :class:`slurm_hadar.slurm.backend.watched.Watcher` says."""

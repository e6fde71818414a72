"""What all parts of the actor work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_hadar.config import Config
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.controller.steering.lessons import Lessons
from slurm_hadar.slurm.backend.base import Backend

__all__ = ["ActContext", "longest_defer_s"]

LEAST_LEASE_S = 20.0  # rounds shorter than the time a move takes must not let leases run out in between


@dataclass
class ActContext:
    """``stopping`` says whether to end after the current write; ``alive`` is called again and again while something is
    waited for. ``config`` changes between rounds only. ``once``: no round follows that could look again."""

    backend: Backend
    config: Config
    book: ReportBook
    seal: Seal = field(default_factory=Seal)
    quarantine: Quarantine = field(default_factory=Quarantine)
    lessons: Lessons = field(default_factory=Lessons)
    stopping: Callable[[], bool] = lambda: False
    alive: Callable[[], None] = lambda: None
    once: bool = False

    @property
    def lease_s(self) -> float:
        """How long a lease lasts."""
        return _lease_s(self.config)

    @property
    def longest_defer_s(self) -> float:
        """From the begin of a round to the latest start time that it may give a job."""
        return longest_defer_s(self.config)


def longest_defer_s(config: Config) -> float:
    """From the begin of a round of a controller with this configuration to the latest start time that it may give."""
    jobs = config.jobs
    return jobs.ack_timeout_s + jobs.end_timeout_s + jobs.start_timeout_s + _lease_s(config) + 30.0


def _lease_s(config: Config) -> float:
    return max(LEAST_LEASE_S, config.controller.lease_rounds * config.controller.round_s)

"""What a training loop is made of, whether it is a job's only one or that of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_hadar.runtime.batches.data import Feed
from slurm_hadar.runtime.emulation import Pace
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["TrainingSpec"]


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """The arguments of :func:`slurm_hadar.runtime.training.train` as the loop uses them.

    Parameters
    ----------
    parts: what has states, by kind ("model", "optimizer", "scheduler", "also") and name, without wrappers.
    total_steps: of the whole job. gang: the workers. feed: the batches.
    state, also: the user's plain data, saved and restored too.
    worker_batch: samples of one worker in a step; None where only the loader knows.
    pace: of the private cluster; None anywhere else.
    """

    parts: dict[str, dict[str, Any]]
    total_steps: int
    gang: Gang
    feed: Feed
    state: dict[str, Any]
    also: dict[str, Any]
    worker_batch: int | None = None
    pace: Pace | None = None

    @property
    def samples_per_step(self) -> int | None:
        """Of all workers together."""
        return self.worker_batch * self.gang.world if self.worker_batch else None

"""What a training loop is made of, whether it is a job's only one or that of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_hadar.runtime.batches.data import Feed
from slurm_hadar.runtime.emulation import Pace
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["TrainingSpec", "steps_of_all", "worker_batch_of"]


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


def steps_of_all(total_steps: float, gang: Gang) -> int:
    """The training's steps, the same on all workers; collective. Raises ValueError if they are not, on all of them."""
    told = {steps for (steps,) in gang.all_gather((total_steps,))}
    if total_steps != int(total_steps):
        raise ValueError(f"total_steps={total_steps} is no whole number")
    if len(told) > 1:
        raise ValueError(
            f"total_steps is not the same on all workers ({', '.join(f'{n:g}' for n in sorted(told))}), which save and "
            "end together: give the same to all, such as the least"
        )
    return int(total_steps)  # 1e5, say


def worker_batch_of(global_batch: int | None, workers: int) -> int | None:
    """Each worker's batch."""
    if global_batch is None:
        return None
    share, rest = divmod(global_batch, workers)
    if rest or share < 1:
        raise ValueError(
            f"global_batch={global_batch} cannot be shared equally by {workers} workers; say batch= (of one worker) in "
            "the job's comment, and only gang sizes that can share it are chosen"
        )
    return share

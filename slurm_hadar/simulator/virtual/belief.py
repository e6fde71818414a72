"""Speeds that nobody has measured yet: what a policy is told of a job until the job has run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_hadar.model import Speed

__all__ = ["Belief"]


class Belief:
    """What is known of a job's speeds: estimates that are wrong, and the truth of each GPU type that it has run on.

    An estimate is the truth times a factor whose logarithm is normal with standard deviation ``error``, which is also
    the relative error that the estimate is shown with (our definition). A job's factor for a type hangs on ``seed``,
    its id and the type alone, and is the same for every gang size: one run tells of all sizes on its type.

    Parameters
    ----------
    truth: the speeds by gang size and GPU type.
    """

    def __init__(self, job_id: str, truth: Mapping[int, Mapping[str, Speed]], error: float, seed: int) -> None:
        self._truth, self._error = truth, error
        types = sorted({t for speeds in truth.values() for t in speeds})
        self._factor = {t: math.exp(random.Random(f"{seed}:{job_id}:{t}").gauss(0.0, error)) for t in types}

    def knows(self, gpu_types: Iterable[str]) -> bool:
        """Whether the job has run on all of these."""
        return not any(t in self._factor for t in gpu_types)

    def learn(self, gpu_types: Iterable[str]) -> None:
        """The job has reported its speed on these."""
        for gpu_type in gpu_types:
            self._factor.pop(gpu_type, None)

    def at(self, workers: int) -> Mapping[str, Speed]:
        """The speeds of a gang of ``workers`` as they are known now."""
        return {t: self._shown(t, speed) for t, speed in self._truth[workers].items()}

    def _shown(self, gpu_type: str, speed: Speed) -> Speed:
        if gpu_type not in self._factor:
            return replace(speed, source="measured", error=0.0, measured=True)
        wrong = speed.steps_per_s * self._factor[gpu_type]
        return replace(speed, steps_per_s=wrong, source="estimated", error=self._error)

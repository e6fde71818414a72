"""How much longer than expected jobs may take, by what is not known of their speeds and lengths."""

from __future__ import annotations

import math

from slurm_hadar.model import Job
from slurm_hadar.model.length import NORMAL

__all__ = ["MOST", "longer"]

_SHARE = 0.8  # four in five take no longer, as where people are told when a job will have ended
_Z = NORMAL.inv_cdf(_SHARE)
MOST = 4.0  # nobody is taken to be longer than so many times what is expected


def longer(job: Job, gpu_type: str, workers: int) -> float:
    """How many times as long as expected four such jobs in five take at most from now on, with a gang of ``workers`` on
    this type; from 1 to :data:`MOST`.

    Two errors are added up as if both were log-normal and independent of each other: that of a speed that is not
    measured there, and that of a length that is predicted. Our definition.
    """
    speed, length, left = job.speeds_at(workers).get(gpu_type), job.length, job.expected_remaining_steps
    of_speed = 0.0 if speed is None or speed.measured else _Z * math.log1p(speed.error or 0.0)
    of_length = 0.0
    if length is not None and left:
        of_length = math.log(max(1.0, length.left(_SHARE, job.done_steps) / left))
    return min(MOST, math.exp(math.hypot(of_speed, of_length)))

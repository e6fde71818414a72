"""How much jobs have yet to do, as what is expected and as a distribution of which futures are drawn."""

from __future__ import annotations

import math
from random import Random

from slurm_hadar.model import Job
from slurm_hadar.model.length import NORMAL, Z_80

__all__ = ["LEAST_ERROR", "UNKNOWN_ERROR", "drawn_steps", "leaning_steps", "uncertainty"]

LEAST_ERROR = 0.1  # nothing is known better than this: measured speeds vary, saves and epilogs take their time
UNKNOWN_ERROR = 0.9  # of a job whose length nobody states or predicts, or that has outrun what was stated
_PREDICTED_ERROR = 0.5  # where the predictor says nothing of its error


def uncertainty(job: Job) -> float:
    """Relative error to be expected of the time that a job still needs (our definition): that of its speed and that of
    its length, as independent ones. A stated length has none, and is not known any more once it is outrun; a predicted
    one of which no more is known is taken to be off by half."""
    if job.total_steps is not None:
        size = UNKNOWN_ERROR if job.overrun else 0.0
    else:
        size = _PREDICTED_ERROR if job.predicted_steps is not None else UNKNOWN_ERROR
    return min(UNKNOWN_ERROR, max(LEAST_ERROR, math.hypot(_speed_error(job), size)))


def _speed_error(job: Job) -> float:
    types = job.placement.by_type or {t: 1 for t in job.speeds if job.form.admits_type(t)}
    return max((job.speeds[t].error or 0.0 for t in types if t in job.speeds), default=0.0)


def leaning_steps(job: Job, unknown_s: float, lean: float) -> float:
    """Steps that the job has left if it takes as long as expected (``lean`` 0), or is early (-1) or late (1): earlier,
    or later, are one in ten of those whose length is a distribution; of others it is their :func:`uncertainty`."""
    length = job.length
    if length is None or not lean:
        return _expected(job, unknown_s) * (1 + lean * uncertainty(job))
    speed = 1 + lean * max(LEAST_ERROR, _speed_error(job))
    return length.left(NORMAL.cdf(lean * Z_80), job.done_steps) * speed


def drawn_steps(job: Job, unknown_s: float, share: float, dice: Random) -> float:
    """Steps that the job has left, times what its speed is overestimated by, in a drawn future. So many of all lengths,
    ``share``, are shorter; where it has none the time that it needs is log-normal about the expected one."""
    length = job.length
    if length is None:
        return _expected(job, unknown_s) * math.exp(uncertainty(job) * NORMAL.inv_cdf(share))
    error = max(LEAST_ERROR, min(UNKNOWN_ERROR, _speed_error(job)))
    return length.left(share, job.done_steps) * math.exp(error * dice.gauss())


def _expected(job: Job, unknown_s: float) -> float:
    return job.steps_to_go(job.best_rate(), unknown_s)

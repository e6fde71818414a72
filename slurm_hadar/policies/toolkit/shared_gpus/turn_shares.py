"""How two jobs divide the turns of a GPU: preemption without checkpoints.

Two trainings that take turns on a GPU make together no more than one alone, so that equal turns help nobody but the
shorter one. Who is nearer to its end, or weighs more, may have the larger share of the turns, up to all of them; the
other keeps its model in the GPU's memory, and goes on as soon as turns are left. Nothing is saved, nobody is requeued.
After Salus (MLSys 2020, section 4.2), whose SRTF hands every turn to the shorter job; shares, and whom they may slow,
are our definition.

**What a job accepts.** ``slow_down`` = s bounds the whole of its time, not each iteration: *at no moment has it run for
more than s times what its steps take alone*. With c the seconds of its runs that its own computing took and l those
that it lost to its company, that is l <= (s - 1) c. Its *patience* is what is left of that, (s - 1) c - l. In t seconds
in which it keeps the share k of its speed it loses (1 - k) t and computes k t, so that it affords them if ::

    patience >= (1 - s k) t

A job that keeps at least 1/s, as all pairs do by equal turns, affords that for ever; one that has just begun affords
nothing more; one that accepts 2 and has run for an hour may be passed over for an hour.

That is what its company may cost a job. One that the policy itself would stop may be left without a turn for as long as
it would: else it would stand in the queue, and be restarted at the end of that. What it loses so is counted, too, so
that it is asked for nothing else until it has made up for it.
"""

from __future__ import annotations

from typing import Any

from slurm_hadar.model import Job

__all__ = ["EQUAL", "LARGER", "affordable", "affords", "kept_by", "knows_length", "patience_s"]

EQUAL = 0.5
#: Larger shares of the turns that a job may be given, the largest first: all of them, and 7, 3 and 1 1/2 times what the
#: other has. The gain is linear in the share, so that the largest which the other one affords is the best.
LARGER = (1.0, 0.875, 0.75, 0.6)
_ROUNDING_S = 1e-6


def kept_by(kept: tuple[Any, Any], share: float) -> tuple[Any, Any]:
    """What guest and host keep of their speeds where the guest has this ``share`` of the turns, 0 to 1; ``kept`` is
    that by equal turns. Straight lines from there to all of its speed for the one and nothing for the other, which is
    exact where turns conserve the time. Arrays are taken element by element."""
    guest, host = kept
    more = 2.0 * share - 1.0
    if more >= 0:
        return guest + more * (1.0 - guest), host * (1.0 - more)
    return guest * (1.0 + more), host - more * (1.0 - host)


def patience_s(job: Job) -> float:
    """Seconds for which the job may be passed over at once; below 0 where it was slowed by more than it accepts. One
    that was larger has run for as long as its GPU-seconds say at the least."""
    own_s = max(0.0, job.attained_s / max(job.form.gang_sizes) - job.held_up_s)
    return (job.slow_down - 1.0) * own_s - job.held_up_s


def affords(job: Job, keeps: float, for_s: float) -> bool:
    """Whether the job accepts to keep this share of its speed for so many seconds."""
    return bool(affordable(job.slow_down, patience_s(job), keeps, for_s))


def affordable(slow_down: Any, patience: Any, keeps: Any, for_s: Any) -> Any:
    """The same of jobs with this :func:`patience_s`. Arrays are taken element by element."""
    return (slow_down * keeps >= 1.0 - 1e-9) | (patience >= (1.0 - slow_down * keeps) * for_s - _ROUNDING_S)


def knows_length(job: Job) -> bool:
    """Whether what is left of the job is stated or predicted: who would pass it over must know."""
    return job.expected_remaining_steps is not None

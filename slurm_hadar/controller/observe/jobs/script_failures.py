"""``retry=`` as the controller sees it: what failed by itself in its first minutes waits before it is run again, longer
each time, so that it does not burn the cluster. The job itself puts itself back
(:mod:`slurm_hadar.runtime.launch.retry`)."""

from __future__ import annotations

from slurm_hadar.controller.agents.reports import JobNews
from slurm_hadar.controller.journal import Event, JobRecord
from slurm_hadar.controller.words import clock

__all__ = ["FIRST_RETRY_S", "LONGEST_RETRY_S", "SOUND_RUN_S", "note_failure", "waits"]

SOUND_RUN_S = 600.0  # what ran so long before it failed is tried again at once
FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0


def note_failure(record: JobRecord, restarts: int, news: JobNews | None) -> Event | None:
    """Where the run before this one failed by itself and its owner wants another: until when it waits, in its record,
    and what its history says. ``restarts`` are Slurm's."""
    retry = news.report.retry if news is not None and news.report.restart < restarts else None
    if news is None or retry is None or retry <= record.retries:
        return None
    record.retries = retry
    ran_s = max(0.0, news.heard - (record.run_since or news.heard))
    wait_s = 0.0 if ran_s >= SOUND_RUN_S else min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** (retry - 1))
    record.retry_after = news.heard + wait_s
    later = f", {wait_s:.0f} s later at the earliest" if wait_s else ""
    why = f"its command failed with exit code {news.report.exit_code}; retry {retry}{later}"
    return Event(record.job_id, "retry", why)


def waits(record: JobRecord, now: float) -> str | None:
    """Why the job is not started now; None if its failures do not keep it."""
    if record.retry_after <= now:
        return None
    return f"its command failed: retry {record.retries} at {clock(record.retry_after)} at the earliest"

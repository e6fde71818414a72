"""What scontrol answers to a batch of writes: which of them it refused, and why.

scontrol ends with a code if any write of a session failed, and complains on stderr, mostly by the number of the job.
Who is not named was not refused where every line names a job, or stands there whatever is asked, as one about
slurm.conf does. Else what the jobs look like decides. So it does where a job is refused for its partition is inactive:
Slurm looks at that last, and has changed what it was asked to (seen on 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.model import JobState
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.slurm.state import SlurmJob, Write, WriteResult

__all__ = ["Complaints", "bare", "complaints", "results"]

_JOB = r"(?P<job>\d+(?:[_+][\d,:%-]*\d)?)"
_ABOUT_A_JOB = (
    re.compile(rf"(?P<why>.*?)(?: for job |: job ){_JOB}"),
    re.compile(rf"{_JOB}: (?P<why>.*)"),
    re.compile(rf".* for job {_JOB}: (?P<why>.*)"),
)
_PROGRAM = re.compile(r"(?:(?:scontrol|scancel|squeue|sinfo|sdiag|sacct|sacctmgr): )?(?:error: )?")
_START = re.compile(r"now(?:\+(\d{1,9}))?")
_MOST_TASKS = 1_000_000
_CLOCKS_S = 5.0  # by which slurmctld's clock may differ, whole seconds included


@dataclass(frozen=True)
class Complaints:
    """``about``: why scontrol refused, by job. ``unnamed``: why it may have refused any other write of the batch; empty
    where all that failed is known."""

    about: Mapping[str, str]
    unnamed: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether the jobs have to be looked at."""
        return bool(self.unnamed) or any(map(_in_part, self.about.values()))


def _in_part(why: str) -> bool:
    """Whether a write that was refused so may have been taken all the same."""
    return "partition configuration not available" in why.lower()


def bare(line: str) -> str:
    """A line of a command's complaints without the name of the command."""
    text = line.strip()
    found = _PROGRAM.match(text)
    return text[found.end() :].strip() if found else text


def complaints(writes: Sequence[Write], stderr: str, code: int, noise: Collection[str] = ()) -> Complaints:
    """Assign scontrol's complaints to jobs. ``noise``: lines that it prints whatever it is asked."""
    about: dict[str, str] = {}
    others: list[str] = []
    known = {job for write in writes for job in write.job_ids}
    for line in stderr.splitlines():
        text = bare(line)
        if not text or text.endswith(": No error"):
            continue
        jobs, why = _blamed(text, known)
        for job in jobs:
            about.setdefault(job, why)
        others += [] if jobs or text in noise else [text]
    if code == 0 or (about and not others):
        return Complaints(about)
    return Complaints(about, "; ".join(others) or f"scontrol ended with {code} and gave no reason")


def _blamed(text: str, known: Collection[str]) -> tuple[list[str], str]:
    for pattern in _ABOUT_A_JOB:
        match = pattern.fullmatch(text)
        if match and (jobs := [job for job in _named(match["job"]) if job in known]):
            return jobs, match["why"]
    return [], ""


def _named(text: str) -> list[str]:
    """The jobs that a complaint names, and the array itself: ``16_1-3,7`` are four tasks."""
    array, _, tasks = text.partition("_")
    if not tasks or tasks.isdecimal():
        return [text]
    found = [array]
    for part in tasks.partition("%")[0].split(","):
        low, _, rest = part.partition("-")
        high, _, step = rest.partition(":")
        if low.isdecimal() and (high or low).isdecimal() and int(high or low) - int(low) < _MOST_TASKS:
            every = int(step) if step.isdecimal() and int(step) else 1
            found += [f"{array}_{task}" for task in range(int(low), int(high or low) + 1, every)]
    return found


def results(
    writes: Sequence[Write],
    told: Complaints,
    jobs: Mapping[str, SlurmJob] | None = None,
    sent: float = 0.0,
    took_s: float = 0.0,
) -> list[WriteResult]:
    """What became of each write and job. ``jobs``: as they are after the batch, where it has to be seen from them what
    Slurm took; it was sent at ``sent`` (epoch seconds), and took so long."""

    def error(write: Write, job_id: str) -> str | None:
        why = told.about.get(job_id, told.unnamed)
        if not why or (job_id in told.about and not _in_part(why)):
            return why or None
        return None if _taken(write, (jobs or {}).get(job_id), sent, took_s) else why

    return [WriteResult(job, write, error(write, job)) for write in writes for job in write.job_ids]


def _taken(write: Write, job: SlurmJob | None, sent: float, took_s: float) -> bool:
    """Whether the job is as the write asked for."""
    if job is None:
        return False
    if write.verb == "requeue":
        return job.state.active and job.state is not JobState.RUNNING
    if write.verb == "restart":
        return job.state.active
    if write.verb == "release":
        return not job.held
    fields = dict(write.fields)
    return job.state.active and _same_place(job, fields) and _same_start(job, fields.get("StartTime"), sent, took_s)


def _same_place(job: SlurmJob, fields: Mapping[str, str]) -> bool:
    if "NodeList" in fields and set(expand(fields["NodeList"])) != set(job.req_nodes):
        return False
    if "NumNodes" in fields and fields["NumNodes"].partition("-")[0] != str(job.num_nodes):
        return False
    return "Comment" not in fields or fields["Comment"] == job.comment


def _same_start(job: SlurmJob, asked: str | None, sent: float, took_s: float) -> bool:
    """A job that is held has no such time."""
    found = _START.fullmatch(asked or "")
    if found is None or job.eligible is None:
        return True
    early = sent + int(found[1] or 0) - _CLOCKS_S
    late = early + took_s + 2 * _CLOCKS_S
    return job.eligible <= late and (not found[1] or job.eligible >= early)

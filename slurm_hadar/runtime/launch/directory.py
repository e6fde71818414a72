"""The job's directory as its batch script finds it: its own, or an earlier job's with the same id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from slurm_hadar import messages
from slurm_hadar.comment import read
from slurm_hadar.errors import CheckpointError, reason_of
from slurm_hadar.joblog import say
from slurm_hadar.runtime.launch import own
from slurm_hadar.runtime.launch.slurmctld import JobFacts, accounted_runs

__all__ = ["apart", "find", "first_submitted", "note_owner", "set_aside_foreign", "set_aside_left_over"]

_ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"))  # and not requeued


def find(environ: Mapping[str, str]) -> Path:
    """As the user says, or where the job's files are safe from other users. If they are safe nowhere, that is said
    here, and a training that wants to save there refuses."""
    usual = messages.job_dir(environ)
    assert usual is not None
    if messages.given_dir(environ) is not None:
        return usual
    try:
        found, why = own.place(usual.parent.parent, usual.name, environ.get("SLURM_CLUSTER_NAME", ""))
    except CheckpointError as error:
        say(str(error))
        return usual
    if why is not None:
        say(why)
    return found


def apart(environ: Mapping[str, str]) -> Path:
    """The directory that the user has named, which is one job's: any other that is given it, as by a shell's profile,
    has its own below it."""
    directory, job = Path(environ["HADAR_JOB_DIR"]), environ["HADAR_JOB_ID"]
    mine, below = (environ.get("SLURM_CLUSTER_NAME", ""), job), directory / job
    if (owner := messages.owner_of(below)) is not None and owner[:2] == mine:
        return below
    if (owner := messages.owner_of(directory)) is None or owner[:2] == mine:
        return directory
    say(f"HADAR_JOB_DIR {directory} has the files of job {owner.job}: those of this job go to {below}")
    return below


def set_aside_foreign(environ: Mapping[str, str], submitted: str) -> None:
    """Keep a job from resuming another one's training.

    Job ids begin anew on a new cluster, and wrap on an old one. A job that starts for the first time has left nothing
    behind: what stands in its directory with another owner is an earlier job's, and is renamed.
    """
    directory = Path(environ["HADAR_JOB_DIR"])
    mark, owner = directory / messages.OWNER_FILE, _owner(environ, submitted)
    try:
        if directory.exists() and not _is_owners(mark, owner, submitted):
            _set_aside(directory)
    except (OSError, CheckpointError) as error:
        _unmarked(mark, error)
    else:
        note_owner(environ, submitted)


def set_aside_left_over(environ: Mapping[str, str], facts: JobFacts) -> None:
    """The same for a job that Slurm has restarted: its runs before may have ended before their scripts came so far, and
    then what stands there is an earlier job's too.

    Slurm has forgotten when the job was submitted. But where a controller is about, its comment names the token of the
    runs that came so far, and Slurm's accounts, if there are any, have the time. Where neither tells, that is said.
    """
    job, directory = environ["HADAR_JOB_ID"], Path(environ["HADAR_JOB_DIR"])
    if (owner := messages.owner_of(directory)) is None:
        return
    noted = owner.submitted
    if owner.job == job and owner.cluster in ("", environ.get("SLURM_CLUSTER_NAME", "")):
        if _has_token(directory, facts.comment):
            return
        known = _is_accounted(noted, facts, accounted_runs(job))
        if known is None:
            say(
                f"neither the job's comment nor Slurm's accounts tell whose {directory} is: it is taken for this "
                f"job's. Its job was submitted {noted}; if this one was not, cancel this one and submit it anew"
            )
        if known is not False:
            return
    try:
        _set_aside(directory)
    except OSError as error:
        say(f"{directory} is an earlier job's with the same id, and cannot be moved: {reason_of(error)}")


def _has_token(directory: Path, text: str) -> bool:
    """Whether the comment names the token in the directory."""
    try:
        return read(text)[0].key == messages.token_fingerprint(own.read_token(directory))
    except CheckpointError:
        return False


def _is_accounted(noted: str, facts: JobFacts, runs: list[tuple[str, str]]) -> bool | None:
    """Whether a run that was submitted then is this job's; None where the accounts do not tell.

    An earlier job with the same id may stand there before it. This one has as many as it was restarted, and a slurmctld
    that was killed may have lost count: so one that is before those must also have come to an end before them.
    """
    submitted = [at for at, _ in runs]
    if noted not in submitted:
        return False if facts.submitted in submitted else None
    mine = len(runs) - facts.restarts - (submitted[-1] == facts.submitted)  # this one's may not be there yet
    return not any(state in _ENDED for _, state in runs[submitted.index(noted) : max(0, mine)])


def _set_aside(directory: Path) -> None:
    aside = directory.with_name(f"{directory.name}.before-{time.strftime('%Y%m%dT%H%M%S')}")
    directory.rename(aside)
    say(f"{directory} was an earlier job's with the same id; moved to {aside.name}")


def note_owner(environ: Mapping[str, str], submitted: str) -> None:
    """Write down whose the directory is; where that cannot be written, it is said."""
    mark = Path(environ["HADAR_JOB_DIR"]) / messages.OWNER_FILE
    try:
        own.make(mark.parent)
        mark.write_text(_owner(environ, submitted))
    except (OSError, CheckpointError) as error:
        _unmarked(mark, error)


def _unmarked(mark: Path, error: OSError | CheckpointError) -> None:
    say(f"cannot write {mark}: {reason_of(error)}; an earlier job's checkpoints may be taken for this one's")


def _owner(environ: Mapping[str, str], submitted: str) -> str:
    return f"{environ.get('SLURM_CLUSTER_NAME', '')} {environ['HADAR_JOB_ID']} {submitted}\n"


def _is_owners(mark: Path, owner: str, submitted: str) -> bool:
    """Whether the directory with this mark is the job's. A mark that a full disk has left empty counts if it was made
    after the job was submitted: a slurmctld that is killed forgets that the job has run before."""
    if not mark.exists():
        return False
    if said := mark.read_text():
        return said == owner
    try:
        return mark.stat().st_mtime >= datetime.fromisoformat(submitted).timestamp()
    except ValueError:  # times as a user wants to see them
        return False


def first_submitted(directory: Path) -> str | None:
    """When the job was submitted first, as its first run has noted it: Slurm forgets that when it restarts the job.

    None where nothing is noted; raises OSError where that is not to be read.
    """
    try:
        noted = (directory / messages.OWNER_FILE).read_text().split()
    except FileNotFoundError:
        return None
    return noted[-1] if noted else None  # a full disk has left it empty

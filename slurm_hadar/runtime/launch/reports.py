"""What a job needs to be heard: a token, its fingerprint in the comment, and a place for what nobody listens to."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from pathlib import Path

from slurm_hadar import comment, messages
from slurm_hadar.errors import ChannelError, CheckpointError, CommentError
from slurm_hadar.joblog import say
from slurm_hadar.runtime.launch import own
from slurm_hadar.runtime.launch.slurmctld import JobFacts, ask, ask_patiently, comment_changed, job_facts

__all__ = ["VOUCH_LATER", "prepare", "vouch_later"]

VOUCH_LATER = "HADAR_VOUCH_LATER"  # set where slurmctld did not take the token's fingerprint
VOUCH_AGAIN_S, VOUCH_AGAIN_MOST_S = 30.0, 600.0


def prepare(environ: MutableMapping[str, str], facts: JobFacts | None) -> bool:
    """Make everything ready for the agent; False if there is nobody to report to or the job is not ours."""
    try:
        if messages.find_channel(environ) is None:
            return False
    except ChannelError as error:
        say(f"{error}; going on without reports")
        return False
    if facts is not None and not comment.is_ours(facts.comment):
        return False
    try:
        token = own.token(Path(environ["HADAR_JOB_DIR"]))
    except CheckpointError as error:
        say(f"no reports: {error}")
        return False
    if facts is not None:
        _place_spool(environ, facts.work_dir)
    if facts is None or not _use_comment(environ, facts, messages.token_fingerprint(token)):
        environ[VOUCH_LATER] = "1"
    return True


def _place_spool(environ: MutableMapping[str, str], work_dir: Path) -> None:
    """The spool goes below the job's working directory, the one place of the job's that Slurm tells the controller."""
    try:
        directory, _ = own.place(work_dir, environ["HADAR_JOB_ID"], environ.get("SLURM_CLUSTER_NAME", ""))
        own.make(directory)
    except CheckpointError as error:
        say(f"no spool file: {error}")
        return
    environ["HADAR_SPOOL"] = str(directory / messages.SPOOL_FILE)


def _use_comment(environ: MutableMapping[str, str], facts: JobFacts, fingerprint: str) -> bool:
    """Export what the comment says of the workload, and publish the token's fingerprint in it; False where slurmctld
    has not taken that."""
    try:
        parsed = comment.parse(facts.comment)
        wanted = comment.with_key(facts.comment, fingerprint)
        comment.parse(wanted)
    except CommentError as error:
        say(str(error))
        return True
    if parsed.key not in (None, fingerprint):
        say(f"the comment named another token (key={parsed.key}): it is replaced by this job's, key={fingerprint}")
    exported = {"MODEL": parsed.model, "BATCH": parsed.batch, "STEPS": parsed.steps, "MIX": parsed.mix}
    for name, value in exported.items():
        if value is not None:
            environ.setdefault(f"HADAR_{name}", str(value))
    if wanted == facts.comment or comment_changed(environ["HADAR_JOB_ID"], wanted, facts.tasks, ask_patiently):
        return True
    say("the job's comment does not name its token yet; until it does, the controller does not believe its reports")
    return False


def vouch_later(environ: MutableMapping[str, str]) -> None:
    """Publish the token's fingerprint in the comment as soon as slurmctld takes it; for a thread beside the job.

    Where slurmctld has taken it already, one look shows whether it is still there: the controller may have written a
    comment without it, for a placement that came as Slurm started the job.
    """
    job, pause_s = environ["HADAR_JOB_ID"], VOUCH_AGAIN_S
    try:
        fingerprint = messages.token_fingerprint(own.token(Path(environ["HADAR_JOB_DIR"])))
    except CheckpointError:  # of which its reporter tells
        return
    while True:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, VOUCH_AGAIN_MOST_S)
        facts = job_facts(job, ask)
        if facts is None:
            continue
        wanted = comment.with_key(facts.comment, fingerprint)
        if not comment.is_ours(facts.comment) or wanted == facts.comment or comment.read(wanted)[1] is not None:
            return
        if comment_changed(job, wanted, facts.tasks, ask):
            before = "did not name its token" if environ.get(VOUCH_LATER) else "named its token no more"
            say(f"the job's comment {before}, and does now: the controller believes its reports")
            return

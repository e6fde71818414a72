"""What Slurm is asked in the batch script, and how patiently: one call tells all that the launcher wants to know."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.joblog import say

__all__ = [
    "SEP", "Ask", "JobFacts", "accounted_runs", "array_submissions", "ask", "ask_patiently", "comment_changed",
    "job_facts", "run_plainly",
]  # fmt: skip

Ask = Callable[[list[str]], str | None]
"""Runs a command of Slurm's; what it printed, or None."""

CALL_S = 10.0
PAUSES_S = (1.0, 3.0, 10.0)
SEP = "\x1f"
FIELDS = ("RestartCnt", "SubmitTime", "NumTasks", "tres-per-node", "WorkDir", "Comment")
FORMAT = ",".join(f"{field}:{SEP}" for field in FIELDS)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What Slurm says of the job now.

    Parameters
    ----------
    restarts: how often it was restarted. submitted: when, as Slurm writes it; a requeue changes it.
    tasks: how many it has on all its nodes, None where that is no number. shards: whether it has parts of GPUs.
    work_dir: its working directory. comment: as its owner or job_submit.lua wrote it.
    """

    restarts: int
    submitted: str
    tasks: int | None
    shards: bool
    work_dir: Path
    comment: str


def job_facts(job: str, ask: Ask) -> JobFacts | None:
    """The facts of the job with this canonical id; None where Slurm does not tell."""
    shown = ask(["squeue", "--noheader", f"--jobs={job}", "--states=all", f"--Format={FORMAT}"])
    fields = [field.strip() for field in (shown or "").split(SEP, len(FIELDS) - 1)]
    fields += [""] * (len(FIELDS) - len(fields))  # what is empty at the end of the output is not in it
    restarts, submitted, tasks, tres, work_dir, text = fields
    if not restarts.isdecimal() or not submitted:
        return None
    first, _, _ = text.partition(f"{SEP}\n")  # the leader's, of a heterogeneous job
    shards = re.search(r"\bshard\b", tres) is not None
    return JobFacts(int(restarts), submitted, int(tasks) if tasks.isdecimal() else None, shards, Path(work_dir), first)


def comment_changed(job: str, text: str, tasks: int | None, ask: Ask) -> bool:
    """Whether Slurm has taken the comment for the job, which runs and has so many tasks. Slurm 24.11 takes no change of
    one with ``--ntasks-per-gpu`` that does not tell them; 22.05 takes none of any job that does."""
    command = ["scontrol", "update", f"JobId={job}", f"Comment={text}"]
    answer, why = _answer(command)
    if "no longer pending" in why and tasks is not None:
        command.append(f"NumTasks={tasks}")
    return answer is not None or ask(command) is not None


def array_submissions(array: str, ask: Ask) -> list[tuple[int, str]]:
    """Of the tasks of a job array that Slurm still knows: how often each was restarted, and when it was submitted."""
    shown = ask(
        ["squeue", "--noheader", f"--jobs={array}", "--states=all", f"--Format=RestartCnt:{SEP},SubmitTime:{SEP}"]
    )
    fields = [field.strip() for field in (shown or "").split(SEP)]
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return [(int(restarts), submitted) for restarts, submitted in pairs if restarts.isdecimal() and submitted]


def accounted_runs(job: str) -> list[tuple[str, str]]:
    """When each run of the job was submitted, as squeue would write it, and its state, by Slurm's accounts in order of
    time; an earlier job's with the same id, too. Empty where they do not tell."""
    shown, _ = _answer(
        [
            "sacct",
            "--noheader",
            "--allocations",
            "--duplicates",
            "--parsable2",
            f"--jobs={job}",
            "--format=Submit,State",
        ]
    )
    rows = (line.partition("|") for line in (shown or "").splitlines())
    return sorted((submitted, state.split(" ")[0]) for submitted, _, state in rows)


def ask(command: list[str]) -> str | None:
    """The output of a Slurm command, or None (said once on stderr) if it failed or took too long."""
    answer, why = _answer(command)
    if answer is None:
        say(f"{command[0]} failed, going on without: {why}")
    return answer


def run_plainly(command: Sequence[str], timeout_s: float = CALL_S) -> subprocess.CompletedProcess[str]:
    """A command of Slurm's without its user's wishes: which jobs to show, and how. Submission times tell jobs apart,
    and are kept between blanks: relative ones (``SLURM_TIME_FORMAT``) are others on the next day. Raises OSError and
    TimeoutExpired."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_", "SCONTROL_"))}
    environ = {**kept, "SLURM_TIME_FORMAT": "standard"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, env=environ
    )


def _answer(command: list[str]) -> tuple[str | None, str]:
    """The output of a Slurm command, or None and why there is none."""
    try:
        done = run_plainly(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[0]
    return done.stdout.strip(), ""


def ask_patiently(command: list[str]) -> str | None:
    """As :func:`ask`, again and again while slurmctld is busy or restarting."""
    for pause_s in PAUSES_S:
        answer = ask(command)
        if answer is not None:
            return answer
        time.sleep(pause_s)
    return ask(command)

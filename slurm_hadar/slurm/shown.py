"""Single jobs as ``scontrol show job`` has them: where they write, how they ended, which are new.

What ``squeue`` does not tell, or tells only together with the whole queue.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import SlurmError, SlurmUnavailable
from slurm_hadar.model import JobState
from slurm_hadar.slurm.accounting import AccountedJob, command, parse_accounting
from slurm_hadar.slurm.parsing import job_state
from slurm_hadar.slurm.tres import SHARES, gpu_numbers

__all__ = [
    "JOB_ID", "NO_REASON", "Shown", "accounted", "comments_since", "shared_gpu_numbers", "shown", "throttles",
]  # fmt: skip

#: A job, or a task of a job array, as people name it.
JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,9})?")
#: What we say of a command of Slurm's that fails without a word.
NO_REASON = "no reason given"
_Ask = Callable[..., str]
_WAITS_OR_RUNS = re.compile(
    r"JobId=(?P<job>\d+)(?: ArrayJobId=(?P<array>\d+))? .* JobState=(?:PENDING|CONFIGURING|RUNNING) .*?"
    r" Comment=(?P<comment>\S*)"
)
#: The first words of a job.
_HEAD = re.compile(
    r"^JobId=(?P<job>\d+)(?: (?P<kind>Array|Het)JobId=(?P<whole>\d+) (?:ArrayTaskId|HetJobOffset)=(?P<number>\S+))?",
    re.MULTILINE,
)
#: Before all that its owner may write.
_THROTTLE = re.compile(
    r"^JobId=\d{1,18} ArrayJobId=(\d{1,18}) ArrayTaskId=\S+ (?:ArrayTaskThrottle=(\d{1,9}) )?", re.MULTILINE
)
_HELD = re.compile(r" Nodes=\S+ CPU_IDs=\S+ Mem=\d+ GRES=(\S*)")


def comments_since(text: str, first: int) -> tuple[str, ...]:
    """The first words of the comments that ``scontrol -o`` shows, of jobs that wait or run and whose number, or that of
    their array, is at least ``first``. Users' names for things may forge a line: only for a hint."""
    found = (_WAITS_OR_RUNS.match(line) for line in text.splitlines())
    return tuple(m["comment"] for m in found if m and int(m["array"] or m["job"]) >= first)


def shared_gpu_numbers(shown: Iterable[tuple[str, str]]) -> dict[int, int]:
    """On which GPU of its node each job has the part of one that it holds, by job number. ``shown``: of each its name,
    and what ``scontrol -o -d`` shows of it alone: what users write, with line ends too, stands in the name and behind
    its nodes. Left out: who has parts of several."""
    found = {}
    for name, text in shown:
        before, _, after = text.partition(f" JobName={name} ")
        number = re.search(r"^JobId=(\d{1,18})\b", before, re.MULTILINE)
        held = _HELD.findall(after.partition(" MinCPUsNode=")[0])
        if number is None or len(held) != 1:
            continue
        numbers = [n for kind in SHARES for n in gpu_numbers(held[0], kind) or ()]
        if len(numbers) == 1:
            found[int(number[1])] = numbers[0]
    return found


def throttles(text: str) -> dict[str, int]:
    """How many tasks of an array may run at once, by array, in what ``scontrol -o`` shows of one of its tasks. Left
    out: arrays of which any number may. A line may be forged in another job's comment: of several the most counts,
    since beyond it Slurm itself keeps tasks back."""
    found: dict[str, float] = {}
    for array, most in _THROTTLE.findall(text):
        found[array] = max(found.get(array, 0), int(most or 0) or math.inf)
    return {array: int(most) for array, most in found.items() if most < math.inf}


@dataclass(frozen=True, slots=True)
class Shown:
    """``output`` is None for a job that writes to no file of its own, as no batch job; ``errors`` is where its stderr
    goes if that is another file (``--error``); ``word`` is Slurm's for the
    state, ``exit_code`` and ``signal`` are those of the last run that ended. ``job_id`` as in the queue: ``7_0`` for a
    task of an array, ``7+0`` for a component of a heterogeneous job, also where it was asked for by its own number.
    ``parts``: all that Slurm shows under the number that was asked for, by such names: ``7_0``, ``7_[1-3]``."""

    state: JobState
    word: str
    output: Path | None = None
    errors: Path | None = None
    work_dir: Path | None = None
    exit_code: int = 0
    signal: int = 0
    job_id: str = ""
    parts: tuple[str, ...] = ()


def shown(ask: _Ask, job_id: str) -> Shown | None:
    """What Slurm shows of a job, or of one task of an array; None if it does not know it (any more).

    ``ask`` gives the output of a command (:meth:`slurm_hadar.slurm.backend.cli.CliBackend.ask`). Raises SlurmError.
    """
    try:
        text = ask("scontrol", "show", "job", job_id)
    except SlurmError as error:
        # of an array's task that there is not it says nothing
        if "Invalid job id" not in str(error) and not ("_" in job_id and NO_REASON in str(error)):
            raise
        return None
    found = re.search(r"^   JobState=(\S+)", text, re.MULTILINE)
    if not found:
        return None
    # the last one: what users choose themselves (name, comment) stands before
    output, errors, work_dir = (_last(text, name) for name in ("StdOut", "StdErr", "WorkDir"))
    errors = None if errors == output else errors
    code = re.search(r"\bExitCode=(\d{1,3}):(\d{1,3})", text[found.end() :])
    exit_code, signal = (int(code[1]), int(code[2])) if code else (0, 0)
    parts = tuple(map(_named, _HEAD.finditer(text)))
    # an array's number is also that of one of its tasks, and means the array; a task that waits is shown with others
    part = bool(parts) and not parts[0].isdecimal()  # a plain job has the name by which it was asked for
    named = part and not parts[0].startswith(f"{job_id}_") and not parts[0].endswith("]")
    name = parts[0] if named else job_id
    return Shown(job_state(found[1], job_id), found[1], output, errors, work_dir, exit_code, signal, name, parts)


def _named(head: re.Match[str]) -> str:
    if head["whole"] is None:
        return head["job"]
    number = head["number"] if head["number"].isdigit() else f"[{head['number']}]"
    return f"{head['whole']}{'_' if head['kind'] == 'Array' else '+'}{number}"


def _last(text: str, name: str) -> Path | None:
    found = re.findall(rf"^   {name}=(.+)$", text, re.MULTILINE)
    return Path(found[-1]) if found else None


def accounted(ask: _Ask, job_id: str) -> tuple[AccountedJob, ...]:
    """What the accounting has of a job, or of an array's tasks, without earlier jobs of that number; empty where it
    keeps nothing, or cannot be asked."""
    try:
        told = parse_accounting(ask(*command(f"--jobs={job_id}")))
        return tuple(job for job in told if "#" not in job.job_id)
    except SlurmUnavailable:
        raise
    except SlurmError:
        return ()

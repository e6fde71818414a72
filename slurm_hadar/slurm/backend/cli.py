"""Slurm through its own commands, in text form: works with every Slurm, needs no library.

Text, not JSON: ``squeue --json`` is 6 to 45 times slower and changes shape with each release.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import tenacity

from slurm_hadar.errors import SlurmError, SlurmHidden, SlurmRejected, SlurmSilent, SlurmUnavailable
from slurm_hadar.model import JobState, Partition
from slurm_hadar.slurm import accounting, parsing
from slurm_hadar.slurm.answers import bare, complaints, results
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.framing import format_option
from slurm_hadar.slurm.limits import QUESTIONS, open_maintained, parse_bounds
from slurm_hadar.slurm.shown import NO_REASON, comments_since, shared_gpu_numbers, throttles
from slurm_hadar.slurm.state import Bounds, ClusterState, Daemon, SlurmJob, SlurmNode, Write, WriteResult

__all__ = ["HIDDEN", "CliBackend"]

#: Why a user may not ask for the nodes or the queue, most likely.
HIDDEN = "PrivateData in slurm.conf seems to hide nodes or partitions from this user"
log = logging.getLogger(__name__)
_AWAY = re.compile(
    r"unable to contact slurm controller|connection refused|communication connection failure|timed out|"
    r"socket timed out|zero bytes were transmitted|slurm_load_\w+ error(?!: (?:Invalid |Access/permission ))",
    re.IGNORECASE,
)
_NOT_ENDED = re.compile(r"Kill job error on job id (\S+): (.*\S)")
_SCANCEL_CHUNK = 500
_MOST_CHARACTERS = 4000  # a scontrol built without readline cuts a line at 4095
_LONGEST_LINE = 4094
_MOST_NOISE = 100  # lines
_PART = 1 << 16  # characters


class CliBackend(Backend):
    """``squeue``, ``sinfo``, ``scontrol`` and ``scancel``, each with a time limit.

    Parameters
    ----------
    timeout_s: longest wait for one command.
    retries: further tries of a read that found slurmctld away, and was told so in time. Writes are never retried
    blindly.
    env: environment for the commands; the caller's by default.
    """

    name = "cli"

    def __init__(self, timeout_s: float = 30.0, retries: int = 2, env: dict[str, str] | None = None) -> None:
        self._timeout_s = timeout_s
        self._settings = ""
        self._bounds_fault = ""
        self._noise: dict[str, set[str]] = {}
        self._env = _clean(dict(os.environ if env is None else env))
        self._retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passes_soon),
            stop=tenacity.stop_after_attempt(retries + 1),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=2.0),
            reraise=True,
        )

    def version(self) -> str:
        text = self._read(["scontrol", "--version"])
        match = re.search(r"\d+\.\d+(\.\d+)?", text)
        if not match:
            raise SlurmError(f"scontrol --version says {text.strip()!r}, which is no version")
        return match[0]

    def cluster_name(self) -> str:
        return self._setting("ClusterName")

    def identity(self) -> str:
        """Name, and where its slurmctld listens: private clusters of several people may have one name."""
        return " ".join(self._setting(s) for s in ("ClusterName", "SlurmctldHost[0]", "SlurmctldPort"))

    def config_text(self) -> str:
        """What ``scontrol show config`` said when it was asked last: :meth:`next_job_id` does, each round, so that a
        changed slurm.conf is noticed."""
        if not self._settings:
            self._settings = self._read(["scontrol", "show", "config"])
        return self._settings

    def ask(self, *command: str) -> str:
        """The output of one command that only reads. Raises SlurmError with its first complaint if it fails."""
        return self._read(list(command))

    def _setting(self, name: str) -> str:
        if not (found := self._given(name)):
            raise SlurmError(f"scontrol show config names no {name}; is this Slurm configured?")
        return found

    def _given(self, name: str) -> str:
        """Nothing where it is not named."""
        match = re.search(rf"^{re.escape(name)}\s*=\s*(\S+)", self.config_text(), re.MULTILINE)
        return match[1] if match else ""

    def read(self) -> ClusterState:
        began = time.monotonic()
        now = time.time()
        nodes, partitions = self._nodes(self._read)
        jobs = _with_details(self.each_job(), self._details())
        jobs = self._with_throttles(self._with_gpu_numbers(jobs))
        bounds, memory = self._bounds(), self._memory_counts()
        nodes = open_maintained(nodes, jobs, bounds.reservations, now)
        read_s = time.monotonic() - began
        return ClusterState(
            now, jobs, nodes, partitions, read_s, bounds, memory, self._stops_by_tier(), self._whole_sockets()
        )

    def _nodes(self, read: Callable[[list[str]], str]) -> tuple[tuple[SlurmNode, ...], tuple[Partition, ...]]:
        mark = _mark()
        fields = (*parsing.NODE_FIELDS, *parsing.MORE_NODE_FIELDS)
        option = format_option(fields, mark)
        return parsing.parse_nodes(read(["sinfo", "--local", "--all", "-h", "-N", "-O", option]), mark, fields)

    def _with_gpu_numbers(self, jobs: tuple[SlurmJob, ...]) -> tuple[SlurmJob, ...]:
        """One call for all that hold a part of a GPU; none where nobody does."""
        holding = [j for j in jobs if j.shares and j.nodes and j.state.active]
        if not holding:
            return jobs
        mark = f"m{_mark()}"  # which scontrol prints behind each job, as if it were a list of nodes
        asked = "".join(f"show job {j.job_id}\nshow hostlist {mark}\n" for j in holding)
        shown = re.split(rf"^{mark}$", self._run(["scontrol", "-o", "-d"], asked)[0], flags=re.MULTILINE)
        numbers = shared_gpu_numbers((job.name, text) for job, text in zip(holding, shown, strict=False))
        return tuple(replace(j, gpu_number=numbers.get(j.raw_id)) if j.shares and j.nodes else j for j in jobs)

    def _with_throttles(self, jobs: tuple[SlurmJob, ...]) -> tuple[SlurmJob, ...]:
        """squeue shows none of an array once every task that waits is a record of its own. One call for all of which a
        task has become one, others wait, and it has shown none; none where there is no such array."""
        split = {j.array_id for j in jobs if j.array_id and str(j.raw_id) != j.array_id}
        unknown = (j for j in jobs if j.array_id in split and j.throttle is None)
        waiting = {j.array_id: j for j in unknown if j.state is JobState.PENDING}
        if not waiting:
            return jobs
        # of a task that is a record of its own Slurm sends this one only
        asked = (j.job_id if str(j.raw_id) == array else str(j.raw_id) for array, j in waiting.items())
        found = throttles(self._show_jobs(asked))
        return tuple(replace(j, throttle=found[j.array_id]) if j.array_id in found else j for j in jobs)

    def _show_jobs(self, numbers: Iterable[object]) -> str:
        """One line for each job; there are complaints of the numbers that are none."""
        return self._run(["scontrol", "-o"], "".join(f"show job {number}\n" for number in numbers))[0]

    def _details(self) -> dict[str, parsing.Details]:
        mark = _mark()
        option = parsing.DETAIL_FORMAT.format(mark)
        # tasks that are records of their own are else shown in one line with others, as if they were like the first
        command = ["squeue", "--local", "--all", "--array-unique", "-h", "-t", parsing.DETAIL_STATES, "-o", option]
        return parsing.parse_details(self._read(command), mark)

    def _bounds(self) -> Bounds:
        """One call for all; what this user may not see, or this Slurm does not answer, is not in it."""
        try:
            text, minded = self._run(["scontrol", "-a", "-o"], QUESTIONS)[0], self._given("AccountingStorageEnforce")
            return parse_bounds(text, self._given("JobDefaults"), "associations" in minded.lower())
        except SlurmError as error:  # jobs and nodes were read: what they are kept from is then learned by trying
            if str(error) != self._bounds_fault:
                self._bounds_fault = str(error)
                log.warning("limits, licences and reservations cannot be read: %s", error)
            return Bounds()

    def _memory_counts(self) -> bool:
        return "MEMORY" in self._setting("SelectTypeParameters").upper()

    def _whole_sockets(self) -> bool:
        return "SOCKET" in self._setting("SelectTypeParameters").upper()

    def _stops_by_tier(self) -> bool:
        return self._setting("PreemptType") == "preempt/partition_prio"

    def topology(self) -> str:
        stdout, stderr, code = self._run(["scontrol", "show", "topology"])
        if code != 0 and "topology" not in stderr.lower():  # without switches it complains, some releases with a code
            raise SlurmError(f"scontrol show topology failed: {self._reason(stderr)}", command="scontrol show topology")
        return stdout if code == 0 else ""

    def daemons(self) -> tuple[Daemon, ...]:
        stdout, stderr, code = self._run(["scontrol", "ping"])  # some releases end with a code if one is down
        if code != 0 and not stdout.strip():
            raise SlurmError(f"scontrol ping failed: {self._reason(stderr)}", command="scontrol ping")
        daemons = parsing.parse_ping(stdout)
        if len(daemons) == 1:  # nobody asks which of them this host has
            return daemons
        addresses = dict(re.findall(r"^SlurmctldHost\[\d+\]\s*=\s*(\S+?)\((\S+)\)", self.config_text(), re.MULTILINE))
        return tuple(replace(d, address=addresses.get(d.host, "")) for d in daemons)

    def each_job(self) -> Iterator[SlurmJob]:
        mark = _mark()
        known = parsing.newer_fields() if self._tells_exclusive else parsing.JOB_FIELDS
        fields = (*known, *parsing.MORE_JOB_FIELDS)
        option = format_option(fields, mark)
        parts = self._retry(self._read_long, ["squeue", "--local", "--all", "-h", "-r", "-t", "all", "-O", option])
        return parsing.each_job(parts, mark, fields)

    @functools.cached_property
    def _tells_exclusive(self) -> bool:
        """Whether squeue has a field of its own for ``--exclusive``; asked once, of no job."""
        _, stderr, code = self._run(["squeue", "--local", "-h", "-n", "nobody-calls-a-job-so", "-O", "Exclusive:1"])
        return code == 0 and "Invalid job format" not in stderr

    def next_job_id(self) -> int | None:
        self._settings = self._read_once(["scontrol", "show", "config"])
        match = re.search(r"^NEXT_JOB_ID\s*=\s*(\d{1,18})$", self._settings, re.MULTILINE)
        return int(match[1]) if match else None

    def comments_since(self, first: int, end: int) -> tuple[str, ...]:
        return comments_since(self._show_jobs(range(first, end)), first)

    def gpus_in_use(self) -> dict[str, int]:
        return {node.name: node.gpus_held for node in self._nodes(self._read_once)[0]}

    def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        if not writes:
            return []
        lines, impossible = [], {}
        for write in writes:
            try:
                lines += _lines(write)
            except SlurmRejected as error:  # one job's matter
                impossible[id(write)] = str(error)
        sent = [w for w in writes if id(w) not in impossible]
        return [
            *self._sent(sent, lines),
            *(WriteResult(j, w, impossible[id(w)]) for w in writes if id(w) in impossible for j in w.job_ids),
        ]

    def _sent(self, writes: Sequence[Write], lines: Sequence[str]) -> list[WriteResult]:
        """Where scontrol does not say which write failed, the jobs are looked at."""
        if not lines:
            return []
        began = time.time()
        _, stderr, code = self._run(["scontrol"], "".join(line + "\n" for line in lines))
        told = complaints(writes, stderr, code, self.noise())
        if not told.doubtful:
            return results(writes, told)
        known = {job for write in writes for job in write.job_ids}
        took_s = time.time() - began
        return results(writes, told, {j.job_id: j for j in self.each_job() if j.job_id in known}, began, took_s)

    def signal(self, steps: Sequence[str], signal: str) -> None:
        for first in range(0, len(steps), _SCANCEL_CHUNK):
            # A step that ended meanwhile makes scancel complain; whether the save happened is known by other means.
            self._run(["scancel", f"--signal={signal}", *steps[first : first + _SCANCEL_CHUNK]])

    def cancel(self, job_ids: Sequence[str]) -> list[WriteResult]:
        found = []
        for first in range(0, len(job_ids), _SCANCEL_CHUNK):
            some = tuple(job_ids[first : first + _SCANCEL_CHUNK])
            _, stderr, code = self._run(["scancel", *some])
            refused = dict(_NOT_ENDED.findall(stderr)) if code else {}
            if code and not refused:  # it has given up
                refused = dict.fromkeys(some, self._reason(stderr))
            found += [WriteResult(job_id, Write("cancel", some), refused.get(job_id)) for job_id in some]
        return found

    def clock_ahead_s(self) -> tuple[float, float] | None:
        """``sdiag`` says what time it is at slurmctld; the call began and ended at known times of ours."""
        before = time.time()
        text = self.ask("sdiag")
        after = time.time()
        match = re.search(r"^sdiag output at .*\((\d{1,15})\)", text, re.MULTILINE)
        return (int(match[1]) - after, int(match[1]) + 1 - before) if match else None

    def accounting(self, start: str) -> str:
        """Everybody's jobs since ``start`` (as sacct's --starttime takes it), for :mod:`slurm_hadar.slurm.accounting`.

        Raises SlurmError if there is no accounting.
        """
        return self._read(accounting.command("--allusers", f"--starttime={start}"))

    def noise(self, *commands: str) -> frozenset[str]:
        """What these commands (none named = all) have complained of when they worked: no reason why one does not."""
        return frozenset().union(*(lines for name, lines in self._noise.items() if name in (commands or self._noise)))

    def _reason(self, stderr: str) -> str:
        """Why a command failed: the line with which it gave up, else the first that none prints that works."""
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        known = self.noise()
        new = sorted((line for line in lines if bare(line) not in known), key=lambda line: "fatal: " not in line)
        return next(iter(new), lines[0] if lines else NO_REASON)

    def _read(self, command: list[str]) -> str:
        return self._retry(self._read_once, command)

    def _read_once(self, command: list[str]) -> str:
        stdout, stderr, code = self._run(command)
        if code != 0:
            raise _failed(command, self._reason(stderr))
        return stdout

    def _read_long(self, command: list[str]) -> Iterator[str]:
        """As :meth:`_read_once`, in parts that are read one after the other from where the command has put them."""
        file = os.fdopen(os.memfd_create(command[0]), "w+b", buffering=0)
        _, stderr, code = self._run(command, into=file)
        if code != 0:
            raise _failed(command, self._reason(stderr))
        file.seek(0)
        text = io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8", errors="replace", newline="")
        return iter(lambda: text.read(_PART), "")

    def _run(self, command: list[str], stdin: str | None = None, into: io.FileIO | None = None) -> tuple[str, str, int]:
        """Output, complaints and code. ``into``: where the output goes instead."""
        text = " ".join(command[:2])
        given = None if stdin is None else stdin.encode()
        try:
            done = subprocess.run(
                command,
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                stdout=into or subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=self._timeout_s,
                env=self._env,
                check=False,
            )
        except FileNotFoundError:
            raise SlurmError(f"{command[0]} is not on PATH: install Slurm's client commands", command=text) from None
        except OSError as error:
            raise SlurmError(f"{command[0]} cannot be run: {error.strerror}", command=text) from None
        except subprocess.TimeoutExpired as expired:
            why = self._reason((expired.stderr or b"").decode("utf-8", "replace"))
            told = "" if why == NO_REASON else f" ({why})"
            raise SlurmSilent(f"{text} did not answer within {self._timeout_s:g} s{told}", command=text) from None
        # decoded here: text mode would turn a carriage return in a user's comment into a line end
        stdout, stderr = ((data or b"").decode("utf-8", "replace") for data in (done.stdout, done.stderr))
        if done.returncode == 0 and stderr and stdin is None:
            heard = self._noise.setdefault(command[0], set())
            heard.update([bare(line) for line in stderr.splitlines() if line.strip()][: _MOST_NOISE - len(heard)])
        if done.returncode != 0 and _AWAY.search(stderr):
            who = "slurmdbd" if command[0].startswith("sacct") else "slurmctld"
            raise SlurmUnavailable(f"{who} does not answer {text}: {self._reason(stderr)}", command=text)
        return stdout, stderr, done.returncode


def _passes_soon(error: BaseException) -> bool:
    return isinstance(error, SlurmUnavailable) and not isinstance(error, SlurmSilent)


def _clean(env: dict[str, str]) -> dict[str, str]:
    """The environment without what would change the commands' output, and with times as epoch seconds."""
    kept = {k: v for k, v in env.items() if not k.startswith(("SACCT_", "SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_"))}
    # an array's tasks are else cut short with dots
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def _mark() -> str:
    """Nobody can guess it while one command runs, and it is short: it stands behind every field."""
    return secrets.token_hex(4)


def _with_details(jobs: Iterable[SlurmJob], details: Mapping[str, parsing.Details]) -> tuple[SlurmJob, ...]:
    """Tasks of an array have those of the whole, as long as they are in its record."""
    if not details:
        return tuple(jobs)
    nothing = parsing.Details()
    return tuple(
        j
        if (d := details.get(j.job_id) or details.get(j.array_id or "", nothing)) == nothing
        else replace(j, exc_nodes=d.exc_nodes, throttle=d.throttle)
        for j in jobs
    )


def _lines(write: Write) -> list[str]:
    """The scontrol lines of a write. Refuses what could end a line early: values come from users too."""
    before, after = _words(write)
    lines: list[str] = []
    for job in write.job_ids:
        if lines and len(lines[-1]) + len(job) + len(after) < _MOST_CHARACTERS:
            lines[-1] += f",{job}"
        else:
            lines.append(f"{before}{job}")
    if any(len(line) + len(after) > _LONGEST_LINE for line in lines):
        raise SlurmRejected(f"the update is longer than the {_LONGEST_LINE} characters that scontrol reads")
    return [line + after for line in lines]


def _words(write: Write) -> tuple[str, str]:
    """What stands before and after the jobs."""
    if write.verb == "requeue":
        # without the option Slurm starts a job anew that has just ended well
        return "requeue incomplete ", ""
    if write.verb == "restart":
        return "requeue ", ""
    if write.verb == "release":
        return "release ", ""
    pairs = []
    for key, value in write.fields:
        if any(c in value for c in "\n\r\0"):
            raise SlurmRejected(f"{key} of job {','.join(write.job_ids)} holds a line end", job_id=write.job_ids[0])
        pairs.append(f'{key}="{value}"' if any(c in value for c in " \t;") else f"{key}={value}")
    return "update JobId=", f" {' '.join(pairs)}"


def _failed(command: Sequence[str], why: str) -> SlurmError:
    if command[0] in ("sinfo", "squeue", "scontrol") and "permission denied" in why.lower():
        return SlurmHidden(f"{command[0]} failed: {why}; {HIDDEN}", command=" ".join(command))
    return SlurmError(f"{command[0]} failed: {why}", command=" ".join(command))

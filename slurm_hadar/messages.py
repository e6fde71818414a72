"""What jobs and the controller say to each other, and where they meet.

One JSON object per ZeroMQ message, or per line of a job's spool file. The job's agent (DEALER, ephemeral CURVE key)
sends :class:`Report`, the controller (ROUTER, one CURVE key pair) answers with :class:`Order`. Checked by hand with the
standard library alone: the agent must start fast on a compute node. Format: our definition, version 1.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slurm_hadar.errors import ChannelError

__all__ = [
    "CHANNEL_FILE",
    "CHECKPOINTS_DIR",
    "COMMAND",
    "FASTEST_STEPS_PER_S",
    "MAX_BYTES",
    "OWNER_FILE",
    "SLOWEST_STEPS_PER_S",
    "SPOOL_FILE",
    "TOKEN_FILE",
    "TRIAL",
    "VERSION",
    "ChannelInfo",
    "Order",
    "Owner",
    "Report",
    "canonical_job_id",
    "channel_paths",
    "decode_order",
    "decode_report",
    "encode",
    "find_channel",
    "given_dir",
    "inherited",
    "job_dir",
    "job_homes",
    "note_set",
    "owner_of",
    "restart_count",
    "step_id",
    "token_fingerprint",
]

VERSION = 1
MAX_BYTES = 64 * 1024
CHANNEL_FILE = "hadar-channel.json"
SPOOL_FILE = "spool.jsonl"
TOKEN_FILE = "token"
OWNER_FILE = "owner"  # in a job's directory
CHECKPOINTS_DIR = "checkpoints"
_SET = "HADAR_SET"  # job id and names of the variables that hadar-srun has set for it
COMMAND = "HADAR_COMMAND"  # which of the commands of hadar share run a process is of, from 1
TRIAL = "HADAR_TRIAL_NUMBER"  # the variable that says of which trial of hadar tune a process is
SYSTEM_CHANNEL = Path("/etc/slurm-hadar") / CHANNEL_FILE

REPORT_KINDS = ("hello", "report", "saved", "bye")
ORDER_KINDS = ("welcome", "save", "go_on", "plan", "turns")
_JOB = re.compile(r"[1-9]\d{0,17}(_\d{1,9})?")
_STEP = re.compile(r"[1-9]\d{0,17}\.\d{1,9}")
_TOKEN = re.compile(r"[0-9a-f]{64}")
_LARGEST = 2**63 - 1
_MAX_TEXT = 4096

#: What a training can be measured at: from one step in thirty years to one in a microsecond. Rates outside of it are
#: taken neither from a report nor from the store of measured speeds: sums and ratios of them would not be finite.
SLOWEST_STEPS_PER_S, FASTEST_STEPS_PER_S = 1e-9, 1e6
_MOST_STEPS = 10**15  # thirty years at the fastest rate; whole numbers up to here are exact as floats
_MOST_S = 1e6  # of a save, a restore, a stall
# Where a received report is bounded more narrowly than by its type. A total is a mere statement: it may be vast.
_MOST: Mapping[str, float] = {
    "restart": 2**32, "time": 1e11, "steps": _MOST_STEPS, "steps_per_s": FASTEST_STEPS_PER_S, "world": 10**6,
    "saved_step": _MOST_STEPS, "generation": 2**32, "retry": 99, "wanted": 10**6,
    "save_s": _MOST_S, "stall_s": _MOST_S, "load_s": _MOST_S,
    "iter_s": _MOST_S, "duty": 1.0, "persistent_bytes": 2**53, "ephemeral_bytes": 2**53,
    "memory_bytes": 2**53, "consolidation": _MOST_STEPS, "consolidated_steps": _MOST_STEPS, "consolidate_s": _MOST_S,
}  # fmt: skip
_MAX_NODE = 255  # the longest host name


@dataclass(frozen=True, slots=True)
class Report:
    """One message of a job's agent; everything it knows at ``time``.

    Parameters
    ----------
    kind: "hello" (the agent is up), "report" (progress), "saved" (a checkpoint is complete), "bye" (the command ended).
    job: canonical id, "123", or "123_4" for a task of a job array.
    restart: SLURM_RESTART_COUNT, 0 for the first run.
    seq: strictly increasing per (job, restart); the controller drops what does not increase.
    token: the job's secret, 32 bytes in hexadecimal; its fingerprint stands as ``key=`` in the job's comment.
    time: UTC epoch seconds at the node. node: Slurm's name of it.
    steps: optimizer steps since the very first start of the job, None if unknown. With a resumed training API they
        count from the checkpoint, without it from the start of this run.
    total_steps: where the training will end, None if unknown.
    steps_per_s: measured over the last window in which steps were made, None until known.
    world: number of workers of the training, None until known.
    resumable: the training API is in use: it saves on request and resumes.
    saved_step, generation: of the last complete checkpoint (generation = restart count that wrote it), None if none.
    save_s, load_s: seconds that the last save took, and that the restore at the start of this run took.
    stall_s: seconds of the last save in which the training stood still; less than save_s if it was written meanwhile.
    memory_bytes: peak resident memory of the reporting training process.
    exit_code: of the command, as a shell would show it (bye only).
    consolidation, consolidated_steps: of a copy of a forked job: the number of the newest consolidation that it has,
        and the steps of the whole job that are in it; ``steps`` are then the copy's own. None for any other job.
    consolidate_s: what the last consolidation cost this copy, from its last step before to its next step.
    closes: the job's steps are done, and this is the copy that goes on to the end of the script.
    forgotten: how many optimizers, schedulers and the like go on in the training but are in no checkpoint.
    retry: the command failed, and this is the how-manieth time that the job goes back into the queue for it (bye only).
    wanted: of a server of models: the workers, a GPU each, by which it is expected to reach its goal now.
    beside: the jobs that had turns on the same GPU while the steps of ``steps_per_s`` were made, joined by ``+``, "" =
        none; None if it is not known, or the GPU is the job's own.
    iter_s: of a job with turns on a shared GPU: the mean length of a turn. duty: of the time in which it did not wait
        for a turn the share in which it had one. persistent_bytes, ephemeral_bytes: what it
        was measured to take of the GPU's memory between two iterations, and beyond that within one; where nothing can
        be measured what it has declared; None if neither.
    step: the Slurm step that the agent runs in, such as "123.0", so that the checkpoint signal reaches no other step.
    told_to_end: the agent was sent a SIGTERM, as Slurm does where it puts the job back, but not where it loses a node.
        None where it was not, since older controllers refuse a report with a word that they do not know.
    """

    kind: str
    job: str
    restart: int
    seq: int
    token: str
    time: float
    node: str
    steps: int | None = None
    total_steps: int | None = None
    steps_per_s: float | None = None
    world: int | None = None
    resumable: bool = False
    saved_step: int | None = None
    generation: int | None = None
    save_s: float | None = None
    stall_s: float | None = None
    load_s: float | None = None
    memory_bytes: int | None = None
    exit_code: int | None = None
    consolidation: int | None = None
    consolidated_steps: int | None = None
    consolidate_s: float | None = None
    closes: bool = False
    forgotten: int | None = None
    retry: int | None = None
    wanted: int | None = None
    beside: str | None = None
    iter_s: float | None = None
    duty: float | None = None
    persistent_bytes: int | None = None
    ephemeral_bytes: int | None = None
    step: str | None = None
    told_to_end: bool | None = None

    def __post_init__(self) -> None:
        _check(self, REPORT_KINDS)
        if not _TOKEN.fullmatch(self.token):
            raise ChannelError("report: token must be 64 lower-case hexadecimal digits")
        if self.step is not None and not _STEP.fullmatch(self.step):
            raise ChannelError(f"report: step must look like 123.0, not {self.step!r:.40}")
        if self.wanted == 0:
            raise ChannelError("report: wanted must be at least 1")
        if self.beside and not all(map(_JOB.fullmatch, self.beside.split("+"))):
            raise ChannelError(f"report: beside must be ids of jobs joined by +, not {self.beside!r:.40}")
        if self.kind == "bye" and self.exit_code is None:
            raise ChannelError("report: a bye needs the exit_code of the command")
        if self.kind == "saved" and self.saved_step is None:
            raise ChannelError("report: a saved needs the saved_step of the checkpoint")


@dataclass(frozen=True, slots=True)
class Order:
    """One message of the controller.

    Parameters
    ----------
    kind: "welcome" (answer to a hello), "save" (write a checkpoint now), "go_on" (end of a pause), "plan" (for a copy
        of a forked job: how the next periods are shared out), "turns" (which share of the turns of a shared GPU the job
        keeps).
    job: canonical id of the job it is for. why: for the job's log.
    pause_s: after the save, make no more steps and wait up to this long for the end; then go on by itself.
    plan: a :class:`slurm_hadar.forks.PeriodPlan` as JSON (plan only).
    share: 0 to 0.5, and for_s: for how many seconds, unless it is told anew (turns only).
    """

    kind: str
    job: str
    why: str = ""
    pause_s: float = 0.0
    plan: str = ""
    share: float | None = None
    for_s: float | None = None

    def __post_init__(self) -> None:
        _check(self, ORDER_KINDS)
        if self.kind == "turns" and (self.share is None or self.for_s is None or self.share > 0.5):
            raise ChannelError("order: turns needs for_s, and a share from 0 to 0.5")


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """Where the controller listens: the content of ``hadar-channel.json``, which the controller writes.

    ``address`` is ``tcp://host:port``; ``public_key`` the controller's CURVE key (40 characters of Z85). Both empty: it
    does not listen, and reads spool files only.
    """

    address: str
    public_key: str

    def __post_init__(self) -> None:
        if (self.address, self.public_key) == ("", ""):
            return
        if not isinstance(self.address, str) or not re.fullmatch(r"tcp://[^\s/]+:\d{1,5}", self.address):
            raise ChannelError(f"channel: address must look like tcp://host:port, not {self.address!r}")
        if not isinstance(self.public_key, str) or len(self.public_key) != 40:
            raise ChannelError("channel: public_key must be a CURVE key of 40 characters (Z85)")

    @property
    def listens(self) -> bool:
        """Whether there is a channel at all."""
        return bool(self.address)

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({"version": VERSION, "address": self.address, "public_key": self.public_key}) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> ChannelInfo:
        """Read the text of the file; raises ChannelError."""
        return _build(cls, _read_object(text, "channel"), "channel")


def encode(message: Report | Order) -> bytes:
    """One line of JSON without a newline; raises ChannelError if it would be too large."""
    content = {f.name: getattr(message, f.name) for f in fields(message)}
    lean = {name: value for name, value in content.items() if value is not None}
    data = json.dumps({"version": VERSION, **lean}, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MAX_BYTES:
        raise ChannelError(f"message of {len(data)} bytes is larger than {MAX_BYTES}")
    return data


def decode_report(data: bytes) -> Report:
    """A report from one message or spool line; raises ChannelError for anything that is not exactly one, and for one
    that says what cannot be: it is the word of a user's process."""
    report = _build(Report, _read_object(data, "report"), "report")
    for name, most in _MOST.items():
        value = getattr(report, name)
        if value is not None and value > most:
            raise ChannelError(f"report: {name} = {value:g} is more than {most:g}")
    if report.steps_per_s is not None and report.steps_per_s < SLOWEST_STEPS_PER_S:
        raise ChannelError(f"report: steps_per_s = {report.steps_per_s:g} is less than {SLOWEST_STEPS_PER_S:g}")
    if len(report.node) > _MAX_NODE:
        raise ChannelError(f"report: node has more than {_MAX_NODE} characters")
    return report


def decode_order(data: bytes) -> Order:
    """An order from one message; raises ChannelError for anything that is not exactly one."""
    return _build(Order, _read_object(data, "order"), "order")


def canonical_job_id(environ: Mapping[str, str]) -> str | None:
    """The id users see: "123"; "123_4" for an array task; a heterogeneous job's is its leader's. None outside Slurm."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or None


def step_id(environ: Mapping[str, str]) -> str | None:
    """The Slurm step of this process as ``scancel`` takes it, "123.0" (raw job id); None outside a step."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job.isdecimal() and step.isdecimal() else None


def restart_count(environ: Mapping[str, str]) -> int:
    """How often Slurm has restarted the job: 0 in its first run (Slurm sets the variable from the second on)."""
    text = environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def token_fingerprint(token: str) -> str:
    """16 hexadecimal digits of SHA-256, published as ``key=`` in the comment: verifies the token, does not tell it."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def note_set(environ: MutableMapping[str, str], names: Iterable[str]) -> None:
    """Note that these variables are ours, and of this job; see :func:`inherited`."""
    job, _, before = environ.get(_SET, "").partition(":")
    mine = canonical_job_id(environ) or ""
    environ[_SET] = f"{mine}:{' '.join(sorted({*names, *(before.split() if job == mine else ())}))}"


def inherited(environ: Mapping[str, str]) -> frozenset[str]:
    """The variables that ``hadar-srun`` has set for another job, whose program has submitted this one: Slurm hands a
    job the whole environment that it was submitted in."""
    job, colon, names = environ.get(_SET, "").partition(":")
    return frozenset((_SET, *names.split())) if colon and job != canonical_job_id(environ) else frozenset()


def given_dir(environ: Mapping[str, str]) -> Path | None:
    """``$HADAR_JOB_DIR``, unless it is another job's that this one has inherited."""
    given = environ.get("HADAR_JOB_DIR")
    return Path(given) if given and "HADAR_JOB_DIR" not in inherited(environ) else None


def job_dir(environ: Mapping[str, str]) -> Path | None:
    """``$HADAR_JOB_DIR``, or ``.hadar/<job id>`` below the directory of submission, or the working directory where
    that is not told. None outside Slurm.

    Holds the token (0600), ``checkpoints/`` and the spool.
    """
    if (given := given_dir(environ)) is not None:
        return given
    job = canonical_job_id(environ)
    return Path(environ.get("SLURM_SUBMIT_DIR") or Path.cwd()) / ".hadar" / job if job else None


def job_homes(uid: int) -> tuple[str, str]:
    """Where the directories of jobs stand below the directory of submission: the usual name, and a user's own where
    another user's stands under the usual one."""
    return ".hadar", f".hadar-{uid}"


class Owner(NamedTuple):
    """Whose a job's directory is. ``cluster`` may be empty."""

    cluster: str
    job: str
    submitted: str


def owner_of(directory: Path) -> Owner | None:
    """As it was noted there; None where nothing tells."""
    try:
        *cluster, job, submitted = (directory / OWNER_FILE).read_text().split()
    except (OSError, ValueError):  # none, or a full disk has left it empty
        return None
    return Owner(" ".join(cluster), job, submitted)


def channel_paths(environ: Mapping[str, str]) -> list[Path]:
    """Where the channel file may stand, best first."""
    if environ.get("HADAR_CHANNEL"):
        return [Path(environ["HADAR_CHANNEL"])]
    beside = [Path(environ["SLURM_CONF"]).parent / CHANNEL_FILE] if environ.get("SLURM_CONF") else []
    return [*beside, SYSTEM_CHANNEL]


def find_channel(environ: Mapping[str, str]) -> ChannelInfo | None:
    """The controller's address and key, or None if no controller has written one.

    Raises ChannelError naming the file if one is there and broken or not readable.
    """
    for path in channel_paths(environ):
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ChannelError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            return ChannelInfo.from_json(text)
        except ChannelError as error:
            raise ChannelError(f"{path}: {error}; start the controller again to have it rewritten") from error
    return None


_Message = TypeVar("_Message", Report, Order, ChannelInfo)


def _read_object(data: str | bytes, what: str) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise ChannelError(f"{what} of {len(data)} bytes is larger than {MAX_BYTES}")
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        content = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"{what} is not JSON in UTF-8: {str(error).splitlines()[0][:200]}") from None
    if not isinstance(content, dict):
        raise ChannelError(f"{what} must be a JSON object, not {type(content).__name__}")
    version = content.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise ChannelError(f"{what} has version {version!r:.40}; this side speaks version {VERSION}")
    return content


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _build(cls: type[_Message], content: dict[str, Any], what: str) -> _Message:
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(set(content) - set(known)):
        raise ChannelError(f"{what}: unknown field {unknown[0]!r:.80}")
    missing = [n for n, f in known.items() if f.default is MISSING and n not in content]
    if missing:
        raise ChannelError(f"{what}: field {missing[0]!r} is missing")
    return cls(**content)


def _check(message: Report | Order, kinds: tuple[str, ...]) -> None:
    """Refuse any field whose value is not of its declared type, not finite, or below 0."""
    what = type(message).__name__.lower()
    for name, allowed in _allowed_types(type(message)).items():
        _check_value(f"{what}: {name}", getattr(message, name), allowed)
    if message.kind not in kinds:
        raise ChannelError(f"{what}: unknown kind {message.kind!r:.40}; one of {', '.join(kinds)}")
    if not _JOB.fullmatch(message.job):
        raise ChannelError(f"{what}: job must look like 123 or 123_4, not {message.job!r:.40}")


def _check_value(where: str, value: Any, allowed: tuple[type, ...]) -> None:
    fits = type(value) in allowed or (type(value) is int and float in allowed)
    if not fits:
        raise ChannelError(f"{where} must be {allowed[0].__name__}, not {type(value).__name__}")
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        raise ChannelError(f"{where} has more than {_MAX_TEXT} characters")
    if type(value) in (int, float) and not (0 <= value <= _LARGEST and math.isfinite(value)):
        raise ChannelError(f"{where} must be a finite number of at least 0")


_TYPES: dict[type, dict[str, tuple[type, ...]]] = {}


def _allowed_types(cls: type) -> dict[str, tuple[type, ...]]:
    """{field: types its value may have}, from the annotations; read once per class."""
    if cls not in _TYPES:
        hints = typing.get_type_hints(cls)
        _TYPES[cls] = {n: typing.get_args(h) if isinstance(h, types.UnionType) else (h,) for n, h in hints.items()}
    return _TYPES[cls]

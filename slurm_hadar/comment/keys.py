"""The keys of a comment: what each means, and how its value is read."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_hadar.model import MOST_SLOW_DOWN, Fork, Mix

__all__ = ["KEYS", "MOST_SIZES", "JobComment"]

MOST_SIZES = 8  # of an elastic gang: each is weighed on each GPU type in every round
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY_HASH = re.compile(r"[0-9a-f]{16}")
_COUNT = re.compile(r"[1-9][0-9]{0,14}")
_SPAN = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,9})?)([smhd])")
_MOST_DAYS = 3650
_LEAST_SLOW_DOWN = 1.01  # who accepts less accepts nothing
# narrower than fromisoformat: job_submit.lua reads the same grammar without a calendar library
_TIME = re.compile(
    r"(?:19[7-9]|2\d\d)\d-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)?",
    re.ASCII,
)
_MEMORY = re.compile(r"([1-9][0-9]{0,3})[gG]")
_GRAPH = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})((?:/(?:pp|dp|tp|mb)[1-9][0-9]{0,3})*)", re.ASCII)
_GRAPH_FILE = re.compile(r"[A-Za-z0-9._/+@-]{1,250}\.toml", re.ASCII)
_SHAPE = re.compile(r"([1-9][0-9]{0,8}(?:/[1-9][0-9]{0,8}){3})(?:/([0-9a-f]{32}))?")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class JobComment:
    """The parsed comment. Fields that were not given are None; the meaning of each is in :data:`KEYS`."""

    model: str | None = None
    batch: int | None = None
    steps: int | None = None
    gpus: range | tuple[int, ...] | None = None
    nodes: tuple[int, int] | None = None
    mix: Mix | None = None
    graph: str | None = None
    types: frozenset[str] | None = None
    mem_gb: int | None = None
    prefer: frozenset[str] | None = None
    ckpt: bool | None = None
    lose: bool | None = None
    pin: bool | None = None
    weight: float | None = None
    deadline: float | None = None
    deadline_after_s: float | None = None
    requeue_on_timeout: bool | None = None
    max_time_s: float | None = None
    restart: float | None = None
    retry: int | None = None
    fork: Fork | None = None
    period_steps: int | None = None
    period_s: float | None = None
    slow_down: float | None = None
    lease: int | None = None
    asked: tuple[int, int, int, int] | None = None
    asked_mac: str | None = None
    needs_mib: tuple[int, int] | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class _Key:
    read: Callable[[str], dict[str, Any]]
    example: str
    doc: str


def _name(field: str) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if not _NAME.fullmatch(text):
            raise ValueError("must be letters, digits, '.', '_' or '-', at most 64")
        return {field: text}

    return read


def _positive_int(field: str, digits: int = 15) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if len(text) > digits or not _COUNT.fullmatch(text):
            raise ValueError(f"must be a positive whole number of at most {digits} digits")
        return {field: int(text)}

    return read


def _positive_float(field: str, least: float, most: float) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) or not least <= float(text) <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}")
        return {field: float(text)}

    return read


def _yes_no(field: str) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if text not in ("yes", "no"):
            raise ValueError("must be yes or no")
        return {field: text == "yes"}

    return read


def _names(field: str) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        names = text.split("+")
        if not all(_NAME.fullmatch(n) for n in names):
            raise ValueError("must be GPU types joined by '+'")
        return {field: frozenset(names)}

    return read


def _memory(text: str) -> dict[str, Any]:
    match = _MEMORY.fullmatch(text)
    if not match:
        raise ValueError("must be whole gigabytes of one GPU, at most 9999g")
    return {"mem_gb": int(match[1])}


def _gpus(text: str) -> dict[str, Any]:
    """A range as ``range(low, high + 1)``, a list as an ascending tuple."""
    low, dash, high = text.partition("-")
    sizes = [low, high] if dash else text.split("+")
    good = all(re.fullmatch(r"[1-9][0-9]{0,3}", n) for n in sizes) and len(sizes) <= MOST_SIZES
    if not good or (dash and int(high) < int(low)):
        raise ValueError(f"must be a range or a list of at most {MOST_SIZES} sizes joined by '+'")
    return {"gpus": range(int(low), int(high) + 1) if dash else tuple(sorted({int(n) for n in sizes}))}


def _nodes(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise ValueError("must be a count or a range such as 1-4")
    return {"nodes": (int(match[1]), int(match[2] or match[1]))}


def _mix(text: str) -> dict[str, Any]:
    try:
        return {"mix": Mix(text)}
    except ValueError:
        raise ValueError(f"must be one of {', '.join(Mix)}") from None


def _graph(text: str) -> dict[str, Any]:
    """Its syntax only: which models there are, and what a file says, is for those who use it."""
    if text.endswith(".toml"):
        good = _GRAPH_FILE.fullmatch(text) is not None
    else:
        match = _GRAPH.fullmatch(text)
        kinds = [degree[:2] for degree in match[2].split("/")[1:]] if match else []
        good = match is not None and len(set(kinds)) == len(kinds)
    if not good:
        raise ValueError("must be a model with degrees pp, dp, tp, mb, each at most once, or a path ending in .toml")
    return {"graph": text}


def _fork(text: str) -> dict[str, Any]:
    try:
        return {"fork": Fork(text)}
    except ValueError:
        raise ValueError(f"must be one of {', '.join(Fork)}") from None


def _span_s(text: str) -> float | None:
    """Seconds, None if it is not a span such as 90m. Raises ValueError beyond what any job can mean."""
    match = _SPAN.fullmatch(text)
    if not match:
        return None
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if seconds > _MOST_DAYS * _UNIT_S["d"]:
        raise ValueError(f"must not be longer than {_MOST_DAYS}d")
    return seconds


def _share(text: str) -> dict[str, Any]:
    """How many times as long an iteration may take beside another job; 1 = it shares with nobody."""
    if text == "no":
        return {"slow_down": 1.0}
    try:
        return _positive_float("slow_down", _LEAST_SLOW_DOWN, MOST_SLOW_DOWN)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or no") from None


def _period(text: str) -> dict[str, Any]:
    if _COUNT.fullmatch(text):
        return {"period_steps": int(text)}
    if not (span_s := _span_s(text)):
        raise ValueError("must be a number of steps such as 500 or a span such as 30s, 5m")
    return {"period_s": span_s}


def _max_time(text: str) -> dict[str, Any]:
    if not (span_s := _span_s(text)):
        raise ValueError("must be a span such as 36h, 2d")
    return {"max_time_s": span_s}


def _deadline(text: str) -> dict[str, Any]:
    if (span_s := _span_s(text)) is not None:
        return {"deadline_after_s": span_s}
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a time such as 2026-11-20T18:00+00:00 or a span such as 6h, 90m, 2d") from None
    if when.tzinfo is None:
        raise ValueError("must name the offset from UTC of a time (2026-11-20T18:00+00:00)")
    return {"deadline": when.timestamp()}


def _asked(text: str) -> dict[str, Any]:
    match = _SHAPE.fullmatch(text)
    if not match:
        raise ValueError("must be four numbers (GPUs, nodes, tasks and CPUs) and 32 hexadecimal digits")
    workers, nodes, tasks, cpus = map(int, match[1].split("/"))
    if workers % nodes:
        raise ValueError("must be GPUs that its nodes share equally")
    return {"asked": (workers, nodes, tasks, cpus), "asked_mac": match[2]}


def _needs(text: str) -> dict[str, Any]:
    persistent, plus, ephemeral = text.partition("+")
    if not plus or not all(len(n) <= 9 and n.isascii() and n.isdecimal() for n in (persistent, ephemeral)):
        raise ValueError("must be two whole numbers of MiB, persistent and ephemeral memory")
    return {"needs_mib": (int(persistent), int(ephemeral))}


def _hash(text: str) -> dict[str, Any]:
    if not _KEY_HASH.fullmatch(text):
        raise ValueError("must be 16 hexadecimal digits")
    return {"key": text}


KEYS: Mapping[str, _Key] = {
    "model": _Key(_name("model"), "resnet18", "model family; links the job to known and measured speeds"),
    "batch": _Key(_positive_int("batch"), "128", "batch size per worker"),
    "steps": _Key(_positive_int("steps"), "200000", "training steps of the whole job; the training API reports it too"),
    "gpus": _Key(
        _gpus, "2-8", "elastic: gang sizes the script can use beside the one asked for, or a list such as 2+4+8"
    ),
    "nodes": _Key(_nodes, "1-4", "how many nodes the script can use; default: what was asked of Slurm"),
    "mix": _Key(_mix, "gated", "unlike GPUs in one gang: never (default), gated by the slowest, or balanced"),
    "graph": _Key(
        _graph,
        "gpt2-xl/pp4/dp2",
        "what its workers exchange: a known model with its pipeline (pp), data (dp) and tensor parallel (tp) degrees "
        "and micro-batches (mb), or a .toml file",
    ),
    "types": _Key(
        _names("types"),
        "v100+p100",
        "the only GPU types the job may run on; default: all. Where job_submit.lua is not installed, Slurm may start "
        "it on others before a round has seen it",
    ),
    "mem": _Key(
        _memory,
        "32g",
        "the job runs only on GPU types that have at least so much memory per GPU, in gigabytes as makers count them; "
        "acts as types= does, and together with it",
    ),
    "prefer": _Key(_names("prefer"), "v100", "a wish, not a limit; job_submit.lua writes it for a typed request"),
    "ckpt": _Key(_yes_no("ckpt"), "yes", "the script itself saves on SIGTERM (within Slurm's KillWait), and resumes"),
    "lose": _Key(_yes_no("lose"), "no", "may be restarted from the beginning if it has no checkpoint"),
    "pin": _Key(_yes_no("pin"), "yes", "leave this job alone"),
    "weight": _Key(
        _positive_float("weight", 0.001, 1000),
        "2",
        "importance relative to other jobs, as far as guard.max_weight grants it; default 1",
    ),
    "deadline": _Key(_deadline, "6h", "finish by this time, or within this span of the submission"),
    "requeue_on_timeout": _Key(
        _yes_no("requeue_on_timeout"),
        "yes",
        "at its time limit the job saves and goes back into the queue, so that it may be longer than any limit",
    ),
    "max_time": _Key(
        _max_time, "2d", "the most the job may run in all, over all its runs and moves; a span; default: no such limit"
    ),
    "restart": _Key(_positive_float("restart", 0, 86400), "45", "seconds that a restart costs; measured otherwise"),
    "retry": _Key(
        _positive_int("retry", 2),
        "2",
        "so many times at most the job is run again, from its last checkpoint, when the command of hadar-srun fails by "
        "itself; default: never",
    ),
    "fork": _Key(
        _fork, "auto", "the tasks of this job array are copies of one job: on idle nodes only, on all (spread), or auto"
    ),
    "period": _Key(
        _period, "60s", "how often the copies' weights are consolidated: a span, or steps of the job; default: by cost"
    ),
    "share": _Key(
        _share,
        "1.5",
        "may run beside another job on one GPU if at no moment it has run for more than so many times what its steps "
        "take alone; no: never; default: jobs.slow_down of the site. Acts on jobs with shards, in simulations and in "
        "replays",
    ),
    "lease": _Key(
        _positive_int("lease", 5),
        "10",
        "written by job_submit.lua: seconds that the scheduler has to see a new job first",
    ),
    "asked": _Key(
        _asked,
        "4/2/2/8/0123456789abcdef0123456789abcdef",
        "written by the scheduler when it gives the job nodes: GPUs (or shards of one), nodes, tasks and CPUs that its "
        "owner asked for, and a seal without which nobody believes them",
    ),
    "needs": _Key(
        _needs,
        "600+3000",
        "written by the scheduler for a job with shards: MiB of persistent and of ephemeral memory that its like took",
    ),
    "key": _Key(_hash, "0123456789abcdef", "written by hadar-srun: fingerprint of the job's report token"),
}

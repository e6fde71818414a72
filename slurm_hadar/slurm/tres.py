"""What Slurm's texts say of resources: GRES of nodes, TRES requests, and what is in use by shares of GPUs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.slurm.state import NOTHING_MORE, Fittings, GpuRequest

__all__ = [
    "SHARES", "fittings", "gpu_numbers", "node_shards", "parse_gres", "parse_request", "parse_tres", "per_gpu",
    "requests", "shared_gpus", "shares", "text_or_empty", "with_shared",
]  # fmt: skip

_GRES_PART = re.compile(r"(?:[^,(]|\([^)]*\))+")  # commas within brackets do not part
_GPU_TYPE = re.compile(r"[!-~]{1,64}")
#: GRES that are parts of GPUs.
SHARES = ("shard", "mps")
_NOTHING = frozenset(("", "N/A", "(null)", "NONE", "None", "n/a", "none", "Unknown"))
_TRES_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_DIGITS = re.compile(r"[0-9]{1,15}")
_COUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGTP]?)")
_INDICES = re.compile(r"IDX:(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\)")
_MOST_GPUS = 4096  # of one node


def text_or_empty(value: str) -> str:
    """Empty where Slurm writes one of its words for nothing."""
    return "" if value in _NOTHING else value


def parse_gres(text: str) -> tuple[tuple[str, int], ...]:
    """GPUs per type in a node's ``Gres`` or ``GresUsed``: ``gpu:v100:4(IDX:0-1)`` gives (("v100", 4),).

    GPUs without a type count as type ``gpu``; other GRES are those of :func:`fittings`. Raises
    SlurmParseError for a GPU entry that is not understood.
    """
    total: dict[str, int] = {}
    for part in _GRES_PART.findall(text_or_empty(text)):
        name, count = _gpu_entry(part.partition("(")[0].strip())
        if count:
            total[name or "gpu"] = total.get(name or "gpu", 0) + count
    return tuple(sorted(total.items()))


def _gpu_entry(text: str) -> tuple[str, int]:
    """Type ("" = none) and count of one entry such as ``gpu``, ``gpu:2``, ``gpu:a100``, ``gres/gpu:a100_1g.5gb=2``;
    count 0 for any other GRES."""
    words = text.removeprefix("gres:").removeprefix("gres/").replace("=", ":").split(":")
    if words[0] != "gpu":
        return "", 0
    kind, count = "", "1"
    if len(words) == 2:
        kind, count = ("", words[1]) if words[1].isdecimal() else (words[1], "1")
    elif len(words) == 3:
        kind, count = words[1:]
    if len(words) > 3 or not _DIGITS.fullmatch(count) or (kind and not _GPU_TYPE.fullmatch(kind)):
        raise SlurmParseError(f"a GPU request that this version does not understand: {text!r:.200}")
    return kind, int(count)


@functools.lru_cache(maxsize=1024)
def fittings(gres: str, disk: str, shape: str) -> Fittings:
    """What a node has, or a job asks of each node: ``gres`` as in ``nic:2,nic:cx6:1,bandwidth:4G``, parts of GPUs left
    out, ``disk`` in MiB or with a unit, ``shape`` as ``sockets:cores:threads``, with stars for what is not asked."""
    found: dict[str, int] = {}
    for part in _GRES_PART.findall(text_or_empty(gres)):
        text = part.partition("(")[0].strip().removeprefix("gres:").removeprefix("gres/").replace("=", ":")
        name, _, last = text.replace(":no_consume", "").rpartition(":")
        count = _counted(last, "")
        name, count = (name, count) if name and count is not None else (text, 1)
        if name.partition(":")[0] not in ("gpu", *SHARES):
            found[name] = found.get(name, 0) + int(count)
    counts = [int(n) if _DIGITS.fullmatch(n) else 0 for n in shape.split(":")]
    sockets, cores, threads = counts if len(counts) == 3 else (0, 0, 0)
    asked = Fittings(tuple(sorted(found.items())), (_counted(disk, "M") or 0) / (1 << 20), sockets, cores, threads)
    return NOTHING_MORE if asked == NOTHING_MORE else asked


def _counted(text: str, unit: str) -> float | None:
    """A number with its unit, ``unit`` where it names none."""
    match = _COUNT.fullmatch(text)
    return None if match is None else float(match[1]) * _TRES_UNITS[match[2] or unit]


@functools.lru_cache(maxsize=1024)
def per_gpu(text: str) -> int:
    """CPUs for each GPU in a job's ``CpusPerTres``, ``gres:gpu:2`` or ``gpu:2``; 0 where it says nothing of GPUs."""
    return sum(count for _, count in parse_request(text))


def shared_gpus(text: str) -> int | None:
    """How many of a node's GPUs are in use by shares of GPUs (shards, MPS) in its ``GresUsed``; None where Slurm
    does not say how many. ``shard:4(2/4,2/4,0/4)`` are two; so are ``shard:v100:2(IDX:0-1)`` (22.05, which counts
    there not the shards but the GPUs)."""
    found = [gpu_numbers(text, kind) for kind in SHARES]
    return None if None in found else max(len(numbers or ()) for numbers in found)


def gpu_numbers(text: str, kind: str) -> frozenset[int] | None:
    """The numbers of the GPUs that are in use as ``kind`` (gpu, shard, mps) in a node's ``GresUsed``, or that a job
    holds in its ``GRES``; None where Slurm does not say which."""
    found: set[int] = set()
    for part in _GRES_PART.findall(text_or_empty(text)):
        entry, _, detail = part.partition("(")
        words = entry.strip().split(":")
        if words[0] != kind or not _DIGITS.fullmatch(words[-1]) or int(words[-1]) == 0:
            continue
        uses, indices = re.findall(r"(\d{1,9})/\d", detail), _INDICES.fullmatch(detail)
        if uses:
            found |= {number for number, used in enumerate(uses) if int(used)}
        elif indices:
            ends = [each.partition("-") for each in indices[1].split(",")]
            if any(int(last or first) > _MOST_GPUS for first, _, last in ends):
                return None
            found.update(n for first, _, last in ends for n in range(int(first), int(last or first) + 1))
        else:
            return None
    return frozenset(found)


def node_shards(text: str) -> int:
    """How many shards a node's ``Gres`` has: ``gpu:v100:4,shard:v100:16`` has 16."""
    parts = (part.partition("(")[0].strip().split(":") for part in _GRES_PART.findall(text_or_empty(text)))
    return sum(int(words[-1]) for words in parts if words[0] == "shard" and _DIGITS.fullmatch(words[-1]))


def shares(texts: Iterable[str]) -> str:
    """The first part of a GPU that is asked for, such as ``shard:2``; empty where none is."""
    for part in (part for text in texts for part in text_or_empty(text).split(",")):
        words = part.removeprefix("gres:").removeprefix("gres/").replace("=", ":").split(":")
        if words[0] in SHARES:
            return ":".join(words)
    return ""


def with_shared(
    gpus: tuple[tuple[str, int], ...], used: tuple[tuple[str, int], ...], shared: int | None
) -> tuple[tuple[str, int], ...]:
    """What is in use, with the GPUs that are in use by shares: of several types nobody knows which, so all count."""
    if shared == 0:
        return used
    if shared is None or len(gpus) != 1:
        return gpus
    (name, total), taken = gpus[0], dict(used)
    return ((name, min(total, taken.get(name, 0) + shared)),)


@functools.lru_cache(maxsize=1024)
def requests(**by: str) -> tuple[GpuRequest, ...]:
    """The GPUs that are asked for per job, node, socket and task."""
    found = ((per, parse_request(text)) for per, text in by.items())
    return tuple(GpuRequest(per, types) for per, types in found if types)


@functools.lru_cache(maxsize=1024)
def parse_request(text: str) -> tuple[tuple[str, int], ...]:
    """GPUs in a TRES request, ``gres:gpu:2`` (22.05) or ``gres/gpu:v100:2`` (later), as ((type or "", count),). Raises
    SlurmParseError for GPUs that are asked for in a way that is not understood."""
    total: dict[str, int] = {}
    for part in text_or_empty(text).split(","):
        name, count = _gpu_entry(part)
        total[name] = total.get(name, 0) + count
    return tuple(sorted((t, n) for t, n in total.items() if n))


@functools.lru_cache(maxsize=4096)
def parse_tres(text: str) -> Mapping[str, int]:
    """``cpu=4,mem=1200M,node=1,gres/gpu=2`` by name; memory in bytes. What is no number (``N``, not set) is left
    out."""
    found = {}
    for name, number, unit in re.findall(
        r"([^=,\s]+)=([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGTP]?)(?=,|$)", text_or_empty(text)
    ):
        scale = _TRES_UNITS[unit or ("M" if name == "mem" else "")]
        found[name] = int(float(number) * scale)
    return found

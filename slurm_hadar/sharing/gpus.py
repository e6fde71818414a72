"""The GPUs that this process is to see, and which of them comes to which command where several share them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from slurm_hadar.errors import ConfigError
from slurm_hadar.sharing.declared import demand_of

__all__ = ["VISIBLE", "name_of", "named", "spread", "visible"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ODD = re.compile(r"[^A-Za-z0-9_.-]")


def visible(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs of an allocation, as Slurm and CUDA name them; none where nothing says which there are."""
    return tuple(gpu for gpu in (part.strip() for part in environ.get(VISIBLE, "").split(",")) if gpu)


def named(environ: Mapping[str, str], places: Iterable[int]) -> list[str]:
    """Those at these places among the visible ones, by name; by number where there are not so many named."""
    gpus = visible(environ)
    return [gpus[place] if place < len(gpus) else str(place) for place in places]


def name_of(gpu: str) -> str:
    """For a file's name."""
    return _ODD.sub("_", gpu)


def spread(gpus: Sequence[str], environs: Sequence[Mapping[str, str]]) -> list[str]:
    """A GPU for each command, by what its own environment says: the one that it names, else the one with the fewest
    commands, and of these the one where the least memory is declared. Raises ConfigError for a command that names
    something else."""
    count, declared = dict.fromkeys(gpus, 0), dict.fromkeys(gpus, 0)
    named = [_named(gpus, number, environ) for number, environ in enumerate(environs, 1)]
    for its in named:
        if its is not None:
            count[its] += 1
    given = []
    for gpu, environ in zip(named, environs, strict=True):
        found = gpu or min(gpus, key=lambda one: (count[one], declared[one]))
        count[found] += gpu is None
        declared[found] += demand_of(environ).alone_bytes
        given.append(found)
    return given


def _named(gpus: Sequence[str], number: int, environ: Mapping[str, str]) -> str | None:
    if (gpu := environ.get(VISIBLE)) in (None, *gpus):
        return gpu
    raise ConfigError(
        f"job {number}: {VISIBLE}={gpu} is none of this allocation's GPUs ({', '.join(gpus)}): a command takes turns "
        "on one of them; name that one, or none"
    )

"""The GPUs that trials are given, by type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_hadar.errors import ConfigError

__all__ = ["GpuType", "Limits", "fastest_first", "parse_pool"]


@dataclass(frozen=True, slots=True)
class GpuType:
    """``count`` GPUs of a type that is ``speed`` times as fast as the fastest of the pool."""

    name: str
    count: int
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """``packed``: the most trials on one GPU (the paper's c). ``widest``: the most GPUs of one trial (its d)."""

    packed: int = 2
    widest: int = 4


def fastest_first(pool: Iterable[GpuType]) -> tuple[GpuType, ...]:
    """The types of which there are any."""
    return tuple(sorted((t for t in pool if t.count), key=lambda t: -t.speed))


_GROUP = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):(?P<count>[1-9][0-9]{0,4})")


def parse_pool(text: str, speeds: Mapping[str, float]) -> tuple[GpuType, ...]:
    """``v100:4,p100:4`` with the types' speeds, brought to 1 for the fastest. Raises ConfigError."""
    counts: dict[str, int] = {}
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        if match is None:
            raise ConfigError(f"GPUs {group.strip()!r} must read TYPE:COUNT, as in v100:4,p100:4")
        if match["name"] in counts:
            raise ConfigError(f"GPU type {match['name']} is named twice")
        counts[match["name"]] = int(match["count"])
    for name in speeds.keys() - counts:
        raise ConfigError(f"a speed is given for {name}, of which there are no GPUs")
    best = max(speeds.get(name, 1.0) for name in counts)
    return tuple(GpuType(name, count, speeds.get(name, 1.0) / best) for name, count in counts.items())

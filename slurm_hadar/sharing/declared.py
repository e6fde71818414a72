"""What a job declares of itself on a shared GPU, in ``HADAR_SHARE_...`` variables. An empty one is none."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_hadar.errors import ConfigError
from slurm_hadar.fields import LONGEST_S
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.sizes import MOST_BYTES, size_bytes
from slurm_hadar.sharing.turns import Policy

__all__ = ["demand_of", "memory_of", "policy_of", "seconds_of"]


def demand_of(environ: Mapping[str, str]) -> Demand:
    """``HADAR_SHARE_PERSISTENT`` and ``HADAR_SHARE_EPHEMERAL``, in bytes. Raises ConfigError naming the variable."""
    return Demand(_size(environ, "HADAR_SHARE_PERSISTENT", 0), _size(environ, "HADAR_SHARE_EPHEMERAL", 0))


def memory_of(environ: Mapping[str, str]) -> int:
    """``HADAR_SHARE_MEMORY``, in bytes: of the GPU that jobs may use. Raises ConfigError naming the variable."""
    return _size(environ, "HADAR_SHARE_MEMORY", MOST_BYTES)


def seconds_of(environ: Mapping[str, str], name: str) -> float | None:
    """A length of time; None where nothing is said. Raises ConfigError naming the variable."""
    text = environ.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigError(f"{name} must be a number of seconds from 0 to {LONGEST_S:g}, not {text!r}")
    return seconds


def policy_of(environ: Mapping[str, str]) -> Policy:
    """``HADAR_SHARE_POLICY``. Raises ConfigError naming the variable."""
    text = environ.get("HADAR_SHARE_POLICY") or Policy.FAIR
    if text not in list(Policy):
        raise ConfigError(f"HADAR_SHARE_POLICY must be one of {', '.join(Policy)}, not {text!r}")
    return Policy(text)


def _size(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return size_bytes(text) if (text := environ.get(name)) else default
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None

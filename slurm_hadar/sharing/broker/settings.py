"""How a broker shares its GPU, and what it lets processes do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.sharing.turns import Policy

__all__ = ["Limits", "Rules"]


@dataclass(frozen=True)
class Rules:
    """How a GPU is shared. ``weights`` are those of classes under policy ``priority``; others have 1."""

    policy: Policy
    memory_bytes: int
    weights: Mapping[str, int] = field(default_factory=dict)
    grace_ns: int = 2_000_000


@dataclass(frozen=True)
class Limits:
    """``linger_s``: how long a broker stays without anybody; None: for ever. ``report_s``: how long others may wait for
    the end of one iteration before that is said. ``kill_s``: before the process that holds the turn is killed; None:
    never. Its memory is free only when it has ended, so that nothing less would help the others. ``all_users``: for an
    administrator's broker; jobs believe none of another user but root."""

    linger_s: float | None = 10.0
    report_s: float = 30.0
    kill_s: float | None = None
    connections: int = 256
    per_user: int = 64
    all_users: bool = False

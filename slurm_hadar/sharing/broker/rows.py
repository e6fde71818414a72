"""A session as ``hadar share status`` tells it."""

from __future__ import annotations

from typing import Any

from slurm_hadar.fields import LONGEST_S
from slurm_hadar.sharing.broker.seats import Progress, Seat
from slurm_hadar.sharing.sizes import MOST_BYTES

__all__ = ["row"]

NS = 1_000_000_000


def row(name: str, pid: int, uid: int, label: str, seat: Seat, told: Progress) -> dict[str, Any]:
    """But ``share``, which goes by all sessions. Times in seconds, memory in bytes."""
    return {
        "session": name, "pid": pid, "user": uid, "label": label, "lane": seat.lane, "state": seat.state,
        "persistent_bytes": seat.demand.persistent_bytes, "ephemeral_bytes": seat.demand.ephemeral_bytes,
        "turns": seat.turns, "used_s": seat.used_ns / NS, "measured": _measured(told), "gives_way": seat.gives_way,
        "keeps": seat.keeps, "duty": _duty(seat.used_ns, told.away_ns),
    }  # fmt: skip


def _measured(told: Progress) -> dict[str, int] | None:
    """The memory that a session has seen itself take; None where it cannot see it. It is the session's word."""
    sizes = told.persistent_bytes, told.ephemeral_bytes
    if not any(sizes) or not all(0 <= size <= MOST_BYTES for size in sizes):
        return None
    return {"persistent_bytes": sizes[0], "ephemeral_bytes": sizes[1]}


def _duty(used_ns: int, away_ns: int) -> float | None:
    """Of the time in which a session did not wait for its turn the share in which it had one: what it needs of a GPU,
    whoever else has turns there. None of one that has had none, or says of its other time what cannot be."""
    return used_ns / (used_ns + away_ns) if used_ns > 0 and 0 <= away_ns <= LONGEST_S * NS else None

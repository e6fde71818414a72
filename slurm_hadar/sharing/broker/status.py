"""How a broker stands, as ``hadar share status`` tells it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from slurm_hadar.fields import LONGEST_S
from slurm_hadar.sharing.broker.arbiter.arbiter import Arbiter
from slurm_hadar.sharing.broker.messages import NOTHING, Progress, SessionView
from slurm_hadar.sharing.sizes import MOST_BYTES
from slurm_hadar.sharing.turns import Policy

__all__ = ["Process", "status"]

NS = 1_000_000_000


class Process(NamedTuple):
    """What is known of a session's process; ``label`` and ``told`` by its own word."""

    name: str
    pid: int
    uid: int
    label: str
    told: Progress = NOTHING


def status(arbiter: Arbiter, policy: Policy, processes: Iterable[Process], uid: int, now_ns: int) -> dict[str, Any]:
    """For this user, who is told the labels of its own sessions; the user of the broker is told all. Times in
    seconds, memory in bytes."""
    memory, rows = arbiter.memory, []
    for process in processes:
        if (view := arbiter.view(process.name, now_ns)) is not None:
            rows.append(_row(process, view))
    used_s = sum(one["used_s"] for one in rows)
    for one in rows:
        one["share"] = one["used_s"] / used_s if used_s else 0.0
        if uid not in {one["user"], os.getuid()}:
            one["label"] = ""
    held = arbiter.holders()
    lanes = []
    for lane in memory.lanes:
        holder = next((name for name in lane.members if name in held), None)
        lanes.append({"lane": lane.number, "bytes": lane.size_bytes, "sessions": list(lane.members),
                      "turn": holder, "held_s": (now_ns - held[holder]) / NS if holder else None})  # fmt: skip
    reserved = memory.reserved_bytes + arbiter.absent_bytes
    return {"policy": policy, "memory_bytes": memory.capacity_bytes, "reserved_bytes": reserved, "lanes": lanes,
            "sessions": rows}  # fmt: skip


def _row(process: Process, view: SessionView) -> dict[str, Any]:
    """But ``share``, which goes by all sessions."""
    return {
        "session": process.name, "pid": process.pid, "user": process.uid, "label": process.label, "lane": view.lane,
        "state": view.state, "persistent_bytes": view.demand.persistent_bytes,
        "ephemeral_bytes": view.demand.ephemeral_bytes, "turns": view.turns, "used_s": view.used_ns / NS,
        "measured": _measured(process.told), "gives_way": view.gives_way, "keeps": view.keeps,
        "duty": _duty(view.used_ns, process.told.away_ns),
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

"""What passes between the arbiter of a broker and its sessions, and how one stands."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from slurm_hadar.sharing.lanes import Demand

__all__ = ["NOTHING", "Notice", "Progress", "SessionView", "State", "Message"]


class Message(StrEnum):
    """What a session is told."""

    ADMITTED = "admitted"
    TURN = "turn"  # for one iteration, and for all that follow until it is recalled
    RECALL = "recall"  # the turn is to be given back at the next boundary
    KEEP = "keep"  # ephemeral memory need not be given back with the turn
    FREE = "free"  # it must, and what is kept at once; to be answered


class State(StrEnum):
    """What a session is doing."""

    WAITING = "waiting"  # for memory
    ABSENT = "absent"  # it was let in by the broker before, and has not come back
    WANTS = "wants"  # a turn
    TURN = "turn"
    KEEPS = "keeps"  # its turn, between two iterations, since nobody else wants it
    BETWEEN = "between"  # two turns, and waited for
    AWAY = "away"


class SessionView(NamedTuple):
    """A session as it stands: its lane, once it is let in, its turns and their time, with one that is under way; and
    the share of the turns that it keeps where it gives way, else None; and whether it keeps its ephemeral memory."""

    lane: int | None
    state: State
    demand: Demand
    turns: int
    used_ns: int
    gives_way: float | None = None
    keeps: bool = False


class Progress(NamedTuple):
    """What a session tells of all its iterations: how many have ended, the time within them, and when the last one
    began and ended, by the machine's monotonic clock; the most memory that it was seen to take, persistent and
    ephemeral, 0 where that was not measured; the time between the end of an iteration and its asking for the next; and
    what its last hand-over cost the GPU: its ephemeral memory was given back, and is taken anew."""

    iterations: int = 0
    used_ns: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    away_ns: int = 0
    switch_ns: int = 0


#: Of one that has told nothing.
NOTHING = Progress()


class Notice(NamedTuple):
    """Who is told what."""

    name: str
    message: Message

"""Where on the nodes gangs go: stay where possible, wide gangs first, least disturbance, tightest fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from slurm_hadar.model import Form
from slurm_hadar.policies.hadar.lookahead.outlook import Ints, Outlook
from slurm_hadar.policies.toolkit.arena import Arena, Gang, find_gang, node_counts

__all__ = ["Floor"]


class Floor:
    """The free GPUs per slot of one round, while gangs are laid out on them.

    ``room``: GPUs that nobody was given yet. ``held``: those of them in the hands of jobs that may stay there; taking
    them makes such a job move.
    """

    def __init__(self, outlook: Outlook) -> None:
        self._arena: Arena = outlook.arena
        self._outlook = outlook
        self.room: Ints = np.array(self._arena.free, int)
        self.held: Ints = np.zeros(len(self.room), int)
        self._slots = [np.array(p.slots, int) for p in outlook.pools]

    def free(self, pool: int) -> int:
        """GPUs of the pool that nobody was given yet."""
        return int(self.room[self._slots[pool]].sum())

    def widest(self, pool: int) -> int:
        """The most GPUs that one node of the pool has left."""
        return int(self.room[self._slots[pool]].max(initial=0))

    def expect(self, gang: Gang) -> None:
        """Note a gang that would like to stay."""
        for slot, count in gang:
            self.held[slot] += count

    def forget(self, gang: Gang) -> None:
        """Undo :meth:`expect`."""
        for slot, count in gang:
            self.held[slot] -= count

    def can_stay(self, gang: Gang) -> bool:
        """Whether nobody else was given GPUs of ``gang``; those on nodes that are not available count for nothing."""
        return all(self.room[slot] >= count for slot, count in gang)

    def take(self, gang: Gang) -> None:
        """Give the gang's GPUs away."""
        for slot, count in gang:
            self.room[slot] -= count

    def find(self, form: Form, pool: int, slots: Sequence[int] | None) -> Gang | None:
        """A place for the gang in one pool; ``slots`` limits it (None = the whole pool). O(slots of the pool)."""
        where = self._slots[pool] if slots is None else np.array(slots, int)
        room = self.room[where]
        for nodes in node_counts(form):
            if not form.uniform and nodes > 1:
                exactly = [(int(s),) for s in where]
                return find_gang(form, exactly, self.room.tolist(), self.held.tolist())
            gang = self._even(form.workers // nodes, nodes, where, room)
            if gang is not None:
                return gang
        return None

    def _even(self, per: int, nodes: int, where: Ints, room: Ints) -> Gang | None:
        fitting = np.flatnonzero(room >= per)
        if len(fitting) < nodes:
            return None
        taken = np.maximum(0, per - (room[fitting] - self.held[where[fitting]]))
        rank = taken * 100_000 + room[fitting]
        if nodes == 1:
            return ((int(where[fitting[rank.argmin()]]), per),)
        chosen = fitting[np.argsort(rank, kind="stable")[:nodes]]
        return tuple((int(s), per) for s in sorted(where[chosen]))

    def find_across(self, form: Form, nodes: Iterable[Sequence[int]], speed: Sequence[float] | None) -> Gang | None:
        """A place for a gang that may mix GPU types."""
        return find_gang(form, nodes, self.room.tolist(), self.held.tolist(), speed)

"""The one account of what is free on which node while the GPUs of a round are handed out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_hadar.model import Form, Placement
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import Gang, find_gang, find_on_type

__all__ = ["Ledger"]


class Ledger:
    """What is free on the slots of an arena, and how much of that running jobs hold.

    Attributes
    ----------
    free: GPUs per slot that nobody was given yet.
    held: GPUs per slot in the hands of running jobs that may lose them. They are free to be given away; but whoever
        holds them has to move then, so a search takes them last.
    by_type: ``free``, summed per GPU type.
    """

    def __init__(self, arena: Arena, free: Sequence[int] | None = None) -> None:
        """``free``: what there is to begin with; by default what may be handed out this round."""
        self.arena = arena
        self.free = list(arena.free if free is None else free)
        self.held = [0] * len(self.free)
        self.by_type = dict.fromkeys(arena.types, 0)
        for gpu_type, count in zip(arena.type_of, self.free, strict=True):
            self.by_type[gpu_type] += count

    def copy(self) -> Ledger:
        """One that can be changed without this one."""
        other = Ledger.__new__(Ledger)
        other.arena, other.free, other.held = self.arena, self.free.copy(), self.held.copy()
        other.by_type = self.by_type.copy()
        return other

    # What is free

    def is_free(self, gang: Gang) -> bool:
        """Whether nobody was given any of these GPUs."""
        return all(self.free[slot] >= count for slot, count in gang)

    def has_room(self, placement: Placement) -> bool:
        """Whether all of the placement lies on slots, and nobody was given any of it."""
        index = self.arena.index
        return all((n, t) in index and self.free[index[n, t]] >= count for n, t, count in placement.items())

    def take(self, gang: Gang) -> None:
        """These GPUs are given away."""
        for slot, count in gang:
            self.free[slot] -= count
            self.by_type[self.arena.type_of[slot]] -= count

    def put_back(self, gang: Gang) -> None:
        """Undo :meth:`take`."""
        self.take(tuple((slot, -count) for slot, count in gang))

    def occupy(self, gang: Gang) -> None:
        """Take what a job holds that stays in any case; where the node has lost GPUs since, what is left of them."""
        self.take(tuple((slot, min(count, self.free[slot])) for slot, count in gang))

    # What running jobs hold of it

    def hold(self, gang: Gang) -> None:
        """A running job has these GPUs and would rather keep them."""
        for slot, count in gang:
            self.held[slot] += count

    def let_go(self, gang: Gang) -> None:
        """Undo :meth:`hold`."""
        for slot, count in gang:
            self.held[slot] -= count

    def trim_held(self, slots: Iterable[int]) -> None:
        """Count as held on these slots no more than is free: who cannot stay anyway need not be spared."""
        for slot in slots:
            self.held[slot] = max(0, min(self.held[slot], self.free[slot]))

    # Places

    def find(self, form: Form, slots: Sequence[int]) -> Gang | None:
        """The place for a gang on slots of one GPU type that disturbs least, and fits tightest."""
        return find_on_type(form, slots, self.free, self.held)

    def find_mixed(
        self, form: Form, nodes: Iterable[Sequence[int]], speed: Sequence[float] | None = None
    ) -> Gang | None:
        """The same for a gang that may mix GPU types; see :func:`~slurm_hadar.policies.toolkit.gangs.find_gang`."""
        return find_gang(form, nodes, self.free, self.held, speed)

"""In which order forked jobs would have all nodes one after the other, and what a node is worth to them then.

Copies add up: while one parent has every node, it loses nothing against sharing them, and the others only come later.
So forked jobs are served best one after the other, the densest first (weight over the time to go with a copy on every
node), but for nodes that are worth more to those behind. Our definition, by the exchange argument for the weighted
shortest processing time first (W. E. Smith, "Various optimizers for single-stage production", 1956): R / X is the time
to go of the first with its copies' speed X, w its weight and W that of all behind it. One more copy of speed x ends it
``R / X - R / (X + x)`` sooner, for itself and for all behind, as far as its own nodes are theirs then; these lose the
node for ``R / (X + x)``, which is as much of their time as the share that it would give its holder of what that makes
with a copy on every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.policies.hadare.parents import Parent
from slurm_hadar.policies.toolkit.arena import Arena

__all__ = ["Line"]


@dataclass(frozen=True)
class Line:
    """``parents`` that can have copies beside each other, the densest first. ``shares``: for each, by slot, which part
    of its speed with a copy on every node it has there."""

    parents: tuple[Parent, ...]
    densities: tuple[float, ...]
    shares: tuple[dict[int, float], ...]
    places: dict[str, int]  # of each parent, by the name that the base plan shows it under

    @classmethod
    def of(cls, arena: Arena, parents: Sequence[Parent]) -> Line:
        """The line of these parents; equals in order of arrival."""
        found = []
        for parent in parents:
            rates = _rates(arena, parent)
            whole = sum(sorted(rates.values(), reverse=True)[: len(parent.family.copies)])
            shares = {slot: rate / whole for slot, rate in rates.items()}
            found.append((parent.weight * whole / max(parent.steps, 1.0), shares, parent))
        found.sort(key=lambda each: -each[0])
        places = {parent.shown_as: place for place, (_, _, parent) in enumerate(found)}
        return cls(tuple(p for *_, p in found), tuple(d for d, *_ in found), tuple(s for _, s, _ in found), places)

    def density(self, parent: Parent) -> float:
        """Weight over the time to go with a copy on every node."""
        return self.densities[self.places[parent.shown_as]]

    def share(self, parent: Parent, slot: int) -> float:
        """Of the parent's speed with a copy on every node, that of the one on the slot."""
        return self.shares[self.places[parent.shown_as]].get(slot, 0.0)

    def next_to(self, parent: Parent) -> Parent | None:
        """Who comes after the parent."""
        place = self.places[parent.shown_as] + 1
        return self.parents[place] if place < len(self.parents) else None

    def weight_behind(self, parent: Parent) -> float:
        """That of all who come after the parent."""
        return sum(p.weight for p in self.parents[self.places[parent.shown_as] + 1 :])


def _rates(arena: Arena, parent: Parent) -> dict[int, float]:
    """Steps/s of a copy on the fastest slot of each node that has the GPUs for one."""
    lead = parent.lead_job
    best: dict[str, tuple[float, int]] = {}
    for gpu_type, slots in arena.reach(lead).by_type.items():
        rate = lead.speeds[gpu_type].steps_per_s
        for slot in slots:
            node = arena.slots[slot][0]
            if arena.capacity[slot] >= lead.form.workers and rate > best.get(node, (0.0, slot))[0]:
                best[node] = (rate, slot)
    return {slot: rate for rate, slot in best.values()}

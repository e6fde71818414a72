"""Gangs over several GPU types, for jobs that accept them."""

from __future__ import annotations

from slurm_hadar.model import Job, Mix
from slurm_hadar.policies.arena import Arena, Gang
from slurm_hadar.policies.floor import Floor

__all__ = ["mixed_gang"]


def mixed_gang(arena: Arena, floor: Floor, job: Job) -> Gang | None:
    """The fastest gang that the free GPUs allow, over the fastest 2, 3, ... types; None if there is none.

    A gated gang takes the slowest type of each such pool first, since that rate is paid for anyway; a balanced one,
    which runs at the sum of its workers' rates, the fastest first.
    """
    reach = arena.reach(job)
    rate = {t: job.speeds[t].steps_per_s for t in reach.by_type}
    ranked = sorted(rate, key=lambda t: (-rate[t], t))
    balanced = job.form.mix is Mix.BALANCED
    speed = [rate.get(t, 0.0) for t in arena.type_of]
    found: list[Gang] = []
    for count in range(1, len(ranked) + 1):
        usable = set(ranked[:count])
        nodes = []
        for slots in reach.nodes:
            here = [s for s in slots if arena.type_of[s] in usable]
            if here:
                nodes.append(tuple(sorted(here, key=lambda s: (-speed[s] if balanced else speed[s], s))))
        for wish in (None, speed) if balanced else (None,):
            gang = floor.find_across(job.form, nodes, wish)
            if gang is not None:
                found.append(tuple(sorted(gang)))
    rated = [(job.rate(arena.placement(gang)), gang) for gang in found]
    best = max(rated, key=lambda pair: pair[0], default=(0.0, ()))
    return best[1] if best[0] > 0 else None

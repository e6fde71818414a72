"""Gangs over several GPU types, for jobs that accept them."""

from __future__ import annotations

from dataclasses import replace

from slurm_hadar.model import Form, Job, Mix
from slurm_hadar.policies.toolkit.gangs import Gang, node_counts
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["mixed_gang"]


def mixed_gang(ledger: Ledger, job: Job) -> Gang | None:
    """The fastest gang that the free GPUs allow, over the fastest 2, 3, ... types; None if there is none.

    A gated gang takes the slowest type of each such pool first, since that rate is paid for anyway; a balanced one,
    which runs at the sum of its workers' rates, the fastest first, and more nodes where faster GPUs are there.
    """
    arena = ledger.arena
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
        gangs = [ledger.find_mixed(job.form, nodes)]
        if balanced:
            gangs += [ledger.find_mixed(form, nodes, speed) for form in _by_nodes(job.form)]
        found += [tuple(sorted(gang)) for gang in gangs if gang is not None]
    rated = [(job.rate(arena.placement(gang)), gang) for gang in found]
    best = max(rated, key=lambda pair: pair[0], default=(0.0, ()))
    return best[1] if best[0] > 0 else None


def _by_nodes(form: Form) -> list[Form]:
    """The form limited to each number of nodes that it allows, fewest first."""
    return [replace(form, min_nodes=count, max_nodes=count) for count in node_counts(form)]

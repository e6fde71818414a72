"""First come, first served: what stock Slurm does without backfill and without knowledge of speeds."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from slurm_hadar.model import Job, Mix, Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.toolkit.arena import Arena, open_nodes
from slurm_hadar.policies.toolkit.gangs import Gang, node_counts
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.waits import Obstacles, holders, listing

__all__ = ["Fifo"]


@dataclass(frozen=True)
class Fifo(Policy):
    """In order of arrival, on the first nodes that fit, without preemption and blind to the GPUs' speeds.

    * Running jobs stay where they are.
    * A waiting job takes the fewest nodes its form allows, the first ones in node order with room, and the GPU types
      as they come there.
    * A job that has to wait closes the nodes it might use (those of its partition) to all later jobs, so none
      overtakes it there. A job that could not start even if every steerable job were gone closes nothing.

    Complexity: O(jobs x nodes). It is the YARN-CS and stock Slurm baseline of the literature.
    """

    name: ClassVar[str] = "fifo"

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        arena = Arena.of(snapshot)
        queue = _FifoQueue(arena)
        for job in arena.movers:
            if not job.running:
                queue.serve(job)
        return Plan(self.name, queue.placements, queue.waits)


class _FifoQueue:
    """The jobs in order of arrival: who has got what, why the others wait, and which nodes that closes.

    ``closed``: each node that a waiting job might use, with the first such job. ``shut``: sets of nodes that are all
    closed, and what is said to whoever needs one of them.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena, self.ledger, self.obstacles = arena, Ledger(arena), Obstacles(arena)
        self.placements = dict(arena.kept)
        self.waits = {job_id: Wait(Tier.TRANSIENT, why) for job_id, why in arena.odd.items()}
        self.closed: dict[str, str] = {}
        self.shut: dict[frozenset[str], Wait] = {}
        for job in arena.movers:
            if job.running:
                self.placements[job.job_id] = job.placement
                self.ledger.occupy(arena.gang(job.placement))

    def serve(self, job: Job) -> None:
        """Start the job, or let it wait."""
        nodes = open_nodes(self.arena.snapshot, job)
        if nodes in self.shut:
            self.waits[job.job_id] = self.obstacles.of(job) or self.shut[nodes]
            return
        gang = first_fit(self.ledger, job, self.closed)
        if gang:
            self.placements[job.job_id] = self.arena.placement(gang)
            self.ledger.take(gang)
            return
        obstacle = self.obstacles.of(job)
        self.waits[job.job_id] = obstacle or _queued(job, nodes, self.placements, self.closed)
        if obstacle is None or obstacle.tier is Tier.CAPACITY:
            for node in nodes:
                self.closed.setdefault(node, job.job_id)
            self.shut[nodes] = _behind(nodes, self.closed)


def first_fit(ledger: Ledger, job: Job, closed: Container[str]) -> Gang | None:
    """The first place in node order, on nodes that are not ``closed``; the fewest nodes the form allows."""
    for nodes in _pools(ledger.arena, job, closed):
        for count in node_counts(job.form):
            gang = _first_nodes(job, count, nodes, ledger.free)
            if gang:
                return gang
    return None


def _pools(arena: Arena, job: Job, closed: Container[str]) -> Iterator[list[list[int]]]:
    """Slots per node: one type after the other as they first appear, or all types together if the job may mix."""
    reach = arena.reach(job)
    if job.form.mix is Mix.NEVER:
        for slots in reach.by_type.values():
            yield [[s] for s in slots if arena.slots[s][0] not in closed]
    else:
        yield [list(slots) for slots in reach.nodes if arena.slots[slots[0]][0] not in closed]


def _first_nodes(job: Job, count: int, nodes: list[list[int]], free: Sequence[int]) -> Gang | None:
    workers = job.form.workers
    if job.form.uniform:
        per = workers // count
        chosen = [slots for slots in nodes if sum(free[s] for s in slots) >= per][:count]
        shares = [per] * len(chosen)
    else:
        chosen = [slots for slots in nodes if sum(free[s] for s in slots) > 0]
        shares = _greedy_shares(workers, count, [sum(free[s] for s in slots) for slots in chosen])
        chosen = [slots for slots, share in zip(chosen, shares, strict=False) if share]
        shares = [share for share in shares if share]
    if len(chosen) != count or sum(shares) != workers:
        return None
    gang = []
    for slots, share in zip(chosen, shares, strict=True):
        for slot in slots:
            here = min(share, free[slot])
            if here:
                gang.append((slot, here))
                share -= here
    return tuple(gang)


def _greedy_shares(workers: int, count: int, free: list[int]) -> list[int]:
    """How many workers go to each node so that exactly ``count`` nodes are used, roomiest first, order kept."""
    ranked = sorted(range(len(free)), key=lambda i: (-free[i], i))[:count]
    shares, left = [0] * len(free), workers
    for position, i in enumerate(ranked):
        shares[i] = min(free[i], left - (len(ranked) - position - 1))
        left -= shares[i]
    return shares


def _queued(job: Job, nodes: frozenset[str], placements: dict[str, Placement], closed: dict[str, str]) -> Wait:
    if not nodes.isdisjoint(closed):
        return _behind(nodes, closed)
    held_by = holders(placements.items(), nodes)
    return Wait(Tier.CAPACITY, f"first in line, but needs {job.form.workers} GPUs that {listing(held_by)} hold")


def _behind(nodes: frozenset[str], closed: dict[str, str]) -> Wait:
    ahead = list(dict.fromkeys(closed[n] for n in sorted(nodes) if n in closed))
    return Wait(Tier.POLICY, f"waits behind {listing(ahead)}, which came first and needs these nodes")

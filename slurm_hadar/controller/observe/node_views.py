"""Nodes as a policy sees them: what jobs hold there that it may not move counts as taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from slurm_hadar.controller.observe.boots import Boots
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.steering.bounds import node_room
from slurm_hadar.controller.steering.nodes import NodeFacts
from slurm_hadar.model import Job, Node, Tenant, in_steps
from slurm_hadar.slurm.state import SlurmNode

__all__ = ["node_views"]


def node_views(view: SlurmView, jobs: Iterable[Job], boots: Boots) -> tuple[Node, ...]:
    """A node with several GPU types is taken whole: stock Slurm cannot be told which of them an untyped request
    gets."""
    limits = {p: most for p, t in view.state.bounds.partitions.items() if (most := t.max_cpus_per_node) is not None}
    room = {n.name: {p: float(limits[p]) for p in n.partitions if p in limits} for n in view.state.nodes}
    for held in view.active.values() if limits else ():
        for node in held.nodes:
            if held.partition in room.get(node, ()):
                room[node][held.partition] -= held.num_cpus / len(held.nodes)
    gpus: dict[str, dict[str, int]] = {}
    cpus: dict[str, float] = defaultdict(float)
    memory: dict[str, float] = defaultdict(float)
    step = {n.name: n.cpu_step(view.state.whole_sockets) for n in view.state.nodes}
    moves = {job.job_id: job for job in jobs if job.steerable and job.running}
    for job in moves.values():
        for node, gpu_type, n in job.held.items() if job.host is None else ():
            on_node = gpus.setdefault(node, {})
            on_node[gpu_type] = on_node.get(gpu_type, 0) + n
        shown, nodes = view.active[job.job_id], job.placement.nodes
        for node in nodes:
            cpus[node] += in_steps(shown.num_cpus / len(nodes), step.get(node, 1))
            memory[node] += shown.memory_bytes / len(nodes)
            if shown.partition in room.get(node, ()):
                room[node][shown.partition] += shown.num_cpus / len(nodes)
    counts, tenants = view.state.memory_counts, _tenants(view, moves)
    return tuple(
        _node(
            n,
            view.facts[n.name],
            gpus.get(n.name, {}),
            node_room(n, cpus[n.name], memory[n.name], counts),
            {partition: max(0, int(left)) for partition, left in room[n.name].items()},
            frozenset(tenants.get(n.name, ())),
            step[n.name],
            boots.expected_s(n) if n.available else 0.0,
        )
        for n in view.state.nodes
    )


def _tenants(view: SlurmView, moves: Collection[str]) -> Mapping[str, set[Tenant]]:
    """Whose jobs are on which nodes, less those that a policy may move; nothing where no job minds. Who may not see
    others' jobs (``PrivateData``) sees their CPUs."""
    bounds, jobs = view.state.bounds, view.active.values()
    if not any(job.mcs or bounds.by_user(job) for job in jobs):
        return {}
    found: dict[str, set[Tenant]] = {}
    for job in jobs:
        for node in job.nodes:
            there = found.setdefault(node, set())
            if job.job_id not in moves:
                there.add(Tenant(job.user, bounds.by_user(job), job.mcs))
    return {**{n.name: {Tenant()} for n in view.state.nodes if n.cpus_used}, **found}


def _node(
    node: SlurmNode,
    facts: NodeFacts,
    ours: Mapping[str, int],
    room: tuple[int | None, int | None, bool],
    partition_cpus: Mapping[str, int],
    tenants: frozenset[Tenant],
    cpu_step: int,
    boot_s: float,
) -> Node:
    total = dict(node.gpus)
    taken = total if facts.several_types else {t: max(0, n - ours.get(t, 0)) for t, n in node.used}
    said = (node.state, node.reason, node.features, node.partitions)
    return Node(node.name, total, taken, node.available, *said, *room, partition_cpus, tenants, cpu_step, boot_s)

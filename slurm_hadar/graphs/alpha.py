"""How long an iteration takes, given how many replicas of each stage every server holds.

Our definition, after the model of ring all-reduce in GADGET (INFOCOM 2022) and SJF-BCO (MobiHoc 2022), with pipeline
stages as A-SRPT (arXiv 2501.05563) has them. With p the compute time of a stage and micro-batch, S stages and M
micro-batches:

* ``q[s, m]`` = (bytes of stage s between server m and others) / NIC + (bytes inside m) / inside bandwidth, per
  micro-batch. Where a switch has an uplink, the first term is at least what the stage sends over it / uplink.
* ``tau[s] = p[s] + max over m of q[s, m]``
* ``all_reduce[s] = 2 (k - 1) / k * h / b``: b is the inside bandwidth where all replicas share a server; else the NIC
  over the number of this job's rings that cross it, the least over the servers of the stage (uplinks likewise).
* ``alpha = (M + S - 1) * max tau + max all_reduce``: filling the pipeline, its slowest stage, the synchronisation.

Other jobs on the same links are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.topology import Topology

__all__ = ["Counts", "Times", "alpha", "cut", "times"]

#: Replicas of each stage per server that has any: ``{server: (stage 0, stage 1, ...)}``.
Counts = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: ``tau[s]`` per micro-batch, ``all_reduce[s]`` and ``alpha`` per iteration."""

    tau: tuple[float, ...]
    all_reduce: tuple[float, ...]
    alpha: float


def alpha(graph: JobGraph, counts: Counts, topology: Topology, speed: float = 1.0) -> float:
    """Seconds of one iteration; see :func:`times`."""
    return times(graph, counts, topology, speed).alpha


def times(graph: JobGraph, counts: Counts, topology: Topology, speed: float = 1.0) -> Times:
    """The parts of an iteration with all replicas placed by ``counts``.

    ``speed``: how many times as fast as the reference GPU the slowest GPU of the gang computes.
    """
    servers = list(counts)
    held = np.array([counts[m] for m in servers], dtype=float).T
    links = _Links.of(topology, servers)
    compute = np.array([s.compute_s for s in graph.stages]) / speed
    tau = compute + (_exchange(graph, held, links) + _inside_bundles(graph, held, links)).max(axis=1)
    reduce = _all_reduce(graph, held, links)
    rounds = graph.micro_batches + len(graph.stages) - 1
    total = rounds * float(tau.max()) + float(reduce.max())
    return Times(tuple(tau.tolist()), tuple(reduce.tolist()), total)


@dataclass(frozen=True, slots=True)
class _Links:
    """Bandwidths of the servers in use, shape (servers,); ``below[g]``: which of them are below switch g."""

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    below: NDArray[np.bool_]
    uplink: NDArray[np.float64]

    @classmethod
    def of(cls, topology: Topology, servers: list[int]) -> _Links:
        own = {m: i for i, m in enumerate(servers)}
        masks, uplinks = [], []
        for group in topology.groups:
            mask = np.zeros(len(servers), dtype=bool)
            mask[[own[m] for m in group.servers if m in own]] = True
            if mask.any() and not mask.all():
                masks.append(mask)
                uplinks.append(group.uplink)
        below = np.array(masks, dtype=bool).reshape(len(masks), len(servers))
        inside, outside = (np.array([b[m] for m in servers]) for b in (topology.inside, topology.outside))
        return cls(inside, outside, below, np.array(uplinks))


def _exchange(graph: JobGraph, held: NDArray[np.float64], links: _Links) -> NDArray[np.float64]:
    """q without the bundles' own traffic: seconds per micro-batch, shape (stages, servers)."""
    share = held / np.array([[s.replicas] for s in graph.stages])
    sent = np.array([[2.0 * s.activation_bytes] for s in graph.stages[:-1]])
    leaves, stays = _crossing(share, sent)
    seconds = leaves / links.outside
    for mask, uplink in zip(links.below, links.uplink, strict=True):
        over, _ = _crossing(share[:, mask].sum(axis=1, keepdims=True), sent)
        seconds = np.where(mask & (held > 0), np.maximum(seconds, over / uplink), seconds)
    return seconds + stays / links.inside


def _crossing(share: NDArray[np.float64], sent: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes of each stage that leave a place and that stay in it, per micro-batch, shape (stages, places)."""
    leaves, stays = np.zeros_like(share), np.zeros_like(share)
    if len(sent):
        here, there = share[:-1], share[1:]
        both = sent * here * there
        stays[:-1] += both
        stays[1:] += both
        leaves[:-1] += sent * here - both
        leaves[1:] += sent * there - both
    return leaves, stays


def _inside_bundles(graph: JobGraph, held: NDArray[np.float64], links: _Links) -> NDArray[np.float64]:
    own = np.array([[s.inside_bytes] for s in graph.stages])
    return np.where(held > 0, own / links.inside, 0.0)


def _all_reduce(graph: JobGraph, held: NDArray[np.float64], links: _Links) -> NDArray[np.float64]:
    """Seconds of each stage's all-reduce, shape (stages,)."""
    here = held > 0
    crosses = here & (here.sum(axis=1, keepdims=True) > 1)
    rings = np.maximum(crosses.sum(axis=0), 1)
    alone = np.where(here, links.inside, np.inf).min(axis=1)
    nic = np.where(here, links.outside / rings, np.inf).min(axis=1)
    rate = np.where(crosses.any(axis=1), nic, alone)
    for mask, uplink in zip(links.below, links.uplink, strict=True):
        over = here[:, mask].any(axis=1) & here[:, ~mask].any(axis=1)
        rate = np.where(over, np.minimum(rate, uplink / max(1, int(over.sum()))), rate)
    seconds: NDArray[np.float64] = np.array(graph.links) / rate
    return seconds


def cut(graph: JobGraph, counts: Counts) -> float:
    """Bytes per iteration between different servers.

    Replicas of a stage are alike, so those of one server stand next to each other in the ring: a stage on u > 1 servers
    sends over u links of its ring.
    """
    places = list(counts.values())
    total = 0.0
    for s, (stage, link, pair) in enumerate(zip(graph.stages, graph.links, graph.pairs, strict=True)):
        used = sum(1 for held in places if held[s])
        if used > 1:
            total += used * link
        if pair:
            after = graph.stages[s + 1].replicas
            total += pair * (stage.replicas * after - sum(held[s] * held[s + 1] for held in places))
    return total

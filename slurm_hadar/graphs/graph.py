"""The graph of a job: its pipeline stages, their replicas, and the bytes that these exchange in an iteration.

After the model of "Prediction-Assisted Online Distributed Deep Learning Workload Scheduling in GPU Clusters" (A-SRPT,
arXiv 2501.05563), whose abstract names graphs of jobs with data, model and pipeline parallelism. The weights of the
edges are our definition.

* A *stage* is a part of the model that a pipeline cuts out; a data-parallel job is one stage.
* A *bundle* is one replica of a stage: its tensor-parallel GPUs, never split over servers. Bundles are the vertices.
* The replicas of a stage form a ring: in an all-reduce of h bytes each of its k links carries ``2 h (k - 1) / k``.
* Each micro-batch is shared out evenly among the replicas of a stage, and every replica exchanges with every replica of
  the next stage: over M micro-batches, there and back, ``2 d M / (k k')`` bytes per pair.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_hadar.errors import GraphError

__all__ = ["MOST_BUNDLES", "Bundle", "Edge", "JobGraph", "Stage"]

#: Of one job; keeps a broken file from asking for a week of arithmetic.
MOST_BUNDLES = 16_384


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the model, on one or several replicas.

    ``compute_s``: seconds that one replica computes, forward and backward, for its share of one micro-batch, on the
    reference GPU, a V100. ``parameter_bytes``: gradients of one replica that the all-reduce sums. ``replicas``;
    ``width``: GPUs of a replica (tensor parallelism). ``activation_bytes``: what the whole stage, all replicas
    together, sends to the next one for a micro-batch; as much comes back as gradients. ``inside_bytes``: what the
    slowest link inside a bundle carries for a micro-batch (tensor parallelism's own all-reduces).
    """

    compute_s: float
    parameter_bytes: float
    replicas: int = 1
    width: int = 1
    activation_bytes: float = 0.0
    inside_bytes: float = 0.0

    @property
    def all_reduce_bytes(self) -> float:
        """Bytes on each link of the ring in one iteration; 0 for a single replica."""
        return 2.0 * self.parameter_bytes * (self.replicas - 1) / self.replicas


@dataclass(frozen=True, slots=True)
class Bundle:
    """A vertex: replica ``replica`` of stage ``stage``, on ``gpus`` GPUs of one server."""

    stage: int
    replica: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Edge:
    """Two vertices (by their place in :attr:`JobGraph.vertices`, ascending) and the bytes between them per
    iteration."""

    one: int
    other: int
    bytes: float


@dataclass(frozen=True)
class JobGraph:
    """Stages in the order of the pipeline, and the micro-batches of an iteration.

    Raises GraphError naming the stage and the field that is impossible.
    """

    stages: tuple[Stage, ...]
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if not self.stages:
            raise GraphError("a job graph needs at least one stage")
        _whole("micro_batches", self.micro_batches)
        for number, stage in enumerate(self.stages, 1):
            _check(number, stage)
        if self.stages[-1].activation_bytes:
            raise GraphError(f"stage {len(self.stages)}: activation_bytes must be 0, no stage comes after it")
        if self.bundles > MOST_BUNDLES:
            raise GraphError(f"a job graph of {self.bundles} replicas is more than {MOST_BUNDLES}")

    # a look-up in a cache of graphs must not hash all stages each time
    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.stages, self.micro_batches))

    @functools.cached_property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return sum(s.replicas * s.width for s in self.stages)

    @functools.cached_property
    def bundles(self) -> int:
        """How many vertices there are."""
        return sum(s.replicas for s in self.stages)

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """The different bundle sizes in GPUs, the largest first."""
        return tuple(sorted({s.width for s in self.stages}, reverse=True))

    @functools.cached_property
    def vertices(self) -> tuple[Bundle, ...]:
        """All bundles, stage by stage."""
        return tuple(Bundle(i, r, s.width) for i, s in enumerate(self.stages) for r in range(s.replicas))

    @functools.cached_property
    def links(self) -> tuple[float, ...]:
        """Per stage: bytes per iteration on each link of its ring."""
        return tuple(s.all_reduce_bytes for s in self.stages)

    @functools.cached_property
    def pairs(self) -> tuple[float, ...]:
        """Per stage: bytes per iteration between one of its replicas and one of the next stage; 0 for the last
        stage."""
        ends = [*(s.replicas for s in self.stages[1:]), 1]
        return tuple(
            2.0 * s.activation_bytes * self.micro_batches / (s.replicas * k)
            for s, k in zip(self.stages, ends, strict=True)
        )

    def edges(self) -> Iterator[Edge]:
        """Every edge once. A ring of two replicas has two links between the same two vertices: one edge, both bytes."""
        first = 0
        for stage, link, pair in zip(self.stages, self.links, self.pairs, strict=True):
            size, then = stage.replicas, first + stage.replicas
            if size == 2:
                yield Edge(first, first + 1, 2.0 * link)
            elif size > 2:
                yield from (Edge(first + r, first + r + 1, link) for r in range(size - 1))
                yield Edge(first, then - 1, link)
            if pair:
                after = self.stages[self.vertices[then].stage].replicas
                yield from (Edge(a, b, pair) for a in range(first, then) for b in range(then, then + after))
            first = then

    @functools.cached_property
    def total_bytes(self) -> float:
        """Bytes on all edges together."""
        rings = sum(s.replicas * link for s, link in zip(self.stages, self.links, strict=True))
        return rings + sum(2.0 * s.activation_bytes * self.micro_batches for s in self.stages)


def _check(number: int, stage: Stage) -> None:
    _whole(f"stage {number}: replicas", stage.replicas)
    _whole(f"stage {number}: width", stage.width)
    for name in ("compute_s", "parameter_bytes", "activation_bytes", "inside_bytes"):
        value = getattr(stage, name)
        # a whole number of a file may be larger than any other
        if not (isinstance(value, int | float) and 0 <= value <= sys.float_info.max) or isinstance(value, bool):
            raise GraphError(f"stage {number}: {name} must be a number of at least 0, not {value!r}")
    if not stage.compute_s:
        raise GraphError(f"stage {number}: compute_s must be above 0")


def _whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_BUNDLES:
        raise GraphError(f"{name} must be a whole number from 1 to {MOST_BUNDLES}, not {value!r}")

"""Random job graphs and clusters, and every assignment of their bundles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from slurm_hadar.graphs.graph import JobGraph, Stage

SIZES = st.floats(1e3, 1e9, allow_nan=False)


@st.composite
def graphs(draw: st.DrawFn, bundles: int = 8) -> JobGraph:
    """A pipeline of at most ``bundles`` bundles, of widths that divide each other."""
    length = draw(st.integers(1, min(4, bundles)))
    stages = []
    for i in range(length):
        last = i == length - 1
        stages.append(
            Stage(
                compute_s=draw(st.floats(1e-3, 1.0)),
                parameter_bytes=draw(SIZES),
                replicas=draw(st.integers(1, bundles // length)),
                width=draw(st.sampled_from([1, 1, 2, 4])),
                activation_bytes=0.0 if last else draw(st.just(0.0) | SIZES),
                inside_bytes=draw(st.sampled_from([0.0, 1e7])),
            )
        )
    return JobGraph(tuple(stages), draw(st.integers(1, 8)))


def assignments(graph: JobGraph, free: list[int]) -> Iterator[tuple[int, ...]]:
    """The server of every vertex, in all ways that fit, edge by edge and vertex by vertex."""
    vertices = graph.vertices
    for servers in itertools.product(range(len(free)), repeat=len(vertices)):
        used = [0] * len(free)
        for vertex, m in zip(vertices, servers, strict=True):
            used[m] += vertex.gpus
        if all(u <= f for u, f in zip(used, free, strict=True)):
            yield servers


def edge_cut(graph: JobGraph, servers: tuple[int, ...]) -> float:
    """Bytes on edges between servers."""
    return sum(e.bytes for e in graph.edges() if servers[e.one] != servers[e.other])

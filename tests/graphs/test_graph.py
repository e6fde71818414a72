"""Job graphs: their edges, their sizes, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.graph import MOST_BUNDLES, Bundle, Edge, JobGraph, Stage
from tests.graphs.parallel import data_parallel

from .conftest import graphs

TWO = JobGraph((Stage(1.0, 80.0, replicas=4, activation_bytes=6.0), Stage(1.0, 40.0, replicas=2, width=3)), 5)


def test_vertices_and_gpus() -> None:
    """A bundle per replica, as wide as its stage."""
    assert TWO.gpus == 10 and TWO.bundles == 6 and TWO.widths == (3, 1)
    assert TWO.vertices[3:5] == (Bundle(0, 3, 1), Bundle(1, 0, 3))


def test_edges_of_a_pipeline() -> None:
    """Ring neighbours carry 2h(k-1)/k, pairs of neighbouring stages 2dM/(kk'); a ring of two is one edge."""
    rings = [Edge(0, 1, 120.0), Edge(1, 2, 120.0), Edge(2, 3, 120.0), Edge(0, 3, 120.0)]
    pairs = [Edge(a, b, 2 * 6.0 * 5 / 8) for a in range(4) for b in (4, 5)]

    assert sorted(TWO.edges(), key=lambda e: (e.one, e.other)) == sorted(
        [*rings, *pairs, Edge(4, 5, 80.0)], key=lambda e: (e.one, e.other)
    )


def test_data_parallel_is_a_ring() -> None:
    """A plain job has one stage; alone it sends nothing."""
    graph = data_parallel(1e8, 0.5, 3)

    assert graph.gpus == 3 and graph.links == (2e8 * 2 / 3,)
    assert [(e.one, e.other) for e in graph.edges()] == [(0, 1), (1, 2), (0, 2)]
    assert not list(data_parallel(1e8, 0.5, 1).edges())


@given(graphs())
def test_edges_sum_to_the_total(graph: JobGraph) -> None:
    """Every edge once, between two different vertices, ascending; together they are all bytes of an iteration."""
    edges = list(graph.edges())

    assert len({(e.one, e.other) for e in edges}) == len(edges)
    assert all(0 <= e.one < e.other < graph.bundles for e in edges)
    assert sum(e.bytes for e in edges) == pytest.approx(graph.total_bytes)


@given(graphs())
def test_equal_graphs_share_a_hash(graph: JobGraph) -> None:
    """So that they share what is remembered of them."""
    again = JobGraph(graph.stages, graph.micro_batches)

    assert again == graph and hash(again) == hash(graph)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "message"),
    [
        ((), 1, "at least one stage"),
        ((Stage(1.0, 1.0),), 0, "micro_batches must be a whole number from 1"),
        ((Stage(1.0, 1.0),), True, "micro_batches"),
        ((Stage(0.0, 1.0),), 1, "stage 1: compute_s must be above 0"),
        ((Stage(float("nan"), 1.0),), 1, "stage 1: compute_s must be a number of at least 0"),
        ((Stage(1.0, -1.0),), 1, "stage 1: parameter_bytes"),
        ((Stage(1.0, float("inf")),), 1, "stage 1: parameter_bytes"),
        ((Stage(1.0, 1.0, replicas=0),), 1, "stage 1: replicas must be a whole number"),
        ((Stage(1.0, 1.0, width=1.5),), 1, "stage 1: width must be a whole number"),
        ((Stage(1.0, 1.0), Stage(1.0, 1.0, activation_bytes=1.0)), 1, "stage 2: activation_bytes must be 0"),
        ((Stage(1.0, 1.0, replicas=MOST_BUNDLES), Stage(1.0, 1.0)), 1, "replicas is more than"),
    ],
)
def test_impossible_graphs_are_refused(stages: tuple[Stage, ...], micro_batches: int, message: str) -> None:
    """The error names the stage and the field."""
    with pytest.raises(GraphError, match=message):
        JobGraph(stages, micro_batches)


@given(st.integers(1, 64))
def test_all_reduce_volume(workers: int) -> None:
    """All links of a ring together carry twice the parameters for each replica but one."""
    graph = data_parallel(1.0, 1.0, workers)

    assert graph.total_bytes == pytest.approx(2.0 * (workers - 1))

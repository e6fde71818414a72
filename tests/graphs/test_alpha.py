"""The time of an iteration: by hand, by the benchmark's own arithmetic, and its bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given

from benchmarks.mapping import Instance, assignments, cuts, random_graph, seconds
from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.alpha import alpha, cut, times
from slurm_hadar.graphs.bounds import alpha_max, alpha_min, rho
from slurm_hadar.graphs.graph import JobGraph, Stage
from slurm_hadar.graphs.topology import Group, Topology
from tests.graphs.parallel import data_parallel

from .conftest import graphs

SLOW = Topology((4, 4), (100.0, 100.0), (10.0, 10.0))


def test_data_parallel_by_hand() -> None:
    """Compute plus all-reduce: inside one server, and over the NIC."""
    graph = data_parallel(1000.0, 2.0, 4)

    assert alpha(graph, {0: (4,)}, SLOW) == pytest.approx(2.0 + 2 * 3 / 4 * 1000 / 100)
    assert alpha(graph, {0: (2,), 1: (2,)}, SLOW) == pytest.approx(2.0 + 2 * 3 / 4 * 1000 / 10)
    assert alpha(graph, {0: (4,)}, SLOW, speed=4.0) == pytest.approx(0.5 + 15.0)


def test_pipeline_by_hand() -> None:
    """Two stages of two replicas on two servers: activations cross, rings stay; and the other way round."""
    graph = JobGraph((Stage(1.0, 100.0, 2, activation_bytes=20.0), Stage(3.0, 400.0, 2)), micro_batches=4)

    by_stage = times(graph, {0: (2, 0), 1: (0, 2)}, SLOW)
    by_pipe = times(graph, {0: (1, 1), 1: (1, 1)}, SLOW)

    assert by_stage.tau == pytest.approx((1 + 40 / 10, 3 + 40 / 10))
    assert by_stage.all_reduce == pytest.approx((1.0, 4.0))
    assert by_stage.alpha == pytest.approx(5 * 7.0 + 4.0)
    # of the 40 bytes each server keeps a quarter and sends a quarter; two rings share each NIC
    assert by_pipe.tau == pytest.approx((1 + 10 / 10 + 10 / 100, 3 + 10 / 10 + 10 / 100))
    assert by_pipe.all_reduce == pytest.approx((100 / 5, 400 / 5))
    assert cut(graph, {0: (1, 1), 1: (1, 1)}) == pytest.approx(2 * 100 + 2 * 400 + 80.0)


def test_uplinks_slow_what_crosses_them() -> None:
    """A switch's uplink counts for what leaves it, and not below it."""
    switches = Topology((1,) * 4, (100.0,) * 4, (10.0,) * 4, (Group((0, 1), 2.0), Group((2, 3), 2.0)))
    pair = data_parallel(50.0, 1.0, 2)
    pipeline = JobGraph((Stage(1.0, 1.0, activation_bytes=5.0), Stage(1.0, 1.0)))

    assert alpha(pair, {0: (1,), 1: (1,)}, switches) == pytest.approx(1 + 50 / 10)
    assert alpha(pair, {0: (1,), 2: (1,)}, switches) == pytest.approx(1 + 50 / 2)
    assert alpha(pipeline, {0: (1, 0), 1: (0, 1)}, switches) == pytest.approx(2 * (1 + 10 / 10))
    assert alpha(pipeline, {0: (1, 0), 2: (0, 1)}, switches) == pytest.approx(2 * (1 + 10 / 2))


def test_traffic_inside_bundles_counts() -> None:
    """Tensor parallelism's own all-reduces go over the links inside the server."""
    graph = JobGraph((Stage(1.0, 0.0, width=2, inside_bytes=50.0),))

    assert alpha(graph, {0: (1,)}, SLOW) == pytest.approx(1.5)


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_counting_edge_by_edge(seed: int) -> None:
    """Time and cut by counts per stage equal those by bundles and edges; for the cut, where each server's replicas
    stand next to each other in the ring, and never more than in any other order."""
    rng = random.Random(seed)
    graph = random_graph(rng)
    topology = Topology((99,) * 3, tuple(rng.uniform(1e9, 1e11) for _ in range(3)), (1e9, 2e9, 5e8))
    rows = assignments(Instance(graph, topology, (99,) * 3))
    rows = rows[np.random.default_rng(seed).permutation(len(rows))[:40]]
    stage_of = np.array([v.stage for v in graph.vertices])

    for row, exact, sent in zip(
        rows, seconds(Instance(graph, topology, (99,) * 3), rows), cuts(graph, rows), strict=True
    ):
        counts = {m: tuple(int((row[stage_of == s] == m).sum()) for s in range(len(graph.stages))) for m in set(row)}
        assert alpha(graph, counts, topology) == pytest.approx(exact)
        assert cut(graph, counts) <= sent * (1 + 1e-9)
        ordered = np.concatenate([np.sort(row[stage_of == s]) for s in range(len(graph.stages))])
        assert cut(graph, counts) == pytest.approx(cuts(graph, ordered[None])[0])


@given(graphs(bundles=5))
def test_bounds(graph: JobGraph) -> None:
    """Nothing is faster than alpha_min, scattering is never better than that, and compute alone is the floor."""
    topology = Topology.of([8, 8, 8, 8])
    floor = (graph.micro_batches + len(graph.stages) - 1) * max(s.compute_s for s in graph.stages)

    assert floor * (1 - 1e-9) <= alpha_min(graph, topology) <= alpha_max(graph, topology)
    assert rho(graph, topology) >= 1.0


def test_alpha_min_is_the_best_of_all_placements() -> None:
    """For a small job: against every assignment of its bundles."""
    rng = random.Random(5)
    for _ in range(6):
        graph = random_graph(rng)
        topology = Topology.of([8, 8, 8])
        instance = Instance(graph, topology, (8, 8, 8))
        rows = assignments(instance)
        if len(rows):
            assert alpha_min(graph, topology) == pytest.approx(seconds(instance, rows).min())


def test_placement_matters_to_heavy_traffic_only() -> None:
    """rho tells a job that suffers from being scattered from one that does not."""
    topology = Topology.of([8] * 4)

    assert rho(data_parallel(5e8, 0.05, 8), topology) > 1.5
    assert rho(data_parallel(1e6, 0.5, 8), topology) < 1.01


def test_job_larger_than_the_cluster_is_refused() -> None:
    """In one line."""
    with pytest.raises(GraphError, match="8 GPUs, in pieces of up to 8"):
        alpha_min(JobGraph((Stage(1.0, 1.0, width=8),)), Topology.of([4, 4]))


def test_alpha_max_deals_bundles_to_the_switches() -> None:
    """Where uplinks are narrow, scattering is over them."""
    flat = Topology.of([8] * 4)
    switched = flat.with_switches({"a": ["0", "1"], "b": ["2", "3"]}, oversubscription=10.0)
    graph = data_parallel(5e8, 0.05, 4)

    assert alpha_max(graph, switched) > alpha_max(graph, flat)
    assert alpha_min(graph, switched) == alpha_min(graph, flat)

"""What being on several nodes costs a job, by its graph."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import NetworkSection
from slurm_hadar.graphs.alpha import alpha
from slurm_hadar.graphs.bounds import alpha_max, alpha_min
from slurm_hadar.graphs.factors import Fleet
from slurm_hadar.graphs.files import graph_of
from slurm_hadar.graphs.graph import JobGraph, Stage
from slurm_hadar.graphs.mapping import map_graph
from slurm_hadar.graphs.network import Links, Network
from slurm_hadar.graphs.topology import INSIDE_BYTES_S, OUTSIDE_BYTES_S, Topology
from tests.graphs.conftest import graphs
from tests.graphs.parallel import data_parallel

HEAVY = data_parallel(4e8, 0.01, 4)
FOUR = {f"n{i}": ("v100", 4) for i in range(4)}


@given(graphs(), st.integers(1, 16), st.floats(0.1, 10.0))
def test_factors_are_factors(graph: JobGraph, most: int, speed: float) -> None:
    """In (0, 1], 1 on one node, one for each number of nodes and a last one for all parts apart."""
    nodes = {f"n{i}": ("v100", 4) for i in range(20)}
    factors = Fleet(Network(), nodes).factors(graph, "v100", speed, most)
    assert factors[0] == 1.0
    assert all(0.0 < f <= 1.0 for f in factors)
    assert len(factors) == (1 if graph.gpus == 1 else min(most, graph.gpus) + 1)


@given(graphs(), st.floats(0.1, 10.0))
def test_a_factor_is_the_ratio_of_two_iterations(graph: JobGraph, speed: float) -> None:
    """On n nodes: the best map on n servers with gpus / n GPUs each; the last one is that of alpha_max."""
    fleet = Fleet(Network(), {f"n{i}": ("v100", 64) for i in range(8)})
    factors = fleet.factors(graph, "v100", speed, 2)
    whole = Topology.of([graph.gpus])
    if graph.gpus > 1:
        together = alpha(graph, {0: [s.replicas for s in graph.stages]}, whole, speed)
        apart = alpha_max(graph, Topology.of([64] * 8), speed)
        least = min(together, alpha_min(graph, Topology.of([64] * 8), speed))
        assert factors[-1] == pytest.approx(min(1.0, together / apart)) or least < together
    if graph.gpus % 2 == 0:
        mapped = map_graph(graph, Topology.of([graph.gpus // 2] * 2), speed=speed)
        if mapped is not None:
            assert factors[1] == pytest.approx(min(1.0, together / mapped.alpha_s))


def test_what_is_exchanged_and_how_fast_decides() -> None:
    """By hand: 0.01 s of computing and an all-reduce of 2 * 3/4 * 0.4 GB, inside at 100 GB/s, outside at 12.5 GB/s."""
    factors = Fleet(Network(), FOUR).factors(HEAVY, "v100", 1.0, 4)
    inside, outside = 0.01 + 6e8 / 100e9, 0.01 + 6e8 / 12.5e9
    assert factors == pytest.approx((1.0, *[inside / outside] * 4))
    slow = Fleet(Network(outside=1.25e9), FOUR).factors(HEAVY, "v100", 1.0, 4)
    assert slow[1] == pytest.approx(inside / (0.01 + 6e8 / 1.25e9))
    assert Fleet(Network(), FOUR).factors(data_parallel(1e6, 0.1, 4), "v100", 1.0, 4)[1] > 0.99


def test_a_faster_type_suffers_more() -> None:
    """The same exchange is a larger part of a shorter iteration, unless the links of the type are faster as well."""
    nodes = {"a": ("a100", 4), "v": ("v100", 4)}
    fleet = Fleet(Network(), nodes)
    assert fleet.factors(HEAVY, "a100", 5.0, 2)[1] < fleet.factors(HEAVY, "v100", 1.0, 2)[1]
    better = Fleet(Network(types={"a100": Links(outside=100e9)}), nodes)
    assert better.factors(HEAVY, "a100", 5.0, 2)[1] > 0.99
    named = Fleet(Network(nodes={"v": Links(outside=1e9)}), nodes)
    assert named.factors(HEAVY, "v100", 1.0, 2)[1] < fleet.factors(HEAVY, "v100", 1.0, 2)[1]


def test_numbers_of_nodes_that_cannot_be_take_the_next_one() -> None:
    """6 GPUs lie on 1, 2, 3 or 6 nodes; where no node has more than 2, not on 2 either."""
    graph = JobGraph((Stage(0.01, 1e8, 2, activation_bytes=1e9), Stage(0.01, 1e8, 4)))
    large = Fleet(Network(), {f"n{i}": ("v100", 8) for i in range(6)}).factors(graph, "v100", 1.0, 6)
    assert large[3] == large[4] == large[5]
    small = Fleet(Network(), {f"n{i}": ("v100", 2) for i in range(6)}).factors(graph, "v100", 1.0, 6)
    assert small[1] == small[2] == large[2]


def test_a_job_wider_than_any_node_is_measured_by_an_ideal_one() -> None:
    """64 GPUs on nodes of 8: the one node has 64 and the same links."""
    graph = graph_of("vgg16", 64)
    fleet = Fleet(Network(), {f"n{i}": ("v100", 8) for i in range(8)})
    ideal = alpha(graph, {0: [64]}, Topology.of([64]))
    spread = map_graph(graph, Topology.of([8] * 8))
    assert spread is not None
    assert fleet.factors(graph, "v100", 1.0, 8)[7] == pytest.approx(ideal / spread.alpha_s)


def test_tensor_parallel_groups_that_would_be_cut_cost_dearly() -> None:
    """A bundle of 4 on nodes with 2 GPUs: as if all its links were NICs."""
    graph = JobGraph((Stage(0.01, 1e6, 1, width=4, inside_bytes=1e8),))
    factors = Fleet(Network(), FOUR).factors(graph, "v100", 1.0, 4)
    assert factors[1] == pytest.approx((0.01 + 1e8 / 100e9) / (0.01 + 1e8 / 12.5e9))
    assert factors[-1] == 1.0  # all bundles apart: there is only one


def test_switches_count_where_a_job_must_cross_them() -> None:
    """Two nodes below one switch do not use its uplink; four do, and it is as slow as oversubscription makes it."""
    switches = {"left": ("n0", "n1"), "right": ("n2", "n3"), "top": ("n0", "n1", "n2", "n3")}
    graph = data_parallel(4e8, 0.01, 8)
    flat = Fleet(Network(), FOUR).factors(graph, "v100", 1.0, 4)
    tree = Fleet(Network(switches=switches, oversubscription=8), FOUR).factors(graph, "v100", 1.0, 4)
    assert tree[1] == flat[1] and tree[3] < flat[3]
    stated = Fleet(Network(switches=switches, oversubscription=8, uplinks={"left": 1e12, "right": 1e12}), FOUR)
    assert stated.factors(graph, "v100", 1.0, 4)[3] == flat[3]


def test_factors_are_worked_out_once() -> None:
    """The second answer is the first one."""
    fleet = Fleet(Network(), FOUR)
    assert fleet.factors(HEAVY, "v100", 1.0, 4) is fleet.factors(data_parallel(4e8, 0.01, 4), "v100", 1.0, 4)


def test_defaults_of_the_configuration_are_those_of_the_graphs() -> None:
    section = NetworkSection()
    assert (section.inside_bytes_s, section.outside_bytes_s) == (INSIDE_BYTES_S, OUTSIDE_BYTES_S)
    assert math.isclose(Network().links("v100")[0], section.inside_bytes_s)

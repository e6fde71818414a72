"""Speeds of jobs with a graph: its factors, put right by what was measured, and never applied twice."""

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.inference import relative_speed
from slurm_hadar.throughput.measurements import workload_key
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

FACTORS = {"v100": (1.0, 0.5, 0.5, 0.25, 0.2), "k80": (1.0, 0.8, 0.8, 0.6, 0.6)}
rates = st.floats(0.01, 1e4)


@pytest.fixture
def store() -> ThroughputStore:
    return ThroughputStore(sqlite3.connect(":memory:"))


def speeds(store: ThroughputStore, types: Any = ("v100", "k80"), by_nodes: Any = FACTORS, workers: int = 4) -> Any:
    return Estimator(reference(), store).speeds("mine", 8, workers, types, key="mine:8 g", by_nodes=by_nodes)


def test_without_a_measurement_the_graph_is_believed(store: ThroughputStore) -> None:
    found = speeds(store)
    assert {t: s.by_nodes for t, s in found.items()} == FACTORS
    assert found["v100"].on(4) == found["v100"].steps_per_s * 0.25
    assert found["v100"].on(9) == found["v100"].steps_per_s * 0.2 == found["v100"].steps_per_s * found["v100"].apart


def test_what_was_measured_on_one_node_is_slowed_down_once(store: ThroughputStore) -> None:
    store.record("mine:8 g", "v100", 4, 10.0, 0.0, nodes=1)
    found = speeds(store)["v100"]
    assert (found.on(1), found.on(2), found.on(4)) == pytest.approx((10.0, 5.0, 2.5))


@given(rates, st.integers(2, 6))
def test_what_was_measured_on_several_nodes_is_what_it_gets_there(rate: float, nodes: int) -> None:
    """The rate on one node follows by the factor for that number of nodes, other types by that rate."""
    store = ThroughputStore(sqlite3.connect(":memory:"))
    store.record("mine:8 g", "v100", 4, rate, 0.0, nodes=nodes)
    found = speeds(store)
    factor = FACTORS["v100"][min(nodes, 5) - 1]
    assert found["v100"].on(nodes) == pytest.approx(rate)
    assert found["v100"].on(1) == pytest.approx(rate / factor)
    assert found["k80"].by_nodes == FACTORS["k80"]
    assert f"over {nodes} nodes" in found["v100"].source


@given(rates, rates, st.sampled_from([2, 4]))
def test_both_measured(one: float, several: float, nodes: int) -> None:
    """Both hold, however far off the graph is; other numbers of nodes are corrected in proportion, up to 1."""
    store = ThroughputStore(sqlite3.connect(":memory:"))
    store.record("mine:8 g", "v100", 4, one, 0.0, nodes=1)
    store.record("mine:8 g", "v100", 4, several, 0.0, nodes=nodes)
    found = speeds(store)["v100"]
    assert found.on(1) == pytest.approx(one)
    assert found.on(nodes) == pytest.approx(min(one, several))
    other = 6 - nodes
    expected = min(1.0, FACTORS["v100"][other - 1] * several / one / FACTORS["v100"][nodes - 1])
    assert found.factor(other) == pytest.approx(expected)
    assert all(0 < f <= 1 for f in found.by_nodes)


def test_a_guess_from_another_type_is_not_below_what_was_seen(store: ThroughputStore) -> None:
    """Seen on two nodes of a v100 at 20 steps/s, and on one k80 node at 1: one v100 node has at least 20."""
    store.record("mine:8 g", "k80", 4, 1.0, 0.0, nodes=1)
    store.record("mine:8 g", "v100", 4, 20.0, 0.0, nodes=2)
    found = speeds(store)["v100"]
    assert found.on(2) == pytest.approx(20.0) and found.on(1) >= 20.0


def test_numbers_of_nodes_have_averages_of_their_own(store: ThroughputStore) -> None:
    """And jobs without a graph one for all of them, as ever."""
    store.record("a", "v100", 4, 4.0, 0.0, nodes=2)
    store.record("a", "v100", 4, 2.0, 0.0, nodes=4)
    store.record("a", "v100", 4, 8.0, 0.0, nodes=1)
    store.record("b", "v100", 4, 3.0, 0.0, spread=True)
    assert [(m.nodes, m.spread, m.steps_per_s) for m in store.of("a")] == [
        (1, False, 8.0),
        (2, True, 4.0),
        (4, True, 2.0),
    ]
    assert [(m.nodes, m.spread) for m in store.of("b")] == [(None, True)]


def test_another_way_to_cut_a_model_is_another_workload() -> None:
    assert workload_key("gpt2", 2, "ann", "x", "gpt2/pp4") == "gpt2:2 gpt2/pp4"
    assert workload_key("", None, "ann", "x", "g.toml#1") == "ann/x g.toml#1"


def test_relative_speed() -> None:
    """By the data sheets, a V100 being 1; 1 for what nobody knows."""
    assert relative_speed("v100") == 1.0 == relative_speed("unheard-of")
    assert relative_speed("k80") < 0.5 < 2.0 < relative_speed("a100")

"""Generated snapshots and the measuring of one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import ConfigError
from slurm_hadar.policies.baselines.fifo import Fifo
from slurm_hadar.policies.check import check_plan
from slurm_hadar.simulator.bench import BenchResult, growth_exponent, measure, snapshot_of
from tests.profiles import examples


@examples(40)
@given(jobs=st.integers(1, 60), nodes=st.integers(1, 12), per_node=st.integers(1, 9), seed=st.integers(0, 9))
def test_generated_snapshots_are_a_round_that_can_be(jobs: int, nodes: int, per_node: int, seed: int) -> None:
    """What was asked for, nothing over capacity, at most half of the GPUs held, and the same for the same seed."""
    gpus = nodes * per_node + min(2, per_node)
    snapshot = snapshot_of(jobs, gpus, nodes, seed)

    assert (len(snapshot.jobs), len(snapshot.nodes)) == (jobs, nodes)
    assert sum(n for node in snapshot.nodes for n in node.gpus.values()) == gpus
    held = [j.placement for j in snapshot.jobs if j.running]
    assert sum(p.workers for p in held) <= gpus // 2 and all(held)
    assert not check_plan(snapshot, Fifo().allocate(snapshot))
    assert snapshot_of(jobs, gpus, nodes, seed) == snapshot


def test_half_of_a_busy_cluster_is_held() -> None:
    """With jobs enough, all but a gang's worth of the half is used."""
    snapshot = snapshot_of(200, 80, 20)
    assert 33 <= sum(j.placement.workers for j in snapshot.jobs if j.running) <= 40
    assert any(not j.running for j in snapshot.jobs)


def test_impossible_sizes_are_refused() -> None:
    """More nodes than GPUs: one line."""
    with pytest.raises(ConfigError, match="at least one GPU per node"):
        snapshot_of(3, 1, 2)


@pytest.mark.thorough
def test_a_decision_is_measured_in_a_process_of_its_own() -> None:
    """Times and the process's own memory, not this one's; a wrong policy is named here."""
    result = measure("fifo", {}, 20, 16, 4)

    assert (result.jobs, result.gpus, result.nodes) == (20, 16, 4) and result.placed > 0
    assert result.decide_cpu_s > 0 and result.decide_wall_s > 0
    assert 5 * 2**20 < result.peak_memory_bytes < 2**30
    with pytest.raises(ConfigError, match="no policy is called 'x'"):
        measure("x", {}, 1, 1, 1)


@given(st.floats(0.2, 4.0), st.floats(1e-9, 10.0))
def test_the_exponent_of_a_power_law_is_found(exponent: float, scale: float) -> None:
    """Times that are exactly a power of the jobs give that power."""
    one = BenchResult("p", {}, 1, 1, 1, 1.0, 1.0, 1, 0)
    results = [replace(one, jobs=n, decide_cpu_s=scale * n**exponent) for n in (3, 10, 200)]

    assert growth_exponent(results) == pytest.approx(exponent)
    assert growth_exponent(results[:1]) is None

"""Gangs that are slower on more nodes than they need wait for few of them, where that ends them sooner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job, Node, Snapshot, Speed
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes
from slurm_hadar.policies.hadar.lookahead.outlook import Outlook, survey
from slurm_hadar.policies.hadar.lookahead.planning.together import together
from slurm_hadar.policies.toolkit.arena import Arena
from tests.policies.conftest import NOW, make_job, make_running

NODES = (Node("a", {"v100": 2}), Node("b", {"v100": 2}))


def gang(job_id: str, spread: float, steps: float = 1000.0, workers: int = 2, **fields: Any) -> Job:
    """At one step per second on one node."""
    job: Job = make_job(job_id, workers, steps, unmovable="saves nothing", **fields)
    return replace(job, speeds={"v100": Speed(1.0, spread)})


def holders(first_s: float, second_s: float) -> list[Job]:
    """One GPU of each node is held for so long."""
    return [
        make_running(number, {node: {"v100": 1}}, steps=left_s, v100=1.0, p100=None, k80=None, unmovable="exempt")
        for number, node, left_s in (("1", "a", first_s), ("2", "b", second_s))
    ]


def outlook_of(*jobs: Job) -> Outlook:
    return survey(Arena.of(Snapshot(NOW, NODES, jobs)), Lifetimes(3600.0))


@settings(deadline=None)
@given(st.floats(10, 1e4), st.floats(10, 1e4), st.sampled_from((0.2, 0.5, 0.8)))
def test_it_starts_apart_only_where_that_ends_it_sooner(first_s: float, second_s: float, spread: float) -> None:
    """Two GPUs are free, one on each node. Apart, 1000 s of work take 1000 s over the factor."""
    plan = get("hadar").allocate(Snapshot(NOW, NODES, (*holders(first_s, second_s), gang("3", spread))))

    together_s, apart_s = min(first_s, second_s) + 1000.0, 1000.0 / spread
    assert bool(plan.placement("3")) is (apart_s < together_s)


def test_who_waits_takes_the_first_node_that_is_free() -> None:
    """And its owner is told so."""
    first, second, waiting = *holders(5000.0, 100.0), gang("3", 0.2)
    plan = get("hadar").allocate(Snapshot(NOW, NODES, (first, second, waiting)))
    assert not plan.placement("3")
    assert plan.waits["3"].why.endswith("on more nodes it would be 5.0 times slower, so it waits for room on 1 node")
    later = get("hadar").allocate(Snapshot(NOW, NODES, (first, waiting)))
    assert set(later.placement("3").nodes) == {"b"}


def test_a_gang_that_minds_no_nodes_starts_at_once() -> None:
    """So does one that runs on as many as it needs."""
    jobs = holders(100.0, 100.0)
    assert len(get("hadar").allocate(Snapshot(NOW, NODES, (*jobs, gang("3", 1.0)))).placement("3").nodes) == 2
    wide = gang("3", 0.2, workers=4, form=Form(4, max_nodes=4))
    assert len(get("hadar").allocate(Snapshot(NOW, NODES, (wide,))).placement("3").nodes) == 2


def test_when_there_is_a_place_on_few_nodes() -> None:
    """When the first of the nodes has as many GPUs free; what running jobs would do there is waited for, too."""
    seen = together(outlook_of(*holders(300.0, 200.0), gang("3", 0.5)))
    assert seen.ready_s.tolist() == [[200.0]] and seen.longer_s.tolist() == [[1000.0]]

    movable = [make_running("1", {node: {"v100": 1} for node in "ab"}, steps=400.0, v100=1.0, p100=None, k80=None)]
    seen = together(outlook_of(*movable, gang("3", 0.5)))
    assert seen.ready_s[:, 0].tolist() == [0.0, 400.0] and seen.longer_s[:, 0].tolist() == [np.inf, 1000.0]


@pytest.mark.parametrize("spread, waits_s", [(1.0, 0.0), (0.5, 300.0)])
def test_only_who_would_be_slower_waits(spread: float, waits_s: float) -> None:
    seen = together(outlook_of(*holders(300.0, 300.0), gang("3", spread)))
    assert seen.ready_s.tolist() == [[waits_s]] and np.isfinite(seen.longer_s).tolist() == [[waits_s > 0]]

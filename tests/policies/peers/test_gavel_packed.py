"""Gavel's packed objectives: shares of time for pairs of jobs on one GPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job, Kept, Node, Pairing, Plan, Snapshot, Speed
from slurm_hadar.policies import check_plan, get
from slurm_hadar.policies.gavel.lp import Load
from slurm_hadar.policies.gavel.lp import max_min as unpacked
from slurm_hadar.policies.gavel.packed import Combinations, max_min
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.run import simulate
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.testing.snapshots import carry_out
from slurm_hadar.throughput.colocation import both_ways
from slurm_hadar.throughput.table import reference

ROUND_S = 360.0
TYPES = ("v100", "k80")


def job(job_id: str, model: str = "a", workers: int = 1, **fields: Any) -> Job:
    given_ = {"model": model, "total_steps": 1e7, "slow_down": 10.0, "arrival": float(job_id)}
    return Job(job_id, Form(workers), speeds={"v100": Speed(4.0), "k80": Speed(1.0)}, **{**given_, **fields})


def snapshot(jobs: list[Job], kept: Mapping[Pairing, Kept], v100: int = 1, k80: int = 0) -> Snapshot:
    nodes = [Node(t, {t: n}) for t, n in (("v100", v100), ("k80", k80)) if n]
    return Snapshot(1000.0, tuple(nodes), tuple(jobs), pairings=both_ways(kept))


def play(name: str, at: Snapshot, rounds: int, **params: Any) -> list[Plan]:
    plans = []
    for _ in range(rounds):
        plan = get(name, packed=True, **params).allocate(at)
        assert check_plan(at, plan) == []
        plans.append(plan)
        memory = json.loads(json.dumps(plan.memory))
        at = replace(carry_out(at, plan), time=at.time + ROUND_S, memory=memory)
    return plans


@pytest.mark.parametrize("name", ["gavel_las", "gavel_ttd"])
def test_a_pair_that_does_more_together_shares_the_gpu(name: str) -> None:
    start = snapshot([job("1"), job("2")], {("a", "a", "v100"): (0.8, 0.8)})
    assert all(len(plan.placements) == 2 and len(plan.guests) == 1 for plan in play(name, start, 5))


@pytest.mark.parametrize(
    ("kept", "fields"),
    [
        ((0.5, 0.45), {}),  # they do less than by turns
        ((0.8, 0.8), {"slow_down": 1.0}),
        ((0.8, 0.8), {"unmovable": "saves nothing"}),
        ((0.8, 0.8), {"workers": 2}),
    ],
)
def test_who_may_not_or_gains_nothing_takes_turns(kept: Kept, fields: dict[str, Any]) -> None:
    start = snapshot(
        [job("1", **fields), job("2", **fields)], {("a", "a", "v100"): kept}, v100=2 if fields.get("workers") else 1
    )
    for plan in play("gavel_las", start, 5):
        assert len(plan.placements) == 1 and not plan.guests


def test_three_jobs_share_by_turns_what_two_can_have() -> None:
    """Of three alike jobs on one GPU each is in two of three pairs: as often as the others."""
    start = snapshot([job(str(i)) for i in range(3)], {("a", "a", "v100"): (0.8, 0.8)})
    count = dict.fromkeys("012", 0)
    for plan in play("gavel_las", start, 30):
        for job_id in plan.placements:
            count[job_id] += 1
    assert sorted(count.values()) == [20, 20, 20]


def test_each_pair_goes_where_it_does_most() -> None:
    """On the v100 b is of no use to a, on the k80 c is; alone nobody has a GPU."""
    kept = {("a", "c", "v100"): (0.9, 0.9), ("b", "d", "k80"): (0.9, 0.9)}
    jobs = [job(str(i), model) for i, model in enumerate("abcd")]
    (plan,) = play("gavel_ttd", snapshot(jobs, kept, k80=1), 1)
    (first, second) = sorted(plan.guests.items())
    assert {frozenset(first), frozenset(second)} == {frozenset("02"), frozenset("13")}


@st.composite
def loads(draw: Any) -> tuple[Load, Combinations]:
    count, numbers = draw(st.integers(1, 5)), st.floats(0.1, 10.0)
    rates = np.array([[draw(numbers), draw(st.one_of(st.just(0.0), numbers))] for _ in range(count)])
    gang = np.array([float(draw(st.sampled_from((1, 1, 2)))) for _ in range(count)])
    jobs = [job(str(i), str(i), int(n)) for i, n in enumerate(gang)]
    shares = st.floats(0.05, 1.0)
    kept = {
        (str(i), str(k), t): (draw(shares), draw(shares))
        for i, k in itertools.combinations(range(count), 2)
        for t in TYPES
    }
    load = Load(rates, gang, np.array([float(draw(st.integers(2, 4))) for _ in TYPES]))
    return load, Combinations.of(snapshot(jobs, kept), jobs, TYPES, rates)


@given(loads(), st.data())
def test_shares_are_feasible_and_never_worse_than_without_pairs(drawn: tuple[Load, Combinations], data: Any) -> None:
    load, rows = drawn
    demand = np.array([data.draw(st.floats(0.1, 10.0)) for _ in load.gang])
    shares = max_min(load, rows, demand)

    held, time, rate = np.zeros(len(TYPES)), np.zeros(len(demand)), np.zeros(len(demand))
    for row, members in enumerate(rows.members):
        held += load.gang[members[0]] * shares[row]
        for at, member in enumerate(members):
            time[member] += shares[row].sum()
            rate[member] += rows.rates[row, at] @ shares[row]
    assert (held <= load.gpus + 1e-6).all() and (time <= 1 + 1e-6).all()
    assert (shares[~rows.usable] == 0).all()
    assert (rate / demand).min() >= unpacked(load, demand)[1] * (1 - 2e-3)


def test_a_simulation_lets_the_policy_choose_the_pairs() -> None:
    """Who shares is the policy's own choice there, too, and not that of the rule for all others."""
    trace = read_trace("recurring:jobs=20,seed=3,load=2,gpus=2", reference())
    options = SimOptions("v100:1x2", round_s=360.0, share="beside")
    packed, plain = (simulate(trace, get("gavel_las", packed=p), options) for p in (True, False))
    assert packed.sharing["pairs"] and packed.sharing != plain.sharing

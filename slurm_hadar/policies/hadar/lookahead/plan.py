"""Hadar with prices that look ahead: from a snapshot to a plan."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies.hadar.lookahead.estimates.calibration import Calibration
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes
from slurm_hadar.policies.hadar.lookahead.layout import lay_out
from slurm_hadar.policies.hadar.lookahead.outlook import survey
from slurm_hadar.policies.hadar.lookahead.queueing import Queueing, queue_up
from slurm_hadar.policies.hadar.lookahead.rules import Rules
from slurm_hadar.policies.hadar.lookahead.waits import explain, payoff_of
from slurm_hadar.policies.toolkit.arena import Arena

__all__ = ["look_ahead", "look_ahead_weighed"]


@contextmanager
def _uncollected() -> Iterator[None]:
    """A decision makes many objects that all stay, in no cycles: to look for garbage among them costs a third more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def look_ahead(rules: Rules, snapshot: Snapshot, name: str) -> Plan:
    """The plan for the coming round, of the policy of this name."""
    with _uncollected():
        return _planned(rules, snapshot, name, alone=True)[0]


def look_ahead_weighed(rules: Rules, snapshot: Snapshot, name: str) -> tuple[Plan, dict[str, float]]:
    """The plan, and what a second's delay of each job to be decided about weighs in it; for a policy that builds on it,
    and may give what is planned here to others."""
    with _uncollected():
        plan, queueing = _planned(rules, snapshot, name, alone=False)
        jobs = queueing.outlook.jobs
        return plan, {j.job_id: float(w) for j, w in zip(jobs, queueing.weights, strict=True)}


def _planned(rules: Rules, snapshot: Snapshot, name: str, *, alone: bool) -> tuple[Plan, Queueing]:
    calibration = Calibration.of(snapshot)
    arena = Arena.of(calibration.corrected(snapshot))
    lifetimes = Lifetimes.of(snapshot.jobs, snapshot.memory, rules.unknown_runtime_s)
    queueing = queue_up(rules, survey(arena, lifetimes), alone=alone)
    placements = lay_out(queueing, rules.switch_gain)
    payoffs = payoff_of(queueing)
    jobs, pools = queueing.outlook.jobs, queueing.outlook.pools
    gains = {j.job_id: float(p) for j, p in zip(jobs, payoffs, strict=True) if j.job_id in placements}
    per_gpu = zip(pools, queueing.told.price.tolist(), strict=True)
    prices = {arena.slots[slot]: price for pool, price in per_gpu for slot in pool.slots}
    waits = explain(queueing, placements, payoffs)
    memory = {**queueing.memory, **lifetimes.memory(), **calibration.memory(snapshot, placements)}
    return Plan(name, placements, waits, prices, gains, memory=memory), queueing

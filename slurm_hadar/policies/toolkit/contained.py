"""A policy that fails costs its plan, and nobody else anything: whoever wrote it, whatever it raises."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from slurm_hadar.errors import HadarError, PolicyError, whereabouts
from slurm_hadar.model import JobState, Placement, Plan, Snapshot, Tier, Wait

__all__ = ["as_it_is", "contained"]

_Allocate = Callable[[Any, Snapshot], Plan]
_BEGINS = "policy "


def contained(allocate: _Allocate) -> _Allocate:
    """``allocate`` that raises PolicyError, with the policy's name, and gives plans that can be read."""

    @functools.wraps(allocate)
    def allocate_contained(self: Any, snapshot: Snapshot) -> Plan:
        try:
            plan = allocate(self, snapshot)
        except HadarError as error:
            why = str(error)
            raise PolicyError(why if why.startswith(_BEGINS) else f"{_BEGINS}{self.name} failed: {why}") from error
        except (Exception, SystemExit) as error:
            raise PolicyError(f"{_BEGINS}{self.name} failed: {error!r} at {whereabouts(error)}") from error
        for fault in _malformed(plan):
            raise PolicyError(f"{_BEGINS}{self.name} broke its contract: {fault}")
        return plan

    return allocate_contained


def _malformed(plan: Any) -> Iterator[str]:
    """What of it is not what a plan is made of."""
    if not isinstance(plan, Plan):
        yield f"its plan is of type {type(plan).__name__}"
        return
    for what, kind, values in (("placement", Placement, plan.placements), ("wait", Wait, plan.waits)):
        yield from (f"the {what} of {job!r} is {value!r}" for job, value in values.items() if type(value) is not kind)
    for what, numbers in (("price", plan.prices), ("payoff", plan.payoffs)):
        yield from (f"the {what} of {key!r} is {value!r}" for key, value in numbers.items() if not _is_finite(value))
    told = ((job, w, name) for job, w in plan.waits.items() if type(w) is Wait for name in ("price", "payoff"))
    for job, wait, what in told:
        value = getattr(wait, what)
        if value is not None and not _is_finite(value):
            yield f"the {what} of {job!r}, which waits, is {value!r}"
    yield from (f"there is a price of {key!r}" for key in plan.prices if type(key) is not tuple or len(key) != 2)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def as_it_is(snapshot: Snapshot, policy: str, why: str = "") -> Plan:
    """A plan that abstains: running jobs as they are, all others left to Slurm, for this reason or for Slurm's own."""
    placements, waits = {}, {}
    for job in snapshot.steerable_jobs:
        if job.state is JobState.RUNNING and job.placement:
            placements[job.job_id] = job.placement
        else:
            reason = why or job.reason
            waits[job.job_id] = Wait(Tier.TRANSIENT, f"left to Slurm ({reason})" if reason else "left to Slurm")
    return Plan(policy, placements, waits, abstains=True)

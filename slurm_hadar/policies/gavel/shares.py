"""What the policies that set target shares of time have in common: everything but the targets."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_hadar.model import Job, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.gavel.analytic_centre import Field
from slurm_hadar.policies.gavel.lp import Load
from slurm_hadar.policies.gavel.packed import Combinations
from slurm_hadar.policies.gavel.rounds import ShareTally, place_by_share
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.plan_builder import PlanBuilder
from slurm_hadar.throughput.gpus import find
from slurm_hadar.units import span

__all__ = ["SharePolicy", "Targets"]

_LEAST_S = 1.0
_LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Targets:
    """What target shares are computed from. Arrays have one row per job. ``rows`` are what shares are wanted of: the
    jobs, and of a policy that ``pairs`` also pairs of them.

    ``load.rates`` are the speeds that the policy goes by: the jobs' own, or, if it takes all types for equally fast,
    the best one wherever the job can run. ``remaining`` are steps, ``elapsed`` seconds since the arrival, ``weight`` is
    positive. ``noted`` is what the policy wished to know again when it last set targets.
    """

    jobs: tuple[Job, ...]
    types: tuple[str, ...]
    rows: Combinations
    load: Load
    remaining: Field
    elapsed: Field
    weight: Field
    noted: Mapping[str, Any]


class SharePolicy(Policy):
    """Sets target shares of time on the GPU types when jobs come or go, and follows them in rounds.

    A job is given GPUs of one type in a round, wherever its form would also allow them to be mixed; a gang that fits on
    no single type gets what the others leave over. Jobs that must not move are left out, and so are their GPUs.
    """

    aware: bool
    reset_s: float
    unknown_runtime_s: float

    def __post_init__(self) -> None:
        self.require_at_least(reset_s=0.0, unknown_runtime_s=1.0)

    @abc.abstractmethod
    def shares(self, targets: Targets) -> tuple[Field, dict[str, Any]]:
        """Target shares of shape (rows, types), and what to note for the next time (values that JSON can write)."""

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        builder, now = PlanBuilder(Arena.of(snapshot)), snapshot.time
        types = tuple(sorted(builder.ledger.by_type))
        speeds = {job.job_id: builder.rates(job) for job in builder.arena.movers}
        jobs = tuple(job for job in builder.arena.movers if speeds[job.job_id])
        rates = np.array([[speeds[job.job_id].get(t, 0.0) for t in types] for job in jobs], dtype=float)
        rates = rates.reshape(len(jobs), len(types))
        gpus = np.array([builder.ledger.by_type[t] for t in types], dtype=float)
        noted = snapshot.memory.get("noted", {})
        combinations = Combinations.of(snapshot if self.pairs else None, jobs, types, self._believed(rates))
        rows = [tuple(jobs[i] for i in members) for members in combinations.members]
        tally = ShareTally.read(snapshot.memory, rows, types, gpus, now)
        if jobs and tally.due(now, self.reset_s):
            share, noted = self.shares(self._targets(jobs, types, combinations, rates, gpus, now, noted))
            tally.reset(share, now)
        order = self._order(types, rates, now, snapshot.round_s)
        guests = place_by_share(builder, rows, combinations.usable, tally, order, snapshot.round_s)
        for job in builder.arena.movers:
            if not speeds[job.job_id]:
                builder.place_mixed(job)
        rows_of: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            for job in row:
                rows_of.setdefault(job.job_id, []).append(number)
        memory = tally.memory(now) | {"noted": noted}
        return builder.plan(
            self.name, lambda job: _why(job, rows_of.get(job.job_id), tally, now), memory=memory, guests=guests
        )

    def _believed(self, rates: Field) -> Field:
        """The speeds that the policy goes by."""
        return rates if self.aware else np.where(rates > 0, rates.max(axis=1, initial=0.0)[:, None], 0.0)

    def _targets(
        self,
        jobs: tuple[Job, ...],
        types: tuple[str, ...],
        rows: Combinations,
        rates: Field,
        gpus: Field,
        now: float,
        noted: Mapping[str, Any],
    ) -> Targets:
        best = rates.max(axis=1)
        steps = [job.steps_to_go(rate, self.unknown_runtime_s) for job, rate in zip(jobs, best.tolist(), strict=True)]
        return Targets(
            jobs,
            types,
            rows,
            Load(
                self._believed(rates),
                np.array([job.form.workers for job in jobs], dtype=float),
                gpus,
            ),
            np.maximum(steps, best * _LEAST_S),
            np.array([max(0.0, now - job.arrival) for job in jobs]),
            np.array([max(job.weight, _LEAST_WEIGHT) for job in jobs]),
            noted,
        )

    def _order(self, types: tuple[str, ...], rates: Field, now: float, round_s: float) -> Sequence[int]:
        """In which order the types are given out: the fastest first; in turns if all count as equally fast.

        Which is fastest is a matter of the hardware, as in Gavel, so that the order does not change with the jobs that
        are left; only where a type is not in the data sheets is it a matter of the jobs' mean speed.
        """
        if self.aware and len(rates):
            known = [found.tflops for t in types if (found := find(t))]
            speed = known if len(known) == len(types) else (rates / rates.max(axis=1)[:, None]).mean(axis=0)
            order: list[int] = np.argsort(-np.array(speed), kind="stable").tolist()
            return order
        turn = int(now // round_s)
        return [(turn + r) % len(types) for r in range(len(types))]


def _why(job: Job, rows: list[int] | None, tally: ShareTally, now: float) -> Wait:
    if rows is None:
        return Wait(
            Tier.CAPACITY, f"needs {job.form.workers} GPUs of several types, which it gets when they are left over"
        )
    share = tally.share[rows].sum()
    if share <= 0:
        return Wait(Tier.POLICY, "its target share of GPU time is 0 for now, and no GPUs that suit it are left over")
    got, passed = float(tally.got[rows].sum()), now - (tally.since or now)
    return Wait(
        Tier.POLICY, f"waits its turn: it is due {share:.0%} of the time and has had {span(got)} of {span(passed)}"
    )

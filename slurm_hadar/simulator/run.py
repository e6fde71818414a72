"""The one entry to the simulator: a trace, a cluster and a policy in, a :class:`SimResult` out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_hadar.config import Config, ControllerSection, Mode
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import RoundRecord
from slurm_hadar.controller.loop import Controller, RoundResult
from slurm_hadar.controller.record.recorder import Recorder
from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.errors import PolicyError
from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.options import SimOptions, unlimited
from slurm_hadar.simulator.outcome.metrics import job_rows
from slurm_hadar.simulator.outcome.result import ClusterShape, RoundRow, Setting, SimResult
from slurm_hadar.simulator.setup import EPOCH, Setup
from slurm_hadar.simulator.traces.model import Trace
from slurm_hadar.simulator.virtual.cluster import Observation, Timing, VirtualCluster
from slurm_hadar.simulator.virtual.forked import ForkedJob, best_rates
from slurm_hadar.simulator.virtual.shared import SharedCluster
from slurm_hadar.throughput.table import ReferenceTable, reference

__all__ = ["SimOptions", "bounds_of", "simulate"]


def simulate(
    trace: Trace,
    policy: Policy,
    options: SimOptions | None = None,
    table: ReferenceTable | None = None,
    params: Mapping[str, Any] | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> SimResult:
    """Run ``trace`` on a virtual cluster under ``policy``, with the live controller's own rounds.

    Parameters
    ----------
    table: throughputs; None = the one shipped with the package. params: of the policy, for the result.
    on_round: told after every round how many of the measured jobs are done, and how many there are.

    Raises TraceError or ClusterError for bad input, PolicyError if the policy breaks its contract or abstains.
    """
    options = options or SimOptions()
    return _Run(trace, policy, options, table or reference()).simulated(dict(params or {}), on_round)


def bounds_of(
    trace: Trace,
    options: SimOptions | None = None,
    table: ReferenceTable | None = None,
    *,
    jct: bool = True,
    variables: int | None = None,
) -> dict[str, float]:
    """Lower bounds on what any policy can reach: ``ttd_s`` and, unless ``jct`` is false, ``avg_jct_s``.

    Only the measured jobs count, and of those only the ones that fit somewhere. Empty where jobs may share GPUs, since
    two on one may do more than one alone. ``variables`` as of
    :func:`slurm_hadar.simulator.outcome.bounds.lower_bounds`, None = as many as are solved in seconds. Raises
    TraceError or ClusterError.
    """
    options = options or SimOptions()
    if options.share is not None:
        return {}
    setup = Setup(trace, options, table or reference())
    ours = {*setup.counted} - setup.refused.keys()
    jobs = [j for j in setup.jobs if j.job_id in ours]
    copies = {j.job_id: best_rates(j.template, setup.nodes, len(j.copies)) for j in jobs if isinstance(j, ForkedJob)}
    from slurm_hadar.simulator.outcome import bounds

    most = bounds.MOST_VARIABLES if variables is None else variables
    return bounds.lower_bounds([j.template for j in jobs], setup.nodes, jct=jct, copies=copies, variables=most)


class _Run:
    """One simulation from start to end."""

    def __init__(self, trace: Trace, policy: Policy, options: SimOptions, table: ReferenceTable) -> None:
        self.setup = setup = Setup(trace, options, table)
        self.options, self.guard = options, options.guard or unlimited()
        told = setup.scenario(), _timing(options, policy.at_once_s), self.guard, options.usage_half_life_s
        by_turns = options.share == "turns"
        self.cluster = (
            VirtualCluster(*told) if options.share is None else SharedCluster(*told, setup.pairings(), by_turns)
        )
        self.policy = _Timed(policy)
        self.recorder = _Light(self.cluster)
        self.in_vain: set[str] = set()  # made steps at the end

    def simulated(self, params: Mapping[str, Any], on_round: Callable[[int, int], None] | None) -> SimResult:
        """Let the rounds pass, and sum up."""
        self._let_pass(on_round)
        return self._result(params)

    def _let_pass(self, on_round: Callable[[int, int], None] | None) -> None:
        total = len(self.setup.counted)

        def after(result: RoundResult[Any]) -> None:
            if result.record.note:
                raise PolicyError(result.record.note)
            if result.plan is not None and result.plan.abstains:
                raise PolicyError(
                    f"policy {self.policy.name} leaves the jobs to Slurm, which is not simulated; use fifo"
                )
            if on_round is not None:
                on_round(total - self.cluster.to_go - len(self.setup.refused.keys() & {*self.setup.counted}), total)

        options = self.options
        section = ControllerSection(mode=Mode.ACT, round_s=options.round_s, event_round_s=options.event_round_s)
        config = Config(controller=section, guard=self.guard)
        Controller(self.cluster, self.policy, config, self.recorder, after).run()
        now = self.cluster.now()
        self.in_vain = {j.job_id for j in self.cluster.active if j.started is not None and j.since < now}
        self.cluster.close()

    def _result(self, params: Mapping[str, Any]) -> SimResult:
        options, setup = self.options, self.setup
        return SimResult(
            Setting(
                policy=self.policy.name,
                params=params,
                seed=options.seed,
                trace=setup.trace.name,
                model=options.model,
                round_s=self.policy.at_once_s or options.round_s,
                cluster=ClusterShape(options.cluster, setup.gpus, len(setup.nodes)),
            ),
            jobs=tuple(job_rows(setup.jobs, EPOCH, setup.counted, setup.refused, setup.gpus)),
            rounds=tuple(replace(r, time_s=r.time_s - EPOCH) for r in self.recorder.rounds),
            intervals=tuple(
                replace(i, start_s=i.start_s - EPOCH, end_s=i.end_s - EPOCH) for i in self.cluster.intervals
            ),
            decide_s=tuple(self.policy.decide_s),
            end_s=self.cluster.now() - EPOCH,
            unfinished=self._unfinished(),
            assumptions=self._assumptions(),
            sharing=self._sharing(),
        )

    def _unfinished(self) -> dict[str, str]:
        """Measured jobs that were not done, and why."""
        ours = {*self.setup.counted}
        unfinished = {j: why for j, why in self.setup.refused.items() if j in ours}
        for job in self.cluster.active:
            if job.trace.job_id not in ours:
                continue
            wait = self.recorder.waits.get(job.job_id)
            if self.cluster.gave_up and job.job_id in self.in_vain:
                why = f"policy {self.policy.name} has it where it would not end in {self.options.max_rounds} rounds"
            elif self.cluster.gave_up:
                why = f"policy {self.policy.name} lets it make no step any more"
            else:
                why = f"not done after {len(self.recorder.rounds)} rounds"
            unfinished[job.trace.job_id] = f"{why}: {wait.why}" if wait else why
        return unfinished

    def _sharing(self) -> dict[str, float | str]:
        if not isinstance(self.cluster, SharedCluster):
            return {}
        share, slow_down = str(self.options.share), self.options.slow_down
        found = {"pairs": self.cluster.pairs, "shared_gpu_s": self.cluster.shared_s}
        found |= {"crowded_gpu_s": self.cluster.crowded_s} if self.cluster.crowded_s else {}
        return {"share": share, "slow_down": slow_down, **found}

    def _assumptions(self) -> tuple[str, ...]:
        lines = list(self.setup.trace.assumptions)
        if self.options.predictor is not None:
            lines.append(f"jobs do not state their steps; policies are told what {self.options.predictor} expects")
        if self.options.history is not None:
            known = f"{len(self.options.history.jobs)} jobs of {self.options.history.name}"
            lines.append(f"the predictor has learned from {known} before the first job arrives")
        if self.setup.rates.guessed:
            some = sorted(self.setup.rates.guessed)
            more = f" and {len(some) - 3} more" if len(some) > 3 else ""
            lines.append(f"speeds not in the throughput table are estimated: {', '.join(some[:3])}{more}")
        if self.setup.unforked:
            lines.append(f"{self.setup.unforked} jobs are not forked: their gang fits on no single node")
        return tuple(lines)


def _timing(options: SimOptions, at_once_s: float | None) -> Timing:
    """Without node boundaries, a save takes no time; and a scheduler inside Slurm needs no controller's
    rounds."""
    by_node = options.model == "nodes"
    return Timing(
        round_s=at_once_s or options.round_s,
        event_round_s=options.event_round_s,
        asked_s=options.asked_s,
        early_end=not by_node,
        on_grid=by_node,
        save_s=options.save_s if by_node else 0.0,
        at_once=at_once_s is not None,
        self_start_s=options.self_start_s if by_node and at_once_s is None else None,
        phase=None if options.phase_s is None else EPOCH + options.phase_s,
        max_rounds=options.max_rounds,
    )


class _Timed(Policy):
    """A policy whose decisions are timed: CPU seconds of this process."""

    name = ""
    forks = True  # the policy inside decides

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name  # type: ignore[misc]
        self.decide_s: list[float] = []

    @property
    def at_once_s(self) -> float | None:
        return self._policy.at_once_s

    @property
    def pairs(self) -> bool:
        return self._policy.pairs

    def allocate(self, snapshot: Snapshot) -> Plan:
        began = time.process_time()
        plan = self._policy.allocate(snapshot)
        self.decide_s.append(time.process_time() - began)
        return plan


class _Light(Recorder[Observation]):
    """Keeps what the metrics need, and the reasons of the last round."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._waits: Plan | None = None
        self.rounds: list[RoundRow] = []

    @property
    def waits(self) -> Mapping[str, Any]:
        return self._waits.waits if self._waits else {}

    def begin(self, _record: RoundRecord) -> int:
        return len(self.rounds) + 1

    def planned(self, _number: int, _snapshot: Snapshot, plan: Plan, _changes: Sequence[Change]) -> None:
        self._waits = plan

    def conclude(self, _number: int, record: RoundRecord, _seen: Observation, _outcome: Outcome) -> None:
        cluster = self._cluster
        self.rounds.append(RoundRow(record.time, cluster.active_jobs, cluster.running_jobs, dict(cluster.busy)))

    def recall(self) -> Mapping[str, Any]:
        return {}

    def keep(self, memory: Mapping[str, Any]) -> None:
        """The loop itself hands it on."""

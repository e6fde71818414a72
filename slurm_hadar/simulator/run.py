"""The one entry to the simulator: a trace, a cluster and a policy in, a :class:`SimResult` out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from slurm_hadar.cluster.spec import parse_nodes
from slurm_hadar.config import Config, ControllerSection, GuardSection, Mode
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import RoundRecord
from slurm_hadar.controller.journal.recorder import Recorder
from slurm_hadar.controller.loop import Controller, RoundResult
from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.errors import ConfigError, PolicyError, TraceError
from slurm_hadar.graphs.factors import Fleet
from slurm_hadar.graphs.network import Network
from slurm_hadar.model import Fork, Mix, Node, Plan, Snapshot
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.waits import Obstacles
from slurm_hadar.simulator.foresight import Foresight
from slurm_hadar.simulator.metrics import job_rows
from slurm_hadar.simulator.result import RoundRow, SimResult
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.simulator.virtual.cluster import Sight, Timing, VirtualCluster
from slurm_hadar.simulator.virtual.faults import Faults
from slurm_hadar.simulator.virtual.forked import Consolidation, ForkedJob, best_rates, copies_for
from slurm_hadar.simulator.virtual.jobs import VirtualJob, form_of, restart_cost_s
from slurm_hadar.throughput.table import ReferenceTable, reference

__all__ = ["DEFAULT_CLUSTER", "SimOptions", "bounds_of", "cluster_nodes", "simulate", "unlimited"]

DEFAULT_CLUSTER = "v100:5x4,p100:5x4,k80:5x4"
_MOST_NODES = 100_000
_EPOCH = 1_000_000_000.0  # the virtual clock's value at the trace's zero


@dataclass(frozen=True)
class SimOptions:
    """What is simulated, apart from trace and policy.

    model: ``nodes`` has real node boundaries and charges for restarts; ``gavel`` takes on the assumptions of Gavel's
    own simulator: one big node per GPU type, no cost of restarts, rates summed over workers.
    restart_s: what every restart costs, instead of the figures per model family; a trace's own figures prevail.
    start_s: what a job's first start costs. report_s: how long after a start a job reports, which is an event.
    save_s: how long a save takes, during which starts in the same round wait.
    self_start_s: so long after its arrival Slurm itself starts a job where GPUs are free, unless a round comes first;
    None = it leaves all jobs to the rounds, as where ``job_submit.lua`` gives new jobs a lease.
    phase_s: rounds are due then on the trace's clock, and whole rounds before and after; None = at the first arrival.
    event_round_s: as ``controller.event_round_s``; 0 = rounds come at fixed times.
    mix: how all jobs take gangs of unlike GPUs, instead of what the trace says.
    fork: every job whose gang fits on one node is forked into a copy per node, in this mode, instead of what the trace
    says. consolidation: what bringing the copies' weights together costs.
    measure: measure only jobs a to b-1 by arrival, and end when they are done.
    guard: limits on what one round may do; None = no limits.
    network: bandwidths, which jobs with a graph depend on.
    predictor: hides the steps of all jobs from the policy, which sees what this predictor expects instead
    (:func:`slurm_hadar.predict.online.named`). None = jobs state their steps.
    history: an earlier trace, from which ``predictor`` has learned before the first job arrives.
    seed: named in the result, and that of ``predictor``; the simulation itself draws nothing.
    """

    cluster: str = DEFAULT_CLUSTER
    model: Literal["nodes", "gavel"] = "nodes"
    round_s: float = 360.0
    event_round_s: float = 0.0
    restart_s: float | None = None
    start_s: float = 0.0
    report_s: float = 0.0
    save_s: float = 0.0
    self_start_s: float | None = None
    phase_s: float | None = None
    mix: Mix | None = None
    fork: Fork | None = None
    consolidation: Consolidation = field(default_factory=Consolidation)
    measure: tuple[int, int] | None = None
    usage_half_life_s: float = 7 * 86400.0
    faults: Faults = field(default_factory=Faults)
    predictor: str | None = None
    history: Trace | None = None
    guard: GuardSection | None = None
    network: Network = field(default_factory=Network)
    seed: int = 0
    max_rounds: int = 5_000_000

    def __post_init__(self) -> None:
        if not self.round_s > 0:
            raise ConfigError(f"round length {self.round_s:g} s: must be above 0")
        if self.model not in ("nodes", "gavel"):
            raise ConfigError(f"model {self.model!r}: must be nodes or gavel")
        for name in ("restart_s", "start_s", "report_s", "save_s", "self_start_s", "phase_s", "event_round_s"):
            if (getattr(self, name) or 0.0) < 0:
                raise ConfigError(f"{name} {getattr(self, name):g}: must not be negative")
        if self.fork is not None and self.model != "nodes":
            raise ConfigError(
                f"fork={self.fork} with model {self.model}: copies go to nodes, which only model nodes has"
            )
        if self.fork is not None and self.predictor is not None:
            raise ConfigError("fork with a predictor: the steps of forked jobs are stated, since they are shared out")
        if self.history is not None and self.predictor is None:
            raise ConfigError("a history without a predictor: name the predictor that shall learn from it")
        if not 0.0 <= self.consolidation.overhead < 1.0 or not self.consolidation.period_s > 0:
            raise ConfigError("consolidation: the overhead must lie from 0 to below 1, the period above 0 s")


def unlimited() -> GuardSection:
    """No limits on what a round may do, so that policies are compared as they are."""
    return GuardSection(max_preemptions=10**9, max_moves_per_job=10**9, min_run_s=0.0)


def cluster_nodes(text: str, *, by_node: bool = True) -> tuple[Node, ...]:
    """The nodes that ``type:nodesxGPUs,...`` stands for; without boundaries, one per type that has all its GPUs."""
    nodes = [Node(n.name, dict(n.gpus)) for n in parse_nodes(text, _MOST_NODES)]
    if by_node:
        return tuple(nodes)
    totals: dict[str, int] = {}
    for node in nodes:
        for gpu_type, count in node.gpus.items():
            totals[gpu_type] = totals.get(gpu_type, 0) + count
    return tuple(Node(t, {t: n}) for t, n in totals.items())


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
    run = _Run(trace, policy, options, table or reference())
    run.go(on_round)
    return run.result(dict(params or {}))


def bounds_of(
    trace: Trace, options: SimOptions | None = None, table: ReferenceTable | None = None, *, jct: bool = True
) -> dict[str, float]:
    """Lower bounds on what any policy can reach: ``ttd_s`` and, unless ``jct`` is false, ``avg_jct_s``.

    Only the measured jobs count, and of those only the ones that fit somewhere. Raises TraceError or ClusterError.
    """
    stage = _Stage(trace, options or SimOptions(), table or reference())
    ours = {*stage.counted} - stage.refused.keys()
    jobs = [j for j in stage.jobs if j.job_id in ours]
    copies = {j.job_id: best_rates(j.template, stage.nodes, len(j.copies)) for j in jobs if isinstance(j, ForkedJob)}
    from slurm_hadar.simulator.bounds import lower_bounds  # SciPy, which simulations alone do without

    return lower_bounds([j.template for j in jobs], stage.nodes, jct=jct, copies=copies)


class _Stage:
    """What is set up before the first round: nodes, speeds and jobs."""

    def __init__(self, trace: Trace, options: SimOptions, table: ReferenceTable) -> None:
        self.trace, self.options, self.by_node = trace, options, options.model == "nodes"
        self.nodes = cluster_nodes(options.cluster, by_node=self.by_node)
        types = dict.fromkeys(t for n in self.nodes for t in n.gpus)
        self.gpus = {t: sum(n.gpus.get(t, 0) for n in self.nodes) for t in types}
        self.rates = Rates(table, self.gpus, summed=not self.by_node, fleet=self._fleet())
        self.unforked = 0
        self.jobs = [self._job(job) for job in sorted(trace.jobs, key=lambda j: j.arrival_s)]
        self.counted = self._measured()
        self.refused = self._refused()

    def _fleet(self) -> Fleet | None:
        """The nodes with their links, one of several types as one for each; None without node boundaries."""
        if not self.by_node:
            return None
        parts = {f"{n.name}/{t}" if len(n.gpus) > 1 else n.name: (t, c) for n in self.nodes for t, c in n.gpus.items()}
        return Fleet(self.options.network, parts)

    def _job(self, job: TraceJob) -> VirtualJob | ForkedJob:
        plain = self._plain(job)
        fork = self.options.fork or job.fork
        count = copies_for(plain.template, self.nodes) if fork is not None and self.by_node else 0
        if fork is None or count == 0:
            self.unforked += fork is not None
            return plain
        return ForkedJob(plain, fork, count, self.options.consolidation)

    def foresight(self) -> Foresight | None:
        """The predictor of the options. Raises TraceError where the trace has forked jobs."""
        if self.options.predictor is None:
            return None
        plain = [j for j in self.jobs if not isinstance(j, ForkedJob)]
        if len(plain) < len(self.jobs):
            raise TraceError(f"{self.trace.name}: has forked jobs, whose steps are stated; leave the predictor out")
        earlier = () if self.options.history is None else self.options.history.jobs
        return Foresight(self.options.predictor, plain, self.rates, _EPOCH, self.options.seed, earlier)

    def players(self) -> list[VirtualJob]:
        """The jobs, and the copies instead of forked ones, that fit somewhere."""
        fitting = [j for j in self.jobs if j.job_id not in self.refused]
        return [c for j in fitting for c in (j.copies if isinstance(j, ForkedJob) else (j,))]

    def _plain(self, job: TraceJob) -> VirtualJob:
        given = job.restart_s if job.restart_s is not None else self.options.restart_s
        cost_s = restart_cost_s(job.model) if given is None else given
        factor = 1.0 if self.by_node else float(job.workers)
        form = form_of(job, by_node=self.by_node, mix=self.options.mix)
        return VirtualJob(job, self.rates, form, cost_s if self.by_node else 0.0, _EPOCH, factor)

    def _measured(self) -> list[str]:
        first, last = self.options.measure or (0, len(self.jobs))
        chosen = [j.job_id for j in self.jobs[first:last]]
        if not chosen:
            raise TraceError(f"{self.trace.name}: --measure {first}:{last} leaves none of its {len(self.jobs)} jobs")
        return chosen

    def _refused(self) -> dict[str, str]:
        """Jobs that fit nowhere even on the empty cluster, and why: no policy need see them."""
        obstacles = Obstacles(Arena.of(Snapshot(0.0, self.nodes, ())))
        refused = {}
        for job in self.jobs:
            template = job.template
            waits = [
                obstacles.of(replace(template, form=replace(template.form, workers=n, sizes=()),
                                     speeds=template.speeds_at(n)))
                for n in template.form.gang_sizes
            ]  # fmt: skip
            if all(waits):
                refused[job.job_id] = next(w.why for w in waits if w)
        return refused


class _Run:
    """One simulation from start to end."""

    def __init__(self, trace: Trace, policy: Policy, options: SimOptions, table: ReferenceTable) -> None:
        self.stage = stage = _Stage(trace, options, table)
        self.options = options
        at_once_s = policy.at_once_s
        timing = Timing(
            at_once_s or options.round_s, options.event_round_s, early_end=not stage.by_node, on_grid=stage.by_node,
            save_s=options.save_s if stage.by_node else 0.0, start_s=options.start_s if stage.by_node else 0.0,
            report_s=options.report_s, at_once=at_once_s is not None,
            self_start_s=options.self_start_s if stage.by_node and at_once_s is None else None,
            phase=None if options.phase_s is None else _EPOCH + options.phase_s, max_rounds=options.max_rounds,
        )  # fmt: skip
        guard = options.guard or unlimited()
        wanted = [j for j in stage.counted if j not in stage.refused]
        self.cluster = VirtualCluster(
            stage.nodes, stage.players(), wanted, timing, guard, options.usage_half_life_s, options.faults, _EPOCH,
            stage.foresight(),
        )  # fmt: skip
        self.policy = _Timed(policy)
        self.recorder = _Light(self.cluster)
        section = ControllerSection(mode=Mode.ACT, round_s=options.round_s, event_round_s=options.event_round_s)
        self.config = Config(controller=section, guard=guard)

    def go(self, on_round: Callable[[int, int], None] | None) -> None:
        total = len(self.stage.counted)

        def after(result: RoundResult) -> None:
            if result.record.note:
                raise PolicyError(result.record.note)
            if result.plan is not None and result.plan.abstains:
                raise PolicyError(
                    f"policy {self.policy.name} leaves the jobs to Slurm, which is not simulated; use fifo"
                )
            if on_round is not None:
                on_round(total - self.cluster.to_go - len(self.stage.refused.keys() & {*self.stage.counted}), total)

        Controller(self.cluster, self.policy, self.config, self.recorder, after).run()
        self.cluster.close()

    def result(self, params: Mapping[str, Any]) -> SimResult:
        options, stage, origin = self.options, self.stage, _EPOCH
        rows = job_rows(stage.jobs, origin, stage.counted, stage.refused, stage.gpus)
        intervals = tuple(
            replace(i, start_s=i.start_s - origin, end_s=i.end_s - origin) for i in self.cluster.intervals
        )
        rounds = tuple(replace(r, time_s=r.time_s - origin) for r in self.recorder.rounds)
        round_s = self.policy.at_once_s or options.round_s
        return SimResult(
            self.policy.name, params, options.seed, options.cluster, options.model, stage.trace.name, round_s,
            stage.gpus, len(stage.nodes), tuple(rows), rounds, intervals, tuple(self.policy.decide_s),
            self.cluster.now() - origin, self._unfinished(), self._assumptions(),
        )  # fmt: skip

    def _unfinished(self) -> dict[str, str]:
        """Measured jobs that were not done, and why."""
        ours = {*self.stage.counted}
        unfinished = {j: why for j, why in self.stage.refused.items() if j in ours}
        for job in self.cluster.active:
            if job.trace.job_id not in ours:
                continue
            wait = self.recorder.waits.get(job.job_id)
            if self.cluster.gave_up:
                why = f"policy {self.policy.name} lets it make no step any more"
            else:
                why = f"not done after {len(self.recorder.rounds)} rounds"
            unfinished[job.trace.job_id] = f"{why}: {wait.why}" if wait else why
        return unfinished

    def _assumptions(self) -> tuple[str, ...]:
        lines = list(self.stage.trace.assumptions)
        if self.options.predictor is not None:
            lines.append(f"jobs do not state their steps; policies are told what {self.options.predictor} expects")
        if self.options.history is not None:
            known = f"{len(self.options.history.jobs)} jobs of {self.options.history.name}"
            lines.append(f"the predictor has learned from {known} before the first job arrives")
        if self.stage.rates.guessed:
            some = sorted(self.stage.rates.guessed)
            more = f" and {len(some) - 3} more" if len(some) > 3 else ""
            lines.append(f"speeds not in the throughput table are estimated: {', '.join(some[:3])}{more}")
        if self.stage.unforked:
            lines.append(f"{self.stage.unforked} jobs are not forked: their gang fits on no single node")
        return tuple(lines)


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

    def allocate(self, snapshot: Snapshot) -> Plan:
        began = time.process_time()
        plan = self._policy.allocate(snapshot)
        self.decide_s.append(time.process_time() - began)
        return plan


class _Light(Recorder[Sight]):
    """Keeps what the metrics need, and the reasons of the last round."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._waits: Plan | None = None
        self.rounds: list[RoundRow] = []

    @property
    def waits(self) -> Mapping[str, Any]:
        return self._waits.waits if self._waits else {}

    def begin(self, record: RoundRecord) -> int:
        return len(self.rounds) + 1

    def planned(self, number: int, snapshot: Snapshot, plan: Plan, changes: Sequence[Change]) -> None:
        self._waits = plan

    def conclude(self, number: int, record: RoundRecord, seen: Sight, outcome: Outcome) -> None:
        cluster = self._cluster
        self.rounds.append(RoundRow(record.time, cluster.active_jobs, cluster.running_jobs, dict(cluster.busy)))

    def recall(self) -> Mapping[str, Any]:
        return {}

    def keep(self, memory: Mapping[str, Any]) -> None:
        """The loop itself hands it on."""

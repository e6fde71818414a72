"""What is simulated, apart from trace and policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from slurm_hadar.config import ROUND_S, GuardSection
from slurm_hadar.errors import ConfigError
from slurm_hadar.graphs.network import Network
from slurm_hadar.model import MOST_SLOW_DOWN, Fork, Kept, Mix, Pairing
from slurm_hadar.simulator.traces.model import Trace
from slurm_hadar.simulator.virtual.faults import Faults
from slurm_hadar.simulator.virtual.forked import Consolidation

__all__ = ["DEFAULT_CLUSTER", "SimOptions", "granted", "unlimited"]

DEFAULT_CLUSTER = "v100:5x4,p100:5x4,k80:5x4"


@dataclass(frozen=True)
class SimOptions:
    """What is simulated, apart from trace and policy.

    model: ``nodes`` has real node boundaries and charges for restarts; ``gavel`` takes on the assumptions of Gavel's
    own simulator: one big node per GPU type, no cost of restarts, rates summed over workers.
    restart_s: what every restart costs, instead of the figures per model family; a trace's own figures prevail.
    start_s: what a job's first start costs; a trace's own figures prevail. report_s: how long after a start a job
    reports, which is an event.
    unmovable: share of the jobs, drawn by ``seed``, that keep their places once they run, besides those of which the
    trace says so. speed_error: relative error of the speeds that policies see of a job on a type until it has run there
    (:class:`slurm_hadar.simulator.virtual.belief.Belief`).
    elastic: an elastic job's speeds at other sizes than the first follow from that one's, as in the live controller
    (``law``), or are the table's where it has them (``table``); a trace's own figures prevail.
    share: whether two jobs with one GPU each may have the same one, and what each keeps of its speed then: as was
    published of trainings that run at once (``beside``); by turns, of which one may have more than the other
    (``turns``); or half, as with turns of equal length (``halves``). Who is not
    among the published pairs shares with nobody: of others nobody knows whether their memory fits. slow_down: how many
    times as long a job may take beside another, unless the trace says it; 1 = it shares with nobody. pairings: what was
    measured of pairs, which goes before what was published.
    save_s: how long a save takes, during which starts in the same round wait.
    self_start_s: so long after its arrival Slurm itself starts a job where GPUs are free, unless a round comes first;
    None = it leaves all jobs to the rounds, as where ``job_submit.lua`` gives new jobs a lease.
    phase_s: rounds are due then on the trace's clock, and whole rounds before and after; None = at the first arrival.
    event_round_s: as ``controller.event_round_s``; 0 = rounds come at fixed times. asked_s: so often Slurm is asked for
    new jobs as soon as a round may come, as the live controller does; 0 = they are noticed at once.
    mix: how all jobs take gangs of unlike GPUs, instead of what the trace says.
    fork: every job whose gang fits on one node is forked into a copy per node, in this mode, instead of what the trace
    says. consolidation: what bringing the copies' weights together costs.
    measure: measure only jobs a to b-1 by arrival, and end when they are done.
    guard: limits on what one round may do; None = no limits.
    network: bandwidths, which jobs with a graph depend on.
    predictor: hides the steps of all jobs from the policy, which sees what this predictor expects instead
    (:func:`slurm_hadar.predict.online.named`). None = jobs state their steps.
    history: an earlier trace, from which ``predictor`` has learned before the first job arrives.
    seed: named in the result, and that of ``predictor``, ``unmovable`` and ``speed_error``; nothing else is drawn.
    """

    cluster: str = DEFAULT_CLUSTER
    model: Literal["nodes", "gavel"] = "nodes"
    round_s: float = 360.0
    event_round_s: float = 0.0
    asked_s: float = 0.0
    restart_s: float | None = None
    start_s: float = 0.0
    report_s: float = 0.0
    save_s: float = 0.0
    self_start_s: float | None = None
    phase_s: float | None = None
    unmovable: float = 0.0
    speed_error: float = 0.0
    elastic: Literal["law", "table"] = "law"
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
    share: Literal["beside", "turns", "halves"] | None = None
    slow_down: float = 2.0
    pairings: Mapping[Pairing, Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._require_times()
        if self.share is not None:
            self._require_shareable()
        if not 0.0 <= self.unmovable <= 1.0:
            raise ConfigError(f"share of unmovable jobs {self.unmovable:g}: must lie from 0 to 1")
        if not 0.0 <= self.speed_error < math.inf:
            raise ConfigError(f"relative error of speeds {self.speed_error:g}: must be a number of at least 0")
        if self.model not in ("nodes", "gavel"):
            raise ConfigError(f"model {self.model!r}: must be nodes or gavel")
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

    def _require_shareable(self) -> None:
        if not 1.0 <= self.slow_down <= MOST_SLOW_DOWN:
            raise ConfigError(f"accepted slow-down {self.slow_down:g}: must lie from 1 to {MOST_SLOW_DOWN:g}")
        others = (("forked jobs", self.fork), ("faults", self.faults.outages), ("self_start_s", self.self_start_s))
        for name, given in others:
            if given not in (None, ()):
                raise ConfigError(f"share with {name}: these are not simulated together; leave one of them out")

    def _require_times(self) -> None:
        if not self.round_s > 0:
            raise ConfigError(f"round length {self.round_s:g} s: must be above 0")
        least_s, most_s = ROUND_S
        if not least_s <= self.round_s <= most_s:
            raise ConfigError(f"round length {self.round_s:g} s: must be from {least_s:g} to {most_s:g}")
        for name in (
            "restart_s",
            "start_s",
            "report_s",
            "save_s",
            "self_start_s",
            "event_round_s",
            "asked_s",
        ):
            if not 0 <= (getattr(self, name) or 0.0) < math.inf:
                raise ConfigError(f"{name} {getattr(self, name):g}: must be a number of at least 0")
        if not math.isfinite(self.phase_s or 0.0):
            raise ConfigError(f"phase_s {self.phase_s:g}: must be a number")


def granted(trace: Trace, guard: GuardSection | None) -> Trace:
    """The same jobs, as a controller with this guard would take them: none weighs more than it grants. What of it
    cannot be simulated is told. None: no limits."""
    if guard is None:
        return trace
    told = []
    if guard.exempt_users or guard.exempt_qos or guard.exempt_partitions:
        told.append("all jobs are steered: guard.exempt_users, exempt_qos and exempt_partitions are not simulated")
    if guard.max_weight_by_qos:
        told.append("no job has a QOS, and guard.max_weight_by_qos grants nothing")
    most = {j.account: guard.max_weight_by_account.get(j.account, guard.max_weight) for j in trace.jobs}
    jobs = tuple(replace(j, weight=min(j.weight, most[j.account])) for j in trace.jobs)
    if lowered := sum(1 for now, before in zip(jobs, trace.jobs, strict=True) if now.weight < before.weight):
        told.append(f"{lowered} of {len(jobs)} jobs weigh no more than guard.max_weight grants them")
    return replace(trace, jobs=jobs, assumptions=(*trace.assumptions, *told))


def unlimited() -> GuardSection:
    """No limits on what a round may do, so that policies are compared as they are."""
    return GuardSection(max_preemptions=10**9, max_moves_per_job=10**9, min_run_s=0.0, max_stretch=0.0)

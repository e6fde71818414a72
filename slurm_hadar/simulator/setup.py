"""What is set up before the first round of a simulation: nodes, speeds and jobs."""

from __future__ import annotations

import random
from dataclasses import replace

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LONGEST_S
from slurm_hadar.graphs.factors import Fleet
from slurm_hadar.model import Job, Kept, Pairing, Snapshot
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.waits import Obstacles
from slurm_hadar.simulator.nodes import cluster_nodes, gpus_by_type
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.simulator.virtual.cluster import Scenario
from slurm_hadar.simulator.virtual.foresight import Foresight
from slurm_hadar.simulator.virtual.forked import ForkedJob, copies_for
from slurm_hadar.simulator.virtual.jobs import Terms, VirtualJob, form_of, restart_cost_s
from slurm_hadar.throughput.colocation import published
from slurm_hadar.throughput.table import ReferenceTable
from slurm_hadar.units import lasting

__all__ = ["EPOCH", "Setup", "drawn"]

#: The virtual clock's value at the trace's zero.
EPOCH = 1_000_000_000.0


def drawn(share: float, seed: int, job_id: str) -> bool:
    """Whether a job is among this share of all, which hangs on ``seed`` and its id alone: of two shares, the jobs of
    the smaller one are among those of the larger one."""
    return random.Random(f"{seed}:{job_id}").random() < share


class Setup:
    """What is set up before the first round: nodes, speeds and jobs."""

    def __init__(self, trace: Trace, options: SimOptions, table: ReferenceTable) -> None:
        self.trace, self.options, self.by_node = trace, options, options.model == "nodes"
        self.nodes = cluster_nodes(options.cluster, by_node=self.by_node)
        self.gpus = gpus_by_type(self.nodes)
        self.rates = Rates(
            table, self.gpus, summed=not self.by_node, fleet=self._fleet(), sizes_by_table=options.elastic == "table"
        )
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

    def scenario(self) -> Scenario:
        """What the virtual cluster is told. Raises TraceError where jobs with a predictor are forked."""
        wanted = [j for j in self.counted if j not in self.refused]
        fitting = [j for j in self.jobs if j.job_id not in self.refused]
        players = [c for j in fitting for c in (j.copies if isinstance(j, ForkedJob) else (j,))]
        return Scenario(self.nodes, players, wanted, EPOCH, self.options.faults, self._foresight())

    def pairings(self) -> dict[Pairing, Kept]:
        """What pairs keep of their speeds on a GPU that they share; empty where none may. Raises TraceError where jobs
        are forked, by the trace itself."""
        if self.options.share is None:
            return {}
        if any(isinstance(job, ForkedJob) for job in self.jobs):
            raise TraceError(f"{self.trace.name}: has forked jobs, which share no GPU here; leave --share out")
        both = {**published(), **self.options.pairings}
        known = {pair: kept for pair, kept in both.items() if pair[2] in self.gpus}
        return known if self.options.share == "beside" else dict.fromkeys(known, (0.5, 0.5))

    def _foresight(self) -> Foresight | None:
        if self.options.predictor is None:
            return None
        plain = [j for j in self.jobs if not isinstance(j, ForkedJob)]
        if len(plain) < len(self.jobs):
            raise TraceError(f"{self.trace.name}: has forked jobs, whose steps are stated; leave the predictor out")
        earlier = () if self.options.history is None else self.options.history.jobs
        return Foresight(self.options.predictor, plain, self.rates, EPOCH, self.options.seed, earlier)

    def _plain(self, job: TraceJob) -> VirtualJob:
        factor = 1.0 if self.by_node else float(job.workers)
        form = form_of(job, by_node=self.by_node, mix=self.options.mix)
        return VirtualJob(job, self.rates, form, self._terms(job), EPOCH, factor)

    def _terms(self, job: TraceJob) -> Terms:
        """Without node boundaries, starts and restarts cost nothing."""
        options = self.options
        known = Terms(
            movable=job.movable and not drawn(options.unmovable, options.seed, job.job_id),
            speed_error=options.speed_error,
            report_s=options.report_s,
            seed=options.seed,
            slow_down=options.slow_down if job.slow_down is None else job.slow_down,
        )
        if not self.by_node:
            return known
        given = job.restart_s if job.restart_s is not None else options.restart_s
        start_s = options.start_s if job.start_s is None else job.start_s
        return replace(known, restart_s=restart_cost_s(job.model) if given is None else given, start_s=start_s)

    def _measured(self) -> list[str]:
        first, last = self.options.measure or (0, len(self.jobs))
        chosen = [j.job_id for j in self.jobs[first:last]]
        if not chosen:
            raise TraceError(f"{self.trace.name}: --measure {first}:{last} leaves none of its {len(self.jobs)} jobs")
        return chosen

    def _refused(self) -> dict[str, str]:
        """Jobs that fit nowhere even on the empty cluster, or would not end, and why: no policy need see them."""
        obstacles = Obstacles(Arena.of(Snapshot(0.0, self.nodes, ())))
        refused = {}
        for job in self.jobs:
            template = job.template
            sized = (
                replace(template, form=replace(template.form, workers=n, sizes=()), speeds=template.speeds_at(n))
                for n in template.form.gang_sizes
            )
            waits = [obstacles.of(job_of_size) for job_of_size in sized]
            if all(waits):
                refused[job.job_id] = next(w.why for w in waits if w)
            elif why := _too_long(template):
                refused[job.job_id] = why
        return refused


def _too_long(job: Job) -> str:
    """Why a job is too long to be simulated; "" if it is not."""
    steps = job.total_steps or 0.0
    best = max(speed.steps_per_s for n in job.form.gang_sizes for speed in job.speeds_at(n).values())
    if steps <= LONGEST_S * best:
        return ""
    return (
        f"its {steps:g} steps take {lasting(steps / best)} at {best:g} steps per second, where it is fastest; at most "
        f"{lasting(LONGEST_S)} of one job are simulated"
    )

"""What a cell stands for: its cluster, its jobs and how they are simulated."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import optimize, sparse

from benchmarks.regimes.cells import Cell
from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.nodes import cluster_nodes, gpus_by_type
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import Trace, TraceJob, table_csv
from slurm_hadar.simulator.traces.recurring import GANGS
from slurm_hadar.simulator.traces.workloads import gang_workloads
from slurm_hadar.throughput.table import ReferenceTable, reference

__all__ = ["CLUSTERS", "MEDIAN_S", "JobRates", "Scene", "draw", "elastic_terms", "offered_s"]

CLUSTERS = {
    ("12", "equal"): "v100:1x4,p100:1x4,k80:1x4",
    ("12", "unequal"): "v100:1x2,p100:1x2,k80:2x4",
    ("60", "equal"): "v100:5x4,p100:5x4,k80:5x4",
    ("60", "unequal"): "v100:3x4,p100:3x4,k80:9x4",
    ("240", "equal"): "v100:20x4,p100:20x4,k80:20x4",
    ("240", "unequal"): "v100:12x4,p100:12x4,k80:36x4",
}
#: Median of the jobs' run times on their best type, in seconds, and the standard deviation of their logarithm.
MEDIAN_S = {"10min": (600.0, 1.2), "2h": (7200.0, 1.8)}
_ROUND_S = {"10min": 60.0, "2h": 360.0}
_EVENT_ROUND_S, _GAVEL_ROUND_S, _GAVEL_RESTARTS = 30.0, 360.0, 10
_LONGEST = 60.0  # medians: else one job of weeks makes up a cell's total time
_FEWEST, _MOST, _PER_GPU = 80, 400, 3  # jobs
_UNMOVABLE = {"all": 0.0, "half": 0.5, "none": 1.0}
_PREDICTOR = {"stated": None, "predicted": "noisy:3", "unknown": "none"}
_SPEED_ERROR = {"known": 0.0, "wrong": 0.3}
_FIRST_START = 0.5  # of a restart
_LARGEST_GANG = {"12": 4, "60": 8, "240": 8}
_GROWTH = (0.5, 0.95)  # an elastic job's rate goes with its size to the power of something uniform in here
_REPORT_S = 15.0
_NODE = 4  # GPUs, at most


@dataclass(frozen=True)
class Scene:
    """A cell drawn with a seed. ``alone_s``: how long each job takes in the fastest way that there is for it.
    ``restart_s``: the middle cost of a restart."""

    trace: Trace
    options: SimOptions
    alone_s: dict[str, float]
    restart_s: float

    def options_of(self, policy: str) -> SimOptions:
        """Gavel's policies change places every round by design and reckon with no restarts. So their rounds are fixed,
        as long as those of its own simulator and long against restarts: else no job would get on."""
        if not policy.startswith("gavel"):
            return self.options
        round_s = max(_GAVEL_ROUND_S, _GAVEL_RESTARTS * self.restart_s)
        return replace(self.options, round_s=round_s, event_round_s=0.0)

    def fingerprint(self, policy: str) -> str:
        """What tells it from a scene that is drawn otherwise."""
        told = f"{table_csv.write(self.trace)}{self.options_of(policy)}"
        return hashlib.sha256(told.encode()).hexdigest()[:12]


def draw(cell: Cell, seed: int, table: ReferenceTable | None = None) -> Scene:
    """The jobs of a cell. Same seed, same jobs; lengths and gangs are the same in cells that differ in neither."""
    table = table or reference()
    cluster = CLUSTERS[cell["gpus"], cell["shares"]]
    gpus = gpus_by_type(cluster_nodes(cluster))
    options = SimOptions(
        cluster,
        round_s=_ROUND_S[cell["median"]],
        event_round_s=_EVENT_ROUND_S,
        predictor=_PREDICTOR[cell["lengths"]],
        speed_error=_SPEED_ERROR[cell["speeds"]],
        report_s=_REPORT_S,
        seed=seed,
    )
    rates = JobRates(Rates(table, gpus), gpus, _NODE)
    lengths, rest = (random.Random(f"{what} {cell['gpus']} {seed}") for what in ("lengths", "rest"))
    count = min(_MOST, max(_FEWEST, _PER_GPU * sum(gpus.values())))
    jobs = []
    for number, (workers, run_s) in enumerate(_sizes(cell, count, lengths)):
        open_to = [TraceJob(str(number), 0.0, *workload, workers, 1.0) for workload in gang_workloads(table)]
        plain = lengths.choice([job for job in open_to if rates.of(job, workers)])
        jobs.append(replace(plain, steps=run_s * rates.fastest(plain), **_terms(cell, plain, rates, rest)))
    span_s = 0.0 if cell["load"] == "once" else offered_s(jobs, rates) / float(cell["load"])
    arrivals = random.Random(f"arrivals {cell['gpus']} {seed}")
    times = sorted(round(span_s * arrivals.random(), 3) for _ in jobs)
    jobs = [replace(job, arrival_s=at) for job, at in zip(jobs, times, strict=True)]
    alone_s = {job.job_id: job.steps / rates.fastest(job) for job in jobs}
    return Scene(Trace(f"{cell.name}, seed {seed}", "drawn", tuple(jobs)), options, alone_s, _restart_s(cell))


def _restart_s(cell: Cell) -> float:
    return float(cell["restart"].rstrip("%")) / 100 * MEDIAN_S[cell["median"]][0]


def _sizes(cell: Cell, count: int, dice: random.Random) -> list[tuple[int, float]]:
    """Gang and run time of each job. Both are drawn at even steps of their distributions, so that a cell has its share
    of large and of long jobs with every seed."""
    largest = _LARGEST_GANG[cell["gpus"]]
    weights = {n: w for n, w in GANGS.items() if n <= largest}
    total, gangs = sum(weights.values()), []
    for n, weight in weights.items():
        gangs += [n] * round(count * weight / total)
    gangs = (gangs + [1] * count)[:count]
    median_s, sigma = MEDIAN_S[cell["median"]]
    law = NormalDist(math.log(median_s), sigma)
    run_s = [min(_LONGEST * median_s, math.exp(law.inv_cdf((i + 0.5) / count))) for i in range(count)]
    dice.shuffle(gangs)
    dice.shuffle(run_s)
    return list(zip(gangs, run_s, strict=True))


def _terms(cell: Cell, job: TraceJob, rates: JobRates, dice: random.Random) -> dict[str, Any]:
    """What restarts cost, whether it can be moved, and how it grows: fields of a job. Draws the same numbers in every
    cell."""
    restart_s = _restart_s(cell) * 2 ** dice.uniform(-1, 1)
    movable, growth = dice.random() >= _UNMOVABLE[cell["movable"]], dice.uniform(*_GROWTH)
    terms: dict[str, Any] = {"restart_s": restart_s, "start_s": _FIRST_START * restart_s, "movable": movable}
    if cell["gangs"] == "rigid":
        return terms
    own = {t: speed.steps_per_s for t, speed in rates.plain.of(job, job.workers).items()}
    return {**terms, "steps_per_s": own, **elastic_terms(job.workers, own, _LARGEST_GANG[cell["gpus"]], growth)}


def elastic_terms(workers: int, own: Mapping[str, float], largest: int, power: float) -> dict[str, Any]:
    """Twice and four times as many GPUs, up to ``largest``, whose rates grow from ``own`` with the size to a power:
    fields of a job."""
    more = [workers * k for k in (2, 4) if workers * k <= largest]
    scaled = {n: {t: rate * (n / workers) ** power for t, rate in own.items()} for n in more}
    return {"sizes": (workers, *more) if more else (), "scaled": scaled}


@dataclass(frozen=True)
class JobRates:
    """Steps/s of whole jobs on as few nodes of ``per_node`` GPUs as they fit on, on the types that have room for
    them: ``gpus``, by type."""

    plain: Rates
    gpus: Mapping[str, int]
    per_node: int

    def of(self, job: TraceJob, workers: int) -> dict[str, float]:
        nodes = -(-workers // self.per_node)
        return {t: s.on(nodes) for t, s in self.plain.of(job, workers).items() if self.gpus[t] >= workers}

    def fastest(self, job: TraceJob) -> float:
        return max(rate for n in job.sizes or (job.workers,) for rate in self.of(job, n).values())


def offered_s(jobs: Sequence[TraceJob], rates: JobRates) -> float:
    """How long the cluster takes for all jobs at the best mix of GPU types: the least time in which the gangs' work
    fits on each type, if it could be divided at will. Gangs have the size asked for; nothing else counts.

    A linear programme over the seconds that each job has on each type. Raises TraceError if it cannot be solved.
    """
    ways = [(j, t, rate) for j, job in enumerate(jobs) for t, rate in rates.of(job, job.workers).items()]
    gpus, columns = rates.gpus, len(ways)
    row = {t: k for k, t in enumerate(gpus)}
    job_of = np.array([j for j, _, _ in ways])
    share = np.array([rate / jobs[j].steps for j, _, rate in ways])
    work = sparse.coo_matrix((share, (job_of, np.arange(columns))), (len(jobs), columns + 1))
    held = np.array([float(jobs[j].workers) for j, _, _ in ways] + [-float(n) for n in gpus.values()])
    rows = np.array([row[t] for _, t, _ in ways] + list(row.values()))
    place = np.r_[np.arange(columns), np.full(len(gpus), columns)]
    room = sparse.coo_matrix((held, (rows, place)), (len(gpus), columns + 1))
    cost = np.r_[np.zeros(columns), 1.0]
    done = optimize.linprog(
        cost, A_ub=room.tocsr(), b_ub=np.zeros(len(gpus)), A_eq=work.tocsr(), b_eq=np.ones(len(jobs)), method="highs"
    )
    if done.status != 0:
        raise TraceError(f"what the jobs ask of the cluster cannot be computed: {done.message}")
    return float(done.fun)

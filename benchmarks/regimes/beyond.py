"""Regimes beyond the map: clusters, jobs, loads and settings drawn at random from wide ranges."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from benchmarks.regimes.cells import Cell
from benchmarks.regimes.draw import JobRates, Scene, elastic_terms, offered_s
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.throughput.table import reference

__all__ = ["Regime", "cell", "draw", "number_of", "regime"]

_NAME = "beyond"
_MOST_GPUS = 96
_FEWEST, _MOST = 60, 300  # jobs
_PER_GPU = (2, 3, 5)  # jobs
_LONGEST = 60.0  # medians
_FIRST_START = 0.5  # of a restart
#: Weights by gang size: singles; Philly's mix; odd sizes; a few that are very large; large ones as often as small.
_MIXES = ({1: 1}, {1: 80, 2: 14, 4: 26, 8: 30}, {1: 4, 2: 2, 3: 1, 4: 2}, {1: 10, 16: 1}, {1: 1, 4: 1, 8: 1})
_LAWS = ("log-normal", "log-normal", "log-normal", "two lengths", "one length")
_TWO = (0.2, 5.0)  # medians
_WAVES, _SWING = 3, 0.12  # over the time in which jobs arrive
_GROWTH = (0.4, 0.95)


@dataclass(frozen=True)
class Regime:
    """What is drawn first. ``nodes``: how many of each GPU type, with ``per_node`` GPUs each; ``spread`` is the
    logarithm of how far apart the types may be in speed, ``affinity`` the standard deviation of the logarithm by which
    workloads differ in that. ``restart``: in medians of the run time. ``load``: None = all jobs are there at once.
    ``predictor`` and ``speed_error``: as the simulator has them."""

    number: int
    nodes: tuple[int, ...]
    per_node: int
    spread: float
    affinity: float
    gangs: dict[int, int]
    elastic: bool
    jobs: int
    workloads: int
    law: str
    median_s: float
    sigma: float
    restart: float
    unmovable: float
    load: float | None
    arrivals: str
    predictor: str | None
    speed_error: float
    round_s: float
    event_round_s: float
    report_s: float

    @property
    def gpus(self) -> int:
        return sum(self.nodes) * self.per_node

    def words(self) -> str:
        """In a line, for the page."""
        law = f"{self.law}, sigma {self.sigma:.1f}" if self.law == "log-normal" else self.law
        known = {None: "stated", "none": "unknown"}.get(self.predictor, f"predicted ({self.predictor})")
        coming = "all at once" if self.load is None else f"load {self.load:g}, {self.arrivals}"
        return (
            f"{self.gpus} GPUs of {len(self.nodes)} types in nodes of {self.per_node}; {self.jobs} jobs, gangs of "
            f"{', '.join(map(str, self.gangs))}{', elastic' if self.elastic else ''}, "
            f"median {self.median_s / 60:.0f} min ({law}, {known}); {coming}; "
            f"restart {self.restart:.1%} of the median, {self.unmovable:.0%} unmovable; "
            f"speeds off by {self.speed_error:g}; rounds of {self.round_s:g} s"
        )


def regime(number: int) -> Regime:
    """The same number, the same regime."""
    dice = random.Random(f"beyond {number}")
    per_node = dice.choice((1, 2, 4, 8))
    nodes = [dice.choice((1, 2, 3, 4, 6, 10)) for _ in range(dice.choice((1, 2, 2, 3, 3, 4, 5)))]
    while sum(nodes) * per_node > _MOST_GPUS:
        nodes[nodes.index(max(nodes))] -= 1
    gpus, largest = sum(nodes) * per_node, max(nodes) * per_node
    jobs = min(_MOST, max(_FEWEST, dice.choice(_PER_GPU) * gpus))
    return Regime(
        number, tuple(nodes), per_node,
        spread=dice.choice((0.3, 1.5, 2.5)),
        affinity=dice.choice((0.0, 0.2, 0.6)),
        gangs={n: weight for n, weight in dice.choice(_MIXES).items() if n <= largest},
        elastic=dice.random() < 0.25,
        jobs=jobs,
        workloads=dice.choice((3, 10, jobs)),
        law=dice.choice(_LAWS),
        median_s=math.exp(dice.uniform(math.log(60), math.log(4 * 3600))),
        sigma=dice.uniform(0.3, 2.2),
        restart=math.exp(dice.uniform(math.log(0.002), math.log(0.5))),
        unmovable=dice.choice((0.0, 0.0, 0.3, 0.7, 1.0)),
        load=dice.choice((0.5, 0.7, 0.9, 1.1, 1.5, None)),
        arrivals=dice.choice(("Poisson", "Poisson", "bursts", "waves")),
        predictor=dice.choice((None, None, "noisy:2", "noisy:4", "none")),
        speed_error=dice.choice((0.0, 0.0, 0.3, 0.6)),
        round_s=dice.choice((30.0, 60.0, 360.0)),
        event_round_s=dice.choice((2.0, 10.0, 30.0)),
        report_s=dice.choice((0.0, 15.0)),
    )  # fmt: skip


def cell(number: int) -> Cell:
    """What stands for the regime where the map has a cell."""
    return Cell((_NAME, str(number)))


def number_of(cell: Cell) -> int | None:
    """The regime that it stands for, None of a cell of the map."""
    return int(cell.values[1]) if cell.values[0] == _NAME else None


def draw(number: int) -> Scene:
    """The jobs of a regime, and how they are simulated."""
    of, dice = regime(number), random.Random(f"beyond {number}, jobs")
    types = [f"g{i}" for i in range(len(of.nodes))]
    gpus = {t: n * of.per_node for t, n in zip(types, of.nodes, strict=True)}
    rates = JobRates(Rates(reference(), gpus), gpus, of.per_node)
    jobs = _jobs(of, gpus, rates, dice)
    if of.load is not None:
        span_s = offered_s(jobs, rates) / of.load
        times = sorted(round(span_s * share, 3) for share in _shares(of, dice))
        jobs = [replace(job, arrival_s=at) for job, at in zip(jobs, times, strict=True)]
    options = SimOptions(
        ",".join(f"{t}:{n}x{of.per_node}" for t, n in zip(types, of.nodes, strict=True)),
        round_s=of.round_s, event_round_s=of.event_round_s, predictor=of.predictor, speed_error=of.speed_error,
        report_s=of.report_s, seed=number,
    )  # fmt: skip
    alone_s = {job.job_id: job.steps / rates.fastest(job) for job in jobs}
    trace = Trace(f"beyond the map, {number}", "drawn", tuple(jobs))
    return Scene(trace, options, alone_s, of.restart * of.median_s)


def _jobs(of: Regime, gpus: dict[str, int], rates: JobRates, dice: random.Random) -> list[TraceJob]:
    speeds = {t: math.exp(dice.uniform(0, of.spread)) for t in gpus}
    workloads = [{t: v * math.exp(dice.gauss(0, of.affinity)) for t, v in speeds.items()} for _ in range(of.workloads)]
    jobs = []
    for number in range(of.jobs):
        (workers,) = dice.choices([*of.gangs], [*of.gangs.values()])
        kind = dice.randrange(of.workloads)
        own = {t: rate for t, rate in workloads[kind].items() if gpus[t] >= workers}
        restart_s = of.restart * of.median_s * 2 ** dice.uniform(-1, 1)
        job = TraceJob(
            str(number), 0.0, f"workload{kind}", 1, workers, 1.0,
            user=f"user{kind}", name=f"script{kind}", steps_per_s=own, restart_s=restart_s,
            start_s=_FIRST_START * restart_s, movable=dice.random() >= of.unmovable,
            **(elastic_terms(workers, own, max(gpus.values()), dice.uniform(*_GROWTH)) if of.elastic else {}),
        )  # fmt: skip
        jobs.append(replace(job, steps=_length_s(of, dice) * rates.fastest(job)))
    return jobs


def _length_s(of: Regime, dice: random.Random) -> float:
    """How long a job runs in the fastest way that there is for it."""
    if of.law == "log-normal":
        return of.median_s * min(_LONGEST, math.exp(dice.gauss(0, of.sigma)))
    return of.median_s * (dice.choice(_TWO) if of.law == "two lengths" else 1.0)


def _shares(of: Regime, dice: random.Random) -> list[float]:
    """When each job arrives, from 0 to 1."""
    if of.arrivals == "bursts":
        begins = [dice.random() for _ in range(dice.choice((3, 10)))]
        return [dice.choice(begins) for _ in range(of.jobs)]
    even = [dice.random() for _ in range(of.jobs)]
    if of.arrivals == "waves":
        return [max(0.0, at + _SWING * math.sin(2 * math.pi * _WAVES * at)) for at in even]
    return even

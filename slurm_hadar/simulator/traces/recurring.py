"""Traces of jobs that recur: users run the same scripts again and again, as published traces of GPU clusters show."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, number, options, positive, whole
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import MOST_DRAWN, Trace, TraceJob
from slurm_hadar.simulator.traces.workloads import REFERENCE_TYPE, gang_workloads
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["GANGS", "PREFIX", "Recurring", "generate", "read"]

PREFIX = "recurring:"
#: GPUs and how many of 160 jobs ask for them: the Philly mix that SJF-BCO (MobiHoc 2022) scales its jobs from.
GANGS = {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}
_USAGE = "jobs=N, users=N, gpus=N, load=X, comm=0..1, vary=X, seed=N, part=A:B"
_KEYS = frozenset(part.partition("=")[0] for part in _USAGE.split(", "))

# Our definition from here on: shapes that published studies describe, in constants that are ours.
_LARGEST_SERIES = 250  # runs; sizes follow k^-2, which is Zipf's law over ranks
_SCRIPT_S, _SCRIPT_SIGMA = 1200.0, 1.1  # log-normal over scripts, on V100s
_LONG_SHARE, _LONG_S, _LONG_ALPHA = 0.05, 4 * 3600.0, 1.3  # of the scripts; Pareto
_USER_SIGMA = 0.6  # some users' jobs are all longer
_WITHIN = (0.1, 0.7)  # log spread of a script's runs, uniform over scripts
_TREND_SIGMA = 0.4  # how much longer or shorter a script's runs get over its life, in logs
_SHORTEST_S, _LONGEST_S = 60.0, 7 * 86400.0
_DAY_S, _PEAK_S, _SWING, _WEEKEND = 86400.0, 15 * 3600.0, 0.7, 0.5
_STEP_S = 900.0
_MOST_VARY = 10.0


@dataclass(frozen=True, slots=True)
class Recurring:
    """What is drawn.

    jobs: how many. users: how many people. gpus: of the cluster it is meant for. load: GPU-seconds offered, at a
    V100's speed, over GPUs times the time in which jobs arrive. comm: share of scripts whose model loses most of its
    speed when a gang is spread over nodes. vary: how much the runs of a script differ, by chance and by trend; 0 = not
    at all, 1 = as described at :func:`generate`. seed: same seed, same trace. part: of these jobs only those from
    number a to b - 1 by arrival, with their times and ids unchanged: two parts of what is else alike are an earlier
    and a later time of the same users and scripts.
    """

    jobs: int = 2000
    users: int = 40
    gpus: int = 60
    load: float = 0.8
    comm: float = 0.3
    vary: float = 1.0
    seed: int = 0
    part: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The text that :func:`read` takes; what is seldom asked for is left out where it is not."""
        vary = "" if self.vary == 1 else f"vary={self.vary:g},"
        part = f",part={self.part[0]}:{self.part[1]}" if self.part else ""
        common = f"jobs={self.jobs},users={self.users},gpus={self.gpus},load={self.load:g},comm={self.comm:g}"
        return f"{PREFIX}{common},{vary}seed={self.seed}{part}"


@dataclass(frozen=True, slots=True)
class _Script:
    """What one user runs again and again. ``log_s`` is the log of its middle run time on V100s."""

    name: str
    user: str
    model: str
    batch: int | None
    workers: int
    log_s: float
    within: float
    trend: float
    runs: int


def read(text: str, table: ReferenceTable, seed: int = 0, gpus: int | None = None) -> Trace:
    """``recurring:jobs=2000,users=40,gpus=60,load=0.8,comm=0.3,seed=0,part=0:1000`` as a trace; ``seed`` and
    ``gpus`` where the text names none. Raises TraceError naming what is wrong."""
    plain = Recurring()
    given = {"seed": str(seed), "gpus": str(gpus or plain.gpus), **options(text, PREFIX, _KEYS, _USAGE)}
    jobs, users = (
        whole(given.get(key, str(getattr(plain, key))), text, key, most=MOST_DRAWN) for key in ("jobs", "users")
    )
    load = positive(given.get("load", str(plain.load)), text, "load")
    comm, vary = (number(given.get(key, str(getattr(plain, key))), text, key) for key in ("comm", "vary"))
    if not 0 <= comm <= 1:
        raise TraceError(f"{text}: comm must lie from 0 to 1, not {comm:g}")
    if vary < 0:
        raise TraceError(f"{text}: vary must not be negative")
    if vary > _MOST_VARY:
        raise TraceError(f"{text}: vary must be at most {_MOST_VARY:g}")
    seed = whole(given["seed"], text, "seed", 0)
    whole_life = Recurring(jobs, users, whole(given["gpus"], text, "gpus"), load=load, comm=comm, vary=vary, seed=seed)
    chosen = _part(given["part"], whole_life.jobs, text) if "part" in given else None
    return generate(replace(whole_life, part=chosen), table)


def _part(text: str, jobs: int, where: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last) <= jobs):
        raise TraceError(f"{where}: part={text} must be A:B with whole numbers A < B, B at most {jobs}, the jobs")
    return int(first), int(last)


def generate(what: Recurring, table: ReferenceTable) -> Trace:
    """Draw a trace. ``group`` and ``name`` of a job are its script, ``user`` is whose.

    * Numbers of runs per script follow k^-2 up to 250 (popularity by Zipf's law): about two thirds of the jobs are
      runs of scripts with at least five.
    * Run times on V100s: log-normal over scripts, one in twenty Pareto; times a factor of the user, the script's own
      log-normal spread, and a trend over the script's life; 60 s to 7 days.
    * Gangs: :data:`GANGS`, those of at most a quarter of ``gpus``.
    * Arrivals: more at 15 h than at 3 h, half as many at weekends; time zero is a Monday, 0 h. A script's runs lie in
      a part of the time, the longer the more there are.

    Raises TraceError if the table has no rates on a V100, or if the jobs would arrive over hundreds of years.
    """
    rng = random.Random(what.seed)
    scripts = _scripts(what, table, rng)
    rates = Rates(table, (REFERENCE_TYPE,))
    runs = sorted((run for script in scripts for run in _runs(script, rng)), key=lambda run: run[0])
    offered = sum(run_s * job.workers for _, job, run_s in runs)
    span_s = offered / (what.load * what.gpus)
    if span_s > LATEST_S:
        raise TraceError(f"{what.name}: at so low a load the jobs would arrive over {span_s:g} s, beyond {LATEST_S:g}")
    arrivals = _arrivals(len(runs), span_s, rng)
    jobs: list[TraceJob] = []
    for at, (_, job, run_s) in zip(arrivals, runs, strict=True):
        rate = rates.of(job, job.workers)[REFERENCE_TYPE].steps_per_s
        steps = float(max(1, round(run_s * rate)))
        jobs.append(replace(job, job_id=str(len(jobs)), arrival_s=at, steps=steps))
    first, last = what.part or (0, len(jobs))
    drawn = "drawn: recurring scripts, in shapes of published studies"
    return Trace(what.name, "recurring", tuple(jobs[first:last]), (drawn,))


def _runs(script: _Script, rng: random.Random) -> Iterator[tuple[float, TraceJob, float]]:
    """(when, as a share of all arrivals; the job, without id, arrival and steps; its run time) of each run."""
    # where in the trace's life it begins, and what part of it it lasts, as shares of all arrivals
    lasts = min(1.0, 0.1 + 0.9 * rng.random() * math.log1p(script.runs) / math.log1p(_LARGEST_SERIES) * 2)
    begins = rng.random() * (1 - lasts)
    places = sorted(rng.random() for _ in range(script.runs))
    plain = TraceJob(
        "", 0.0, script.model, script.batch, script.workers, 1.0, user=script.user, name=script.name, group=script.name
    )
    for place in places:
        log_s = script.log_s + rng.gauss(0, script.within) + script.trend * (place - 0.5)
        run_s = min(_LONGEST_S, max(_SHORTEST_S, math.exp(log_s)))
        yield begins + lasts * place, plain, run_s


def _scripts(what: Recurring, table: ReferenceTable, rng: random.Random) -> list[_Script]:
    light, heavy = _workloads(table)
    gangs = {n: w for n, w in GANGS.items() if n == 1 or n <= what.gpus / 4}
    # some users do much more than others
    weights = [1 / (rank + 1) ** 0.8 for rank in range(what.users)]
    factors = [rng.gauss(0, _USER_SIGMA) for _ in range(what.users)]
    found = []
    for number_, runs in enumerate(_series(what.jobs, rng)):
        user = rng.choices(range(what.users), weights)[0]
        model, batch = rng.choice(heavy if rng.random() < what.comm else light)
        long = rng.random() < _LONG_SHARE
        usual_s = rng.lognormvariate(math.log(_SCRIPT_S), _SCRIPT_SIGMA)
        seconds = _LONG_S * rng.paretovariate(_LONG_ALPHA) if long else usual_s
        found.append(
            _Script(
                f"script{number_}",
                f"user{user}",
                model,
                batch,
                rng.choices(list(gangs), list(gangs.values()))[0],
                math.log(seconds) + factors[user],
                what.vary * rng.uniform(*_WITHIN),
                what.vary * rng.gauss(0, _TREND_SIGMA),
                runs,
            )
        )
    return found


def _series(jobs: int, rng: random.Random) -> list[int]:
    """Runs per script, summing to ``jobs``. Sizes are drawn at even steps of their distribution, so that its tail is
    there in every trace and not only in some."""
    largest = max(1, min(_LARGEST_SERIES, jobs // 8))
    weights = [k**-2.0 for k in range(1, largest + 1)]
    mean = sum(k * w for k, w in enumerate(weights, 1)) / sum(weights)
    count = max(1, round(jobs / mean))
    shift, at, below = rng.random(), 0, 0.0
    sizes = []
    for i in range(count):
        while at < largest - 1 and (below + weights[at]) / sum(weights) <= (i + shift) / count:
            below += weights[at]
            at += 1
        sizes.append(at + 1)
    rng.shuffle(sizes)
    while sum(sizes) < jobs:
        sizes.append(min(rng.choice(sizes), jobs - sum(sizes)))
    while sum(sizes) > jobs:
        over = sum(sizes) - jobs
        sizes[-1] -= min(over, sizes[-1])
        if not sizes[-1]:
            sizes.pop()
    return sizes


def _workloads(table: ReferenceTable) -> tuple[list[tuple[str, int | None]], list[tuple[str, int | None]]]:
    """Workloads that train in gangs: those that spreading costs little and those that it costs much, split at the
    median."""
    ratios = gang_workloads(table)
    if not ratios:
        raise TraceError(f"{PREFIX} needs a throughput table with rates of gangs on a {REFERENCE_TYPE}")
    middle = statistics.median(ratios.values())
    light = [w for w, ratio in ratios.items() if ratio >= middle]
    return light, [w for w, ratio in ratios.items() if ratio < middle] or light


def _arrivals(count: int, span_s: float, rng: random.Random) -> list[float]:
    """``count`` times within ``span_s``, ascending."""
    steps = max(1, math.ceil(span_s / _STEP_S))
    heights = [_intensity((i + 0.5) * span_s / steps) for i in range(steps)]
    starts = sorted(rng.choices(range(steps), heights, k=count))
    times = sorted((i + rng.random()) * span_s / steps for i in starts)
    return [round(t, 3) for t in times]


def _intensity(at: float) -> float:
    """Relative rate of arrivals."""
    day = 1 + _SWING * math.cos(2 * math.pi * (at - _PEAK_S) / _DAY_S)
    return day * (_WEEKEND if int(at // _DAY_S) % 7 >= 5 else 1.0)

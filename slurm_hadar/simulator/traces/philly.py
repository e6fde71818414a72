"""Traces drawn from the distribution of Gavel's job generator, which follows Microsoft's Philly trace."""

from __future__ import annotations

import random

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, number, options, whole
from slurm_hadar.simulator.traces.model import MOST_DRAWN, Trace, TraceJob
from slurm_hadar.simulator.traces.workloads import REFERENCE_TYPE
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["PREFIX", "generate", "read"]

PREFIX = "philly:"
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


def read(text: str, table: ReferenceTable, seed: int = 0) -> Trace:
    """``philly:jobs=480,seed=0,multi=yes,rate=2.5`` as a trace; ``seed`` where the text names none.

    Raises TraceError naming what is wrong.
    """
    plain = {"jobs": "480", "seed": str(seed), "multi": "yes", "rate": "0"}
    given = {**plain, **options(text, PREFIX, plain, "jobs=N, seed=N, multi=yes|no, rate=JOBS_PER_HOUR")}
    if given["multi"] not in (*_YES, *_NO):
        raise TraceError(f"{text}: multi must be yes or no, not {given['multi']!r}")
    rate = number(given["rate"], text, "rate")
    if rate < 0:
        raise TraceError(f"{text}: rate must not be negative")
    jobs, drawn_by = whole(given["jobs"], text, "jobs", most=MOST_DRAWN), whole(given["seed"], text, "seed", least=0)
    return generate(jobs, drawn_by, given["multi"] in _YES, rate, table)


def generate(jobs: int, seed: int, multi: bool, jobs_per_hour: float, table: ReferenceTable) -> Trace:
    """``jobs`` jobs; with a rate of 0 all arrive at once, else with exponential gaps.

    The distribution is that of Gavel's generator (its scheduler/utils.py): run time on V100s 60 * 10^U(1.5, 3) s with
    probability 0.8, else 60 * 10^U(3, 4) s; 1, 2, 4 or 8 GPUs with 0.70, 0.10, 0.15, 0.05, gangs only of families
    with published multi-GPU rates. The workload is uniform over those of ``table`` that have a rate on a V100. Same
    seed, same trace; the draws are our own, so seeds do not match Gavel's. Raises TraceError if the table has none.
    """
    rng = random.Random(seed)
    single = sorted({(r.model, r.batch or 0) for r in table.rows if _drawable(table, r.model, r.batch, 1)})
    if not single:
        raise TraceError(f"{PREFIX} needs a throughput table with rates on a {REFERENCE_TYPE}")
    drawn, now = [], 0.0
    for number_ in range(jobs):
        workers = _draw_workers(rng) if multi else 1
        run_s = 60 * 10 ** (rng.uniform(3, 4) if rng.random() >= 0.8 else rng.uniform(1.5, 3))
        open_to = [w for w in single if _drawable(table, w[0], w[1] or None, workers)]
        if not open_to:
            raise TraceError(f"{PREFIX} needs a throughput table with rates of {workers} {REFERENCE_TYPE}")
        model, batch = rng.choice(open_to)
        rate = table.steps_per_s(model, batch or None, REFERENCE_TYPE, workers)
        assert rate is not None
        drawn.append(TraceJob(str(number_), now, model, batch or None, workers, float(max(1, round(run_s * rate)))))
        if jobs_per_hour > 0:
            now += rng.expovariate(jobs_per_hour / 3600)
            if now > LATEST_S:
                raise TraceError(f"{PREFIX} rate={jobs_per_hour:g}: {jobs} jobs take over {LATEST_S:g} s to arrive")
    name = f"{PREFIX}jobs={jobs},seed={seed},multi={'yes' if multi else 'no'},rate={jobs_per_hour:g}"
    return Trace(name, "philly", tuple(drawn), ("drawn from the distribution of Gavel's job generator",))


def _drawable(table: ReferenceTable, model: str, batch: int | None, workers: int) -> bool:
    return table.steps_per_s(model, batch, REFERENCE_TYPE, workers) is not None


def _draw_workers(rng: random.Random) -> int:
    draw = rng.random()
    return 1 if draw < 0.7 else 2 if draw < 0.8 else 4 if draw < 0.95 else 8

"""Where it pays that several jobs may have one GPU: average JCT with and without, regime by regime.

    python -m benchmarks.sharing.packing [--seeds 3] [--first 101] [--policy hadar|gavel_las:packed=true] [--json FILE]

Jobs are drawn as by Gavel's generator (Narayanan et al., OSDI 2020, scheduler/utils.py): evenly over the 26 workloads
of its table, with run times on a V100 of 10^U(1.5, 3) minutes for four of five, else 10^U(3, 4). Gangs, where there are
any, have 1, 2 or 4 GPUs for 74, 10 and 16 % of the jobs. A regime differs from the first one in what its name says;
from ``no checkpoints`` on, from that of load 1.2. Of ``small jobs`` a third, or all, need their GPU for a part of their
time, evenly from 0.1 to 0.4, drawn by a seed of their own; that is ours, and no published mix. Each seed is simulated
with whole GPUs and with shared ones on the same jobs; what is printed are the ratios, shared over whole, and what
became of it: GPU-hours with two jobs or more, and with three or more, restarts per job more than with whole GPUs.

The rule was chosen on seeds 1 and 2 of three regimes; figures are told of seeds from 101 on.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from slurm_hadar.policies import registry
from slurm_hadar.simulator.compare import read_contenders
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.run import simulate
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import reference

#: Gavel's generator: exponents of the minutes, and the share of the long ones.
SHORT, LONG, LONG_SHARE = (1.5, 3.0), (3.0, 4.0), 0.2
GANGS = {1: 0.74, 2: 0.10, 4: 0.16}
DUTY = 0.1, 0.4
MEAN_H = 1006 / 60  # of a run time


@dataclass(frozen=True)
class Regime:
    """What is drawn. ``load``: mean run time on a V100 of the jobs that arrive in an hour, over the GPUs; 0 = they come
    at once. ``gangs``: not all jobs have one GPU. ``small``: the share of jobs that need their GPU for a part of their
    time. ``options``: what else differs in the simulation."""

    load: float = 0.8
    gangs: bool = False
    small: float = 0.0
    jobs: int = 100
    cluster: str = "v100:1x4,p100:1x4,k80:1x4"
    options: Mapping[str, Any] | None = None

    def trace(self, seed: int) -> Trace:
        """Same seed, same jobs in all regimes but for their gangs, arrivals and duties."""
        dice, small, at_s = random.Random(seed), random.Random(f"{seed}:duty"), 0.0
        table = reference()
        workloads = sorted({(r.model, r.batch) for r in table.rows if r.gpus == 1}, key=str)
        gap_s = 3600 * MEAN_H / (self.load * 12) if self.load else 0.0
        jobs = []
        for number in range(self.jobs):
            low, high = LONG if dice.random() < LONG_SHARE else SHORT
            run_s = 60 * 10 ** dice.uniform(low, high)
            workers = dice.choices(list(GANGS), list(GANGS.values()))[0] if self.gangs else 1
            model, batch = dice.choice([w for w in workloads if table.steps_per_s(*w, "v100", workers)])
            rate = table.steps_per_s(model, batch, "v100", workers) or 0.0
            duty = small.uniform(*DUTY) if small.random() < self.small else 1.0
            jobs.append(TraceJob(str(number), at_s, model, batch, workers, run_s * rate, nodes=(1, workers), duty=duty))
            at_s += dice.expovariate(1.0) * gap_s
        return Trace(f"seed {seed}", "drawn", tuple(jobs))


_BASE = Regime()
_BUSY = Regime(load=1.2)
REGIMES: Mapping[str, Regime] = {
    "base": _BASE,
    "load 0.5": replace(_BASE, load=0.5),
    "load 1.2": _BUSY,
    "all at once": replace(_BASE, load=0.0),
    "gangs": replace(_BASE, gangs=True),
    "V100 only": replace(_BASE, cluster="v100:3x4", load=1.2),
    "K80 only": replace(_BASE, cluster="k80:3x4", load=0.3),
    "no checkpoints": replace(_BUSY, options={"unmovable": 1.0}),
    "restarts of 30 min": replace(_BUSY, options={"restart_s": 1800.0}),
    "lengths unknown": replace(_BUSY, options={"predictor": "none"}),
    "equal turns": replace(_BUSY, options={"share": "halves"}),
    "equal turns, no checkpoints": replace(_BUSY, options={"share": "halves", "unmovable": 1.0}),
    "by turns": replace(_BUSY, options={"share": "turns"}),
    "by turns, restarts of 30 min": replace(_BUSY, options={"share": "turns", "restart_s": 1800.0}),
    "by turns, no checkpoints": replace(_BUSY, options={"share": "turns", "unmovable": 1.0}),
    "by turns, no checkpoints, slow-down 4": replace(
        _BUSY, options={"share": "turns", "unmovable": 1.0, "slow_down": 4.0}
    ),
    "by turns, no checkpoints, V100 only": replace(
        _BUSY, cluster="v100:3x4", options={"share": "turns", "unmovable": 1.0}
    ),
    "by turns, small jobs": replace(_BUSY, small=1 / 3, options={"share": "turns"}),
    "by turns, small jobs, all at once": replace(_BASE, load=0.0, small=1 / 3, options={"share": "turns"}),
    "by turns, all small jobs, all at once": replace(_BASE, load=0.0, small=1.0, options={"share": "turns"}),
    "by turns, small jobs, no checkpoints": replace(_BUSY, small=1 / 3, options={"share": "turns", "unmovable": 1.0}),
    "slow-down 1.25": replace(_BUSY, options={"slow_down": 1.25}),
    "slow-down 4": replace(_BUSY, options={"slow_down": 4.0}),
}
FIGURES = ("avg_jct_s", "p95_jct_s", "ttd_s")


def ratios(regime: Regime, seed: int, policy: str) -> dict[str, float]:
    """Shared over whole, on the same jobs. Raises click.ClickException if some job was not done."""
    trace, given = regime.trace(seed), {"share": "beside", **(regime.options or {})}
    found = []
    for share in (None, given["share"]):
        options = SimOptions(regime.cluster, **{**given, "share": share}, seed=seed)
        contender = read_contenders(policy)[0]
        result = simulate(trace, registry.get(contender.name, **contender.params), options)
        if result.unfinished:
            raise click.ClickException(f"{trace.name}: {len(result.unfinished)} jobs were not done")
        found.append(result.summary())
    whole, shared = found
    told = {key: shared[key] / whole[key] for key in FIGURES}
    told["shared_gpu_h"] = shared["sharing"]["shared_gpu_s"] / 3600
    told["crowded_gpu_h"] = shared["sharing"].get("crowded_gpu_s", 0.0) / 3600
    return {**told, "more_restarts": shared["restarts_per_job"] - whole["restarts_per_job"]}


@click.command()
@click.option("--seeds", default=3, show_default=True)
@click.option("--first", default=101, show_default=True)
@click.option("--policy", default="hadar", show_default=True)
@click.option("--regime", "names", multiple=True, type=click.Choice(list(REGIMES)), help="Default: all.")
@click.option("--json", "path", type=click.Path(path_type=Path))
def main(seeds: int, first: int, policy: str, names: tuple[str, ...], path: Path | None) -> None:
    """Print a line for each regime: mean (least to greatest) over the seeds."""
    told: dict[str, dict[str, Any]] = {}
    for name in names or REGIMES:
        runs = [ratios(REGIMES[name], seed, policy) for seed in range(first, first + seeds)]
        told[name] = {
            key: {"mean": statistics.fmean(values), "least": min(values), "greatest": max(values)}
            for key in runs[0]
            if (values := [run[key] for run in runs])
        }
        line = "  ".join(f"{k} {v['mean']:.3f} ({v['least']:.3f}-{v['greatest']:.3f})" for k, v in told[name].items())
        click.echo(f"{name}: {line}")
    if path is not None:
        document = {"policy": policy, "first": first, "seeds": seeds, "regimes": told}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

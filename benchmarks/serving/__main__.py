"""Orloj and its peers in simulation, and what decisions and the server cost.

    python -m benchmarks.serving finish   [--seeds N] [--first N]    two applications: finish rates by SLO and load
    python -m benchmarks.serving kinds    [--seeds N] [--first N]    static models, heavy tails, no tags
    python -m benchmarks.serving bound    [--seeds N] [--first N]    what nobody could exceed in the cells of both
    python -m benchmarks.serving plain    [--seeds N] [--first N]    the reconstruction without our additions
    python -m benchmarks.serving drift    [--seeds N] [--first N]    8 hours in which run times swing
    python -m benchmarks.serving decide                              CPU time of decisions at 1,000 queued
    python -m benchmarks.serving server                              what the server itself costs
    python -m benchmarks.serving beside                              a training on the same GPU, by turns
    python -m benchmarks.serving faults   [--seconds N] [--seed N]   a live server, and everything that goes wrong
    python -m benchmarks.serving peers    [--seconds N]              against Ray Serve and LitServe; resumable
    python -m benchmarks.serving page                                docs/results/serving.md from serving.json

All but the last write docs/results/serving.json. Constants were chosen on seeds 0 to 3; reported are 100 and above.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.serving import page as pages
from benchmarks.serving.beside import measure as share_gpu
from benchmarks.serving.bound import most_in_time
from benchmarks.serving.faults import campaign
from benchmarks.serving.knowing import Blind, Oracle
from benchmarks.serving.peers import MIXES, compare
from benchmarks.serving.plain import Plain
from benchmarks.serving.server import measure
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.scheduling.request import Request, Worker
from slurm_hadar.serving.scheduling.scheduler import Scheduler
from slurm_hadar.serving.simulation.run import ServeOptions, play, setup_of, simulate
from slurm_hadar.serving.trace import TracedRequest, drawn, with_slo

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "serving.json"
SLOS = (1.2, 1.5, 2.0, 3.0, 5.0)
LOADS = {
    "0.7 Poisson": "poisson:load=0.7,seconds=150",
    "0.7 bursts": "bursts:load=0.7,seconds=150",
    "1.1 Poisson": "poisson:load=1.1,seconds=100",
}
KINDS = {
    "static, 0.7": "poisson:load=0.7,seconds=100,apps=all/20ms,spread=0.02",
    "static, 1.1": "poisson:load=1.1,seconds=100,apps=all/20ms,spread=0.02",
    "heavy tail, 0.7": "poisson:load=0.7,seconds=100,apps=all/20ms,spread=1.1",
    "heavy tail, 1.1": "poisson:load=1.1,seconds=100,apps=all/20ms,spread=1.1",
}
DRIFT = "poisson:load=0.7,seconds=28800,drift=0.5,period=7200,apps=short/100ms/80+long/1s/20"
NO_TAGS = "no tags, 0.7 bursts"
G = 0.6
OPTIONS = ServeOptions(BatchLaw.linear(G, 16))

_seeds = click.option("--seeds", default=5, show_default=True, type=click.IntRange(min=1))
_first = click.option("--first", default=100, show_default=True)


@click.group(help=__doc__)
def main() -> None:
    pass


def _keep(part: str, found: Any) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[part] = found
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _rates(spec: str, seeds: range, change: Callable[[TracedRequest], TracedRequest] | None = None) -> dict[str, Any]:
    """By scheduler and SLO: finish rates of all seeds."""
    found: dict[str, dict[str, list[float]]] = {str(n): {str(s): [] for s in SLOS} for n in Name}
    for seed in seeds:
        trace = drawn(f"{spec},seed={seed}")
        if change is not None:
            trace = tuple(change(r) for r in trace)
        for slo in SLOS:
            timed = with_slo(trace, f"{slo:g}xP99")
            for name in Name:
                found[str(name)][str(slo)].append(simulate(timed, name, OPTIONS).finish_rate)
    for scheduled, rates in found.items():
        click.echo(f"  {scheduled:10s} " + " ".join(f"{statistics.fmean(r):.3f}" for r in rates.values()))
    return found


def _swept(
    cells: Mapping[str, str], seeds: int, first: int, rate: Callable[[Sequence[TracedRequest]], float]
) -> dict[str, Any]:
    """What ``rate`` makes of the requests of each cell, by SLO, for all seeds; and which these were."""
    rates: dict[str, dict[str, list[float]]] = {}
    for cell, spec in cells.items():
        rates[cell] = {str(slo): [] for slo in SLOS}
        for seed in range(first, first + seeds):
            trace = drawn(f"{spec},seed={seed}")
            for slo in SLOS:
                rates[cell][str(slo)].append(rate(with_slo(trace, f"{slo:g}xP99")))
        click.echo(f"{cell:20s} " + " ".join(f"{statistics.fmean(r):.3f}" for r in rates[cell].values()))
    return {"seeds": seeds, "first": first, "rates": rates}


@main.command()
@_seeds
@_first
def finish(seeds: int, first: int) -> None:
    """Two tagged applications of 10 and 100 ms, 80:20."""
    rates = {}
    for load, spec in LOADS.items():
        click.echo(load)
        rates[load] = _rates(spec, range(first, first + seeds))
    _keep("finish", {"seeds": seeds, "first": first, "rates": rates})


@main.command()
@_seeds
@_first
def kinds(seeds: int, first: int) -> None:
    """One application that is static or has a heavy tail, and the two without their tags."""
    span = range(first, first + seeds)
    rates = {}
    for kind, spec in KINDS.items():
        click.echo(kind)
        rates[kind] = _rates(spec, span)
    click.echo("two applications without tags, 0.7 bursts")
    rates[NO_TAGS] = _rates(LOADS["0.7 bursts"], span, lambda r: replace(r, application="all"))
    _keep("kinds", {"seeds": seeds, "first": first, "rates": rates})


@main.command()
@_seeds
@_first
def bound(seeds: int, first: int) -> None:
    """Upper bounds of the finish rates of both: of the same requests, what who knows them all could not exceed."""
    cells = LOADS | KINDS | {NO_TAGS: LOADS["0.7 bursts"]}
    _keep("bound", _swept(cells, seeds, first, lambda r: most_in_time(r, G, OPTIONS.law.largest) / len(r)))


@main.command()
@_seeds
@_first
def plain(seeds: int, first: int) -> None:
    """The same requests as of ``finish``, by the reconstruction as it stands."""

    def rate(requests: Sequence[TracedRequest]) -> float:
        scheduled = Scheduler({"": Plain(setup_of(requests, OPTIONS))})
        return play(requests, scheduled, OPTIONS.speeds).finish_rate

    _keep("plain", _swept(LOADS, seeds, first, rate))


@main.command()
@click.option("--seeds", default=2, show_default=True, type=click.IntRange(min=1))
@_first
def drift(seeds: int, first: int) -> None:
    """8 hours; against one who is told the true distributions, and one who never learns."""
    found: dict[str, list[float]] = {"learned": [], "oracle": [], "profile of the first minutes": []}
    for seed in range(first, first + seeds):
        trace = with_slo(drawn(f"{DRIFT},seed={seed}"), "1.5xP99")
        found["learned"].append(simulate(trace, Name.ORLOJ, OPTIONS).finish_rate)
        oracle = Oracle()
        found["oracle"].append(simulate(trace, Name.ORLOJ, OPTIONS, oracle.tell).finish_rate)
        blind = Blind()
        found["profile of the first minutes"].append(simulate(trace, Name.ORLOJ, OPTIONS, blind.tell).finish_rate)
        click.echo(", ".join(f"{name} {rates[-1]:.4f}" for name, rates in found.items()))
    _keep("drift", found)


@main.command()
@click.option("--decisions", default=3000, show_default=True)
@click.option("--times", default=5, show_default=True, help="The same decisions once more.")
def decide(decisions: int, times: int) -> None:
    """Three applications of log-normal run times, 1,000 always queued, on one worker; refreshes are not counted. Beside
    it, in the same run, work that is always the same: how much of the spread is the machine's. The same decisions are
    made several times: the least that each took is nearest to what it takes on a machine with nothing else to do."""
    runs = [_decisions(decisions) for _ in range(times)]
    measured = {what: np.array([run[what] for run in runs]) for what in runs[0]}
    least = {f"{what}, least of {times}": us.min(axis=0) for what, us in measured.items()}
    found = {
        f"{what}, {q:g} %": float(np.percentile(us, q))
        for what, us in (measured | least).items()
        for q in (5, 50, 90, 99)
    }
    click.echo("\n".join(f"{name}: {us:.0f} us" for name, us in found.items()))
    _keep("decide", found)


def _decisions(count: int) -> dict[str, list[float]]:
    """Microseconds of CPU of each."""
    dice = random.Random("decide")
    mean_s = {"a": 0.01, "b": 0.03, "c": 0.1}
    profile = {a: [m * dice.lognormvariate(0, 0.5) for _ in range(300)] for a, m in mean_s.items()}
    scheduled = scheduler(Name.ORLOJ, {"": Setup(BatchLaw.linear(0.6, 16), 60.0, profile)})
    now_s, number, worker, took, arrivals, same = 0.0, 0, Worker("w"), [], [], []
    heap = [dice.random() for _ in range(1000)]
    heapify(heap)
    for _ in range(count):
        scheduled.expire(now_s)
        scheduled.refresh(now_s)
        while scheduled.queued < 1000:
            number += 1
            request = Request(number, dice.choice(list(mean_s)), now_s, now_s + dice.uniform(0.2, 60.0))
            began = time.thread_time_ns()
            scheduled.arrive(request, now_s)
            arrivals.append((time.thread_time_ns() - began) / 1e3)
        began = time.thread_time_ns()
        batch = scheduled.choose(now_s, [worker])
        took.append((time.thread_time_ns() - began) / 1e3)
        began = time.thread_time_ns()
        popped = [heappop(heap) for _ in range(40)]
        for entry in popped:
            heappush(heap, entry)
        same.append((time.thread_time_ns() - began) / 1e3)
        assert batch is not None
        now_s += batch.expected_s
        scheduled.ended(batch, batch.expected_s, now_s)
    return {"decision": took, "arrival": arrivals, "40 pops and pushes of a heap of 1,000": same}


@main.command()
@click.option("--seconds", default=5.0, show_default=True)
def server(seconds: float) -> None:
    """A model that does nothing, and the same web server without ours."""
    found = measure(seconds)
    for name, figures in found.items():
        click.echo(f"{name}: " + ", ".join(f"{what} {figure:.3g}" for what, figure in figures.items()))
    _keep("server", found)


@main.command()
@click.option("--seconds", default=40.0, show_default=True)
@click.option("--gpu", is_flag=True, help="On the first real GPU.")
def beside(seconds: float, gpu: bool) -> None:
    """A server and a training on one GPU, by turns: a pretended one, or a real one."""
    with tempfile.TemporaryDirectory() as folder:
        found = share_gpu(seconds, Path(folder), gpu)
    click.echo(", ".join(f"{what} {figure:.3f}" for what, figure in found.items()))
    _keep("beside on a GPU" if gpu else "beside", found)


@main.command()
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
def faults(seconds: float, seed: int) -> None:
    """Workers killed and stopped, clients that vanish or dawdle, floods, what is no request; 1 on a finding."""
    found = campaign(seconds, seed)
    click.echo(json.dumps(found, indent=1))
    _keep("faults", found)
    raise SystemExit(1 if found["wrong"] else 0)


@main.command()
@click.option("--seconds", default=20.0, show_default=True, help="Of load, in each cell.")
@click.option(
    "--model", "models", multiple=True, type=click.Choice(list(MIXES)), default=list(MIXES), show_default=True
)
@click.option("--afresh", is_flag=True, help="Forget what an earlier run has measured of these models.")
def peers(seconds: float, models: tuple[str, ...], afresh: bool) -> None:
    """The same models and load, in Ray Serve and LitServe, tuned by a sweep; needs the extra [bench]."""
    kept = json.loads(RESULTS.read_text()).get("peers", {}) if RESULTS.exists() else {}
    for model in models:
        if afresh:
            kept[model] = {}
        found = compare(model, seconds, kept.setdefault(model, {}), lambda _: _keep("peers", kept))
        click.echo(json.dumps(found["ratios"], indent=1))


@main.command()
def page() -> None:
    """docs/results/serving.md and its pictures."""
    pages.write(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()

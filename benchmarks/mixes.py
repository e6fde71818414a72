"""``hadare`` against policies that do not fork, simulated: on mixes of a few jobs, and on random regimes.

    python -m benchmarks.mixes [--draws 5]     # mixes of a few jobs on five unequal nodes
    python -m benchmarks.mixes --regimes 40    # random regimes far from the map, by `python -m benchmarks.regimes`

Each mix has N single-GPU jobs of the five workloads of the shipped throughput table, of 0.25 to 4 hours on a V100, all
there at once; the restarts cost what the simulator takes for the model. Hadar's policies have rounds of 360 s that the
end of a job brings forward (30 s); Gavel's have fixed rounds, as in its own simulator. Prints tables in Markdown.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import fmean, geometric_mean
from typing import Any

import click

from benchmarks.regimes import beyond
from benchmarks.regimes.draw import Scene
from slurm_hadar.model import Fork
from slurm_hadar.policies import get
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import reference

CLUSTER = "v100:2x1,p100:2x1,k80:1x1"
SIZES = (1, 3, 4, 5, 8, 10, 12)
WORKLOADS = (("resnet18", 128), ("resnet50", 64), ("transformer", 64), ("lm", 20), ("recommendation", 2048))
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gavel_las", {}),
    ("gavel_ttd", {}),
    ("hadar", {}),
    ("hadare", {}),
    ("hadar", {"objective": "ttd"}),
    ("hadare", {"objective": "ttd"}),
)
FIGURES = ("avg_jct_s", "p95_jct_s", "ttd_s")
_FORKED = (0.3, 1.0)  # of the jobs that can be moved: users who fork are few, or all
_MOST_JOBS = 160  # regimes of more take minutes


def mix(count: int, seed: int) -> Trace:
    """``count`` jobs at time 0."""
    dice, table, jobs = random.Random(f"{count} {seed}"), reference(), []
    for number in range(count):
        model, batch = dice.choice(WORKLOADS)
        rate = table.steps_per_s(model, batch, "v100")
        assert rate is not None
        jobs.append(TraceJob(str(number + 1), 0.0, model, batch, 1, rate * 3600 * 0.25 * 16 ** dice.random()))
    return Trace(f"mix of {count}", "drawn", tuple(jobs))


def figures(count: int, draws: int) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """Summaries by policy and draw, and the lower bounds on the TTD by draw, with forks."""
    found: list[list[dict[str, Any]]] = [[] for _ in POLICIES]
    bounds = []
    for seed in range(draws):
        trace = mix(count, seed)
        for column, (name, params) in enumerate(POLICIES):
            found[column].append(_played(trace, name, params, Fork.AUTO))
        bounds.append(bounds_of(trace, _options("hadare", Fork.AUTO), jct=False)["ttd_s"])
    return found, bounds


def _options(policy: str, fork: Fork) -> SimOptions:
    return SimOptions(CLUSTER, event_round_s=0.0 if policy.startswith("gavel") else 30.0, fork=fork)


def _played(trace: Trace, policy: str, params: dict[str, Any], fork: Fork) -> dict[str, Any]:
    return simulate(trace, get(policy, **params), _options(policy, fork)).summary()


def forked(scene: Scene, share: float) -> Trace:
    """The jobs of the scene, that share of those that can be moved with ``fork=auto``."""
    dice = random.Random(f"forked {scene.trace.name}")
    able = ((job, job.movable and dice.random() < share) for job in scene.trace.jobs)
    return replace(scene.trace, jobs=tuple(replace(j, fork=Fork.AUTO) if a else j for j, a in able))


def in_regimes(count: int, workers: int) -> Iterator[tuple[int, dict[float, dict[str, float]]]]:
    """Number of the regime, and by the share of forked jobs what ``hadare`` gives over ``hadar`` without forks. Left
    out are regimes with elastic jobs, and with more jobs than :data:`_MOST_JOBS`. Lengths are stated, as forks ask
    for."""
    drawn = ((number, beyond.regime(number)) for number in range(count))
    numbers = [number for number, of in drawn if not of.elastic and of.jobs <= _MOST_JOBS]
    with ProcessPoolExecutor(workers) as pool:
        yield from zip(numbers, pool.map(_in_regime, numbers), strict=True)


def _in_regime(number: int) -> dict[float, dict[str, float]]:
    scene, found = beyond.draw(number), {}
    options = replace(scene.options_of("hadare"), predictor=None)
    alone = simulate(scene.trace, get("hadar"), options).summary()
    for share in _FORKED:
        copied = simulate(forked(scene, share), get("hadare"), options).summary()
        found[share] = {key: copied[key] / alone[key] for key in FIGURES}
    return found


@click.command()
@click.option("--draws", default=5, show_default=True, help="Mixes of each size.")
@click.option("--regimes", type=click.IntRange(min=1), metavar="N", help="The first N random regimes, not mixes.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Processes, for regimes.")
def main(draws: int, regimes: int | None, workers: int) -> None:
    """Print what copies give: on mixes of a few jobs, or on random regimes."""
    if regimes:
        _print_regimes(regimes, workers)
    else:
        _print_mixes(draws)
        _print_modes(draws)


def _print_mixes(draws: int) -> None:
    """TTD in hours and the share of nodes that are busy, means over the draws; ratios of ``hadare`` to ``hadar``."""
    labels = [":".join([name, *(f"{k}={v}" for k, v in params.items())]) for name, params in POLICIES]
    print(
        "| jobs | "
        + " | ".join(f"`{label}`" for label in labels)
        + " | bound | worst ratio, default | worst, ttd | JCT |"
    )
    print("| --- " * (len(labels) + 5) + "|")
    for count in SIZES:
        found, bounds = figures(count, draws)
        cells = [f"{fmean(s['ttd_s'] for s in c) / 3600:.2f} ({100 * fmean(s['cru'] for s in c):.0f} %)" for c in found]
        ratios = [
            max(e["ttd_s"] / h["ttd_s"] for h, e in zip(found[plain], found[plain + 1], strict=True))
            for plain in (2, 4)
        ]
        worst = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        jct = geometric_mean(e["avg_jct_s"] / h["avg_jct_s"] for h, e in zip(found[2], found[3], strict=True))
        last = f"{fmean(bounds) / 3600:.2f} | {worst} | {jct:.2f}"
        print(f"| {count} | " + " | ".join(cells) + f" | {last} |", flush=True)


def _print_modes(draws: int) -> None:
    """What each way to fork gives over ``idle``."""
    print("\n| jobs | mode | average JCT over `idle` | TTD over `idle` |\n| --- | --- | --- | --- |")
    for count in (n for n in SIZES if n >= 5):
        played = {
            mode: [_played(mix(count, seed), "hadare", {}, mode) for seed in range(draws)]
            for mode in (Fork.IDLE, Fork.AUTO, Fork.SPREAD)
        }
        for mode in (Fork.AUTO, Fork.SPREAD):
            pairs = list(zip(played[mode], played[Fork.IDLE], strict=True))
            jct, ttd = (geometric_mean(m[key] / i[key] for m, i in pairs) for key in ("avg_jct_s", "ttd_s"))
            print(f"| {count} | `{mode}` | {jct:.3f} | {ttd:.3f} |", flush=True)


def _print_regimes(count: int, workers: int) -> None:
    """``hadare`` over ``hadar`` without forks: geometric means, and the worst regime of each figure."""
    found: dict[float, dict[int, dict[str, float]]] = {share: {} for share in _FORKED}
    with click.progressbar(length=count, label="regimes") as bar:
        for number, by_share in in_regimes(count, workers):
            for share, ratios in by_share.items():
                found[share][number] = ratios
            bar.update(number - bar.pos)
    print("| forked, of movable jobs | regimes | average JCT | 95 % JCT | TTD |\n| --- | --- | --- | --- | --- |")
    for share, by_number in found.items():
        cells = []
        for key in FIGURES:
            worst = max(by_number, key=lambda n: by_number[n][key])
            mean = geometric_mean(ratios[key] for ratios in by_number.values())
            cells.append(f"{mean:.3f} (worst {by_number[worst][key]:.2f}, {worst})")
        print(f"| {share:.0%} | {len(by_number)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

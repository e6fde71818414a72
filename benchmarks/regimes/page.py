"""The map as a table on the terminal, as a page and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.regimes.cells import Cell, chosen
from benchmarks.regimes.verdict import METRICS, Duel, Map, Score, by_value, geometric

__all__ = ["cpu_minutes", "duels_of", "dumped", "goals", "missing", "policies", "read", "summary", "table", "write"]

_KEPT = ("cell", "seed", "policy", "avg_jct_s", "p50_jct_s", "p95_jct_s", "ttd_s", "restarts_per_job", "worst_stretch",
         "gru", "decide_p50_ms", "decide_max_ms", "cpu_s", "unfinished", "too_slow_s", "failed")  # fmt: skip
_NO_VARIANTS = "without its own variants"
#: By metric and cell.
Duels = Mapping[str, Mapping[Cell, Duel]]


def summary(found: Map, policy: str) -> str:
    """Cell by cell, worst first, and what it comes to; for the terminal."""
    lines = [f"{'cell':64} {'avg':>6} {'p95':>6} {'TTD':>6}  best other"]
    duels = duels_of(found, policy)
    for duel in sorted(duels["avg_jct_s"].values(), key=lambda d: d.ratio):
        figures = " ".join(f"{duels[metric][duel.cell].ratio:6.3f}" for metric in METRICS)
        lines.append(f"{duel.cell.name:64} {figures}  {duel.rival}")
    lines += ["", *(_told(name, policy, duels[metric].values()) for metric, name in METRICS.items())]
    lines += [
        _told(f"{name}, {_NO_VARIANTS}", policy, _strangers(found, policy, metric)) for metric, name in METRICS.items()
    ]
    for axis, value, ratios in by_value(list(duels["avg_jct_s"].values())):
        lines.append(f"  {axis:9} {value:10} {geometric(ratios):.3f} (worst {min(ratios):.3f}, {len(ratios)} cells)")
    unjudged = found.unjudged(policy)
    lines += [f"{policy} is not judged in {len(unjudged)} cells, such as {unjudged[0].name}"] if unjudged else []
    return "\n".join(lines)


def duels_of(found: Map, policy: str) -> Duels:
    """Of a policy against the best of all others."""
    return {metric: {d.cell: d for d in found.duels(policy, metric)} for metric in METRICS}


def _strangers(found: Map, policy: str, metric: str) -> Collection[Duel]:
    """Against the best of the other policies, variants of this one left out."""
    family = policy.partition(":")[0].partition("@")[0]
    return found.duels(policy, metric, lambda p: not p.startswith(family))


def _told(name: str, policy: str, duels: Collection[Duel]) -> str:
    score = Score.of(duels)
    if score.worst is None:
        return f"{name}: nothing to compare {policy} with"
    return (
        f"{name}: best other over {policy}: geometric mean {score.mean:.3f}, worst cell {score.worst.ratio:.3f} "
        f"({score.worst.cell.name}, {score.worst.rival}), ahead in {score.ahead} of {score.count}"
    )


def read(path: Path) -> tuple[str, Map, str]:
    """Who was judged, the runs, and the remark, that :func:`write` left."""
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = [dict(zip(content["columns"], run, strict=True)) for run in content["runs"]]
    found = Map({k: v for k, v in row.items() if v is not None} for row in rows)
    return content["judged"], found, content.get("remark", "")


def write(found: Map, policy: str, out: Path, remark: str = "") -> None:
    """``regimes.md``, ``regimes.png`` and ``regimes.json`` in ``out``. ``remark``: what readers must know of the runs
    first, such as that they were made before a change of the simulator."""
    (out / "regimes.json").write_text(dumped(found, policy, remark), encoding="utf-8")
    (out / "regimes.md").write_text(_page(found, policy, remark), encoding="utf-8")
    _picture(found, out / "regimes.png")


def dumped(found: Map, policy: str, remark: str) -> str:
    """As JSON, for :func:`read`."""
    runs = [json.dumps([row.get(key) for key in _KEPT], separators=(",", ":")) for row in found.rows]
    remarked = f'"remark": {json.dumps(remark)},\n' if remark else ""
    begin = f'{{"judged": {json.dumps(policy)},\n{remarked}"columns": {json.dumps(list(_KEPT))},\n"runs": [\n'
    return begin + ",\n".join(runs) + "\n]}\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def _page(found: Map, policy: str, remark: str) -> str:
    duels = duels_of(found, policy)
    few, many = found.fewest_and_most_seeds
    seeds = f"{few} to {many} seeds each" if few < many else f"{many} seeds each" if many > 1 else "one seed each"
    parts = [
        _INTRO.format(cells=_count(found), seeds=seeds, policies=len(found.policies), policy=policy,
                      runs=len(found.rows), minutes=cpu_minutes(found)),
        *([f"**{remark}**"] if remark else []),
        goals(found, policy, duels),
        "![Average JCT of every policy over the best one in the cell](regimes.png)",
        "## Where it wins and loses\n\n" + _axes(list(duels["avg_jct_s"].values())),
        "## Cells\n\n" + _cells(found, policy, duels),
        "## Policies\n\n" + policies(found),
        *missing(found),
        _METHOD,
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _count(found: Map) -> str:
    """How many cells, and how many of the map's own are not among them."""
    whole, count = {*chosen()}, f"{len(found.cells)} cells"
    absent = whole - {*found.cells}
    return f"{count} ({len(absent)} of the map's {len(whole)} were not run)" if absent else count


def cpu_minutes(found: Map) -> str:
    """Of all its runs."""
    return f"{sum(row.get('cpu_s', row.get('too_slow_s', 0.0)) for row in found.rows) / 60:.0f}"


def goals(found: Map, policy: str, duels: Duels) -> str:
    """What a policy's ratios come to, as a table."""
    rows = []
    strangers = {f"{name}, {_NO_VARIANTS}": _strangers(found, policy, metric) for metric, name in METRICS.items()}
    judged = {name: duels[metric].values() for metric, name in METRICS.items()}
    for name, each in {**strangers, **judged}.items():
        score = Score.of(each)
        if score.worst is not None:
            worst = f"{_ratio(score.worst)} (`{score.worst.cell.name}`, `{score.worst.rival}`)"
            rows.append([name, f"{score.mean:.3f}", worst, f"{score.ahead} of {score.count}"])
    header = [f"best other over `{policy}`", "geometric mean", "worst cell", "ahead in"]
    return table(header, rows)


def _ratio(duel: Duel) -> str:
    return f"{duel.ratio:.3f}" if math.isnan(duel.error) else f"{duel.ratio:.3f} ± {duel.error:.3f}"


def missing(found: Map) -> list[str]:
    """Which policies were not run in some cells, and which were and are not judged there."""
    lines = []
    for policy in found.policies:
        absent, unjudged = found.absent(policy), found.unjudged(policy)
        gpus = sorted({cell["gpus"] for cell in absent}, key=int)
        if absent:
            lines.append(f"* `{policy}` was not run in {len(absent)} cells ({' and '.join(gpus)} GPUs).")
        if failed := [cell for cell in unjudged if cell not in absent]:
            some = ", ".join(f"`{cell.name}`" for cell in failed)
            lines.append(f"* `{policy}` left jobs undone, failed or took too long in {some}.")
    return ["\n".join(lines)] if lines else []


def _axes(duels: Sequence[Duel]) -> str:
    rows = [
        [axis, value, f"{geometric(ratios):.3f}", f"{min(ratios):.3f}", str(len(ratios))]
        for axis, value, ratios in by_value(duels)
    ]
    return table(["axis", "value", "geometric mean", "worst", "cells"], rows)


def _cells(found: Map, policy: str, duels: Duels) -> str:
    rows = []
    for duel in duels["avg_jct_s"].values():
        cell = duel.cell
        restarts, stretch, slowest = (
            found.mean(cell, policy, key) or 0.0 for key in ("restarts_per_job", "worst_stretch", "decide_max_ms")
        )
        ratios = [_ratio(duels[metric][cell]) for metric in METRICS]
        bound = found.bound(cell)
        over = f"{min(duel.ours, duel.theirs) / bound:.2f}" if bound else "-"
        jct_s = [f"{duel.ours:.0f}", f"{duel.theirs:.0f} `{duel.rival}`", over]
        rows.append([f"`{cell.name}`", *jct_s, *ratios, f"{restarts:.1f}", f"{stretch:.0f}", f"{slowest:.0f}"])
    header = ["cell", "average JCT, s", "best other", "best over bound", "ratio", "95 %", "TTD", "restarts/job",
              "worst stretch", "longest decision, ms"]  # fmt: skip
    return table(header, rows)


def policies(found: Map) -> str:
    """Each policy over the best of all, as a table."""
    best = {cell: found.best(cell, found.policies, "avg_jct_s") for cell in found.cells}
    rows = []
    for policy in found.policies:
        judged = [(c, v) for c in found.cells if (v := found.mean(c, policy, "avg_jct_s")) is not None]
        if not judged:
            rows.append([f"`{policy}`", "-", "-", "0", "0", "-", "-"])
            continue
        over = [value / known[1] for cell, value in judged if (known := best[cell])]
        first = sum(1 for cell, _ in judged if (known := best[cell]) and known[0] == policy)
        middle, longest = (
            [found.mean(cell, policy, key) or 0.0 for cell, _ in judged] for key in ("decide_p50_ms", "decide_max_ms")
        )
        worst = f"{max(over):.2f}"
        rows.append(
            [f"`{policy}`", f"{geometric(over):.3f}", worst, str(first), str(len(judged)), f"{fmean(middle):.1f}",
             f"{max(longest):.0f}"]
        )  # fmt: skip
    rows.sort(key=lambda row: row[1])
    return table(
        ["policy", "average JCT over the best", "worst", "best in", "judged in", "decision, ms", "longest"], rows
    )


def _picture(found: Map, path: Path) -> None:
    """Policies by cells; the colour is the average JCT over the best one in the cell."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    best = {cell: found.best(cell, found.policies, "avg_jct_s") for cell in found.cells}

    def over(cell: Cell, policy: str) -> float:
        known, value = best[cell], found.mean(cell, policy, "avg_jct_s")
        return value / known[1] if known is not None and value is not None else math.nan

    shares = {p: [over(c, p) for c in found.cells] for p in found.policies}
    order = sorted(shares, key=lambda p: geometric(x for x in shares[p] if not math.isnan(x)))
    grid = np.array([shares[p] for p in order])
    figure = Figure(figsize=(3.2 + 0.42 * len(found.cells), 4.2 + 0.34 * len(order)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(grid, norm=LogNorm(1.0, 3.0), cmap="viridis_r", aspect="auto")
    for row, column in np.argwhere(~np.isnan(grid)):
        value = grid[row, column]
        colour = "white" if value > 1.6 else "black"
        axes.text(column, row, f"{value:.2f}" if value < 9.95 else f"{value:.0f}", ha="center", va="center", fontsize=6,
                  color=colour)  # fmt: skip
    axes.set_yticks(range(len(order)), order, fontsize=8)
    axes.set_xticks(range(len(found.cells)), [c.name for c in found.cells], rotation=90, fontsize=7)
    bar = figure.colorbar(image, ax=axes, ticks=[1, 1.25, 1.5, 2, 2.5, 3], format="%g", extend="max", pad=0.01)
    bar.set_label("average JCT over the best in the cell")
    figure.savefig(path, dpi=110)


_INTRO = """
# A map of regimes

{policies} policies on clusters, loads and jobs of many kinds, all with the same knowledge: {cells}, {seeds}.
A cell is a value of each of nine axes; in the whole map every pair of values of two axes stands in three cells or more.
Ratios are the best other policy's figure over that of `{policy}`, means over the seeds: above 1, `{policy}` is better.
Its own variants are among the others if nothing else is said. After ± is the standard error over the draws of the jobs
(jackknife): a cell that is behind by less than twice that may be behind by the luck of its draws.
Random regimes, far from these, are [beyond the map](beyond.md).

```
python -m benchmarks.regimes --page
```

This makes {runs} runs, {minutes} minutes of CPU, by default in two processes; after a change of one policy only that
one is run.
"""

_METHOD = """
## What is in a cell

* **gpus, shares**: v100, p100 and k80 in nodes of 4 (2 where there are fewer), 12, 60 or 240 GPUs in all; thirds
  (`equal`), or a fifth or a sixth each of v100 and p100, and k80 the rest (`unequal`).
* **load**: the least time in which the gangs' work fits on the GPU types if it could be divided at will, a linear
  programme (so: at the best mix), over the time in which jobs arrive. Arrivals are Poisson for a given number of jobs.
  `once`: all at time 0.
* **restart**: 0.5, 5 or 20 % of the median run time, times from 1/2 to 2 by job; a first start costs half as much.
* **movable**: all jobs, half of them or none; the others keep their places once they run.
* **gangs**: 1, 2, 4, 8 GPUs as 80:14:26:30 (Philly's mix; up to 4 on 12 GPUs), with published rates on each type and on
  several nodes; `elastic`: those, two and four times as many (no more than the largest), with rates that grow with the
  size to a power from 0.5 to 0.95 by job.
* **lengths**: stated; predicted, the truth times or over up to 3; or unknown.
* **median**: of the jobs' run times on their best type: 10 minutes with sigma 1.2, or 2 hours with sigma 1.8,
  log-normal, at most 60 medians, drawn at even steps of the distribution. Three jobs per GPU, 80 to 400.
* **speeds**: known, or estimates whose logarithm is off by 0.3 (standard deviation) until the job has run on the type.

Rounds are 60 s (360 s with the median of 2 hours), brought forward by ends and first reports as by default in the
live controller, but not closer than 30 s to the last. Gavel's policies change places every round and reckon with no
restarts: their rounds are fixed, 360 s as in its own simulator, or ten restarts if that is more. Policy `slurm` is
asked at every arrival and end. A policy that leaves jobs undone in a cell is not judged there. Worst stretch is
completion time over the run time alone, in the fastest way that there is for the job. The
[bound](../simulator.md#lower-bounds) is that on the average JCT of any schedule that knows everything beforehand, with
restarts left out and all jobs movable. Decisions are CPU time on a busy machine. Raw results:
[regimes.json](regimes.json).
"""

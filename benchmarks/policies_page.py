"""The page and the picture of :mod:`benchmarks.policies`, made from what its runs left behind.

Every figure and every verdict is computed; only what explains them is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import HOUR, Peer, read_peers
from slurm_hadar.pages.trade_off import Reached, trade_off

DATA = Path(__file__).parent / "data"
COMMAND = "python -m benchmarks.policies TRACES --throughputs TABLE --section"
DEFAULT = 0.25
BOUNDS = "lower bounds"
SHOWN = (0.0, 0.25, 0.5, 0.75, 1.0)

#: The peer that a trace is held against, and Gavel's policies in the tables of means, by gangs.
RIVAL = {"multi": "max_min_fairness_perf", "single": "allox"}
PEERS = ("max_min_fairness_perf", "finish_time_fairness_perf", "min_total_duration_perf", "max_sum_throughput_perf",
         "allox", "max_min_fairness", "fifo_perf", "fifo_fixed")  # fmt: skip


@dataclass(frozen=True)
class Book:
    """All results: ours by section, and Gavel's by trace and label."""

    results: Mapping[str, Any]
    peers: Mapping[tuple[str, str], Peer]

    def run(self, section: str, trace: str, policy: str, **params: Any) -> dict[str, Any]:
        """The run with just these parameters. Raises KeyError if there is none."""
        if policy == "hadar" and section == "static":
            params = {"frontier": DEFAULT, **params}
        for row in self.results[section]["runs"]:
            if (row["trace"], row["policy"], row["params"]) == (trace, policy, params):
                found: dict[str, Any] = row
                return found
        raise KeyError(f"policies.json: no run of {policy} {params} on {trace} in section {section}")

    def bound(self, section: str, trace: str) -> dict[str, Any]:
        return next(b for b in self.results[section]["bounds"] if b["trace"] == trace)

    def traces(self, section: str, gangs: str = "") -> list[str]:
        return [t for t in dict.fromkeys(r["trace"] for r in self.results[section]["runs"]) if gangs in t]

    def peer(self, trace: str, label: str) -> Peer:
        return self.peers[f"{trace}.trace", label]


def write(results: Mapping[str, Any], out: Path) -> None:
    """``policies.md`` and ``frontier.png`` in ``out``, with the sections that there are results of."""
    book = Book(results, read_peers(DATA)[1])
    parts = [INTRO]
    for section, part in (
        ("static", static_part),
        ("poisson", poisson_part),
        ("nodes", nodes_part),
        ("decisions", decisions_part),
    ):
        if section in results:
            parts.append(part(book))
    (out / "policies.md").write_text(_joined(parts) + "\n", encoding="utf-8")
    if "static" in results:
        (out / "frontier.png").write_bytes(picture(book))


def _table(header: str, rows: Iterable[Sequence[str]]) -> str:
    line = f"|{' --- |' * header.count('|')} --- |"
    return "\n".join([f"| {header} |", line, *(f"| {' | '.join(row)} |" for row in rows)])


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts)


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept)


def verdict(value: float, least: float) -> str:
    return "reached" if value >= least else f"missed by {(least - value) / least:.1%}"


def _reached(book: Book, gangs: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """Name, and average JCT and TTD on each trace, of every policy in the tables of model ``gavel``."""
    traces = book.traces("static", gangs)
    found = []
    for frontier in SHOWN:
        runs = [book.run("static", t, "hadar", frontier=frontier) for t in traces]
        note = {DEFAULT: " (default)", 1.0: " = `objective=ttd`"}.get(frontier, "")
        found.append((f"`hadar:frontier={frontier:g}`{note}", [(r["avg_jct_s"], r["ttd_s"]) for r in runs]))
    for label in PEERS:
        if (f"{traces[0]}.trace", label) in book.peers:
            theirs = [book.peer(t, label) for t in traces]
            found.append((f"Gavel's `{label}`", [(p.avg_jct_s, p.ttd_s) for p in theirs]))
    bounds = [book.bound("static", t) for t in traces]
    found.append((BOUNDS, [(b["avg_jct_s"], b["ttd_s"]) for b in bounds]))
    return found


def _means(book: Book, gangs: str) -> dict[str, tuple[float, float]]:
    return {name: (_mean(j for j, _ in pairs), _mean(t for _, t in pairs)) for name, pairs in _reached(book, gangs)}


def _gains(jct_s: float, ttd_s: float, others: Sequence[tuple[float, float]]) -> list[str]:
    """Hours, then for each of ``others`` how many times as long it took."""
    cells = [f"{jct_s / HOUR:.2f}", f"{ttd_s / HOUR:.1f}"]
    for other_jct_s, other_ttd_s in others:
        cells += [f"{other_jct_s / jct_s:.2f}", f"{other_ttd_s / ttd_s:.2f}"]
    return cells


def static_part(book: Book) -> str:
    parts = [STATIC, _goals(book), STATIC_WHY]
    for gangs, title in (("multi", "Gangs of 1, 2, 4 and 8"), ("single", "Single GPUs")):
        rival = RIVAL[gangs]
        means = _means(book, gangs)
        others = [means[f"Gavel's `{rival}`"], means["Gavel's `fifo_fixed`"]]
        bound = means[BOUNDS]
        rows = [
            [name, *_gains(jct_s, ttd_s, others), f"{jct_s / bound[0]:.3f}", f"{ttd_s / bound[1]:.3f}"]
            for name, (jct_s, ttd_s) in means.items()
        ]
        header = (
            f"mean of seeds 0, 1, 2 | avg JCT h | TTD h | JCT gain over `{rival}` | TTD gain | JCT gain over "
            "`fifo_fixed` | TTD gain | JCT / bound | TTD / bound"
        )
        parts += [f"### {title}", _table(header, rows), _per_seed(book, gangs)]
    parts += [PICTURE]
    return _joined(parts)


def _per_seed(book: Book, gangs: str) -> str:
    """JCT and TTD on each seed, of hadar's settings and the peer."""
    traces = book.traces("static", gangs)
    names = {f"Gavel's `{RIVAL[gangs]}`", BOUNDS}
    rows = [
        [name, *(f"{value / HOUR:.{digits}f}" for j, t in pairs for value, digits in ((j, 2), (t, 1)))]
        for name, pairs in _reached(book, gangs)
        if "hadar" in name or name in names
    ]
    header = "hours | " + " | ".join(f"seed {t[-1]}: JCT | TTD" for t in traces)
    return _table(header, rows)


def _goals(book: Book) -> str:
    """What was aimed at, and what came out: of the means over the seeds, and seed by seed."""
    pairs = {gangs: dict(_reached(book, gangs)) for gangs in RIVAL}
    jct, ttd = 0, 1
    las, fifo, allox = (f"Gavel's `{name}`" for name in ("max_min_fairness_perf", "fifo_fixed", "allox"))
    goals = [
        ("multi", jct, las, f"{DEFAULT:g}", 1.5),
        ("multi", jct, fifo, f"{DEFAULT:g}", 3.5),
        ("multi", jct, las, "0.5", 1.4),
        ("multi", ttd, las, "0.5", 1.15),
        ("multi", jct, las, "0.75", 1.4),
        ("multi", ttd, las, "0.75", 1.15),
        ("single", jct, allox, f"{DEFAULT:g}", 1.0),
        ("single", ttd, allox, f"{DEFAULT:g}", 1.25),
        ("single", jct, allox, "0.5", 1.0),
        ("single", ttd, allox, "0.5", 1.25),
        ("multi", ttd, BOUNDS, "1", 0.99),
        ("single", ttd, BOUNDS, "1", 0.99),
    ]
    rows = []
    for gangs, metric, other, frontier, least in goals:
        ours = next(pairs[gangs][n] for n in pairs[gangs] if n.startswith(f"`hadar:frontier={frontier}`"))
        theirs = pairs[gangs][other]
        gains = [their[metric] / our[metric] for our, their in zip(ours, theirs, strict=True)]
        mean = _mean(t[metric] for t in theirs) / _mean(o[metric] for o in ours)
        cells = [gangs, f"`frontier={frontier}`", f"{'TTD' if metric else 'average JCT'} against {other}", f"{least:g}"]
        rows.append([*cells, f"{mean:.3f}", *(f"{g:.3f}" for g in gains), seed_verdicts(mean, gains, least)])
    return _table("gangs | setting | gain | at least | of the means | seed 0 | seed 1 | seed 2 | goal", rows)


def seed_verdicts(mean: float, gains: Sequence[float], least: float) -> str:
    """Of the means, and of each seed that fell short of it."""
    short = [f"seed {seed} {verdict(gain, least)}" for seed, gain in enumerate(gains) if gain < least]
    return "; ".join([verdict(mean, least), *short])


def poisson_part(book: Book) -> str:
    rows = []
    for trace in book.traces("poisson"):
        ours, las = (book.run("poisson", trace, name) for name in ("hadar", "gavel_las"))
        peer, bound = book.peer(trace, "max_min_fairness_perf"), book.bound("poisson", trace)
        gain, most = peer.avg_jct_s / ours["avg_jct_s"], peer.avg_jct_s / bound["avg_jct_s"]
        hours = (bound["floor_s"], bound["avg_jct_s"], ours["avg_jct_s"], las["avg_jct_s"], peer.avg_jct_s)
        rows.append(
            [
                trace.removeprefix("poisson_").replace("_3000", ""),
                *(f"{s / HOUR:.2f}" for s in hours),
                f"{gain:.3f}",
                f"{most:.3f}",
                verdict(gain, 1.3),
                f"{ours['avg_jct_s'] / bound['avg_jct_s']:.3f}",
                f"{bound['best_type_gpus']['v100']:.0f}",
                f"{ours['ftf_max']:.2f}",
                f"{las['ftf_max']:.2f}",
                f"{ours['moves_per_job']:.1f}",
                f"{las['moves_per_job']:.1f}",
            ]
        )
    header = (
        "jobs per hour, seed | floor | bound | `hadar` | `gavel_las` here | Gavel's `max_min_fairness_perf` | gain "
        "over that | most that is possible | goal 1.3 | `hadar` / bound | V100s asked for | `ftf_max` `hadar` | "
        "`ftf_max` `gavel_las` | moves per job `hadar` | `gavel_las`"
    )
    return _joined([POISSON, _table(header, rows), POISSON_WHY])


def nodes_part(book: Book) -> str:
    parts = [NODES]
    for trace in book.traces("nodes"):
        ours = book.run("nodes", trace, "hadar")
        runs = [r for r in book.results["nodes"]["runs"] if r["trace"] == trace]
        rows = [
            [
                f"`{_told(r)}`",
                f"{r['avg_jct_s'] / HOUR:.2f}",
                f"{r['ttd_s'] / HOUR:.1f}",
                f"{r['moves_per_job']:.1f}",
                f"{r['restarts_per_job']:.1f}",
                f"{r['avg_jct_s'] / ours['avg_jct_s']:.2f}",
                f"{r['ttd_s'] / ours['ttd_s']:.2f}",
            ]
            for r in sorted(runs, key=lambda r: float(r["avg_jct_s"]))
        ]
        header = (
            f"{trace} | avg JCT h | TTD h | moves per job | restarts per job | JCT of this / default `hadar` | TTD of "
            "this / default `hadar`"
        )
        parts += [_table(header, rows), _kept_lead(book, trace)]
    return _joined(parts)


def _told(run: Mapping[str, Any]) -> str:
    return ":".join([run["policy"], *(f"{key}={value:g}" for key, value in run["params"].items())])


def _kept_lead(book: Book, trace: str) -> str:
    """How much of the lead over gavel_las is left with node boundaries and restart costs."""
    here, there = (
        book.run(s, trace, "gavel_las")["avg_jct_s"] / book.run(s, trace, "hadar")["avg_jct_s"]
        for s in ("nodes", "static")
    )
    return (
        f"Lead in average JCT over `gavel_las` on {trace}: {here:.3f} here, {there:.3f} in model `gavel`. Here over "
        f"there: {here / there:.2f} (goal 0.9: {verdict(here / there, 0.9)})."
    )


def decisions_part(book: Book) -> str:
    found = book.results["decisions"]
    rows = [
        [
            f"{r['jobs']:,}",
            f"{r['gpus']:,}",
            f"{r['nodes']:,}",
            f"{r['placed']:,}",
            f"{r['decide_cpu_s'] * 1e3:,.1f}",
            f"{r['peak_memory_bytes'] / 2**20:,.0f}",
        ]
        for r in found["results"]
    ]
    header = "jobs | GPUs | nodes | placed | CPU ms | peak memory MiB"
    parts = [DECISIONS, _table(header, rows)]
    if found["exponent"] is not None:
        grows = f"CPU time grows with the number of jobs to the power of {found['exponent']:.2f}"
        parts.append(f"{grows} over the first {found['swept']} lines, in which the cluster grows along.")
    if "static" in book.results:
        parts.append("\n".join(_whole(book)))
    return _joined(parts)


def _whole(book: Book) -> Iterator[str]:
    """What a whole simulation took."""
    for gangs in ("multi", "single"):
        trace = book.traces("static", gangs)[0]
        r = book.run("static", trace, "hadar")
        yield (
            f"* {trace} as a whole, default: {r['cpu_s']:.1f} s of CPU, of which {r['decide_total_s']:.1f} s in "
            f"{r['rounds']:,} decisions (mean {r['decide_total_s'] / r['rounds'] * 1e3:.1f} ms, longest "
            f"{r['decide_max_s'] * 1e3:.0f} ms)."
        )


def picture(book: Book) -> bytes:
    """JCT against TTD on seed 0, for gangs and for single GPUs."""
    panels: dict[str, tuple[list[Reached], list[Reached], Mapping[str, float]]] = {}
    for gangs, title in (("multi", "gangs of 1, 2, 4, 8"), ("single", "single GPUs")):
        trace = book.traces("static", gangs)[0]
        runs = [r for r in book.results["static"]["runs"] if r["trace"] == trace and r["policy"] == "hadar"]
        curve = [
            (f"{r['params']['frontier']:g}", r["avg_jct_s"], r["ttd_s"])
            for r in sorted(runs, key=lambda r: float(r["params"]["frontier"]))
        ]
        theirs = [(label, p.avg_jct_s, p.ttd_s) for (name, label), p in book.peers.items() if name == f"{trace}.trace"]
        panels[f"{trace}: {title}"] = (curve, theirs, book.bound("static", trace))
    return trade_off(panels, "hadar, by frontier")


INTRO = """
# What the policies reach, measured

All figures are from the simulator, on traces that were generated with the job generator of Gavel
(stanford-futuredata/gavel, commit c4fa400) and its published throughput table. The figures called *Gavel's* are those
of Gavel's own simulator on the same traces (`benchmarks/data/runs_gavel.csv`; `fifo_fixed` is its fifo with a one-line
repair); that ours agrees with it where both have a policy is in [peers.md](peers.md). Raw figures:
[policies.json](policies.json).

TRACES is the folder of traces, TABLE Gavel's `simulation_throughputs.json`. `python -m benchmarks.policies TRACES
--throughputs TABLE` does all that follows. Gains are the other's time over ours: above 1 where `hadar` is faster. The
simulator draws nothing at random; a seed is that of the trace.
"""

STATIC = f"""
## All jobs at once

480 jobs at time 0 on 20 V100, 20 P100 and 20 K80, rounds of 360 s, under the assumptions of Gavel's simulator (`--model
gavel`: no node boundaries, restarts are free). Seeds 0, 1 and 2.

```
{COMMAND} static
```
"""

STATIC_WHY = """
The goals were set for the means over the seeds. No gain can be larger than that of the row *lower bounds* in the tables
below. `frontier` says how far above its lower bound the makespan may end (3 % at 0.5, more below, less above), not how
far below a peer's: where the peer comes nearer to the bound, the same `frontier` gains less on it, and a seed may fall
short that a somewhat larger `frontier` brings there. With `frontier=1` only the end counts, and jobs that are not last
may end at any time before it.
"""

PICTURE = """
![Average JCT against TTD](frontier.png)

Every point of the curve is one run of `hadar` on seed 0, labelled with its `frontier`.
"""

POISSON = f"""
## Jobs keep arriving

Poisson arrivals on 36 GPUs of each type; jobs 700 to 1199 are measured while arrivals go on, so there is no TTD.
`multi` at 2.5 jobs per hour, `single` at 5. Average JCT in hours. The *floor* is the mean run time of the measured jobs
on their best type with nobody else there. The *bound* is what no schedule can beat of the measured jobs
([how](../simulator.md#lower-bounds)), so Gavel's figure over it is the most that any gain can be.

```
{COMMAND} poisson
```
"""

POISSON_WHY = """
Where the most that is possible is below the goal of 1.3, no policy reaches it, not even with the measured jobs alone on
the cluster. Where it is above, the V100s are in the way. *V100s asked for* is how many would be busy on average if each
measured job ran on its best type. There are 36: some must wait or run on a slower type, and the more are asked for, the
less near comes anybody to the floor.

The bound is little above the floor, and what the other jobs take cannot raise it: a schedule may favour the measured
jobs all the time, and let the others have what those leave. With these 500 jobs alone the cluster has room before and
after them, and on slower types. So much of what separates a policy from the bound are the jobs that it serves without
being measured by them, which no bound on the measured ones can count.

`ftf_max` is the largest finish-time fairness rho of a measured job (below 1: faster than with an equal share). `hadar`
aims at the average here; where V100s are shortest its worst-off job can be worse off than under `gavel_las`.
"""

NODES = f"""
## With node boundaries and restart costs

`--model nodes`: 5 nodes of 4 GPUs for each of V100, P100 and K80; each restart costs what was published for its model
(25 to 250 s). Every policy here is ours, `hadar` at its default unless it says otherwise.

```
{COMMAND} nodes
```
"""

DECISIONS = f"""
## Time to decide

One decision of `hadar` on generated snapshots with half of the GPUs held by running jobs, each in a process of its own.
CPU time on a shared machine with two cores.

```
{COMMAND} decisions
hadar bench; hadar bench --jobs 2048 --gpus 512 --nodes 128; hadar bench --jobs 100000 --gpus 10000 --nodes 1250
```
"""

"""The page, the data and the pictures of what the runs have left behind. Every figure and verdict is computed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hadare.cluster import NODES, SIZES_S
from benchmarks.hadare.families import FAMILIES
from benchmarks.hadare.pictures import curves, gantt
from benchmarks.hadare.quality import STEPS

__all__ = ["collect", "render", "write"]

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
POLICIES = ("hadare", "hadar", "gavel_las")
FEW = 10  # mixes with fewer jobs than twice the nodes
GANTT_OF = 5

INTRO = """# HadarE, measured

Made by `python -m benchmarks.hadare page` from [hadare.json](hadare.json). What HadarE is:
[../hadare.md](../hadare.md); whom it gives copies: [../policies.md](../policies.md#hadare).

Everything runs for real but the GPUs: a private Slurm cluster (`{nodes}`: five unequal nodes, seven GPUs of three
types), `hadar run` in mode act, real trainings in PyTorch on the CPU of a machine with two shared cores, whose
steps are paced to the published relative speeds of the GPU types
([benchmarks/hadare](../../benchmarks/hadare/cluster.py)). What is slower here than on a cluster is the start of a
training (5 to 15 s, several Pythons at once on two cores), which all policies pay.

Four families: a convolutional network with batch normalisation on scikit-learn's digits, an encoder-decoder
transformer that translates numbers in words from English to German, a GRU language model on characters, an
autoencoder that recommends.
"""
MIXES = """
## Total time and utilisation

`python -m benchmarks.hadare mixes`. The first N jobs of a list, all submitted at once as job arrays with
`fork=auto`; under each policy the same. Seconds on the best GPU: {sizes}. One job is long, as in any queue; the
share of the time that forking saves depends on that (below). TTD: until the last job is done. CRU: share of
node-seconds with a copy on the node, over the whole TTD, and in brackets over its first nine tenths. The baselines
run side by side on clusters of their own, HadarE alone.

These runs are of 22 November. Since then plans are played forward also where jobs are forked, and forked jobs have the
nodes one after the other instead of sharing them: on average they are done a quarter sooner than then, and the last one
up to 4 % later, in simulated mixes ([policies](../policies.md#hadare)). Today's code took 69, 93
and 104 s for the mixes of 1, 3 and 4 jobs on a slower day, 30 November, with 96 to 97 % of the nodes busy; Hadar 169,
175 and 177 s.

| jobs | HadarE TTD | Hadar TTD | Gavel TTD | less than Hadar | less than Gavel | HadarE CRU | Hadar CRU | ratio |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
QUALITY = """
## Quality at equal total steps

`python -m benchmarks.hadare quality --seeds {seeds}`. One worker against five copies with the relative speeds of
the five nodes, as plain processes on one machine, a consolidation every 340 steps of the job (10 s at the speeds
above), until one worker converges: the language model is wider than in the mixes, and the translation learns from
300 sentences, so that one worker stops gaining within minutes. Validation after the last step, lower is better; mean
and standard deviation over seeds; the difference is paired by seed, with its 95 % interval (t distribution) and the
one-sided p of "the forked model is worse". Time to target: mean seconds until the validation reaches what one worker
has after three quarters of its steps, on two shared cores with three trainings at a time.

"""
SHORT = """
### Cut short

`python -m benchmarks.hadare quality --seeds {seeds} --part {part:g}`: the same with a part of the steps. While one
worker still gains much from each step, five copies are behind at equal steps, since each of them has made only its
share of them one after the other.

"""
HEAD = """| family | metric | steps | setting | validation | difference | p (worse) | seconds to target |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def collect(out: Path) -> dict[str, Any]:
    """What ``mixes`` and ``quality`` have left in ``out``."""
    mixes = [json.loads(path.read_text()) for path in sorted(out.glob("*/run.json"))]
    quality = [json.loads(path.read_text()) for path in sorted(out.glob("quality-*.json"))]
    return {"mixes": sorted(mixes, key=lambda m: (m["sizes"], m["jobs"], m["policy"])), "quality": quality}


def write(out: Path) -> None:
    """Refresh the page from the runs in ``out``; parts that were not run anew stay as they are."""
    path = RESULTS / "hadare.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    data |= {part: found for part, found in collect(out).items() if found}
    path.write_text(json.dumps(data, indent=1) + "\n")
    publish(data, RESULTS)


def publish(data: Mapping[str, Any], folder: Path) -> None:
    """``hadare.md`` and its pictures in ``folder``."""
    (folder / "hadare.md").write_text(render(data))
    shown = [_mix(data, "long-tailed", GANTT_OF, policy) for policy in POLICIES]
    if all(shown):
        gantt([m for m in shown if m], folder / "hadare_gantt.png")
    if data.get("quality"):
        curves(_by_length(data["quality"])[0], folder / "hadare_curves.png")


def render(data: Mapping[str, Any]) -> str:
    """The page's text."""
    parts = [INTRO.format(nodes=NODES)]
    if data.get("mixes"):
        parts += [
            MIXES.format(sizes=", ".join(map(str, SIZES_S))),
            *_mix_rows(data, "long-tailed"),
            "\n",
            *_goals(data),
        ]
        parts.append(f"\n![who ran where, {GANTT_OF} jobs](hadare_gantt.png)\n")
    whole, short = _by_length(data.get("quality", ()))
    if whole:
        parts += [QUALITY.format(seeds=_seeds(whole)), HEAD, *_quality_rows(whole), "\n", *_quality_verdicts(whole)]
        parts.append("\n![validation against steps and time](hadare_curves.png)\n")
    if short:
        part = short[0]["steps"] / STEPS[short[0]["family"]]
        parts += [SHORT.format(seeds=_seeds(short), part=part), HEAD, *_quality_rows(short)]
    return "".join(parts)


# Mixes


def _mix(data: Mapping[str, Any], sizes: str, jobs: int, policy: str) -> dict[str, Any] | None:
    return next((m for m in data["mixes"] if (m["sizes"], m["jobs"], m["policy"]) == (sizes, jobs, policy)), None)


def _counts(data: Mapping[str, Any], sizes: str) -> list[int]:
    """The mixes that were run under all policies."""
    counts = sorted({m["jobs"] for m in data["mixes"] if m["sizes"] == sizes})
    return [n for n in counts if all(_mix(data, sizes, n, p) for p in POLICIES)]


def _figures(data: Mapping[str, Any], sizes: str, jobs: int) -> tuple[list[float], list[float], float]:
    found = [m for p in POLICIES if (m := _mix(data, sizes, jobs, p))]
    return [m["ttd_s"] for m in found], [m["cru"] for m in found], found[0]["early_busy"]


def _mix_rows(data: Mapping[str, Any], sizes: str) -> list[str]:
    rows = []
    for jobs in _counts(data, sizes):
        (hadare, hadar, gavel), cru, early = _figures(data, sizes, jobs)
        rows.append(
            f"| {jobs} | {hadare:.0f} s | {hadar:.0f} s | {gavel:.0f} s | {1 - hadare / hadar:.0%} | "
            f"{1 - hadare / gavel:.0%} | {cru[0]:.0%} ({early:.0%}) | {cru[1]:.0%} | {cru[0] / cru[1]:.2f} |\n"
        )
    return rows


def _goals(data: Mapping[str, Any]) -> list[str]:
    few = [_figures(data, "long-tailed", n) for n in _counts(data, "long-tailed") if n < FEW]
    every = [_figures(data, "long-tailed", n)[0] for n in _counts(data, "long-tailed")]
    if not few:
        return []
    saved = [statistics.fmean(1 - ttd[0] / ttd[i] for ttd, _, _ in few) for i in (1, 2)]
    ratio = statistics.fmean(cru[0] / cru[1] for _, cru, _ in few)
    worst = max(ttd[0] / min(ttd[1:]) for ttd in every)
    early = [share for _, _, share in few]
    lost = [share for m in data["mixes"] if m["policy"] == "hadare" for share in m["lost_shares"]]
    return [
        f"* Mixes with fewer jobs than twice the nodes: TTD {saved[0]:.0%} less than Hadar's and {saved[1]:.0%} less "
        f"than Gavel's on average (goal: 50 %: {_verdict(min(saved) >= 0.5)}).\n",
        f"* Worst mix: {worst:.2f} times the better baseline's TTD (goal: never worse: {_verdict(worst <= 1.0)}).\n",
        f"* CRU {ratio:.2f} times Hadar's on those mixes (goal 1.45: {_verdict(ratio >= 1.45)}); over the first nine "
        f"tenths {min(early):.0%} to {max(early):.0%} (goal 95 %: {_verdict(min(early) > 0.95)}).\n",
        f"* Consolidations cost the copies {statistics.median(lost):.1%} of their training time in the median "
        f"(mean {statistics.fmean(lost):.1%}, {len(lost)} copies; goal 3 %: "
        f"{_verdict(statistics.fmean(lost) < 0.03)}).\n",
    ]


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


# Quality


def _by_length(runs: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Runs to convergence, and those that were cut short."""
    whole = [r for r in runs if r["steps"] == STEPS[r["family"]]]
    return whole, [r for r in runs if r["steps"] < STEPS[r["family"]]]


def _seeds(runs: Sequence[Mapping[str, Any]]) -> int:
    return len({r["seed"] for r in runs})


def _quality_verdicts(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Per setting: in which families the mean is no worse, and where the difference is beyond chance."""
    lines = []
    for name in dict.fromkeys(r["setting"]["name"] for r in runs if r["setting"]["copies"]):
        means, worse, few = {}, [], False
        for family in (f for f in FAMILIES if any(r["family"] == f for r in runs)):
            alone, ours = _of(runs, family, None), _of(runs, family, name)
            mean, _, p = _paired([ours[s]["metric"] - alone[s]["metric"] for s in ours.keys() & alone.keys()])
            means[family] = mean
            worse += [family] if p < 0.05 else []
            few |= len(ours) < 2
        good = [f for f, mean in means.items() if mean <= 0]
        beyond = f"worse beyond chance (p < 0.05) in {', '.join(worse)}" if worse else "worse beyond chance in none"
        beyond = "with one seed in some families, no test" if few else beyond
        lines.append(f"* {name}: mean no worse than one worker's in {', '.join(good) or 'no family'}; {beyond}.\n")
    return lines


def _of(runs: Sequence[Mapping[str, Any]], family: str, name: str | None) -> dict[int, Mapping[str, Any]]:
    """The runs of a family by seed; ``name`` None = those of one worker."""
    ours = [r for r in runs if r["family"] == family]
    return {r["seed"]: r for r in ours if (r["setting"]["name"] == name if name else not r["setting"]["copies"])}


def _quality_rows(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for family in (f for f in FAMILIES if any(r["family"] == f for r in runs)):
        names = {r["setting"]["name"]: r["setting"]["copies"] for r in runs if r["family"] == family}
        for name in sorted(names, key=lambda n: (names[n], n)):
            rows.append(_quality_row(family, name, _of(runs, family, name), _of(runs, family, None)))
    return rows


def _quality_row(family: str, name: str, runs: Mapping[int, Any], alone: Mapping[int, Any]) -> str:
    values = [r["metric"] for r in runs.values()]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    seconds = [t for s, r in runs.items() if s in alone and (t := _time_to(r["curve"], _target(alone[s]))) is not None]
    reached = f"{statistics.fmean(seconds):.0f} ({len(seconds)} of {len(runs)})" if seconds else "never"
    steps = next(iter(runs.values()))["steps"]
    value = f"{statistics.fmean(values):.4f} ± {spread:.4f}"
    first = f"| {family} | {FAMILIES[family].metric_name} | {steps} | {name} | {value} | "
    if not next(iter(runs.values()))["setting"]["copies"]:
        return first + f"| | {reached} |\n"
    mean, half, p = _paired([r["metric"] - alone[s]["metric"] for s, r in runs.items() if s in alone])
    if len(runs) < 2:
        return first + f"{mean:+.4f} (one seed) | | {reached} |\n"
    return first + f"{mean:+.4f} ± {half:.4f} | {p:.2f} | {reached} |\n"


def _paired(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean, half of its 95 % interval, and the one-sided p of a mean above 0."""
    from scipy import stats

    count, mean = len(differences), statistics.fmean(differences)
    if count < 2:
        return mean, math.nan, math.nan
    error = statistics.stdev(differences) / math.sqrt(count)
    return mean, stats.t.ppf(0.975, count - 1) * error, float(stats.t.sf(mean / error, count - 1)) if error else 0.5


def _target(run: Mapping[str, Any]) -> float:
    """What the run has after three quarters of its steps."""
    return float(min(run["curve"], key=lambda point: abs(point[0] - 0.75 * run["steps"]))[2])


def _time_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    return next((seconds for _, seconds, metric in curve if metric <= target), None)

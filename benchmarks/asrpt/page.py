"""docs/results/asrpt.md and its picture, from the runs in docs/results/asrpt.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.asrpt.orders import BASELINES, LARGER, LOADS, PARTS, PREDICTED, REGULAR, WAITING, Setting, mean_jct

__all__ = ["RESULTS", "publish", "write"]

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
INTRO = """# A-SRPT, measured

Made by `python -m benchmarks.asrpt orders --jobs {jobs} --before {before} --seeds {seeds}` from
[asrpt.json](asrpt.json). What A-SRPT is: [../policies.md](../policies.md#a-srpt); who predicts:
[../predict.md](../predict.md).
{remark}
In simulation: {jobs} recurring jobs on `{cluster}`, equal GPUs, gangs of 1 to 16, about a third of the scripts slowed
down much by being spread over nodes; rounds at every arrival and end; no job is ever stopped. They are jobs {before} to
{last} of `recurring:jobs={last},load=...`, seeds 0 to {highest}; the jobs before them are what predictors have learned
from. No policy is told how long a job is, but what the predictor expects. Mean JCT over all jobs and seeds; with as
many jobs under each policy, total JCT has the same ratios. A few jobs of days make or break a run: single seeds differ
by half.

## Orders

All with an oracle's predictions.

"""
SPLIT = """
The baselines take any place that they find, as list schedules do. Waiting for a good place is a part of A-SRPT that
suits them as well; with it (`theta=0.5`) what remains between them is the order:

"""
REGULAR_INTRO = """
How much of that is the trace's? About a quarter of its jobs are the first of their script, and the runs of a script
differ by a factor of 1.1 to 2 (one standard deviation) and by trend. With runs that differ half as much, and not at
all:

"""
LARGER_INTRO = """
## On a larger cluster

The same kind of jobs, by as many users, on {gpus} GPUs: `python -m benchmarks.asrpt larger --nodes {nodes} --jobs
{jobs} --before {before} --seeds {seeds}`, from [asrpt_larger.json](asrpt_larger.json). Wrong predictions cost less
there. A likely reason, not tried apart: a job that was taken for short holds up a smaller part of the cluster, and the
predictor has seen more runs.

"""
REAL = """
## On a real Slurm

The same {jobs} jobs of 1, 2 and 4 GPUs on a private, real Slurm cluster of unequal GPUs (2 nodes of 4 v100, 2 of 4
p100, 2 of 4 k80), steered by `hadar run`, and in the simulator, as in [fidelity.md](fidelity.md). The jobs state their
steps. New jobs are left to the controller for 15 s (`LEASE_S` in job_submit.lua): a job that Slurm starts by itself on
a slow GPU stays there under a policy that stops nobody, and whether it does is then a matter of tenths of a second. One
run, from [asrpt_real.json](asrpt_real.json):

    python -m benchmarks.fidelity --policy asrpt --jobs {jobs} --lease 15 --out real
    python -m benchmarks.asrpt real real/fidelity.json

| | real | simulated |
| --- | --- | --- |
| average JCT | {real_avg_jct_s:.1f} s | {sim_avg_jct_s:.1f} s |
| TTD | {real_ttd_s:.1f} s | {sim_ttd_s:.1f} s |
| jobs stopped or moved | {real_moves} | {sim_moves} |

* Total JCT is off by {total:+.1%}; a job's by {mean_error:.1%} on average, {median_error:.1%} in the middle,
  {worst_error:+.1%} at worst ({worst_job}) (goal: within 10 %: {verdict}).
"""


def write(name: str, data: Mapping[str, Any]) -> None:
    """Store runs as ``docs/results/NAME`` and refresh the page."""
    (RESULTS / name).write_text(json.dumps(data, indent=1) + "\n")
    publish(RESULTS, RESULTS)


def publish(source: Path, folder: Path) -> None:
    """``asrpt.md`` and its picture in ``folder``, from the runs stored in ``source``."""
    data, larger, real = (
        json.loads((source / name).read_text()) for name in ("asrpt.json", "asrpt_larger.json", "asrpt_real.json")
    )
    (folder / "asrpt.md").write_text(_render(data) + _larger(larger) + _real(real))
    _picture(data, folder / "asrpt.png")


def _larger(data: Mapping[str, Any]) -> str:
    rows, setting = data["runs"], Setting(data["nodes"], data["jobs"], data["before"])
    text = LARGER_INTRO.format(
        nodes=setting.nodes,
        jobs=setting.jobs,
        before=setting.before,
        gpus=8 * setting.nodes,
        seeds=len({r["seed"] for r in rows}),
    )
    return "".join([text, *_table(rows, list(LARGER)), "\n", *_goals(rows), _lost(rows, "")])


def _real(run: Mapping[str, Any]) -> str:
    total = run["sim_avg_jct_s"] / run["real_avg_jct_s"] - 1
    return REAL.format(**run, total=total, verdict=_verdict(max(abs(total), run["mean_error"]) <= 0.10))


def _render(data: Mapping[str, Any]) -> str:
    """What all orders and predictors came to; every figure and verdict is computed."""
    rows, seeds = data["runs"], len({r["seed"] for r in data["runs"]})
    setting = Setting(data["nodes"], data["jobs"], data["before"])
    last = setting.before + setting.jobs
    parts = [
        INTRO.format(
            jobs=setting.jobs,
            before=setting.before,
            last=last,
            seeds=seeds,
            highest=seeds - 1,
            cluster=setting.cluster,
            remark=f"\n**{data['remark']}**\n" if data.get("remark") else "",
        )
    ]
    parts += [*_table(rows, ["asrpt", *BASELINES]), "\n", *_goals(rows), "\n![mean JCT by load](asrpt.png)\n", SPLIT]
    parts += [*_table(rows, ["asrpt", *WAITING]), "\n", _against_waiting(rows), "\n## What its parts are worth\n\n"]
    parts += [*_table(rows, ["asrpt", *PARTS]), "\n## Predictions\n\n", *_table(rows, ["asrpt", *PREDICTED]), "\n"]
    parts += [_lost(rows, ""), REGULAR_INTRO]
    names = [f"asrpt{who}, vary {vary:g}" for vary in REGULAR for who in ("", ", forest")]
    parts += [*_table(rows, names), "\n", *(_lost(rows, f", vary {vary:g}") for vary in REGULAR)]
    return "".join(parts)


def _lost(rows: list[dict[str, Any]], which: str) -> str:
    """What the forest costs against the oracle, on traces that vary so much."""
    lost = [mean_jct(rows, f"asrpt, forest{which}", load) / mean_jct(rows, f"asrpt{which}", load) - 1 for load in LOADS]
    mean = statistics.fmean(lost)
    return (
        f"* With the forest{which} {mean:+.1%} against the oracle on average, {max(lost):+.1%} at worst "
        f"(goal: within 5 %: {_verdict(mean <= 0.05)}).\n"
    )


def _against_waiting(rows: list[dict[str, Any]]) -> str:
    ratios = {n: statistics.fmean(mean_jct(rows, "asrpt", x) / mean_jct(rows, n, x) for x in LOADS) for n in WAITING}
    best = max(ratios, key=lambda name: ratios[name])
    return f"* Against the best of them, `{best}`: {ratios[best]:.3f} times its mean JCT on average over the loads.\n"


def _table(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    lines = ["| | " + " | ".join(f"load {load:g}" for load in LOADS) + " |\n", "| --- |" + " --- |" * len(LOADS) + "\n"]
    for name in names:
        cells = (f"{mean_jct(rows, name, load):.0f} s" for load in LOADS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |\n")
    return lines


def _goals(rows: list[dict[str, Any]]) -> list[str]:
    ours = {load: mean_jct(rows, "asrpt", load) for load in LOADS}
    best = {load: min(mean_jct(rows, name, load) for name in BASELINES) for load in LOADS}
    worst = max(ours[load] / best[load] for load in LOADS)
    against = {
        name: statistics.fmean(1 - ours[load] / mean_jct(rows, name, load) for load in LOADS) for name in BASELINES
    }
    return [
        f"* Against the best baseline of each load: {worst:.3f} times its mean JCT at worst "
        f"(goal: no worse at any load: {_verdict(worst <= 1.0)}).\n",
        f"* {against['wcs_subtime']:.0%} less than `wcs_subtime` on average (goal 15 %: "
        f"{_verdict(against['wcs_subtime'] >= 0.15)}), {against['spjf']:.0%} less than `spjf` "
        f"(goal 10 %: {_verdict(against['spjf'] >= 0.10)}).\n",
    ]


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


def _picture(data: Mapping[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    predicted = ["asrpt", *PREDICTED]
    for axis, names, title in (
        (axes[0], ["asrpt", *BASELINES], "orders, with an oracle"),
        (axes[1], predicted, "predictors"),
    ):
        for name in names:
            means = [mean_jct(data["runs"], name, load) / 3600 for load in LOADS]
            axis.plot(LOADS, means, marker="o", linewidth=2.5 if name == "asrpt" else 1.2, label=name)
        axis.set_xlabel("load")
        axis.set_title(title, loc="left")
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean JCT, hours")
    axes[0].set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)

"""How well predictors order jobs: many drawn traces, the last fifth of each.

    python -m benchmarks.predict --jobs 5000 --seeds 10

Prints, over all seeds, the mean of each error and how often the forest orders jobs better and is refused.
"""

from __future__ import annotations

import argparse
import statistics

from slurm_hadar.predict.evaluate import Report, evaluate, refusal
from slurm_hadar.simulator.history import history_of_trace
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.throughput.table import reference


def measure(jobs: int, seeds: int) -> list[Report]:
    """One report per seed."""
    table = reference()
    traces = (read_trace(f"recurring:jobs={jobs},seed={seed}", table) for seed in range(seeds))
    return [evaluate(history_of_trace(trace, table)) for trace in traces]


def told(reports: list[Report]) -> list[str]:
    """A line per predictor, and one that sums up."""
    lines = [f"{'predictor':<14} {'R2 (log)':>8} {'MAPE':>6} {'rank corr':>9}  forest orders better in"]
    for name in (s.name for s in reports[0].scores):
        scores = [r.of(name) for r in reports]
        rank = statistics.fmean(s.rank or 0 for s in scores)
        better = sum((r.of("forest").rank or 0) > (r.of(name).rank or 0) for r in reports)
        lines.append(
            f"{name:<14} {statistics.fmean(s.r2_log for s in scores):8.3f} "
            f"{100 * statistics.fmean(s.mape for s in scores):4.0f} % {rank:9.3f}"
            + ("" if name == "forest" else f"  {better} of {len(reports)}")
        )
    refused = sum(refusal(r) is not None for r in reports)
    unseen = statistics.fmean(r.unseen for r in reports)
    inside = statistics.fmean(r.inside for r in reports)
    return [*lines, f"{100 * unseen:.0f} % of unseen groups, {100 * inside:.0f} % in the interval, {refused} refused"]


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    print("\n".join(told(measure(given.jobs, given.seeds))))


if __name__ == "__main__":
    main()

"""``make bench``: every measurement, one JSON object each."""

from __future__ import annotations

import subprocess
import sys

BENCHES = (
    ("a controller round, 60 nodes, 1,000 and 5,000 pending jobs", ["benchmarks.costs.round"]),
    ("from a decision to the next job's first step", ["benchmarks.costs.preempt"]),
    ("cost of agent and hook at 1 ms steps", ["benchmarks.costs.agent"]),
    ("a gang on unlike GPUs, shared equally and by speed", ["benchmarks.uneven"]),
    ("hadar against the optimum of tiny rounds", ["benchmarks.brute_force"]),
    ("placements of job graphs against all placements of small ones", ["benchmarks.mapping", "--instances", "500"]),
    ("a page of the dashboard, 10,000 jobs", ["benchmarks.costs.web"]),
    ("how long commands take to start, and what hadar-srun adds to a job", ["benchmarks.costs.start"]),
    ("one GPU that 100 jobs share, and a million random events on its memory", ["benchmarks.sharing"]),
    ("what a checkpoint costs the training, beside it and waited for", ["benchmarks.costs.checkpoint"]),
)


def main() -> int:
    """Run all, each in a process of its own; 1 if any failed."""
    failed = 0
    for title, command in BENCHES:
        print(f"# {title}", flush=True)
        failed += subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

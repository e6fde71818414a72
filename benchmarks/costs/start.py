"""How long commands take to start, and what ``hadar-srun`` adds to the start of a job.

    python -m benchmarks.costs.start [--times 15]

Each is run in turns with ``python -c pass``, whose time is the unit of the ratios; the job steps run within one batch
job of a private Slurm, so that ``hadar-srun`` asks a real slurmctld. Prints one JSON object: medians, in seconds and as
multiples of the unit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from slurm_hadar.cluster import ClusterSpec, up

HADAR = str(Path(sys.executable).parent / "hadar")
SCRIPT = """#!/bin/bash
export PATH={path}:$PATH
{python} {here} inside {times} > {out}.new
mv {out}.new {out}
"""
OUTSIDE = {"python": [sys.executable, "-c", "pass"], "help": [HADAR, "--help"], "version": [HADAR, "--version"]}
INSIDE = {
    "python": [sys.executable, "-c", "pass"],
    "srun": ["srun", "--ntasks=1", "true"],
    "hadar_srun": ["hadar-srun", "--ntasks=1", "--", "true"],
}


def measure(commands: dict[str, list[str]], times: int) -> dict[str, float]:
    """Median seconds of each command; all take turns, so that other load meets all alike."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            found[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def in_a_job(times: int) -> dict[str, float]:
    """:func:`measure` of job steps, by a batch job of a private Slurm."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        work, out = Path(folder), Path(folder) / "measured.json"
        script = work / "job.sh"
        names = {"python": sys.executable, "here": Path(__file__).resolve(), "path": Path(sys.executable).parent}
        script.write_text(SCRIPT.format(**names, times=times, out=out))
        with up(ClusterSpec(name="start", nodes="v100:1x1", directory=work / "c")) as cluster:
            command = ["sbatch", "--wait", "--gres=gpu:1", "--comment=hadar:model=resnet18,batch=64"]
            cluster.run([*command, f"--chdir={work}", f"--output={work}/log", str(script)], cwd=work, timeout_s=300.0)
            if not out.exists():
                raise SystemExit((work / "log").read_text())
            found: dict[str, float] = json.loads(out.read_text())
            return found


@click.group(invoke_without_command=True)
@click.option("--times", default=15, show_default=True)
@click.pass_context
def main(context: click.Context, times: int) -> None:
    """Measure how long commands take to start."""
    if context.invoked_subcommand is not None:
        return
    outside, inside = measure(OUTSIDE, times), in_a_job(times)
    adds = inside["hadar_srun"] - inside["srun"]
    seconds = {**outside, "srun": inside["srun"], "hadar_srun": inside["hadar_srun"], "hadar_srun_adds": adds}
    ratios = {name: value / outside["python"] for name, value in outside.items()}
    ratios |= {"hadar_srun_adds": adds / inside["python"]}
    result = {"times": times, "seconds": seconds, "times_python_pass": ratios}
    click.echo(json.dumps(result, indent=1, default=float))


@main.command(hidden=True)
@click.argument("times", type=int)
def inside(times: int) -> None:
    """What the batch job runs."""
    click.echo(json.dumps(measure(INSIDE, times)))


if __name__ == "__main__":
    main()

"""Time to the same target: ``hadar tune`` against Optuna with a process for each GPU, and against Ray Tune.

    python -m benchmarks.tuning.real [--seeds N] [--ray PYTHON] [--out FILE]

Eight emulated GPUs of two types (:mod:`benchmarks.tuning.real.workload`). All have the same trials in the same order;
what they learn of the overheads in one run is forgotten before the next. ``--ray``: a Python that has Ray (pip install
"ray[tune]"), which is nothing that the project needs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.tuning.real.workload import write_data

GPUS = 8
_LONGEST_S = 400.0


@click.command(help=__doc__)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--trials", default=27, show_default=True, type=click.IntRange(min=1))
@click.option("--target", default=0.035, show_default=True)
@click.option("--algorithms", default="sha,asha", show_default=True)
@click.option("--ray", "ray_python", help="A Python that has Ray.")
@click.option("--out", type=click.Path(path_type=Path), help="Write all figures as JSON.")
def main(seeds: int, trials: int, target: float, algorithms: str, ray_python: str | None, out: Path | None) -> None:
    others = ["optuna", *(["ray"] if ray_python else [])]
    rows: list[dict[str, Any]] = []
    for algorithm in algorithms.split(","):
        for seed in range(seeds):
            for system in ("hadar", *others):
                row = {"system": system, "algorithm": algorithm, "seed": seed}
                rows.append(row | _run(system, algorithm, seed, trials, target, ray_python))
                print(json.dumps(rows[-1]), flush=True)
                if out is not None:
                    out.write_text(json.dumps({"trials": trials, "target": target, "rows": rows}, indent=1) + "\n")
    _show(rows, others)


def _run(
    system: str, algorithm: str, seed: int, trials: int, target: float, ray_python: str | None
) -> dict[str, Any]:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        busy = Path(folder) / "busy"
        busy.mkdir()
        write_data(Path(folder) / "digits.pt")
        environ = {
            **os.environ, "BENCH_DATA": f"{folder}/digits.pt", "BENCH_BUSY": str(busy), "BENCH_SEED": str(seed),
            "XDG_STATE_HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd()),
        }  # fmt: skip
        began = time.monotonic()
        if system == "hadar":
            found = _hadar(algorithm, trials, target, Path(folder), environ)
        else:
            python = sys.executable if system == "optuna" else str(ray_python)
            words = [system, algorithm, str(seed), str(trials), str(target)]
            done = _called([python, "-m", "benchmarks.tuning.real.others", *words], environ)
            found = json.loads(done.stdout.splitlines()[-1])
        used_s = sum(float(file.read_text() or 0) for file in busy.iterdir())
        ran_s = found.pop("ran_s")
        return found | {"gpu_use": used_s / (GPUS * ran_s), "wall_s": time.monotonic() - began}


def _called(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-3000:]}")
    return done


def _hadar(algorithm: str, trials: int, target: float, folder: Path, environ: dict[str, str]) -> dict[str, Any]:
    """From the tuner's first act to the report that reaches the target."""
    study = Path(__file__).with_name("study.py")
    _called(
        [sys.executable, "-m", "slurm_hadar.cli.main", "tune", "run", f"{study}:objective", "--trials", str(trials),
         "--algorithm", algorithm, "--gpus", "fast:4,slow:4", "--speed", "slow=0.5", "--longest", "27", "--target",
         str(target), "--storage", f"sqlite:///{folder}/study.db", "--json", f"{folder}/result.json"],
        environ,
    )  # fmt: skip
    (file,) = folder.glob("*.hadar/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    values = [event for event in events if event["event"] == "value"]
    hit = next((event for event in values if event["value"] <= target), None)
    began = events[0]["time"]
    ran_s = (hit or events[-1])["time"] - began
    best = min(event["value"] for event in values)
    resizes = json.loads((folder / "result.json").read_text())["resizes"]
    return {"target_s": hit and ran_s, "ran_s": ran_s, "best": best, "resizes": resizes}


def _show(rows: list[dict[str, Any]], others: list[str]) -> None:
    """Ratios by algorithm, over the seeds for which both have reached the target."""
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        own = {row["seed"]: row for row in rows if (row["system"], row["algorithm"]) == ("hadar", algorithm)}
        for other in others:
            theirs = {row["seed"]: row for row in rows if (row["system"], row["algorithm"]) == (other, algorithm)}
            both = [s for s in own if own[s]["target_s"] and theirs[s]["target_s"]]
            if not both:
                print(f"{algorithm}: no seed in which both hadar and {other} reached the target")
                continue
            faster = statistics.geometric_mean(theirs[s]["target_s"] / own[s]["target_s"] for s in both)
            use = statistics.geometric_mean(own[s]["gpu_use"] / theirs[s]["gpu_use"] for s in both)
            print(
                f"{algorithm}: {faster:.2f} x as fast as {other}, GPU use {use:.2f} x, {len(both)} of {len(own)} seeds"
            )


if __name__ == "__main__":
    main()

"""Time to the same target: ``hadar tune`` against Optuna with a process for each GPU, and against Ray Tune.

    python -m benchmarks.tuning.real [--tasks cnn,language,autoencoder] [--algorithms sha,tpe-hyperband,asha,pbt]
        [--first-seed N] [--seeds N] [--ray PYTHON] [--out FILE] [--for SECONDS] [--whole]

Eight emulated GPUs of two types (:mod:`benchmarks.tuning.real.device`), three tasks
(:mod:`benchmarks.tuning.real.tasks`). With sha and asha all have the same trials in the same order; with the others
each has its sampler, from the same seed. What is learnt of the overheads in one run is forgotten before the next.
Optuna has no population based training. ``--ray``: a Python that has Ray (pip install "ray[tune]"), which is nothing
that the project needs. What stands in ``--out`` already is not run again; ``--for`` ends it after so many seconds,
between two runs. ``--whole``: nobody stops at the target, all trials are made; what they come to, and when, is a table
of its own: the least error that any trial has reported, and the least of those that were trained to their end.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.tuning.real.device import GPUS
from benchmarks.tuning.real.others import PERTURBED_EVERY
from benchmarks.tuning.real.seen import Seen
from benchmarks.tuning.real.tasks import REPORTS, TASKS, write_data

_LONGEST_S, _LONGEST_WHOLE_S = 500.0, 3000.0
_POPULATION = 8
#: By algorithm: trials, where their hyper-parameters come from, and what ``hadar tune run`` is told.
_ALGORITHMS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "hyperband": (49, "number", ("--algorithm", "hyperband")),  # all brackets of trials of 27 reports, once
    "sha": (27, "number", ("--algorithm", "sha")),  # who has nothing like it makes 27 trials of Hyperband's
    "tpe-hyperband": (42, "sampler", ("--algorithm", "hyperband", "--sampler", "tpe")),
    "asha": (27, "number", ("--algorithm", "asha")),
    "pbt": (_POPULATION * 4, "shapeless", ("--algorithm", "pbt", "--first-rung", str(PERTURBED_EVERY))),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``whole``: it does not end at the target."""

    system: str
    task: str
    algorithm: str
    seed: int
    whole: bool = False

    @property
    def longest_s(self) -> float:
        return _LONGEST_WHOLE_S if self.whole else _LONGEST_S

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Case:
        return cls(row["system"], row["task"], row["algorithm"], row["seed"], row.get("whole", False))


@click.command(help=__doc__)
@click.option("--tasks", default=",".join(TASKS), show_default=True)
@click.option("--algorithms", default=",".join(_ALGORITHMS), show_default=True)
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--ray", "ray_python", help="A Python that has Ray.")
@click.option("--only", help="One of hadar, optuna, ray.")
@click.option("--out", type=click.Path(path_type=Path), help="All figures as JSON; it goes on from there.")
@click.option("--for", "for_s", default=float("inf"), help="Start no run after so many seconds.")
@click.option("--whole", is_flag=True, help="Nobody stops at the target.")
def main(
    tasks: str, algorithms: str, first_seed: int, seeds: int, ray_python: str | None, only: str | None,
    out: Path | None, for_s: float, whole: bool,
) -> None:  # fmt: skip
    began = time.monotonic()
    systems = ["hadar", "optuna", *(["ray"] if ray_python else [])] if only is None else [only]
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out is not None and out.exists() else []
    done = {Case.of(row) for row in rows}
    for case in _cases(systems, tasks.split(","), algorithms.split(","), range(first_seed, first_seed + seeds), whole):
        if case in done:
            continue
        if time.monotonic() - began > for_s:
            break
        rows.append(asdict(case) | _run(case, ray_python))
        print(json.dumps(rows[-1]), flush=True)
        if out is not None:
            out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    show = show_whole if whole else show_faster
    show([row for row in rows if Case.of(row).whole is whole])


def _cases(
    systems: Iterable[str], tasks: Iterable[str], algorithms: Iterable[str], seeds: Iterable[int], whole: bool
) -> list[Case]:
    """Seed by seed, so that what is there after any time compares all."""
    cases = [Case(s, t, a, n, whole) for n in seeds for t in tasks for a in algorithms for s in systems]
    return [case for case in cases if (case.system, case.algorithm) != ("optuna", "pbt")]


def _run(case: Case, ray_python: str | None) -> dict[str, Any]:
    trials, drawn, words = _ALGORITHMS[case.algorithm]
    target = TASKS[case.task].target
    with tempfile.TemporaryDirectory() as folder:
        busy = Path(folder) / "busy"
        busy.mkdir()
        write_data(Path(folder) / "digits.pt")
        environ = {
            **os.environ, "BENCH_DATA": f"{folder}/digits.pt", "BENCH_BUSY": str(busy), "BENCH_SEED": str(case.seed),
            "BENCH_TASK": case.task, "BENCH_DRAW": drawn, "XDG_STATE_HOME": folder, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path.cwd()),
        }  # fmt: skip
        load, began = os.getloadavg()[0], time.monotonic()
        if case.system == "hadar":
            told = ["--trials", str(trials), *words, "--seed", str(case.seed)]
            told += [] if case.whole else ["--target", str(target)]
            found = _hadar(told, case, Path(folder), environ)
        else:
            python = sys.executable if case.system == "optuna" else str(ray_python)
            told = [case.system, case.algorithm, str(case.seed), str(trials), str(target)]
            told += ["whole"] if case.whole else []
            said = _called([python, "-m", "benchmarks.tuning.real.others", *told], environ, case.longest_s)
            found = json.loads(said.splitlines()[-1]) if said is not None else _too_long(case)
        used_s = sum(float(file.read_text() or 0) for file in busy.iterdir())
        found |= {"gpu_use": used_s / (len(GPUS) * found["ran_s"]), "load_before": load}
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()} | {
            "wall_s": round(time.monotonic() - began, 1)
        }


def _too_long(case: Case) -> dict[str, Any]:
    return Seen(TASKS[case.task].target).result(case.longest_s)


def _called(command: list[str], environ: dict[str, str], longest_s: float) -> str | None:
    """What it prints; None where it took too long, and was ended."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=longest_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {err[-3000:]}")
    return out


def _hadar(told: list[str], case: Case, folder: Path, environ: dict[str, str]) -> dict[str, Any]:
    """From the tuner's first act to the report that reaches the target, or to its end."""
    study = Path(__file__).with_name("study.py")
    said = _called(
        [sys.executable, "-m", "slurm_hadar.cli.main", "tune", "run", f"{study}:objective", *told, "--gpus",
         ",".join(f"{kind}:{GPUS.count(kind)}" for kind in dict.fromkeys(GPUS)), "--speed", "slow=0.5", "--longest",
         str(REPORTS), "--storage", f"sqlite:///{folder}/study.db", "--json", f"{folder}/result.json"],
        environ, case.longest_s,
    )  # fmt: skip
    if said is None:
        return _too_long(case)
    (file,) = folder.glob("*.hadar/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    seen, began = Seen(TASKS[case.task].target), events[0]["time"]
    for event in events:
        if event["event"] == "value" and (case.whole or not seen.reached):
            seen.error(event["value"], event["step"], event["time"] - began)
    ran_s = events[-1]["time"] - began
    resizes = json.loads((folder / "result.json").read_text())["resizes"]
    reached_s = seen.found["target_s"]
    return seen.result(ran_s if case.whole or reached_s is None else reached_s) | {"resizes": resizes}


def show_faster(rows: list[dict[str, Any]]) -> None:
    """Ratios over the seeds: of time where both have reached the target, of GPU use in any case."""
    cells = dict.fromkeys((row["task"], row["algorithm"]) for row in rows)
    for task, algorithm in cells:
        mine = [row for row in rows if (row["task"], row["algorithm"]) == (task, algorithm)]
        own = {row["seed"]: row for row in mine if row["system"] == "hadar"}
        for other in ("optuna", "ray"):
            theirs = {row["seed"]: row for row in mine if row["system"] == other and row["seed"] in own}
            if not theirs:
                continue
            both = [s for s in theirs if own[s]["target_s"] and theirs[s]["target_s"]]
            faster = _mean(theirs[s]["target_s"] / own[s]["target_s"] for s in both)
            use = _mean(own[s]["gpu_use"] / theirs[s]["gpu_use"] for s in theirs)
            reached = [sum(bool(side[s]["target_s"]) for s in theirs) for side in (own, theirs)]
            print(
                f"{task}, {algorithm}: {faster:.2f} x as fast as {other} ({len(both)} seeds; target reached in "
                f"{reached[0]} and {reached[1]} of {len(theirs)}), GPU use {use:.2f} x"
            )


def show_whole(rows: list[dict[str, Any]]) -> None:
    """What each came to: the least error, and the least at a trial's end, each with the seconds after which it was
    first there; then ours over theirs (geometric mean over the runs that both have; below 1: ours is better)."""
    systems = [s for s in ("hadar", "optuna", "ray") if any(row["system"] == s for row in rows)]
    print(f"| task, algorithm, seed | {' | '.join(systems)} |")
    print(f"| --- | {' | '.join('---' for _ in systems)} |")
    by = {Case.of(row): row for row in rows}
    for task, algorithm, seed in dict.fromkeys((row["task"], row["algorithm"], row["seed"]) for row in rows):
        cells = [_quality(by.get(Case(system, task, algorithm, seed, True))) for system in systems]
        print(f"| {task}, {algorithm}, {seed} | {' | '.join(cells)} |")
    own = {(row["task"], row["algorithm"], row["seed"]): row for row in rows if row["system"] == "hadar"}
    for other in systems[1:]:
        pairs = [(own.get((r["task"], r["algorithm"], r["seed"])), r) for r in rows if r["system"] == other]
        for what in ("best", "final"):
            both = [(mine[what], theirs[what]) for mine, theirs in pairs if mine and mine[what] and theirs[what]]
            ratio = _mean(mine / theirs for mine, theirs in both)
            print(f"{what} error against {other}: {ratio:.3f} x over {len(both)} runs")


def _quality(row: Mapping[str, Any] | None) -> str:
    """``0.0182 (34 s), at the end 0.0191 (52 s); all over after 60 s``."""
    if row is None or row["best"] is None:
        return "-" if row is None else f"not over after {row['wall_s']:.0f} s"
    end = "none" if row["final"] is None else f"{row['final']:.4f} ({row['final_s']:.0f} s)"
    return f"{row['best']:.4f} ({row['best_s']:.0f} s), at the end {end}; all over after {row['ran_s']:.0f} s"


def _mean(ratios: Iterable[float]) -> float:
    found = list(ratios)
    return statistics.geometric_mean(found) if found else float("nan")


if __name__ == "__main__":
    main()

"""42 small models that answer requests on one GPU, and three equal jobs that join one after the other: a real broker
and processes, an emulated GPU.

    python -m benchmarks.sharing.live [--seconds 20] [--period 5] [--json FILE]

The GPU is emulated by sleeping: an iteration takes the time that the same takes on a GPU of its own, and no CPU.

*Models*: the 14 of Salus' figure 11, three of each (MLSys 2020, section 5.3), with the latencies of its dedicated GPUs.
Persistent memory is four bytes for each parameter of the network, ours where the model is no published network; the
ephemeral memory, 400 MB, is ours. Requests come at exponential gaps, the same ones with a broker and without, where
each model has a GPU of its own; *added* is the difference of each request's latency.

*Equal jobs*: iterations of 20 ms under ``fair``; the second joins after a third of the time, the last one after two.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.broker.queries import status_of
from slurm_hadar.sharing.lanes import Demand

MB = 10**6
CAPACITY = 16 * 10**9
EPHEMERAL = 400 * MB
COPIES = 3
#: Latency alone in ms, and millions of parameters.
MODELS = {
    "alexnet": (3, 61), "googlenet": (9, 7), "inception3": (20, 27), "inception4": (35, 43), "overfeat": (5, 146),
    "resnet101": (19, 45), "resnet152": (26, 60), "resnet50": (11, 26), "seq2seq": (3, 20), "superres": (4, 1),
    "vae": (3, 1), "vgg11": (6, 133), "vgg16": (8, 138), "vgg19": (9, 144),
}  # fmt: skip
_FORK = multiprocessing.get_context("fork")


@contextmanager
def broker(policy: str) -> Iterator[Path]:
    """One that serves a GPU of :data:`CAPACITY`."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        path = Path(folder) / "s"
        command = ["-m", "slurm_hadar.cli.main", "share", "broker", "--policy", policy, "--memory", str(CAPACITY)]
        process = subprocess.Popen([sys.executable, *command, "--socket", str(path)])
        try:
            while not path.exists():
                time.sleep(0.05)
            yield path
        finally:
            process.terminate()
            process.wait()


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _answers(path: Path | None, name: str, seed: int, period_s: float, seconds: float, begin: float, out: Any) -> None:
    """Latencies of a model's requests, in ms."""
    latency_ms, parameters = MODELS[name]
    session = Session(path, Work(Demand(4 * MB * parameters, EPHEMERAL), label=name)) if path else None
    dice, found = random.Random(seed), []
    arrival = begin + dice.expovariate(1 / period_s)
    while arrival < begin + seconds:
        _sleep_until(arrival)
        if session is None:
            time.sleep(latency_ms / 1000)
        else:
            with session.iteration():
                time.sleep(latency_ms / 1000)
        found.append(1000 * (time.monotonic() - arrival))
        arrival += dice.expovariate(1 / period_s)
    if session is not None and session.alone:
        raise SystemExit("a model lost its broker")
    out.put((seed, found))


def _started(target: Any, tasks: list[tuple[Any, ...]]) -> list[Any]:
    """What the processes give, each for its task."""
    out = _FORK.SimpleQueue()
    processes = [_FORK.Process(target=target, args=(*task, out)) for task in tasks]
    for process in processes:
        process.start()
    found = [out.get() for _ in processes]
    for process in processes:
        process.join()
    return [values for _, values in sorted(found)]


def models(period_s: float, seconds: float, settle_s: float) -> dict[str, Any]:
    """All at once on one GPU, and each on its own."""
    names = [name for name in MODELS for _ in range(COPIES)]

    def tasks(path: Path | None) -> list[tuple[Any, ...]]:
        begin = time.monotonic() + settle_s
        return [(path, name, seed, period_s, seconds, begin) for seed, name in enumerate(names)]

    alone = _started(_answers, tasks(None))
    with broker("fair") as path:
        shared = _started(_answers, tasks(path))
    demands = [Demand(4 * MB * MODELS[name][1], EPHEMERAL) for name in names]
    added = [b - a for one, other in zip(alone, shared, strict=True) for a, b in zip(one, other, strict=True)]
    persistent = sum(d.persistent_bytes for d in demands)
    return {
        "models": len(names),
        "requests": len(added),
        "busy": sum(MODELS[name][0] for name in names) / 1000 / period_s,
        "one_lane_bytes": persistent + EPHEMERAL,
        "static_bytes": persistent + EPHEMERAL * len(names),
        "capacity_bytes": CAPACITY,
        "added_ms": {f"p{p}": round(float(np.percentile(added, p)), 2) for p in (50, 90, 99)},
        "mean_added_ms": round(float(np.mean(added)), 2),
    }


class Training(NamedTuple):
    """A job that joins after ``join_s``: its memory, and how long an iteration takes."""

    join_s: float
    demand: Demand = Demand(MB, CAPACITY // 2)
    iteration_s: float = 0.02


def _trains(path: Path, number: int, training: Training, zero: float, until: float, out: Any) -> None:
    """The turns of a job, by begin and end."""
    _sleep_until(zero + training.join_s)
    session = Session(path, Work(training.demand, label=str(number)))
    turns = []
    while time.monotonic() < until:
        with session.iteration():
            begin = time.monotonic()
            time.sleep(training.iteration_s)
            turns.append((begin - zero, time.monotonic() - zero))
    out.put((number, turns))


def turns_of(trainings: Sequence[Training], seconds: float) -> list[list[tuple[float, float]]]:
    """The turns of each under ``fair``, by begin and end in seconds."""
    with broker("fair") as path:
        zero = time.monotonic() + 1.0
        turns = _started(_trains, [(path, n, one, zero, zero + seconds) for n, one in enumerate(trainings)])
        assert not status_of(path)["sessions"]
    return turns


def equal_jobs(span_s: float) -> list[dict[str, Any]]:
    """For each span: the shares of those who are there, and the share of time in which a turn was under way."""
    turns = turns_of([Training(n * span_s) for n in range(3)], 3 * span_s)
    told = []
    for here in (1, 2, 3):
        begin, end = (here - 1) * span_s, here * span_s
        spent = [sum(min(b, end) - max(a, begin) for a, b in own if b > begin and a < end) for own in turns[:here]]
        counts = [sum(begin <= a < end for a, _ in own) for own in turns[:here]]
        told.append({"shares": [round(s / sum(spent), 3) for s in spent], "busy": round(sum(spent) / span_s, 3),
                     "iterations": sum(counts)})  # fmt: skip
    return told


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="Of requests, and between two jobs that join: 3/4.")
@click.option("--period", default=5.0, show_default=True, help="Mean seconds between two requests of a model.")
@click.option("--settle", default=10.0, show_default=True, help="Seconds for 42 processes to start.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(seconds: float, period: float, settle: float, file: Path | None) -> None:
    """Print what came of both."""
    found = {"equal_jobs": equal_jobs(0.75 * seconds), "models": models(period, seconds, settle)}
    click.echo(json.dumps(found, indent=1))
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

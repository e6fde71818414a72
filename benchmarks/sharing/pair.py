"""Two PyTorch trainings that share one core by turns, beside what else they could do with it.

    python -m benchmarks.sharing.pair [--cycles 8] [--seconds 2] [--threads 2] [--width 896] [--json FILE]
    python -m benchmarks.sharing.pair --gpu --width 4096 --batch 1024 [--cycles 4]

Two unmodified trainings of about 20 ms an iteration (``--width`` says how much an iteration computes). By turns only
one computes at a time, on whatever cores; where they fight they have as many cores as one of them has threads, and
these stand for the GPU. *use* is the share of a phase's time in which a step computes (from the begin of the forward
pass to the end of the optimizer's step); *cpu* the CPU time of an iteration, of which others on the machine take
nothing: a job alone waits for nobody, so that this is all it pays.

The machine may be busy with other things: so a cycle of short phases is run through again and again by the same two
processes, and figures are ratios within a cycle, their median over all. Phases: each alone without turns, each alone
with them, both by turns, both at once without turns, and a *relay*: both by turns, but each wakes the other itself, by
a byte in a pipe. That is what the machine takes at that moment to wake a process that is to go on computing; with a
broker two are woken, it and the next one. An iteration that a phase's end cuts counts in parts.

With ``--gpu`` they train on the first GPU, which is what they fight for: CUDA's time slices decide, or an MPS daemon if
one runs. As scripts do that look at no number, they never wait for the GPU by themselves, and run ahead of it as far as
CUDA lets them; moments are those of events in its queue.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from slurm_hadar.runtime.inject import INJECT

#: Who works in a phase, and whether by turns.
PHASES = {"a": ("a", False), "b": ("b", False), "a_turns": ("a", True), "b_turns": ("b", True),
          "turns": ("ab", True), "relay": ("ab", False), "fight": ("ab", False)}  # fmt: skip
JOB = """
import json, os, select, sys, time
everywhere, threads = os.sched_getaffinity(0), int(sys.argv[4])
import torch
device, rows = sys.argv[5], int(sys.argv[6])
gpu = device != "cpu"
contested = everywhere if gpu else set(sorted(everywhere)[:threads])
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
name, folder, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(threads)
noted = []
def note():
    noted.append(torch.cuda.Event(enable_timing=True) if gpu else time.monotonic())
    if gpu:
        noted[-1].record()
class Clock(torch.nn.Module):
    def forward(self, x):
        note()
        return x
def moments(done, base, base_s):
    at = lambda event: base_s + base.elapsed_time(event) / 1e3
    begins = [at(d[2]) for d in done]
    nexts = [*begins[1:], at(done[-1][3])] if done else []
    return [(d[0], b, b, at(d[3]), n, d[5]) for d, b, n in zip(done, begins, nexts)]
model = torch.nn.Sequential(Clock(), *(torch.nn.Linear(width, width) for _ in range(8))).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
optimizer.register_step_post_hook(lambda *_: note())  # before ours
batch = torch.randn(rows, width, device=device)
hooks = [modules._global_forward_pre_hooks, modules._global_forward_hooks, modules._global_forward_hooks_always_called,
         optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
kept = [dict(h) for h in hooks]
assert all(kept), "no hooks"
def turns(wanted):
    for h, k in zip(hooks, kept):
        h.clear()
        h.update(k if wanted else {})
def iteration():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
warm = time.monotonic() + (1.5 if gpu else 0.0)  # a GPU's clocks, too
for n in range(10**6):
    iteration()
    if n >= 20 and time.monotonic() > warm:
        break
    if gpu:
        torch.cuda.synchronize()
open(folder + "/ready-" + name, "w").close()
while not os.path.exists(folder + "/plan"):
    time.sleep(0.02)
pipes = {n: os.open(folder + "/to-" + n, os.O_RDWR | os.O_NONBLOCK) for n in "ab"}
def mine(seconds):
    return select.select([pipes[name]], [], [], max(0.0, seconds))[0] and os.read(pipes[name], 9)
done = []
for phase, begin, end, wanted in json.load(open(folder + "/plan"))[name]:
    relay = phase.endswith("relay")
    mine(0)
    time.sleep(max(0.0, begin - time.monotonic()))
    if relay and name == "a":
        os.write(pipes[name], b"x")
    turns(wanted)
    os.sched_setaffinity(0, contested if phase.endswith("fight") else everywhere)
    if gpu:
        torch.cuda.synchronize()
        base, before = torch.cuda.Event(enable_timing=True), len(done)
        base.record()
        torch.cuda.synchronize()
        base_s = time.monotonic()
    while time.monotonic() < end:
        asked, cpu = time.monotonic(), time.process_time()
        noted.clear()
        if relay and not mine(end - asked):
            break
        iteration()
        if relay:
            if gpu:
                torch.cuda.synchronize()
            os.write(pipes["b" if name == "a" else "a"], b"x")
        done.append((phase, asked, noted[0], noted[1], time.monotonic(), time.process_time() - cpu))
    if gpu:
        torch.cuda.synchronize()
        done[before:] = moments(done[before:], base, base_s)
json.dump(done, open(folder + "/done-" + name, "w"))
"""
PAUSE_S = 0.5  # in which a GPU does what it was ordered, too
CLOCKS_S = 0.0002  # by which the moments of two processes' events may be off


def plan(cycles: int, seconds: float, begin: float) -> dict[str, list[tuple[str, float, float, bool]]]:
    """For each job, its phases: number of the cycle and name, begin, end, by turns or not."""
    found: dict[str, list[tuple[str, float, float, bool]]] = {"a": [], "b": []}
    for cycle in range(cycles):
        for phase, (who, turns) in PHASES.items():
            for name in who:
                found[name].append((f"{cycle} {phase}", begin, begin + seconds, turns))
            begin += seconds + PAUSE_S
    return found


@dataclass(frozen=True)
class Training:
    """What both jobs compute: ``rows`` of a batch through eight layers of ``width``, on ``device``; ``environ`` is what
    they tell the broker, whose GPU has ``memory`` for jobs and gives turns by ``policy``."""

    width: int = 640
    threads: int = 1
    device: str = "cpu"
    rows: int = 64
    memory: str = "1"
    policy: str = "rr"
    environ: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """For a job's command line."""
        return [str(self.width), str(self.threads), self.device, str(self.rows)]


def played(cycles: int, seconds: float, training: Training) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The plan, and the iterations of each job: phase, asked, begin, end, gone on."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        socket = Path(folder) / "s"
        command = ["-m", "slurm_hadar.cli.main", "share", "broker", "--policy", training.policy]
        options = ["--memory", training.memory, "--socket", str(socket), "--linger", "600"]
        broker = subprocess.Popen([sys.executable, *command, *options])
        path = os.pathsep.join([str(INJECT), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "HADAR_SHARE": str(socket), **training.environ}
        jobs = []
        try:
            while not socket.exists():
                time.sleep(0.05)
            for name in "ab":
                os.mkfifo(Path(folder) / f"to-{name}")
            for name in "ab":
                arguments = [name, folder, *training.words()]
                jobs.append(subprocess.Popen([sys.executable, "-c", JOB, *arguments], env=env))
            while not all((Path(folder) / f"ready-{name}").exists() for name in "ab"):
                if any(job.poll() is not None for job in jobs):
                    raise SystemExit("a job has failed")
                time.sleep(0.05)
            phases = plan(cycles, seconds, time.monotonic() + 1)
            written = Path(folder) / "writing"
            written.write_text(json.dumps(phases))
            written.rename(Path(folder) / "plan")
            if any(job.wait() for job in jobs):
                raise SystemExit("a job has failed")
            return phases, {name: json.loads((Path(folder) / f"done-{name}").read_text()) for name in "ab"}
        finally:
            for process in (*jobs, broker):
                process.kill()
                process.wait()


def rate(done: list[Any], phase: tuple[str, float, float, bool]) -> float:
    """Iterations a second within a phase."""
    name, begin, end, _ = phase
    parts: list[float] = [
        max(0.0, min(gone_on, end) - max(asked, begin)) / (gone_on - asked)
        for which, asked, _, _, gone_on, _ in done
        if which == name
    ]
    return sum(parts) / (end - begin)


def use(done: list[Any], phase: tuple[str, float, float, bool]) -> float:
    """The share of a phase in which a job computes."""
    name, begin, end, _ = phase
    parts: list[float] = [max(0.0, min(e, end) - max(b, begin)) for which, _, b, e, _, _ in done if which == name]
    return sum(parts) / (end - begin)


def cpu(done: list[Any], phase: str) -> float:
    """The median CPU time of an iteration."""
    return float(statistics.median(own[5] for own in done if own[0] == phase))


def figures(
    cycles: int, phases: dict[str, Any], done: dict[str, list[Any]], handed: tuple[str, ...] = ("turns", "relay")
) -> dict[str, Any]:
    """Ratios within cycles, hand-overs in the phases that have such, and the spread of step times."""
    rates = {(p[0], job): rate(done[job], p) for job in "ab" for p in phases[job]}
    ratios: dict[str, list[float]] = {
        "throughput alone": [], "throughput turns": [], "throughput relay": [], "throughput fight": [],
        "use alone": [], "use turns": [], "use relay": [], "cpu alone": [],
    }  # fmt: skip
    uses = {p[0]: sum(use(done[job], p) for job in "ab") for job in "ab" for p in phases[job]}
    for c in range(cycles):
        plain = {job: rates[f"{c} {job}", job] for job in "ab"}
        ratios["throughput alone"].extend(rates[f"{c} {job}_turns", job] / plain[job] for job in "ab")
        for both in ("turns", "relay", "fight"):
            ratios[f"throughput {both}"].append(sum(rates[f"{c} {both}", job] / plain[job] for job in "ab"))
        ratios["use alone"].extend(uses[f"{c} {job}_turns"] / uses[f"{c} {job}"] for job in "ab")
        ratios["cpu alone"].extend(cpu(done[job], f"{c} {job}") / cpu(done[job], f"{c} {job}_turns") for job in "ab")
        for both in ("turns", "relay"):
            ratios[f"use {both}"].append(2 * uses[f"{c} {both}"] / (uses[f"{c} a"] + uses[f"{c} b"]))
    return {
        "ratio_median": {name: round(statistics.median(values), 4) for name, values in ratios.items()},
        "ratio_least_greatest": {name: [round(min(v), 4), round(max(v), 4)] for name, v in ratios.items()},
        "handover_ms": {both: handovers_ms(cycles, done, both) for both in handed},
        "step_ms": {name: spread(done, name) for name in ("a", "turns", "fight")},
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def handovers_ms(cycles: int, done: dict[str, list[Any]], phase: str) -> dict[str, float]:
    """From the end of a step to the begin of the other job's."""
    gaps = []
    for c in range(cycles):
        merged = sorted((b, e, job) for job in "ab" for which, _, b, e, _, _ in done[job] if which == f"{c} {phase}")
        for (_, end, job), (begin, _, other) in pairwise(merged):
            assert begin >= end - CLOCKS_S, "two turns at a time"
            if job != other:
                gaps.append((begin - end) * 1e3)
    return {f"p{p}": round(float(np.percentile(gaps, p)), 3) for p in (50, 90, 99)}


def spread(done: dict[str, list[Any]], phase: str) -> dict[str, float]:
    """Of the time in which a step computes: its turn, or without turns its whole iteration."""
    steps = [(e - b) * 1e3 for own in done.values() for which, _, b, e, _, _ in own if which.split()[1] == phase]
    p50, p99 = (float(np.percentile(steps, p)) for p in (50, 99))
    return {"p50": round(p50, 2), "p99": round(p99, 2), "p99/p50": round(p99 / p50, 2)}


@click.command()
@click.option("--cycles", default=8, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Of each phase; a cycle has seven.")
@click.option("--threads", default=1, show_default=True, help="Of each training.")
@click.option("--width", default=640, show_default=True, help="Of the model's eight layers.")
@click.option("--batch", default=64, show_default=True, help="Its rows.")
@click.option("--gpu", is_flag=True, help="Train on the first GPU.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(cycles: int, seconds: float, threads: int, width: int, batch: int, gpu: bool, file: Path | None) -> None:
    """Measure."""
    training = Training(width, threads, "cuda" if gpu else "cpu", batch)
    text = json.dumps(figures(cycles, *played(cycles, seconds, training)), indent=1)
    click.echo(text)
    if file is not None:
        file.write_text(text + "\n")


if __name__ == "__main__":
    main()

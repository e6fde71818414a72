"""How long it takes until the next process has the turn, and who gets how much of the time: a real broker, two plain
Python processes.

    python -m benchmarks.sharing.handover [--seconds 10] [--json FILE]

A *hand-over* is the time from the end of one process's turn to the begin of the other's, by the machine's monotonic
clock; the turns are of 2 ms. Then one process has turns of 2 ms and the other of 10 ms, under ``fair`` and ``rr``:
equal shares of the time, and equal numbers of turns. ``alone`` is what a turn costs a process without others.

``ping`` is what the machine itself takes at the same moment: a byte to another process over a Unix socket and back,
after a rest of 2 ms. A hand-over, too, wakes two processes one after the other.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

JOB = """
import sys, time
from pathlib import Path
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.lanes import Demand
path, turn_ns, seconds, log = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
session = Session(path, Work(Demand(0, 1)))
turns, until = [], time.monotonic_ns() + int(seconds * 1e9)
while time.monotonic_ns() < until:
    with session.iteration():
        begin = time.monotonic_ns()
        time.sleep(turn_ns / 1e9)
        turns.append((begin, time.monotonic_ns()))
assert not session.alone
log.write_text("\\n".join(f"{begin} {end}" for begin, end in turns))
"""
MS = 1_000_000


def played(policy: str, turns_ns: list[int], seconds: float) -> list[list[tuple[int, int]]]:
    """The turns of processes that share a broker, each by begin and end."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        path = Path(folder) / "s"
        command = ["-m", "slurm_hadar.cli.main", "share", "broker", "--policy", policy, "--memory", "1"]
        broker = subprocess.Popen([sys.executable, *command, "--socket", str(path)])
        try:
            while not path.exists():
                time.sleep(0.05)
            logs = [Path(folder) / str(number) for number in range(len(turns_ns))]
            jobs = [
                subprocess.Popen([sys.executable, "-c", JOB, str(path), str(turn_ns), str(seconds), str(log)])
                for turn_ns, log in zip(turns_ns, logs, strict=True)
            ]
            for job in jobs:
                if job.wait(seconds + 60):
                    raise SystemExit("a job failed")
            return [[(int(a), int(b)) for a, b in map(str.split, log.read_text().splitlines())] for log in logs]
        finally:
            broker.terminate()
            broker.wait()


def pings_us(count: int) -> list[float]:
    """Of an empty ping-pong."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        while said := theirs.recv(1):
            theirs.send(said)
        os._exit(0)
    theirs.close()
    found = []
    for _ in range(count):
        time.sleep(0.002)
        begin = time.monotonic_ns()
        ours.send(b"x")
        ours.recv(1)
        found.append((time.monotonic_ns() - begin) / 1000)
    ours.close()
    os.waitpid(child, 0)
    return found


def handovers_us(turns: list[list[tuple[int, int]]]) -> list[float]:
    """From the end of a turn to the begin of the next one, where that is another process's."""
    merged = sorted((begin, end, which) for which, own in enumerate(turns) for begin, end in own)
    found = []
    for (_, end, which), (begin, _, other) in pairwise(merged):
        assert begin >= end, "two turns at a time"
        if which != other:
            found.append((begin - end) / 1000)
    return found


def shared(turns: list[list[tuple[int, int]]]) -> dict[str, Any]:
    """How the time in which all were there was divided."""
    begin, end = max(own[0][0] for own in turns), min(own[-1][1] for own in turns)
    inside = [[(a, b) for a, b in own if a >= begin and b <= end] for own in turns]
    spent = [sum(b - a for a, b in own) for own in inside]
    return {"turns": [len(own) for own in inside], "shares": [round(ns / sum(spent), 3) for ns in spent]}


def told(values: list[float]) -> dict[str, float]:
    """Percentiles."""
    return {f"p{p}": round(float(np.percentile(values, p)), 1) for p in (50, 90, 99)}


@click.command()
@click.option("--seconds", default=10.0, show_default=True, help="Of each run.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(seconds: float, file: Path | None) -> None:
    """Measure hand-overs and shares."""
    pings = pings_us(round(100 * seconds))
    pair = played("rr", [2 * MS, 2 * MS], seconds)
    pings += pings_us(round(100 * seconds))
    (alone,) = played("rr", [2 * MS], seconds)
    gaps = [(later[0] - earlier[1]) / 1000 for earlier, later in pairwise(alone)]
    found = {
        "ping_us": told(pings),
        "handover_us": told(handovers_us(pair)),
        "alone_us": told(gaps),
        "fair_2_and_10_ms": shared(played("fair", [2 * MS, 10 * MS], seconds)),
        "rr_2_and_10_ms": shared(played("rr", [2 * MS, 10 * MS], seconds)),
        "load": round(os.getloadavg()[0], 1),
    }
    text = json.dumps(found, indent=1)
    click.echo(text)
    if file is not None:
        file.write_text(text + "\n")


if __name__ == "__main__":
    main()

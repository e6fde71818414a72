"""Whole rounds in memory, with a queue, reports, a journal and faults that no one expects.

    python -m benchmarks.fuzz.rounds --rounds 200000 [--seed 1] [--policy hadar] [--json F]
    python -m benchmarks.fuzz.rounds --scene 1/17             one scene again

Scene after scene a controller over a Slurm in memory plays some tens of rounds; time is faked, so nobody sleeps. Exit
code 1 if a round raised, was skipped for a job's sake, broke a rule of :mod:`benchmarks.fuzz.scene`, or took longer
than five seconds.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import SupportsIndex

import click

from benchmarks.fuzz.run import TooSlow, limit_memory, timed, where_of
from benchmarks.fuzz.scene import Scene, prepare_folders
from slurm_hadar.policies import registry

__all__ = ["Tally", "play", "play_scene"]

ROUNDS_A_SCENE = 30
EXAMPLES = 3
NOW = 1_800_000_000.0


@dataclass
class Tally:
    """``kinds`` counts problems alike but for their numbers; ``examples`` are (scene, round, problem)."""

    rounds: int = 0
    scenes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, int, str]]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def add_problem(self, scene: str, number: int, problem: str) -> None:
        kind = re.sub(r"\d+(_\d+)?", "N", problem)[:160]
        self.kinds[kind] += 1
        found = self.examples.setdefault(kind, [])
        if len(found) < EXAMPLES:
            found.append((scene, number, problem))


class Clock:
    """Stands for the clocks of :mod:`time`; sleeping only moves it on."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def time(self) -> float:
        return NOW + self._ahead

    def monotonic(self) -> float:
        return self._ahead

    def sleep(self, seconds: float | SupportsIndex) -> None:
        self._ahead += max(0.0, float(seconds))


@contextmanager
def faked_time() -> Iterator[Clock]:
    """Time that goes on only by sleeping."""
    clock, real = Clock(), (time.time, time.monotonic, time.sleep)
    time.time, time.monotonic, time.sleep = clock.time, clock.monotonic, clock.sleep
    try:
        yield clock
    finally:
        time.time, time.monotonic, time.sleep = real


def play_scene(name: str, rounds: int, policy: str, folders: list[Path], tally: Tally) -> None:
    """All rounds of one scene, a function of its name. It is given up at its first exception."""
    with faked_time() as clock:
        scene = Scene(random.Random(name), policy, folders, clock.sleep)
        tally.scenes += 1
        try:
            for number in range(rounds):
                try:
                    tally.rounds += 1
                    with timed():
                        problems = scene.round()
                except (Exception, TooSlow) as error:
                    tally.add_problem(name, number, where_of(error))
                    return
                for problem in problems:
                    tally.add_problem(name, number, problem)
        finally:
            tally.faults += scene.faults
            scene.close()


def play(rounds: int, seed: int, policies: tuple[str, ...], until: float = float("inf")) -> Tally:
    """So many rounds, or as many as there are until the monotonic time ``until``; the policies take turns."""
    tally, number = Tally(), 0
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="hadar-fuzz-") as folder:
            folders = prepare_folders(Path(folder))
            while tally.rounds < rounds and time.monotonic() < until:
                todo = min(ROUNDS_A_SCENE, rounds - tally.rounds)
                play_scene(f"{seed}/{number}", todo, policies[number % len(policies)], folders, tally)
                number += 1
    finally:
        logging.disable(logging.NOTSET)
    return tally


@click.command()
@click.option("--rounds", default=10_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--policy", "policies", multiple=True, help="Only these policies.")
@click.option("--scene", help="One scene again, such as 1/17, with the policy that it had.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the report as JSON too.")
def main(rounds: int, seed: int, policies: tuple[str, ...], scene: str | None, report: Path | None) -> None:
    """Play rounds with hostile queues, and check what must hold of each."""
    limit_memory()
    chosen = policies or registry.names()
    began = time.monotonic()
    if scene is not None:
        tally = Tally()
        with tempfile.TemporaryDirectory(prefix="hadar-fuzz-") as folder:
            policy = chosen[int(scene.partition("/")[2]) % len(chosen)]
            play_scene(scene, ROUNDS_A_SCENE, policy, prepare_folders(Path(folder)), tally)
    else:
        tally = play(rounds, seed, chosen)
    took_s = time.monotonic() - began
    for kind, count in tally.kinds.most_common():
        click.echo(f"{count:>6}  {kind}")
        for name, number, problem in tally.examples[kind]:
            click.echo(f"        --scene {name}, round {number}: {problem[:300]}")
    faults = sum(tally.faults.values())
    click.echo(
        f"{tally.rounds} rounds in {tally.scenes} scenes, {faults} faults, {took_s:.0f} s; "
        f"{sum(tally.kinds.values())} problems of {len(tally.kinds)} kinds"
    )
    if report is not None:
        content = {"seed": seed, "rounds": tally.rounds, "scenes": tally.scenes, "seconds": round(took_s, 1),
                   "faults": dict(sorted(tally.faults.items())), "problems": dict(tally.kinds)}  # fmt: skip
        report.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(1 if tally.kinds else 0)


if __name__ == "__main__":
    main()

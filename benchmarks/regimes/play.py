"""Runs of the map: one policy in one scene, many in processes of their own, each written down when it is done."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.regimes import beyond
from benchmarks.regimes.cells import Cell
from benchmarks.regimes.draw import Scene, draw
from slurm_hadar.errors import PolicyError
from slurm_hadar.policies import registry
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.compare import read_contenders
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.run import bounds_of, simulate

__all__ = ["BOUND", "Book", "Task", "code_of", "figures", "play", "play_all"]

#: Stands in the place of a policy: what none can beat.
BOUND = "lower bound"


@dataclass(frozen=True)
class Task:
    """A policy, written ``name:key=value``, in a cell. ``code`` tells the policy's code from others."""

    cell: str
    seed: int
    policy: str
    code: str

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.cell, self.seed, self.policy, self.code


class TooSlow(Exception):
    """A run has used the CPU time that it may."""


def play(task: Task, limit_s: float) -> dict[str, Any]:
    """The figures of one run; of one that takes more than ``limit_s`` of CPU, or whose policy fails, only that."""
    scene = _scene(task.cell, task.seed)
    told = {**asdict(task), "scene": scene.fingerprint(task.policy)}
    if task.policy == BOUND:
        return {**told, **{key: round(bound, 4) for key, bound in bounds_of(scene.trace, scene.options).items()}}
    policy = _policy(task.policy.partition("@")[0])
    began = time.process_time()

    def watch(_done: int, _total: int) -> None:
        if time.process_time() - began > limit_s:
            raise TooSlow

    try:
        result = simulate(scene.trace, policy, scene.options_of(task.policy), on_round=watch)
    except TooSlow:
        return {**told, "too_slow_s": limit_s}
    except PolicyError as error:
        return {**told, "failed": str(error)}
    cpu_s = time.process_time() - began
    return {**told, **figures(result, scene.alone_s), "cpu_s": round(cpu_s, 2)}


def figures(result: SimResult, alone_s: dict[str, float]) -> dict[str, Any]:
    """What is kept of a run. A job's stretch is its completion time over ``alone_s``, in the fastest way."""
    summary, decide_ms = result.summary(), 1000 * np.array(result.decide_s)
    stretches = [row.jct_s / alone_s[row.job_id] for row in result.counted if row.jct_s is not None]
    kept = {key: summary[key] for key in ("avg_jct_s", "p50_jct_s", "p95_jct_s", "ttd_s", "restarts_per_job", "gru")}
    return {
        **{key: None if value is None else round(value, 4) for key, value in kept.items()},
        "worst_stretch": round(max(stretches, default=0.0), 3),
        "decide_p50_ms": round(float(np.median(decide_ms)), 3),
        "decide_max_ms": round(float(decide_ms.max()), 3),
        "rounds": summary["rounds"],
        "unfinished": len(summary["unfinished"]),
    }


def _policy(label: str) -> Policy:
    contender = read_contenders(label)[0]
    return registry.get(contender.name, **contender.params)


@cache
def code_of(policy: str) -> str:
    """What tells a policy's code from another state of it: a hash over its module and all of ``slurm_hadar.policies``
    that those import. After ``@`` a label has a name instead, under which the results of a state of the code are kept:
    ``hadar@before``."""
    label, _, name = policy.partition("@")
    if name:
        return name
    if label == BOUND:
        module = "slurm_hadar.simulator.outcome.bounds"
    else:
        module = type(_policy(label)).__module__
    digest = hashlib.sha256()
    for path in sorted(_imported(module, set())):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _imported(module: str, found: set[Path]) -> set[Path]:
    spec = find_spec(module)
    if spec is None or spec.origin is None or Path(spec.origin) in found:
        return found
    path = Path(spec.origin)
    found.add(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slurm_hadar.policies."):
            _imported(str(node.module), found)
    return found


class Book:
    """The results of runs in a file, one JSON object a line, in which a later line of the same run counts more. A run
    is known by its task and the fingerprint of its scene, so that a changed draw is run anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[tuple[str, int, str, str], dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self._cut = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # a run was killed while it wrote
                continue
            self._rows[row["cell"], row["seed"], row["policy"], row["code"]] = row

    def add(self, row: dict[str, Any]) -> None:
        self._rows[row["cell"], row["seed"], row["policy"], row["code"]] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._cut + json.dumps(row, sort_keys=True) + "\n")
        self._cut = False

    def get(self, task: Task) -> dict[str, Any] | None:
        """The run's figures, unless the scene is drawn otherwise by now."""
        row = self._rows.get(task.key)
        return (
            row if row is not None and row["scene"] == _scene(task.cell, task.seed).fingerprint(task.policy) else None
        )

    def wants(self, task: Task, limit_s: float) -> bool:
        """Whether the run is still to be made: it has not been, or was given up after less time than it may have."""
        row = self.get(task)
        return row is None or row.get("too_slow_s", limit_s) < limit_s


@cache
def _scene(name: str, seed: int) -> Scene:
    cell = Cell.named(name)
    number = beyond.number_of(cell)
    return draw(cell, seed) if number is None else beyond.draw(number)


def play_all(tasks: Iterable[Task], book: Book, processes: int, limit_s: float) -> None:
    """Make the runs that ``book`` does not have, and write each down as it is done."""
    missing: Sequence[Task] = [task for task in tasks if book.wants(task, limit_s)]
    if not missing:
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        runs = [pool.submit(play, task, limit_s) for task in missing]
        with click.progressbar(as_completed(runs), length=len(runs), label="runs", file=sys.stderr) as done:
            for run in done:
                book.add(run.result())
    finally:
        pool.shutdown(cancel_futures=True)

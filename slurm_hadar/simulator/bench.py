"""How long one decision takes and how much memory it needs: on generated snapshots, each in a process of its own."""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ConfigError, PolicyError
from slurm_hadar.model import Form, Job, JobState, Node, Snapshot, Speed
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.simulator.processes import pool
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.table import reference

__all__ = ["SWEEP", "BenchResult", "growth_exponent", "measure", "snapshot_of", "sweep"]

#: Numbers of jobs of a sweep; the cluster grows along, one GPU a job.
SWEEP = (64, 128, 256, 512, 1024, 2048)
TYPES = ("v100", "p100", "k80", "a100")
_GANGS, _GANG_WEIGHTS = (1, 2, 4, 8), (70, 10, 15, 5)  # Philly's mix as Gavel draws it (OSDI 2020, section 7.1)
_BUSY_SHARE = 0.5
_NOW = 1_000_000_000.0


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One measured decision. ``peak_memory_bytes`` is of the whole process: interpreter, libraries, snapshot."""

    policy: str
    params: Mapping[str, Any]
    jobs: int
    gpus: int
    nodes: int
    decide_cpu_s: float
    decide_wall_s: float
    peak_memory_bytes: int
    placed: int


def snapshot_of(jobs: int, gpus: int, nodes: int, seed: int = 0) -> Snapshot:
    """A round in the middle of a cluster's life.

    ``gpus`` are spread evenly over ``nodes``, one type each, as many nodes of each of :data:`TYPES` as possible. Jobs
    are of the families of the published table with gangs as in Philly, none of them elastic, and arrived over the last
    day. Those that were started in order of arrival hold half of the GPUs and are partly done; the others wait.

    Raises ConfigError for sizes that cannot be.
    """
    if not (jobs >= 1 and nodes >= 1 and gpus >= nodes):
        raise ConfigError(f"{jobs} jobs on {gpus} GPUs of {nodes} nodes: needs jobs, and at least one GPU per node")
    rng = random.Random(seed)
    types = TYPES[: min(len(TYPES), nodes)]
    each, more = divmod(gpus, nodes)
    cluster = tuple(
        Node(f"{types[i % len(types)]}-{i}", {types[i % len(types)]: each + (i < more)}) for i in range(nodes)
    )
    # once for all jobs alike, as the controller does it in a round
    speeds = functools.cache(functools.partial(Estimator(reference()).speeds, gpu_types=types))
    queue = [_job(i, rng, speeds, each, nodes) for i in range(jobs)]
    empty = Snapshot(_NOW, cluster, tuple(queue))
    return empty.with_jobs(_started(empty, int(gpus * _BUSY_SHARE)))


def _job(number: int, rng: random.Random, speeds_of: Callable[..., dict[str, Speed]], per_node: int, nodes: int) -> Job:
    table = reference()
    model = rng.choice(table.models)
    batch = rng.choice(table.batches(model))
    workers = rng.choices(_GANGS, _GANG_WEIGHTS)[0]
    while workers > per_node * nodes:
        workers //= 2
    speeds = speeds_of(model, batch, workers)
    alone_s = 10.0 ** rng.uniform(3.0, 5.5)
    total = alone_s * max(s.steps_per_s for s in speeds.values())
    return Job(
        str(number + 1),
        Form(workers, max_nodes=min(workers, nodes)),
        user=f"user{rng.randrange(50)}",
        model=model,
        batch=batch,
        arrival=_NOW - 86400.0 * rng.random(),
        total_steps=total,
        done_steps=rng.random() ** 2 * total,
        speeds=speeds,
    )


def _started(snapshot: Snapshot, gpus: int) -> Iterator[Job]:
    """The jobs, the first of them running until ``gpus`` GPUs are held."""
    arena = Arena.of(snapshot)
    ledger, running = Ledger(arena), {}
    for job in snapshot.steerable_jobs:
        if gpus < job.form.workers:
            continue
        pools = sorted(arena.reach(job).by_type.items(), key=lambda item: -job.speeds[item[0]].steps_per_s)
        gang = next((g for _, slots in pools if (g := ledger.find(job.form, slots))), None)
        if gang is None:
            continue
        ledger.take(gang)
        gpus -= job.form.workers
        running[job.job_id] = arena.placement(gang)
    for job in snapshot.jobs:
        if job.job_id not in running:
            yield replace(job, done_steps=0.0)
        else:
            yield replace(job, state=JobState.RUNNING, placement=running[job.job_id], started=job.arrival + 60.0)


def measure(policy: str, params: Mapping[str, Any], jobs: int, gpus: int, nodes: int, seed: int = 0) -> BenchResult:
    """One decision in a fresh process.

    A first decision on a small snapshot, which a daemon has behind it, is not measured. Raises ConfigError for an
    unknown policy or impossible sizes, PolicyError if the plan breaks the contract.
    """
    with pool(1) as process:
        return process.submit(_measure_here, policy, dict(params), jobs, gpus, nodes, seed).result()


def _measure_here(policy: str, params: dict[str, Any], jobs: int, gpus: int, nodes: int, seed: int) -> BenchResult:
    chosen = registry.get(policy, **params)
    chosen.allocate(snapshot_of(4, 8, 4, seed))
    snapshot = snapshot_of(jobs, gpus, nodes, seed)
    cpu, wall = time.process_time(), time.perf_counter()
    plan = chosen.allocate(snapshot)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = _peak_memory_bytes()
    problems = check_plan(snapshot, plan)
    if problems:
        raise PolicyError(f"policy {policy} broke its contract: {problems[0]} ({len(problems)} in all)")
    placed = sum(1 for placement in plan.placements.values() if placement)
    return BenchResult(policy, params, jobs, gpus, nodes, cpu, wall, peak, placed)


def _peak_memory_bytes() -> int:
    """The kernel's high-water mark of this process; getrusage's would begin with that of the process before it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("/proc/self/status tells no peak memory (VmHWM): hadar bench needs Linux")


def sweep(
    policy: str,
    params: Mapping[str, Any],
    sizes: Sequence[int] = SWEEP,
    gpus: int | None = None,
    nodes: int | None = None,
    seed: int = 0,
    on_result: Callable[[BenchResult], None] | None = None,
) -> list[BenchResult]:
    """Decisions on growing queues: on a cluster of ``gpus`` and ``nodes``, or on one that has a GPU for each job."""
    results = []
    for jobs in sizes:
        total = gpus or (max(jobs, nodes) if nodes else jobs)
        result = measure(policy, params, jobs, total, nodes or max(1, total // 4), seed)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return results


def growth_exponent(results: Sequence[BenchResult]) -> float | None:
    """The slope of log CPU time over log jobs, by least squares: 1 = linear. None for fewer than two sizes."""
    points = [(math.log(r.jobs), math.log(r.decide_cpu_s)) for r in results if r.decide_cpu_s > 0]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope: float = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope

"""A journal such as a controller leaves after days on a large cluster: for measuring and trying what reads it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from slurm_hadar.controller.journal import (
    DashboardChanges,
    Decision,
    Event,
    Gain,
    JobRecord,
    Journal,
    RoundRecord,
    Run,
    WriteOutcome,
    WriteRecord,
)
from slurm_hadar.model import Placement

__all__ = ["GPU_TYPES", "write_journal"]

#: {GPU type: how fast it is for the typical job of these journals}
GPU_TYPES = {"a100": 9.0, "v100": 5.0, "p100": 2.5, "k80": 1.0}
_USERS = ("ann", "bob", "chen", "dana", "eve", "farid", "grace", "hiro")
_PARTITIONS = ("gpu", "long", "debug")
_MODELS = (("resnet50", 64), ("resnet18", 128), ("lm", 20), ("transformer", 64), ("recommendation", 2048))
_ROUND_S = 360.0


def write_journal(
    path: Path,
    now: float,
    jobs: int = 10_000,
    nodes: int = 60,
    days: float = 1.0,
    seed: int = 0,
    name: str = "",
    tasks: int = 0,
) -> Journal:
    """Write the journal of a controller that looked last at ``now`` (epoch seconds), and return it open.

    ``jobs`` are in the queue, of which as many run as the GPUs take (4 per node, types in turn); rounds of 360 s go
    back ``days``. Jobs that are over have left runs and decisions. ``name`` is that of the first job, for names that
    nobody would choose. The last ``tasks`` of them are those of job arrays, 50 each. The same arguments
    give the same content.
    """
    rng = random.Random(seed)
    journal = Journal(path)
    node_types = {
        f"{t}-{i // len(GPU_TYPES) + 1}": t for i, t in zip(range(nodes), itertools.cycle(GPU_TYPES), strict=False)
    }
    lines = list(_lines(rng, now, jobs, node_types, name, tasks))
    numbers = _rounds(journal, rng, now, days, jobs, len(node_types))
    _queue(journal, rng, now, lines, node_types)
    _past(journal, rng, now, days, node_types, numbers)
    return journal


def _lines(
    rng: random.Random, now: float, jobs: int, node_types: dict[str, str], name: str, tasks: int
) -> Iterator[tuple[JobRecord, str, str, Placement]]:
    """(record, partition, workload, held GPUs) of each job; those that come first run as long as GPUs are left."""
    free = dict.fromkeys(node_types, 4)
    for number in range(1, jobs + 1):
        array = number - number % 50 if number > jobs - tasks else 0
        alike = random.Random(array) if array else rng  # tasks of one array
        model, batch = alike.choice(_MODELS)
        gpus, user = alike.choice((1, 1, 2, 4)), alike.choice(_USERS)
        node = next((n for n, left in free.items() if left >= gpus), None)
        held = Placement.of({node: {node_types[node]: gpus}}) if node else Placement()
        if node:
            free[node] -= gpus
        age_s = rng.uniform(600.0, 90_000.0)
        steps, total = rng.uniform(0, 90_000) if held else 0.0, rng.choice((None, 100_000.0, 200_000.0))
        job_id = f"{array}_{number % 50}" if array else str(number)
        record = JobRecord(
            job_id, submit=now - age_s, arrival=now - age_s, workers=gpus, user=user, model=model, batch=batch,
            name=name if name and number == 1 else f"{model}-{rng.randrange(100)}", steps=steps, total_steps=total,
            steered=bool(held), run_since=now - age_s / 2 if held else None, moves=rng.randrange(4) if held else 0,
            steps_per_s=_speed(held, gpus) * rng.uniform(0.9, 1.1) if held else None, last_seen=now,
            saved_step=steps * 0.9, attained_s=age_s * gpus / 2 if held else 0.0,
        )  # fmt: skip
        yield record, rng.choice(_PARTITIONS), f"{model}:{batch} x {gpus}", held


def _speed(held: Placement, gpus: int) -> float:
    return sum(GPU_TYPES[t] for t in held.by_type) * float(gpus**0.9)


def _rounds(journal: Journal, rng: random.Random, now: float, days: float, jobs: int, nodes: int) -> list[int]:
    """Rounds with their prices and gains; returns the numbers of those with decisions, the oldest first."""
    count, numbers = max(1, int(days * 86400 / _ROUND_S)), []
    level = {t: speed * 10 for t, speed in GPU_TYPES.items()}
    for index in range(count):
        time = now - (count - 1 - index) * _ROUND_S
        mode = "observe" if index < count // 4 else "act"
        record = RoundRecord(time, mode, "hadar", nodes, jobs, jobs - jobs // 20, 4 * nodes, 3, 1, 0, 40, 5,
                             read_s=0.2, decide_s=0.4, round_s=_ROUND_S, use=_use(rng, nodes))  # fmt: skip
        numbers.append(journal.add_round(record))
        level = {t: max(0.1, p * rng.uniform(0.97, 1.03)) for t, p in level.items()}
        gpu_s = 4 * nodes * _ROUND_S
        gain = Gain(time, mode, gpu_s, gpu_s * 1.2, gpu_s * 0.6, gpu_s * 0.05, 4 * nodes * 1.1, 4 * nodes * 1.25)
        prices = [(t, p * 0.8, p, p * 1.3) for t, p in level.items()]
        journal.update_dashboard(time, DashboardChanges(prices=prices, gain=gain))
    return numbers


def _use(rng: random.Random, nodes: int) -> dict[str, tuple[int, int]]:
    return {t: (rng.randint(4 * nodes // 8, 4 * nodes // 4), 4 * nodes // 4) for t in GPU_TYPES}


def _queue(
    journal: Journal,
    rng: random.Random,
    now: float,
    lines: list[tuple[JobRecord, str, str, Placement]],
    node_types: dict[str, str],
) -> None:
    """The queue, nodes and speeds as the last round saw them, and why each waiting job waits."""
    sight, waits = DashboardChanges(), {}
    for record, partition, workload, held in lines:
        node = rng.choice(list(node_types))
        wanted = held or Placement.of({node: {node_types[node]: record.workers}})
        types = "+".join(wanted.by_type)
        done = None if not record.total_steps else record.steps / record.total_steps
        sight.queue.append((
            record.job_id, _number(record.job_id), record.user, record.name, partition,
            "running" if held else "pending", record.workers, types, json.dumps(held.as_dict(), separators=(",", ":")),
            str(held), record.arrival, record.run_since, record.steps_per_s, done, 0, record.moves,
            "stated" if record.total_steps else "", None, workload, None,
        ))  # fmt: skip
        if held:
            sight.runs.append(Run(record.job_id, record.run_since or now, None, held, True))
            continue
        low, price = now + rng.uniform(60, 40_000), rng.uniform(1, 90)
        waits[record.job_id] = {
            "tier": rng.choice(("waits-for-capacity", "waits-by-policy")),
            "price": price,
            "payoff": rng.uniform(-5, 50),
            "why": f"the {types} GPUs go to jobs that gain more from them",
            "wanted": wanted.as_dict(),
            "starts": [low, low * 1.00001 + 3600],
        }
    carried_over = "published for resnet50; times 2, the published ratio"
    for workload in {line[2] for line in lines}:
        gpus = int(workload.rsplit(" ", 1)[1])
        sight.speeds[workload] = json.dumps({
            t: {"steps_per_s": s * gpus**0.9, "spread": 0.8, "error": 0.05 if t == "v100" else 0.4,
                "source": f"measured here 5 times on {gpus} v100" if t == "v100" else carried_over,
                "basis": "measured" if t == "v100" else "estimated"}
            for t, s in GPU_TYPES.items()
        })  # fmt: skip
    for node, gpu_type in node_types.items():
        down = rng.random() < 0.03
        sight.nodes[node] = json.dumps({"gpus": {gpu_type: 4}, "taken": {}, "available": not down,
                                        "partitions": ["gpu"], "state": "drained" if down else "mixed",
                                        "reason": "ECC errors" if down else "", "cpus": [rng.randrange(64), 64],
                                        "memory_bytes": [rng.randrange(256) << 30, 256 << 30]})  # fmt: skip
    journal.save_jobs(line[0] for line in lines)
    journal.replace_waits(1, waits)
    journal.replace_prices({(node, t): GPU_TYPES[t] * 10 for node, t in node_types.items()})
    journal.update_dashboard(now, sight)


def _number(job_id: str) -> int:
    head, _, task = job_id.partition("_")
    return int(head) * 10_000_000 + int(task or 0)


def _past(
    journal: Journal, rng: random.Random, now: float, days: float, node_types: dict[str, str], numbers: list[int]
) -> None:
    """Jobs that are over with their runs, and the decisions, events and writes about them and about the first job."""
    since, sight, decisions, number = now - days * 86400, DashboardChanges(), [], 1_000_000
    ended: list[JobRecord] = []
    for node, gpu_type in node_types.items():
        for _ in range(2):
            time = since
            while (length := rng.uniform(900, 30_000)) and time + length < now - 45_000:
                held, number = Placement.of({node: {gpu_type: 2}}), number + 1
                sight.runs.append(Run(str(number), time, time + length, held, True))
                decisions.append(
                    (time, Decision(str(number), "start", new=held, why="cheapest", price=12.0, payoff=3.0))
                )
                ended.append(JobRecord(
                    str(number), submit=time - 60, arrival=time - 60, workers=2, user=rng.choice(_USERS), name="past",
                    attained_s=2 * length, ended=time + length, final="COMPLETED", ran_s={gpu_type: length},
                ))  # fmt: skip
                time += length
    journal.save_jobs(ended)
    journal.update_dashboard(now, sight)
    decisions.sort(key=lambda item: item[0])
    for index, (time, decision) in enumerate(decisions):
        journal.add_decisions(numbers[index * len(numbers) // len(decisions)], time, [decision])
    node, gpu_type = next(iter(node_types.items()))
    first = Placement.of({node: {gpu_type: 1}})
    journal.add_decisions(
        numbers[-1], now - 300, [Decision("1", "start", new=first, why="cheapest", price=9.0, payoff=2)]
    )
    journal.add_writes(
        numbers[-1], now - 299, [WriteRecord("1", f"update 1 NodeList={node} StartTime=now", WriteOutcome.OK)]
    )
    journal.add_events(numbers[-1], now - 200, [Event("1", "restart", "run 2 from its checkpoint at step 400")])

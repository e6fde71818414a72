"""Which faults an episode has, and when: a pure function of its seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["KINDS", "Fault", "Kind", "draw"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. ``part`` is what it breaks: no part is broken twice at once. It lasts ``shortest_s`` to
    ``longest_s`` (both 0: a moment); ``weight`` is how often it is drawn; ``ways`` its variants."""

    part: str
    shortest_s: float = 0.0
    longest_s: float = 0.0
    weight: int = 1
    ways: tuple[str, ...] = ("",)


DAMAGE = ("truncate-db", "empty-db", "garble-db", "garble-rows", "truncate-wal", "garble-wal", "truncate-shm")
KINDS = {
    "kill-controller": Kind("controller", 0.5, 25.0, 4),
    "freeze-controller": Kind("controller", 3.0, 25.0),
    "kill-agent": Kind("", weight=2),
    "kill-reporter": Kind("", weight=2),
    "kill-training": Kind("", weight=2),
    "kill-slurmctld": Kind("slurmctld", 0.5, 15.0, 2),
    "stop-slurmctld": Kind("slurmctld", 3.0, 20.0, 2),
    "freeze-slurmctld": Kind("slurmctld", 2.0, 12.0, 2),
    "kill-slurmd": Kind("node", 1.0, 25.0, 3),
    "drain-node": Kind("node", 5.0, 30.0),
    "lose-node": Kind("node", 5.0, 30.0),
    "fill-state-disk": Kind("state", 3.0, 15.0, 2),
    "fill-job-disk": Kind("work", 3.0, 15.0, 2),
    "jump-clock": Kind("clock", 5.0, 20.0, 2, ("-3600", "-60", "-5", "+5", "+60", "+3600")),
    "cut-journal-stopped": Kind("controller", 0.5, 3.0, 2, DAMAGE),
    "cut-journal-running": Kind("controller", 1.0, 3.0, 2, DAMAGE),
    "cut-channel": Kind("channel", 2.0, 20.0, 2),
    "bad-messages": Kind("", weight=2),
    "second-controller": Kind("controller", 1.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """``number`` picks the victim (a node, a job) among those there are when the fault is injected."""

    at_s: float
    kind: str
    for_s: float
    way: str
    number: int

    def __str__(self) -> str:
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.at_s:6.1f} s  {self.kind}{' ' + self.way if self.way else ''}{lasting}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def draw(seed: int, seconds: float, faults: int, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[Fault, ...]:
    """``faults`` faults within ``seconds``, in order of time; parts that are broken already are not broken again.

    Nodes are parts of their own: two may be away at once, the same one not twice.
    """
    rng = random.Random(seed)
    busy: dict[str, list[tuple[float, float]]] = {}
    chosen: list[Fault] = []
    names = [k for k in kinds if k in KINDS]
    for _ in range(50 * faults):
        if len(chosen) == faults:
            break
        name = rng.choices(names, [KINDS[k].weight for k in names])[0]
        kind = KINDS[name]
        lasts = round(rng.uniform(kind.shortest_s, kind.longest_s), 1)
        at = round(rng.uniform(2.0, seconds), 1)
        way, number = rng.choice(kind.ways), rng.randrange(1_000_000)
        part = f"node{number % 4}" if kind.part == "node" else kind.part
        begin, end = at - 2.0, at + lasts + 2.0
        if part and any(begin < e and b < end for b, e in busy.get(part, ())):
            continue
        busy.setdefault(part, []).append((begin, end))
        chosen.append(Fault(at, name, lasts, way, number))
    return tuple(sorted(chosen, key=lambda f: f.at_s))

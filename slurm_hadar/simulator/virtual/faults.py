"""Nodes that fail and come back: from a file, or drawn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import number, positive, reading, rows

__all__ = ["Faults", "Outage", "draw_faults", "read_faults"]

HEADER = ("node", "down_s", "up_s")


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is away from ``down_s`` to ``up_s``, in seconds after the first arrival of the trace."""

    node: str
    down_s: float
    up_s: float


@dataclass(frozen=True)
class Faults:
    """Outages in order of time. A job on a failed node is requeued and goes on from its last periodic checkpoint,
    one being written every ``checkpoint_s`` seconds of running; 0 = nothing is lost."""

    outages: tuple[Outage, ...] = ()
    checkpoint_s: float = 600.0


def read_faults(path: Path, nodes: Sequence[str], checkpoint_s: float = 600.0) -> Faults:
    """Read CSV with the columns ``node``, ``down_s`` and ``up_s``. Raises TraceError naming file, line and field."""
    with reading(path, "faults file"):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    outages = []
    for where, row in rows(lines, str(path), HEADER, ()):
        node, down_s, up_s = row["node"], number(row["down_s"], where, "down_s"), positive(row["up_s"], where, "up_s")
        if node not in nodes:
            raise TraceError(f"{where}: node {node!r} is not in the cluster; it has {nodes[0]} ... {nodes[-1]}")
        if not 0 <= down_s < up_s:
            raise TraceError(f"{where}: down_s must be at least 0 and before up_s")
        outages.append(Outage(node, down_s, up_s))
    return Faults(_apart(outages), checkpoint_s)


def draw_faults(
    nodes: Iterable[str], mtbf_s: float, mttr_s: float, seed: int, until_s: float, checkpoint_s: float = 600.0
) -> Faults:
    """Independent nodes with exponential times between failures (mean ``mtbf_s``) and to repair (``mttr_s``).

    Raises TraceError if a mean is not above 0.
    """
    if not (mtbf_s > 0 and mttr_s > 0):
        raise TraceError("the mean times between failures and to repair must be above 0")
    outages = []
    for node in nodes:
        rng, now = random.Random(f"{seed} {node}"), 0.0
        while True:
            down = now + rng.expovariate(1 / mtbf_s)
            if down >= until_s:
                break
            now = down + rng.expovariate(1 / mttr_s)
            outages.append(Outage(node, down, now))
    return Faults(_apart(outages), checkpoint_s)


def _apart(outages: Iterable[Outage]) -> tuple[Outage, ...]:
    """In order of time; overlapping outages of one node become one."""
    merged: dict[str, list[Outage]] = {}
    for outage in sorted(outages, key=lambda o: (o.down_s, o.up_s)):
        of_node = merged.setdefault(outage.node, [])
        if of_node and outage.down_s <= of_node[-1].up_s:
            of_node[-1] = Outage(outage.node, of_node[-1].down_s, max(of_node[-1].up_s, outage.up_s))
        else:
            of_node.append(outage)
    return tuple(sorted((o for some in merged.values() for o in some), key=lambda o: (o.down_s, o.node)))

"""The cluster as people want to see it, in one place for the terminal and the dashboard.

What Slurm says now joined with what the journal knows, or, where Slurm is away or shall not be asked, what the journal
has of the last round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_hadar.comment import read
from slurm_hadar.config import Config
from slurm_hadar.controller.journal import Journal, Reader, ReadOnlyJournal
from slurm_hadar.controller.lines import Line, line_of, size_source, wait_fields
from slurm_hadar.controller.setup import JOURNAL, chosen_state_dir
from slurm_hadar.controller.steering import node_facts, pinned_reason, placement_of
from slurm_hadar.slurm.base import Backend
from slurm_hadar.slurm.state import ClusterState

__all__ = [
    "TIERS", "Beat", "Line", "NodeView", "TypeUse", "beat", "live_view", "nodes_of", "queue_view", "recorded_lines",
    "size_source", "type_use",
]  # fmt: skip

#: What the tier of a wait means, as the end of a sentence about the job.
TIERS = {
    "cannot-run": "cannot run here as it was submitted",
    "waits-for-capacity": "waits for GPUs that others hold",
    "waits-by-policy": "waits because the policy gives its GPUs to others",
    "transient": "waits for something that passes by itself",
    "pinned": "is left to Slurm",
}
_SPARE_S = 30.0  # a round takes some time itself


@dataclass(frozen=True, slots=True)
class Beat:
    """When the controller was last heard of. ``time`` is the begin of its last round in epoch seconds, None if there
    was none; ``note`` what was wrong in it. It counts as ``alive`` for two rounds."""

    time: float | None = None
    age_s: float | None = None
    alive: bool = False
    mode: str = ""
    policy: str = ""
    note: str = ""
    round: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, its GPUs, and who holds them. ``holders`` are (job, GPU type, count); ``others`` GPUs per type that are
    in use by nobody that can be named."""

    name: str
    gpus: Mapping[str, int]
    available: bool
    state: str
    reason: str
    holders: tuple[tuple[str, str, int], ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    def free(self, gpu_type: str) -> int:
        """GPUs of a type that nobody holds, whether or not the node can be used."""
        held = sum(n for _, t, n in self.holders if t == gpu_type)
        return max(0, self.gpus.get(gpu_type, 0) - held - self.others.get(gpu_type, 0))


@dataclass(frozen=True, slots=True)
class TypeUse:
    """GPUs of one type: all, in use, and out of use (free ones on nodes that are down or drained)."""

    gpu_type: str
    gpus: int
    used: int
    down: int

    @property
    def free(self) -> int:
        return self.gpus - self.used - self.down


def beat(journal: Reader, config: Config, now: float) -> Beat:
    """The controller's last sign of life, from its journal."""
    rounds = journal.rounds(last=1)
    if not rounds:
        return Beat()
    last = rounds[0]
    age_s = max(0.0, now - last["time"])
    round_s = last.get("round_s") or config.controller.round_s
    return Beat(last["time"], age_s, age_s <= 2 * round_s + _SPARE_S, last["mode"], last["policy"], last["note"], last)


def queue_view(backend: Backend, config: Config) -> list[Line]:
    """Running jobs first, then the waiting ones by arrival. Works without a journal, with less to say."""
    return live_view(backend, config)[0]


def live_view(backend: Backend, config: Config) -> tuple[list[Line], list[NodeView]]:
    """The queue as :func:`queue_view` gives it, and the nodes, by one look at Slurm. Raises SlurmError if it does not
    answer."""
    state = backend.read()
    path = chosen_state_dir(config) / JOURNAL
    journal: Reader = ReadOnlyJournal(path) if path.exists() else Journal(":memory:")
    try:
        lines = _lines(state, config, journal)
    finally:
        journal.close()
    nodes = {
        n.name: {"gpus": dict(n.gpus), "taken": dict(n.used), "available": n.available, "state": n.state,
                 "reason": n.reason}
        for n in state.nodes
    }  # fmt: skip
    return lines, nodes_of(nodes, lines, all_taken=True)


def _lines(state: ClusterState, config: Config, journal: Reader) -> list[Line]:
    facts = node_facts(state.nodes)
    records, waits, forks = journal.load_jobs(), journal.waits(), journal.forks()
    lines = []
    for job in state.jobs:
        if not job.state.active:
            continue
        record = records.get(job.job_id)
        comment, fault = read(job.comment)
        pinned = fault or pinned_reason(job, comment, record, config, facts)
        fork = forks.get(job.array_id or "") if comment.fork is not None else None
        progress = None if fork is None else (float(fork[1]), fork[2])
        lines.append(line_of(job, record, placement_of(job, facts), pinned, waits.get(job.job_id, {}), progress))
    return sorted(lines, key=lambda line: (line.state != "running", line.arrival, line.job_id))


def recorded_lines(rows: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Jobs from rows of the journal's queue, as the last round saw and left them."""
    return [_recorded(row) for row in rows]


def _recorded(row: Mapping[str, Any]) -> Line:
    wait = json.loads(row["wait"]) if row["wait"] else {}
    pinned = wait.get("tier") == "pinned"
    if row["state"] != "pending" and not pinned:
        wait = {}
    return Line(
        row["job_id"], row["user"], row["name"], row["state"], row["gpus"], row["place"], row["steps_per_s"],
        row["done"], row["arrival"], row["restarts"], row["moves"], wait.get("tier", ""), wait.get("why", ""),
        row["size"], json.loads(row["forecast"]) if row["forecast"] else None, row["partition"], row["started"],
        tuple(t for t in row["types"].split("+") if t), json.loads(row["held"]), **wait_fields(wait),
    )  # fmt: skip


def nodes_of(nodes: Mapping[str, Mapping[str, Any]], lines: Iterable[Line], all_taken: bool = False) -> list[NodeView]:
    """Nodes with the jobs on them. ``nodes`` has gpus, taken, available, state and reason of each; ``taken`` counts the
    GPUs of jobs that cannot be steered, with ``all_taken`` those of all jobs."""
    holders: dict[str, list[tuple[str, str, int]]] = {}
    pinned: dict[tuple[str, str], int] = {}
    for line in lines:
        for node, types in (line.held or {}).items():
            for gpu_type, count in types.items():
                holders.setdefault(node, []).append((line.job_id, gpu_type, count))
                if all_taken or line.tier == "pinned":
                    pinned[node, gpu_type] = pinned.get((node, gpu_type), 0) + count
    found = []
    for name, content in nodes.items():
        others = {t: n - pinned.get((name, t), 0) for t, n in content["taken"].items()}
        found.append(
            NodeView(name, content["gpus"], content["available"], content["state"], content["reason"],
                     tuple(holders.get(name, ())), {t: n for t, n in others.items() if n > 0})
        )  # fmt: skip
    return found


def type_use(nodes: Sequence[NodeView]) -> list[TypeUse]:
    """GPUs by type, in the order of their names."""
    total: dict[str, list[int]] = {}
    for node in nodes:
        for gpu_type, count in node.gpus.items():
            sums, free = total.setdefault(gpu_type, [0, 0, 0]), node.free(gpu_type)
            sums[0] += count
            sums[1] += count - free
            sums[2] += 0 if node.available else free
    return [TypeUse(t, *sums) for t, sums in sorted(total.items())]

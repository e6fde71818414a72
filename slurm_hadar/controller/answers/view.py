"""The cluster as people want to see it, in one place for the terminal and the dashboard.

What Slurm says now joined with what the journal knows, or, where Slurm is away or shall not be asked, what the journal
has of the last round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from slurm_hadar.comment import read
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.answers.lines import Line, line_of, size_source, wait_fields
from slurm_hadar.controller.answers.told import as_told
from slurm_hadar.controller.answers.trends import Trend, trend_of
from slurm_hadar.controller.journal import JobRecord, Journal, Reader, ReadOnlyJournal, drop_earlier
from slurm_hadar.controller.journal.salvage import row_object
from slurm_hadar.controller.observe.company import companies
from slurm_hadar.controller.state_dir import JOURNAL, chosen_state_dir
from slurm_hadar.controller.steering.forms import no_type, placement_of
from slurm_hadar.controller.steering.nodes import node_facts
from slurm_hadar.controller.steering.rules import pinned_reason, unreadable
from slurm_hadar.controller.words import clock, in_words
from slurm_hadar.errors import SlurmError, SlurmHidden, StoreError
from slurm_hadar.model import EMPTY, Tier
from slurm_hadar.names import by_number
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import ClusterState, SlurmJob

__all__ = [
    "TIERS",
    "Beat",
    "NodeView",
    "Picture",
    "TypeUse",
    "beat",
    "by_journal",
    "job_view",
    "live_view",
    "nodes_of",
    "picture_of",
    "queue_view",
    "recorded_lines",
    "recorded_nodes",
    "said",
    "shown_lines",
    "silence",
    "type_use",
]  # fmt: skip

#: What the tier of a wait means, as the end of a sentence about the job.
TIERS = {
    "cannot-run": "cannot run here as it was submitted",
    "waits-for-capacity": "waits for GPUs that others hold",
    "waits-by-policy": "waits because the policy gives its GPUs to others",
    "transient": "waits for something that passes by itself",
    "pinned": "is left to Slurm",
}
# what not every policy says of a wait
_NO_WAIT = {"tier": "", "why": "", "price": None, "payoff": None, "wanted": None, "starts": None}
# what the journal's queue and a line call by the same name
_SAME = (
    "job_id", "user", "name", "state", "gpus", "steps_per_s", "arrival", "restarts", "moves", "size", "partition",
    "started",
)  # fmt: skip
_MOST_SHOWN = 2000  # jobs of the journal on a terminal
_SILENT_AFTER = 3  # rounds that did not come
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Beat:
    """When the controller was last heard of. ``time`` is the begin of its last round in epoch seconds, None if there
    was none; ``note`` what was wrong in it. ``missed`` counts the rounds that were due since and did not come; it is
    ``alive`` until these are three."""

    time: float | None = None
    age_s: float | None = None
    alive: bool = False
    missed: int = 0
    mode: str = ""
    policy: str = ""
    note: str = ""
    round: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, its GPUs, and who holds them. ``holders`` are (job, GPU type, count), count 0 of one
    that shares the GPU of another; ``others`` GPUs per type that are
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
        """GPUs that could be given to a job."""
        return self.gpus - self.used - self.down


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at ``time`` (epoch seconds). ``live``: jobs and nodes are as Slurm says; else they are as the last
    round saw them, and ``fault`` says why. ``journal_fault`` is why nothing is known of rounds and decisions, or empty.
    ``total`` and ``waiting``: how many jobs there are, should ``lines`` not have them all."""

    time: float
    live: bool
    lines: tuple[Line, ...]
    nodes: tuple[NodeView, ...]
    total: int
    waiting: int
    beat: Beat = Beat()
    moves: tuple[dict[str, Any], ...] = ()
    fault: str = ""
    journal_fault: str = ""
    trend: Trend = field(default_factory=Trend)


def picture_of(backend: Backend, config: Config, now: float) -> Picture:
    """One look for a terminal: at Slurm, or at the journal's first jobs where Slurm does not answer."""
    return by_journal(config, lambda journal, fault: _picture(backend, config, now, journal, fault))


def _picture(backend: Backend, config: Config, now: float, journal: Reader, journal_fault: str) -> Picture:
    last, moves = beat(journal, config, now), [said(entry) for entry in journal.last_moves()]
    trend = trend_of(journal)
    try:
        lines, nodes = live_view(backend, config, journal)
        total, waiting, fault = len(lines), sum(1 for line in lines if line.state == "pending"), ""
    except SlurmError as error:
        rows, total = journal.queue_page(limit=_MOST_SHOWN)
        lines, nodes, fault = recorded_lines(rows), recorded_nodes(journal), str(error)
        waiting = journal.queue_counts("state").get("pending", 0)
    return Picture(
        now,
        not fault,
        tuple(lines),
        tuple(nodes),
        total,
        waiting,
        last,
        tuple(moves),
        fault,
        journal_fault,
        trend,
    )


def job_view(journal: Reader, job_id: str) -> dict[str, Any] | None:
    """All that is known of one job, or of a forked job and its copies; None if it was never heard of."""
    row, record, wait = journal.queue_row(job_id), journal.job(job_id), journal.wait(job_id)
    runs, history = journal.runs_of(job_id), journal.history(job_id)
    parent = job_id.partition("_")[0]
    fork = journal.forks().get(parent)
    if not (row or record or runs or history or (fork and parent == job_id)):
        return None
    copies = recorded_lines(journal.queue_tasks(parent)) if fork else []
    return {
        "job_id": job_id, "line": recorded_lines([row])[0].as_dict() if row else None,
        "wait": {**_NO_WAIT, **wait} if wait else None,
        "record": None if record is None else record.as_dict(), "size": size_source(record),
        "workload": row["workload"] if row else None,
        "speeds": journal.speeds_of(row["workload"]) if row else {},
        "runs": [{**asdict(r), "held": r.held.as_dict()} for r in runs],
        "fork": None if fork is None else {
            "job_id": parent, "consolidation": fork[0], "steps": fork[1], "total_steps": fork[2], "closer": fork[3],
            "copies": [copy.as_dict() for copy in copies],
        },
        "history": [said(entry) for entry in history],
    }  # fmt: skip


def said(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a job's history with its words: ``what`` and ``detail_words``, as ``hadar history`` has them."""
    what, detail = in_words(dict(entry))
    return {**entry, "what": what.strip(), "detail_words": detail}


def beat(journal: Reader, config: Config, now: float) -> Beat:
    """The controller's last sign of life, from its journal."""
    rounds = journal.rounds(last=1)
    if not rounds:
        return Beat()
    last = rounds[0]
    age_s = max(0.0, now - last["time"])
    missed = _missed(age_s, last, last.get("round_s") or config.controller.round_s)
    alive = missed < _SILENT_AFTER
    return Beat(last["time"], age_s, alive, missed, last["mode"], last["policy"], last["note"], last)


def silence(journal: Reader, config: Config, now: float) -> str:
    """What to know of decisions and progress that are older than they should be; empty where they are not."""
    last = beat(journal, config, now)
    if last.time is None or last.alive:
        return ""
    return f"the controller has been silent since {clock(last.time)}: its decisions and the jobs' progress are of then"


def _missed(age_s: float, last: Mapping[str, Any], round_s: float) -> int:
    """A round is known of when it has looked and decided, and it waits until the one before has acted: as long as the
    last one took, and a little, none counts as missed."""
    took_s = sum(last.get(key, 0.0) for key in ("read_s", "decide_s", "act_s", "verify_s"))
    return max(0, int((age_s - took_s - min(30.0, max(2.0, round_s / 4))) // round_s))


def queue_view(backend: Backend, config: Config) -> tuple[list[Line], str]:
    """Running jobs first, then the waiting ones by arrival, and what is wrong with the journal or the controller, by
    which there is less to say. Raises SlurmError."""

    def tell(journal: Reader, fault: str) -> tuple[list[Line], str]:
        note = f"only what Slurm says: {fault}" if fault else silence(journal, config, time.time())
        lines, hidden = shown_lines(backend, config, journal)
        return lines, "; ".join(text for text in (hidden, note) if text)

    return by_journal(config, tell)


def shown_lines(backend: Backend, config: Config, journal: Reader) -> tuple[list[Line], str]:
    """The queue, and why it is no more than what squeue says of it, where this user may not see the nodes. Raises
    SlurmError."""
    try:
        return live_view(backend, config, journal)[0], ""
    except SlurmHidden as error:
        note = f"only what squeue says of each job: {error}"
    jobs, lines = backend.read_jobs(), []
    records, waits = _remembered(journal, jobs)
    for job in jobs:
        if job.state.active:
            wait = waits.get(job.job_id) or {"why": f"Slurm says {job.reason}" if job.reason else ""}
            lines.append(line_of(job, records.get(job.job_id), EMPTY, unreadable(job), wait))
    return _sorted(lines), note


def _sorted(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (line.state != "running", line.arrival, by_number(line.job_id)))


def by_journal(config: Config, tell: Callable[[Reader, str], _T]) -> _T:
    """What ``tell`` says by the journal, or by an empty one and why: there is none, or it cannot be read. That it is
    damaged may show late."""
    try:
        with ReadOnlyJournal(chosen_state_dir(config) / JOURNAL) as journal:
            return tell(journal, "")
    except StoreError as error:
        fault = str(error)
    empty = Journal(":memory:")
    try:
        return tell(empty, fault)
    finally:
        empty.close()


def live_view(backend: Backend, config: Config, journal: Reader) -> tuple[list[Line], list[NodeView]]:
    """The queue as :func:`queue_view` gives it, and the nodes, by one look at Slurm. Raises SlurmError if it does not
    answer."""
    state = backend.read()
    lines = _lines(state, config, journal)
    nodes = {
        n.name: {
            "gpus": dict(n.gpus),
            "taken": dict(n.used),
            "available": n.available,
            "state": n.state,
            "reason": n.reason,
        }
        for n in state.nodes
    }
    return lines, nodes_of(nodes, lines, all_taken=True)


def _lines(state: ClusterState, config: Config, journal: Reader) -> list[Line]:
    config = as_told(config, journal)
    facts = node_facts(state.nodes, config.gpus.memory_gb, state.bounds)
    (records, waits), forks = _remembered(journal, state.jobs), journal.forks()
    lines, acting_only, shared = [], config.boldest is Mode.ACT, companies(state.jobs)
    for job in state.jobs:
        if not job.state.active:
            continue
        record = records.get(job.job_id)
        comment = read(job.comment)[0]
        pinned = unreadable(job) or pinned_reason(job, comment, record, config, facts, acting_only)
        fork = forks.get(job.array_id or "") if comment.fork is not None else None
        wait = waits.get(job.job_id, {})
        if not wait and not pinned and (short := no_type(comment, facts)):  # no round has seen it yet, or none will
            wait = {"tier": Tier.CANNOT_RUN, "why": f"no GPU type here will do: {short}"}
        progress = None if fork is None else (float(fork[1]), fork[2])
        held = placement_of(job, facts)
        lines.append(line_of(job, record, held, pinned, wait, progress, shared.get(job.job_id)))
    return _sorted(lines)


def _remembered(journal: Reader, jobs: Iterable[SlurmJob]) -> tuple[dict[str, JobRecord], dict[str, dict[str, Any]]]:
    """The records of these jobs, and why they wait; not those of earlier jobs with the same ids."""
    records, waits = journal.load_jobs(), journal.waits()
    for job_id in drop_earlier(records, jobs):
        waits.pop(job_id, None)
    return records, waits


def recorded_lines(rows: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Jobs from rows of the journal's queue, as the last round saw and left them."""
    return [_recorded(row) for row in rows]


def _recorded(row: Mapping[str, Any]) -> Line:
    wait = row_object(row["wait"]) or {} if row["wait"] else {}
    pinned = wait.get("tier") == "pinned"
    if row["state"] != "pending" and not pinned:
        wait = {}
    same = {key: row[key] for key in _SAME}
    return Line(
        **same,
        where=row["place"],
        done_share=row["done"],
        forecast=row_object(row["forecast"]) if row["forecast"] else None,
        types=tuple(t for t in row["types"].split("+") if t),
        held=row_object(row["held"]) or {},
        shares=row_object(row["shares"]) if row["shares"] else None,
        **wait_fields(wait),
    )


def recorded_nodes(journal: Reader, lines: Iterable[Line] | None = None) -> list[NodeView]:
    """Nodes as the last round saw them, with the jobs that held their GPUs then: ``lines``, where they were read."""
    nodes = journal.node_records()
    return nodes_of(nodes, recorded_lines(journal.queue_holding()) if lines is None else lines)


def nodes_of(nodes: Mapping[str, Mapping[str, Any]], lines: Iterable[Line], all_taken: bool = False) -> list[NodeView]:
    """Nodes with the jobs on them. ``nodes`` has gpus, taken, available, state and reason of each; ``taken`` counts the
    GPUs of jobs that cannot be steered, with ``all_taken`` those of all jobs."""
    holders: dict[str, list[tuple[str, str, int]]] = {}
    pinned: dict[tuple[str, str], int] = {}
    for line in lines:
        others = (line.shares or {}).get("with", ())
        second = any(by_number(other) < by_number(line.job_id) for other in others)  # the first one's GPU counts
        for node, types in (line.held or {}).items():
            for gpu_type, count in types.items():
                count = 0 if second else count
                holders.setdefault(node, []).append((line.job_id, gpu_type, count))
                if all_taken or line.tier == "pinned":
                    pinned[node, gpu_type] = pinned.get((node, gpu_type), 0) + count
    found = []
    for name in sorted(nodes, key=by_number):
        content = nodes[name]
        others = {t: n - pinned.get((name, t), 0) for t, n in content["taken"].items()}
        found.append(
            NodeView(
                name,
                content["gpus"],
                content["available"],
                content["state"],
                content["reason"],
                tuple(holders.get(name, ())),
                {t: n for t, n in others.items() if n > 0},
            )
        )
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

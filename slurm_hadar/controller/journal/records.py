"""What the journal keeps, one dataclass for each kind of entry."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

from slurm_hadar.model import EMPTY, MOST_RAISED, Placement, outruns

__all__ = [
    "Decision", "Event", "EventKind", "Gain", "JobRecord", "PastJob", "RoundRecord", "Run", "DashboardChanges",
    "Purpose", "Stage", "WriteOutcome", "WriteRecord", "drop_earlier", "placement_from_json", "placement_to_json",
]  # fmt: skip


_CLOCK_S = 2.0  # clocks of two hosts, and whole seconds
# of the record, that what is not over is reckoned from, or until
_MOMENTS = ("run_since", "booked", "last_seen", "limit_asked", "unsaved_until", "retry_after", "unfit_until")
_NOTHING: Mapping[str, Any] = {}  # one for all records: most have none of it, and there are many


class Stage(enum.Enum):
    """Where a job's record stands. What leads from one to the next is drawn in docs/design/job-records.md."""

    NEW = enum.auto()  # seen, and never told anything
    DEFERRED = enum.auto()  # Slurm was last told to put it off: a lease
    PLACED = enum.auto()  # Slurm was last told to start it, on nodes of our choice
    RUNNING = enum.auto()
    OVER = enum.auto()


class PastJob(NamedTuple):
    """What a job that is over tells of those that come: whether its script said that it saves, the state in which it
    ended, and the seconds from its last start to the first step, None = nobody was told."""

    user: str
    model: str
    name: str
    final: str
    resumable: bool
    start_s: float | None

    @classmethod
    def read(cls, row: Sequence[Any]) -> PastJob | None:
        """Out of these values in this order; None if they are of other types."""
        user, model, name, final, resumable, start_s = row
        whole = all(isinstance(text, str) for text in row[:4]) and isinstance(start_s, float | int | None)
        return cls(user, model, name, final, bool(resumable), start_s) if whole else None


@dataclass(slots=True)
class JobRecord:
    """What is remembered of one job between rounds.

    ``submit`` and ``restarts`` as Slurm last showed them tell a job from a later one with the same id. ``arrival`` is
    the first submission. ``workers``, ``nodes``, ``tasks`` and ``cpus`` are the shape its owner asked for. ``steered``
    says that node list or shape in Slurm are ours, not the owner's, and ``given`` has the nodes of such lists, () =
    they are not known; ``lease`` is the start time we gave it, and ``defer_until`` the latest that a round which may
    have been killed can have given it. Slurm counts whole seconds from the moment it reads a start time: what was given
    lies between ``lease_low`` and ``lease``, or, after a kill, between ``defer_from`` and ``defer_until``. Any other
    start time is the owner's or an administrator's. ``attained_s`` (GPU-seconds) counts until ``booked``, as does
    ``clock_s``, the seconds that it ran in all, None = only ``attained_s`` was counted so far. ``avoid``
    maps a node where the job could not be started to the epoch second until which it is not tried again; ``slow``
    counts rounds in which a placement did not start, ``relaunched`` how often Slurm was told to try a launch of its own
    again that had failed.
    ``reported`` says that ``total_steps`` is the script's own word; else it is the comment's. ``most_steps`` are the
    most that the script has stated for all its trainings, and ``raised`` counts how often that was raised. ``forecast``
    is what the job was last expected to be (:class:`slurm_hadar.controller.prediction.forecasts.Forecast`), {} = it was
    never asked about. ``user``, ``name``, ``model``, ``batch``, ``ran_s`` (seconds it ran, by GPU type; ``last_type``
    at last) and ``final``, the state in which it ended, are what a predictor learns from.
    ``ran_on``: the nodes of the present run, as long as it was not this controller that stopped it.
    ``graph_fault``: why the graph that its comment names cannot be used. ``lowered``: why it weighs less than stated.
    ``size_kept``: why it keeps its size, though its comment allows others.
    ``unsaved`` counts in a row how often it promised to save when asked and did not; it is not asked again before
    ``unsaved_until``, which is also set where its training had not begun. ``limit_asked``: when it was asked to save
    before its time limit, in this run.
    ``forgotten``: how many things its training says go on in it but are in no checkpoint.
    ``wanted``: of a server of models, the workers that it last said it wants; 0 = it has not said, or is none.
    ``retries``: how often its command failed and it was run again as its owner asked; not before ``retry_after``.
    ``placed``: Slurm was last told to start it, rather than to put it off.
    ``turns``: of a guest on a GPU with turns, its share of these as was last told; ``held_up_s``: seconds that the job
    has lost to its company, as far as is known what it keeps beside it; ``untold_s``: those of its present run in which
    it could make steps, neither suspended nor in its company's turn, and has told of none; None = not counted so far.
    ``reshaped``: Slurm was told of a shape of ours at some time. ``node_range``: the fewest and most nodes, where its
    owner asked for a range. ``first_seen``: the time of the round that began this record, 0 where that was not
    recorded; what the journal has of this id from before is another job's, whose number was used again.
    ``others_s``: GPU-seconds of ``attained_s`` that others had, of GPUs that it shared with them.
    ``set_by_s``: by how much the clock was set since its arrival, in all.
    ``readied``: since when nodes are made ready for its present run, by node, as where Slurm switches them on; {} = it
    runs, or has none. ``unfit`` counts how often Slurm found nodes unfit for it, ``unfit_on`` the last ones and Slurm's
    word; from the second time on it is left to Slurm until ``unfit_until``.
    """

    job_id: str
    submit: float = 0.0
    restarts: int = 0
    arrival: float = 0.0
    workers: int = 0
    nodes: int = 1
    tasks: int = 1
    cpus: int = 1
    steered: bool = False
    lease: float | None = None
    defer_until: float | None = None
    run_since: float | None = None
    booked: float | None = None
    attained_s: float = 0.0
    moves: int = 0
    steps: float = 0.0
    steps_per_s: float | None = None
    total_steps: float | None = None
    resumable: bool = False
    saved_step: float | None = None
    save_s: float | None = None
    stall_s: float | None = None
    start_s: float | None = None
    lost_steps: float = 0.0
    work_dir: str = ""
    avoid: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    slow: int = 0
    relaunched: int = 0
    graph_fault: str = ""
    ended: float | None = None
    last_seen: float = 0.0
    reported: bool = False
    forecast: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    user: str = ""
    name: str = ""
    model: str = ""
    batch: int | None = None
    ran_s: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    last_type: str = ""
    lowered: str = ""
    size_kept: str = ""
    final: str = ""
    ran_on: Sequence[str] = ()
    lease_low: float | None = None
    defer_from: float | None = None
    unsaved: int = 0
    unsaved_until: float = 0.0
    limit_asked: float | None = None
    placed: bool = False
    forgotten: int = 0
    retries: int = 0
    retry_after: float = 0.0
    shards: int = 0
    company: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    needs_mib: Sequence[int] = ()
    needs_filed: int = 0
    wanted: int = 0
    turns: float = 0.5
    held_up_s: float = 0.0
    given: Sequence[str] = ()
    reshaped: bool = False
    node_range: Sequence[int] = ()
    clock_s: float | None = None
    first_seen: float = 0.0
    unfit: int = 0
    unfit_until: float = 0.0
    unfit_on: str = ""
    untold_s: float | None = None
    set_by_s: float = 0.0
    others_s: float = 0.0
    most_steps: float = 0.0
    raised: int = 0
    readied: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    @property
    def past(self) -> PastJob:
        """What is remembered of it when it is over."""
        return PastJob(self.user, self.model, self.name, self.final, self.resumable, self.start_s)

    @property
    def serves(self) -> bool:
        """Whether it is a server of models."""
        return self.wanted > 0

    @property
    def counted_moves(self) -> int:
        """What guard.max_moves_per_job counts. A server runs for as long as it is asked, and is made larger and smaller
        at its own wish: it would be left for ever at the size of its last move."""
        return 0 if self.serves else self.moves

    @property
    def arrived(self) -> float:
        """Its arrival by the clock as it is now: so long it has waited, whatever the clock was set by since."""
        return self.arrival + self.set_by_s

    @property
    def disbelieved(self) -> str:
        """Why what is stated of its length tells nothing; "" where it does."""
        return f"its stated total was raised {self.raised} times" if self.raised > MOST_RAISED else ""

    @property
    def stage(self) -> Stage:
        """How far it is, by what is on record."""
        if self.ended is not None:
            return Stage.OVER
        if self.run_since is not None:
            return Stage.RUNNING
        if self.placed:
            return Stage.PLACED
        return Stage.NEW if self.lease is None else Stage.DEFERRED

    def is_of(self, submit: float, restarts: int) -> bool:
        """Whether the job that Slurm shows with this submit time (epoch seconds) and restart count is this one, and not
        a later one with the same id. Slurm changes submit time only together with the restart count.

        A slurmctld that crashed may have lost a restart: then both are older than we know. Since 24.11 a job that is
        requeued shows its next count while it still leaves its nodes, and its next submit time only after that.
        """
        if restarts == self.restarts:
            return submit == self.submit or restarts > 0
        return restarts > self.restarts or submit <= self.submit

    def keep_off(self, nodes: Iterable[str], until: float) -> None:
        """Try these nodes no more before the epoch second ``until``."""
        self.avoid = {**self.avoid, **dict.fromkeys(nodes, until)}

    def clock_set(self, by_s: float) -> None:
        """The clock was set: it has waited and run, and is let alone, for as long as before. What Slurm shows in its
        own time (submission, start times that it was given) stays."""
        self.set_by_s += by_s
        for name in _MOMENTS:
            if moment := getattr(self, name):
                setattr(self, name, moment + by_s)
        self.avoid = {node: until + by_s for node, until in self.avoid.items()}
        self.readied = {node: since + by_s for node, since in self.readied.items()}

    @property
    def ran_in_all_s(self) -> float:
        """Seconds that it has run, over all its runs, on however many GPUs. An older version counted GPU-seconds alone:
        these are taken as those of the size that its owner asked for."""
        return self.attained_s / max(1, self.workers) if self.clock_s is None else self.clock_s

    @property
    def had_s(self) -> float:
        """GPU-seconds that it has had; of a shared GPU those of its turns."""
        return self.attained_s - self.others_s

    def as_dict(self) -> dict[str, Any]:
        """By name of field, with :attr:`had_s`, for JSON and templates."""
        return {name: getattr(self, name) for name in self.__slots__} | {"had_s": self.had_s}

    def serve(self, seconds: float, gpus: int, part: float = 1.0) -> None:
        """It ran so much longer, on so many GPUs, of which it had that part."""
        self.clock_s = self.ran_in_all_s + seconds
        self.attained_s += seconds * gpus
        self.others_s += seconds * gpus * (1.0 - part)

    def stated(self, steps: float) -> None:
        """The script states so many steps of all its trainings, as far as they are known; it may have stated more."""
        if self.most_steps and outruns(steps, self.most_steps):
            self.raised += 1
        elif self.most_steps:
            return
        self.most_steps = steps

    def ran_more(self, gpu_type: str, seconds: float) -> None:
        """It ran for so many seconds more on GPUs of that type."""
        self.ran_s = {**self.ran_s, gpu_type: self.ran_s.get(gpu_type, 0.0) + seconds}

    def deferred(self, eligible: float | None) -> bool:
        """Whether a start time that is to come is of our making."""
        if eligible is None:
            return False
        given = ((self.lease_low, self.lease), (self.defer_from, self.defer_until))
        return any(
            high is not None and (low if low is not None else 0.0) - _CLOCK_S <= eligible <= high + _CLOCK_S
            for low, high in given
        )


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round as a whole: sizes, what was done, and how long each step took in seconds. ``round_s`` is how far rounds
    are apart as configured, 0 where that was not recorded; ``use`` has the GPUs of each type that were in use when it
    began, and all there are: {} where that was not recorded. ``skipped``: nothing was seen, and ``note`` says why."""

    time: float
    mode: str
    policy: str
    nodes: int = 0
    jobs: int = 0
    steered: int = 0
    running: int = 0
    starts: int = 0
    moves: int = 0
    preemptions: int = 0
    leases: int = 0
    writes: int = 0
    failed: int = 0
    read_s: float = 0.0
    decide_s: float = 0.0
    act_s: float = 0.0
    verify_s: float = 0.0
    note: str = ""
    round_s: float = 0.0
    use: Mapping[str, Sequence[int]] = field(default_factory=dict)
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one job, recorded when it differs from the last one: start, move, preempt, wait, end;
    stay where the plan was another. ``ground``: the kind of its reason, whose words may be others in each round."""

    job_id: str
    kind: str
    old: Placement = EMPTY
    new: Placement = EMPTY
    why: str = ""
    price: float | None = None
    payoff: float | None = None
    ground: str = ""

    @property
    def news(self) -> tuple[str, str, Placement, Placement]:
        """What tells it from the decision before."""
        return self.kind, self.ground, self.old, self.new


#: What happens to jobs; each has its words in :mod:`slurm_hadar.controller.words`.
EventKind = Literal[
    "restart", "anew", "retry", "slurm", "asked", "wanted", "size", "forecast", "raised", "graph", "weight", "barred"
]


@dataclass(frozen=True, slots=True)
class Event:
    """What was seen to happen to a job, as opposed to decided."""

    job_id: str
    kind: EventKind
    why: str


class WriteOutcome(enum.StrEnum):
    """What became of a write to Slurm about one job; the values are those of the journal."""

    OK = "ok"
    REFUSED = "refused"
    OVERTAKEN = "overtaken"  # the job had ended, started or been cancelled meanwhile: no failure of anybody's
    INEFFECTIVE = "ineffective"
    SLOW = "slow"
    UNDONE = "undone"
    SENT = "sent"  # no answer is known: none came, or the controller was killed before it did

    @property
    def failed(self) -> bool:
        """Whether it failed, as far as is known; one that came too late did not."""
        return self not in (WriteOutcome.OK, WriteOutcome.OVERTAKEN)


class Purpose(enum.Enum):
    """What a write to Slurm is for."""

    PLACE = enum.auto()
    LEASE = enum.auto()  # a start time that is to come, and nothing else
    DEFER = enum.auto()  # the same with the shape that the owner asked for
    GIVE_BACK = enum.auto()  # the owner's shape; when the job starts stays as it is, but for the end of a lease
    NUDGE = enum.auto()  # a start time that has come, once more, so that Slurm looks at the job
    REQUEUE = enum.auto()
    RESTART = enum.auto()
    RELEASE = enum.auto()
    CANCEL = enum.auto()


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One write to Slurm about one job and what became of it. ``purpose`` and ``defer_s``, the seconds for which it
    puts the job off, are for the round itself: the journal does not keep them, but for ``renews``."""

    job_id: str
    command: str
    outcome: WriteOutcome
    detail: str = ""
    purpose: Purpose | None = None
    defer_s: float = 0.0

    @property
    def renews(self) -> bool:
        """Whether it is a lease that holds, and those before it say nothing more."""
        return self.purpose is Purpose.LEASE and self.outcome is WriteOutcome.OK


@dataclass(frozen=True, slots=True)
class Run:
    """That a job ran: on these GPUs from ``began``, as Slurm says it, to ``ended``, when it was not seen there any more
    (None = it still runs). ``steered``: its place was ours to choose. Epoch seconds."""

    job_id: str
    began: float
    ended: float | None
    held: Placement
    steered: bool


@dataclass(frozen=True, slots=True)
class Gain:
    """What one round says of the worth of knowing GPU types; see :mod:`slurm_hadar.controller.journal.gains` for what
    it means.

    ``gpu_s``: GPU-seconds of steered jobs since the round before; ``blind_s``: what the same steps take on GPUs chosen
    without a look at their type; ``measured_s``: those of ``gpu_s`` whose speed was measured here; ``unknown_s``:
    GPU-seconds that are in none of them, as nothing is known of the job's speed. ``worth`` and ``planned``: GPUs chosen
    blindly that would do the work of those that steered jobs hold, and of those that they would hold after the plan
    (None = no plan).
    """

    time: float
    mode: str
    gpu_s: float = 0.0
    blind_s: float = 0.0
    measured_s: float = 0.0
    unknown_s: float = 0.0
    worth: float = 0.0
    planned: float | None = None


@dataclass(slots=True)
class DashboardChanges:
    """What differs from what the journal has of the cluster as it was last seen. ``queue`` are rows of the table in the
    order of its columns, ``speeds`` and ``nodes`` JSON by key; ``gone`` names the keys of each table to forget.
    ``prices`` are (GPU type, lowest, mean, highest over its nodes)."""

    queue: list[tuple[Any, ...]] = field(default_factory=list)
    speeds: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    gone: dict[str, list[str]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    prices: list[tuple[str, float, float, float]] = field(default_factory=list)
    gain: Gain | None = None


def placement_to_json(placement: Placement) -> str:
    """Compact JSON of a placement."""
    return json.dumps(placement.as_dict(), separators=(",", ":"))


@lru_cache(maxsize=4096)
def placement_from_json(text: str) -> Placement:
    """The placement that :func:`placement_to_json` wrote; kept, since most of a journal's are alike."""
    return Placement.of(json.loads(text))


class _Seen(Protocol):
    """A job as Slurm shows it."""

    @property
    def job_id(self) -> str: ...
    @property
    def submit(self) -> float | None: ...
    @property
    def restarts(self) -> int: ...


def drop_earlier(records: dict[str, JobRecord], jobs: Iterable[_Seen]) -> set[str]:
    """Take the records of earlier jobs out that had the ids of these, and return the ids."""
    found = [(job, records[job.job_id]) for job in jobs if job.job_id in records]
    ids = {job.job_id for job, record in found if not record.is_of(job.submit or record.submit, job.restarts)}
    for job_id in ids:
        del records[job_id]
    return ids

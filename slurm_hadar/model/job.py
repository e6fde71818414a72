"""A job as a policy sees it: its state, the forms that it may run in, what it needs beside GPUs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_hadar.model.gpus import EMPTY, Placement, Speed, Tenant
from slurm_hadar.model.length import Length

__all__ = [
    "Draw",
    "Fork",
    "Form",
    "Job",
    "JobState",
    "LEAST_DUTY",
    "MOST_RAISED",
    "MOST_SLOW_DOWN",
    "Mix",
    "NO_NEEDS",
    "Needs",
    "Quota",
]

#: The largest ``slow_down`` of a job.
MOST_SLOW_DOWN = 100.0
#: The least ``duty`` of a job.
LEAST_DUTY = 0.001
#: A stated total that was raised more often than this tells nothing of how long a job is. A script with several
#: trainings raises it, too: as often as this with the ten folds of a cross-validation.
MOST_RAISED = 9


class JobState(enum.StrEnum):
    """The states of a Slurm job that a scheduler tells apart; everything finished is ``DONE`` or ``FAILED``."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    DONE = "done"
    FAILED = "failed"

    @property
    def active(self) -> bool:
        """True while the job still wants or holds resources."""
        return self not in (JobState.DONE, JobState.FAILED)


class Mix(enum.StrEnum):
    """How a gang behaves on unlike GPUs: never mixed, gated by the slowest worker, or balanced to the sum of rates."""

    NEVER = "never"
    GATED = "gated"
    BALANCED = "balanced"


class Fork(enum.StrEnum):
    """Which nodes the copies of a forked job (HadarE) may have: idle ones only, all of them, or what the prices say."""

    IDLE = "idle"
    SPREAD = "spread"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Form:
    """Which placements a job's form allows: what Slurm can do to it and what its script can use.

    ``workers`` is the gang size W that the owner asked for; an elastic job takes any of ``sizes`` (ascending, W among
    them; empty = just W). The gang may span ``min_nodes`` to ``max_nodes`` nodes. ``uniform`` jobs (plain
    Slurm jobs) take the same number of GPUs on every node. ``types`` and ``nodes`` limit where it may run (None = all).
    Of a job that needs ``memory_gb`` on each GPU, ``small`` are the types that ``types`` leaves out for that, with the
    gigabytes that they have (None = nobody knows).
    """

    workers: int
    min_nodes: int = 1
    max_nodes: int = 1
    uniform: bool = True
    mix: Mix = Mix.NEVER
    types: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    sizes: tuple[int, ...] = ()
    memory_gb: int | None = None
    small: tuple[tuple[str, int | None], ...] = ()

    @property
    def gang_sizes(self) -> tuple[int, ...]:
        """Every gang size that is allowed, smallest first."""
        return self.sizes or (self.workers,)

    def admits_node(self, node: str) -> bool:
        return self.nodes is None or node in self.nodes

    def admits_type(self, gpu_type: str) -> bool:
        return self.types is None or gpu_type in self.types

    def shortage(self, gpu_types: Iterable[str]) -> str:
        """Which of these types have too little memory for the job, and how much; "" if none has."""
        has_gb = dict(self.small)
        words = [
            f"{t} has {'unknown memory' if has_gb[t] is None else f'{has_gb[t]} GB'}" for t in gpu_types if t in has_gb
        ]
        return f"{', '.join(words)}, and the job says mem={self.memory_gb}g" if words else ""

    def refusal(self, placement: Placement) -> str | None:
        """Why this form does not allow ``placement``; None if it does. The empty placement is always allowed."""
        if not placement:
            return None
        if placement.workers not in self.gang_sizes:
            needs = " or ".join(map(str, self.gang_sizes))
            return f"{placement.workers} GPUs where the gang needs exactly {needs}"
        count = len(placement.nodes)
        if not self.min_nodes <= count <= self.max_nodes:
            return f"{count} nodes where the job allows {self.min_nodes} to {self.max_nodes}"
        types = placement.by_type
        for gpu_type in types:
            if not self.admits_type(gpu_type):
                return self.shortage([gpu_type]) or f"GPU type {gpu_type} is not among those the job accepts"
        for node in placement.nodes:
            if not self.admits_node(node):
                return f"node {node} is not open to the job"
        if len(types) > 1 and self.mix is Mix.NEVER:
            return "mixed GPU types, which the job does not accept"
        if self.uniform and len({sum(n for _, n in counts) for _, counts in placement.shares}) > 1:
            return "different GPU counts on its nodes, which a plain Slurm job cannot take"
        return None


@dataclass(frozen=True, slots=True)
class Quota:
    """Something of which the cluster gives out only so much at once: a user's GPUs under a QOS, a licence, the tasks
    of an array that may run together. ``left`` is what no job holds now, below 0 where more is in use than may be;
    ``words`` say what it is, as the end of a sentence about a job that waits for it."""

    name: str
    left: float
    words: str


@dataclass(frozen=True, slots=True)
class Draw:
    """What a job takes of a quota: ``each`` for every job, gpu or node of its placement, or for every GPU of one type
    (``per`` = ``job``, ``gpu``, ``node`` or the type's name)."""

    quota: str
    per: str
    each: float = 1.0

    def amount(self, placement: Placement) -> float:
        """How much a job on ``placement`` holds."""
        if self.per == "job":
            return self.each
        if self.per == "gpu":
            return self.each * placement.workers
        return self.each * (len(placement.nodes) if self.per == "node" else placement.by_type.get(self.per, 0))

    def least(self, workers: int) -> float:
        """The least that a gang of ``workers`` can hold."""
        return self.each * {"job": 1, "gpu": workers, "node": 1}.get(self.per, 0)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job takes beside GPUs: on each of its nodes ``cpus`` and ``cpus_per_gpu`` for each GPU there, so many
    bytes of memory per CPU, or the whole node; and of which quotas it draws. ``by_user``, ``mcs``: with whom it shares
    its nodes, as :class:`Tenant` has it."""

    cpus: float = 0.0
    cpus_per_gpu: float = 0.0
    memory_per_cpu: float = 0.0
    exclusive: bool = False
    draws: tuple[Draw, ...] = ()
    by_user: bool = False
    mcs: str = ""

    def cpus_for(self, gpus: int) -> float:
        """CPUs on a node where the job has so many GPUs."""
        return self.cpus + self.cpus_per_gpu * gpus


NO_NEEDS = Needs()


def outruns(done_steps: float, total_steps: float) -> bool:
    """Whether a job has made more steps than are stated, which may be rounded: how many it makes nobody knows then."""
    return done_steps > 1.05 * total_steps


@dataclass(frozen=True, slots=True)
class Job:
    """One job as a policy sees it. Array tasks are jobs of their own, with ids like ``123_4``.

    ``pinned`` is the reason why the job cannot be steered, or None. ``arrival`` is the first submission (Slurm forgets
    it at a requeue). ``placement`` is what the job holds now. ``total_steps`` is None where nobody stated or estimated
    it. ``restart_cost_s`` is what a move or a restart costs: save, requeue, start, load. ``movable`` is False for a
    running job that must not be preempted (no checkpoint support, moved too often, exempt), with the reason in
    ``unmovable``. A job that waits has a reason there if it is known that it will keep its place once it runs.
    ``attained_s`` counts GPU-seconds served so far. ``prefer`` are GPU types that the owner would like: a wish, no
    limit. ``speeds`` are those of the gang size asked for, ``scaled`` those of an elastic job's other sizes. A job with
    ``fork`` is one copy of the forked job ``parent``: its copies train at once on different nodes, and share
    ``total_steps`` and ``done_steps``, which are those of the parent. ``total_steps`` is a statement: the owner's, or
    the script's own report; ``reckoned_steps`` are those that the job must have made in this run beyond what it has
    told, by its speed and the time that it had for itself, which tell where a statement is wrong. ``raised`` is how
    often the script has stated more in all than before; after more than :data:`MOST_RAISED` times that tells nothing,
    and ``reckoned_steps`` are those that the job must have made in all its trainings. ``predicted_steps`` is what a
    predictor expects it to be where nobody states it, from earlier runs, and four in five such jobs lie in
    ``predicted_range``, where that is known; a job that goes on is expected to be at least ``outlives`` times what it
    has done, so that nothing is expected to end for ever.
    ``graph`` names the job's graph where one is known, and its speeds then come with factors from it. ``needs`` is what
    it takes beside GPUs. ``slow_down`` is how many times as long as its steps take alone it may run beside others on
    its GPU, at every moment (1 = it shares with nobody); ``host`` is the job whose GPU it runs on as a guest, None
    where its GPUs are its own; ``pairs_as`` is what :attr:`Snapshot.pairings` calls it, where that is not its workload.
    ``turns`` is a guest's share of the turns there; ``held_up_s`` are the seconds of its runs that it has lost to its
    company so far, of which ``slow_down`` bounds the sum (:mod:`slurm_hadar.policies.toolkit.shared_gpus.turn_shares`);
    ``gives_way``: it can be told to leave its company more than equal turns. ``duty`` is the share of its time,
    :data:`LEAST_DUTY` to 1, in which the job needs a GPU of a type; 1 on types that are not there, of
    which nobody knows. ``takes`` are the persistent and ephemeral bytes that it takes of a GPU, None where nobody
    knows; ``parts`` of how many parts of a shared GPU it asks for, and ``room`` how many of the GPU that it runs on
    nobody has (None = they are not counted). ``serves``: it is a server of models,
    which is made smaller for others but not stopped. ``blocked`` is why a job that waits would not be started this
    round whatever it was given, None if nothing is known to keep it; policies are not shown such jobs
    (:mod:`slurm_hadar.policies.toolkit.admission`). ``blocked_until`` is when that passes, where
    it is known. ``opens``: nodes that its form leaves out for now, and when it may have each again. ``ruled_out`` says
    why its form does not admit a GPU type of the cluster, as the end of a sentence such as "p100 is free, but".
    ``whole``: all GPUs that a running job has where its nodes are given to it whole, of which it uses those of its
    placement; EMPTY where it has no others.
    """

    job_id: str
    form: Form
    user: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    name: str = ""
    model: str = ""
    batch: int | None = None
    state: JobState = JobState.PENDING
    reason: str = ""
    arrival: float = 0.0
    started: float | None = None
    eligible: float | None = None
    total_steps: float | None = None
    predicted_steps: float | None = None
    predicted_range: tuple[float, float] | None = None
    outlives: float = 1.0
    done_steps: float = 0.0
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    scaled: Mapping[int, Mapping[str, Speed]] = field(default_factory=dict)
    placement: Placement = EMPTY
    pinned: str | None = None
    unmovable: str | None = None
    restart_cost_s: float = 30.0
    restarts: int = 0
    attained_s: float = 0.0
    weight: float = 1.0
    deadline: float | None = None
    time_limit_s: float | None = None
    array_id: str | None = None
    het_id: str | None = None
    fork: Fork | None = None
    prefer: frozenset[str] = frozenset()
    graph: str = ""
    needs: Needs = NO_NEEDS
    blocked: str | None = None
    blocked_until: float | None = None
    opens: Mapping[str, float] = field(default_factory=dict)
    reckoned_steps: float = 0.0
    raised: int = 0
    slow_down: float = 1.0
    host: str | None = None
    turns: float = 0.5
    held_up_s: float = 0.0
    gives_way: bool = True
    pairs_as: str = ""
    duty: Mapping[str, float] = field(default_factory=dict)
    takes: tuple[int, int] | None = None
    parts: int = 1
    room: int | None = None
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False
    whole: Placement = EMPTY

    @property
    def tenant(self) -> Tenant:
        """What it is to others on its nodes."""
        return Tenant(self.user, self.needs.by_user, self.needs.mcs)

    @property
    def held(self) -> Placement:
        """The GPUs that nobody else can have while the job is where it is."""
        return self.whole if self.whole.nodes == self.placement.nodes else self.placement

    def holds(self, placement: Placement) -> Placement:
        """The same, were it on ``placement``."""
        return self.held if placement == self.placement else placement

    @property
    def parent(self) -> str:
        """The forked job that this is a copy of (the id of its job array); its own id if it is none."""
        return self.array_id if self.fork is not None and self.array_id is not None else self.job_id

    @property
    def steerable(self) -> bool:
        """Whether a policy decides where it runs."""
        return self.pinned is None and self.state.active

    @property
    def running(self) -> bool:
        """Whether it runs now: neither suspended nor about to end."""
        return self.state is JobState.RUNNING

    @property
    def movable(self) -> bool:
        """False if the job runs and must keep its placement this round."""
        return not self.running or self.unmovable is None

    @property
    def remaining_steps(self) -> float | None:
        """What is left by what is stated; None where nothing is. Policies go by :attr:`expected_remaining_steps`."""
        if self.total_steps is None:
            return None
        return max(0.0, self.total_steps - self.done_steps)

    @property
    def overrun(self) -> bool:
        """Whether the job has made more steps than are stated, or must have: a job that evaluates, or waits for its
        data, makes fewer steps than its speed allows. Or than were stated again and again, before that was raised."""
        total = self.total_steps
        if total is None:
            return False
        return self.raised > MOST_RAISED or outruns(self.done_steps, total) or self.reckoned_steps > 2.0 * total

    @property
    def expected_steps(self) -> float | None:
        """Steps in all: stated, else expected; None where neither is known.

        Who has made more than was stated is expected to take as long again as it has, so that a false statement makes
        nobody nearly done for ever; longer where it says so.
        """
        if self.total_steps is not None and self.overrun:
            return max(self.total_steps, self.done_steps + max(self.done_steps, self.reckoned_steps))
        if self.total_steps is not None or self.predicted_steps is None:
            return self.total_steps
        return max(self.predicted_steps, self.outlives * self.done_steps)

    @property
    def unknown_length(self) -> bool:
        """Whether nobody knows :attr:`expected_steps`."""
        return self.total_steps is None and self.predicted_steps is None

    @property
    def expected_remaining_steps(self) -> float | None:
        """What is left of :attr:`expected_steps`: what a policy that goes by sizes reckons with."""
        steps = self.expected_steps
        return None if steps is None else max(0.0, steps - self.done_steps)

    @property
    def length(self) -> Length | None:
        """As a distribution; None where it is stated, unknown, or predicted without an error."""
        low, high = self.predicted_range or (0.0, 0.0)
        return None if self.total_steps is not None or not 0 < low < high else Length(low, high)

    def steps_to_go(self, best_rate: float, unknown_runtime_s: float, *, mean: bool = False) -> float:
        """What is left to whoever must reckon with a length: at least a second's worth at ``best_rate`` (steps/s on the
        best type in question), since a job that runs is not over; so many seconds' worth where nobody knows.

        ``mean``: of a job that is not stopped once it runs, the mean of what is left of what it is predicted to be, if
        that is more than what is left to the median. Who is served first of such jobs is best decided by that (the
        expected processing time of Smith's rule, Rothkopf 1966), and where nobody has seen a job's like it is far above
        the median; so is what those still need who have the GPUs. Of a job that can be stopped the median is nearer to
        its Gittins index, since most are over soon.
        """
        left = self.expected_remaining_steps
        if left is None:
            return best_rate * unknown_runtime_s
        if mean and self.predicted_steps is not None and (length := self.length) is not None:
            left = max(left, length.mean_left(self.predicted_steps, self.done_steps))
        return max(left, best_rate)

    def speeds_at(self, workers: int) -> Mapping[str, Speed]:
        """Speeds of a gang of ``workers`` on each GPU type; empty for a size whose speeds are not known."""
        return self.speeds if workers == self.form.workers else self.scaled.get(workers, {})

    def rate(self, placement: Placement) -> float:
        """Steps/s of the whole job on ``placement``; 0 if some type of it is unknown or unusable to the job.

        A gated gang runs at the slowest type's gang rate; a balanced gang at the worker-weighted sum of the rates
        (each rank's share of the batch follows its speed). Over several nodes the smallest of their factors applies.
        Mixed-type throughput is our definition: published tables have none.
        """
        if not placement:
            return 0.0
        types = placement.by_type
        at_size = self.speeds_at(placement.workers)
        speeds = [at_size.get(t) for t in types]
        if any(s is None or s.steps_per_s <= 0 for s in speeds):
            return 0.0
        known = [s for s in speeds if s is not None]
        if len(types) > 1 and self.form.mix is Mix.BALANCED:
            workers = placement.workers
            rate = sum(at_size[t].steps_per_s * n / workers for t, n in types.items())
        else:
            rate = min(s.steps_per_s for s in known)
        nodes = len(placement.nodes)
        return rate * min(s.factor(nodes) for s in known) if nodes > 1 else rate

    def best_rate(self) -> float:
        """The highest single-type, one-node rate over the types the job accepts; 0 if none is known."""
        rates = (s.steps_per_s for t, s in self.speeds.items() if self.form.admits_type(t))
        return max(rates, default=0.0)

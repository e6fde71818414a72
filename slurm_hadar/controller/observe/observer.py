"""From what Slurm says, what jobs report and what is remembered, to one Snapshot."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from slurm_hadar.comment import JobComment, read
from slurm_hadar.config import Config
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.answers.words import clock
from slurm_hadar.controller.journal import Event, JobRecord
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.controller.observe.estimates import Estimates, Sight
from slurm_hadar.controller.observe.job_graphs import GraphBook, NamedGraph
from slurm_hadar.controller.observe.records import JobRecords
from slurm_hadar.controller.observe.script_failures import waits
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.controller.observe.weights import Standing, standing_of, weight_of
from slurm_hadar.controller.prediction.forecasts import Forecast, Forecaster, in_words
from slurm_hadar.controller.safety.guard import unmovable_reason
from slurm_hadar.controller.safety.quarantine import UNFORESEEN, Quarantine
from slurm_hadar.controller.steering.bounds import Bounds, Lessons, keeps_back, node_room
from slurm_hadar.controller.steering.rules import (
    TRANSIENT_HOLDS,
    NodeBook,
    NodeFacts,
    form_of,
    gpus_asked,
    node_facts,
    pinned_reason,
    placement_of,
    shared_form,
    unreadable,
)
from slurm_hadar.controller.steering.time_limits import goes_on, types_within
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.model import NO_NEEDS, Basis, Form, Job, JobState, Node, Snapshot, Speed
from slurm_hadar.slurm.parsing import fold
from slurm_hadar.slurm.state import ClusterState, SlurmJob, SlurmNode
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.store import ThroughputStore

__all__ = ["AVOID_ROUNDS", "PASS_ROUNDS", "Observation", "Observer"]

AVOID_ROUNDS = 10  # for a node that Slurm refuses to a job
PASS_ROUNDS = 2  # for one where the job did not get what seemed free
_NOT_SCALED: Mapping[int, Mapping[str, Speed]] = {}  # these two are one for all jobs, of which there are many
_NO_TYPES: frozenset[str] = frozenset()
_MEASURED_WITHIN_S = 120.0  # a first step may be long in coming; who tells no speed by then is judged without
_TELLS_WITHIN_S = 15.0  # of its first steps; what saves after each of them is never measured


@dataclass(frozen=True)
class Observation:
    """One round's view. ``snapshot`` is what the policy gets; ``raw`` what Slurm said, by job; ``records`` the memory
    brought up to date; ``ended`` jobs that are over since the last round, with their final state; ``events`` what else
    has happened to jobs since; ``stays`` the steerable jobs that keep their place once they run, however long;
    ``retries`` jobs that are over and shall not be, which are in ``records`` too."""

    snapshot: Snapshot
    state: ClusterState
    raw: Mapping[str, SlurmJob]
    records: dict[str, JobRecord]
    facts: Mapping[str, NodeFacts]
    ended: tuple[tuple[JobRecord, str], ...] = ()
    events: tuple[Event, ...] = ()
    stays: Set[str] = frozenset()
    retries: Mapping[str, SlurmJob] = field(default_factory=dict)

    @property
    def finished(self) -> tuple[tuple[str, str], ...]:
        return tuple((record.job_id, final) for record, final in self.ended)

    @property
    def read_s(self) -> float:
        return self.state.read_s


class Observer:
    """Keeps the records of jobs over rounds and builds snapshots from them."""

    def __init__(
        self,
        config: Config,
        book: ReportBook,
        estimator: Estimator,
        records: dict[str, JobRecord],
        usage: UsageBook,
        forecaster: Forecaster | None = None,
        graphs: GraphBook | None = None,
        best_effort: BestEffort | None = None,
        seal: Seal | None = None,
        quarantine: Quarantine | None = None,
        lessons: Lessons | None = None,
        store: ThroughputStore | None = None,
    ) -> None:
        """``store``: where the speeds that jobs report are filed; None = nowhere."""
        self._config = config
        self._quarantine = quarantine or Quarantine()
        self._lessons = lessons or Lessons()
        self._forecaster = forecaster
        self._book = book
        self._usage = usage
        self._graphs = graphs or GraphBook(config.network)
        self._best_effort = best_effort or BestEffort()
        self._records = JobRecords(config, records, book, usage, seal or Seal(), self._quarantine)
        self._estimates = Estimates(estimator, store, book, self._graphs, self._best_effort, self._quarantine)
        self._denied: dict[str, str] = {}
        self._standing = Standing()
        self._stays: set[str] = set()

    @property
    def records(self) -> dict[str, JobRecord]:
        """Of all jobs that are not over."""
        return self._records.all

    def reconfigure(self, config: Config, forecaster: Forecaster | None) -> None:
        """Go by another configuration. Between rounds only."""
        self._config, self._forecaster = config, forecaster
        self._records.reconfigure(config)

    def deny(self, jobs: Mapping[str, str]) -> None:
        """Leave these jobs alone as long as this controller runs: Slurm said that they are not its to change."""
        self._denied.update(jobs)
        for job_id in jobs:
            self.records[job_id].steered = False

    def observe(self, state: ClusterState, *, acting_only: bool = False) -> Observation:
        """Build the snapshot. With ``acting_only``, jobs of partitions that are not in mode act are pinned."""
        self._estimates.begin()
        self._records.begin(state)
        self._stays = set()
        if self._forecaster is not None:
            self._forecaster.refresh()
        facts = node_facts(state.nodes, self._config.gpus.memory_gb)
        source = self._config.policy.weight_from
        shared = source == "fairshare"
        users = self._usage.by_user(state.time) if shared else {}
        accounts = self._usage.by_account(state.time) if shared else {}
        self._standing = standing_of(source, state.jobs, users, accounts)
        comments = {j.job_id: read(j.comment)[0] for j in state.jobs}
        self._book.expect({job_id: comment.key for job_id, comment in comments.items()})
        active = {j.job_id: j for j in state.jobs if j.state.active}
        self._quarantine.keep(active)
        self._lessons.expire(active)
        self._graphs.forget(f"{job_id}/{record.restarts}" for job_id, record in self.records.items())
        failed = self._records.failed_restarts(state, comments, self._denied) if acting_only else {}
        ended = self._records.close(state, {*active, *failed})
        for record, _ in ended:
            self._denied.pop(record.job_id, None)
        bounds = Bounds(state)
        sights = {i: self._sight(j, comments[i], facts, bounds, acting_only) for i, j in active.items()}
        self._estimates.learn(filter(None, sights.values()), state.time)
        jobs = [self._seen(j, sights[i], facts, bounds) for i, j in active.items()]
        nodes = _nodes(state, facts, active, jobs)
        with self._best_effort():
            self._usage.save()
        snapshot = Snapshot(
            state.time, nodes, tuple(jobs), state.partitions, self._config.controller.round_s,
            user_usage=self._usage.by_user(state.time), account_usage=self._usage.by_account(state.time),
            quotas=tuple(bounds.quotas.values()),
        )  # fmt: skip
        events = tuple(self._records.events)
        return Observation(snapshot, state, active, self.records, facts, ended, events, self._stays, failed)

    def _sight(
        self, job: SlurmJob, comment: JobComment, facts: NodeBook, bounds: Bounds, acting_only: bool
    ) -> Sight | None:
        """None for a job that cannot be made sense of."""
        fault = unreadable(job) or self._quarantine.reason(job.job_id)
        try:
            return self._looked_at(job, comment, fault, facts, bounds, acting_only)
        except UNFORESEEN as error:
            self._quarantine.put(job.job_id, "looking at it", error)
        return None

    def _seen(self, job: SlurmJob, sight: Sight | None, facts: NodeBook, bounds: Bounds) -> Job:
        """The job as a policy sees it; one that cannot be made sense of is left to Slurm, with the reason."""
        try:
            if sight is not None:
                return self._job(sight, facts, bounds)
        except UNFORESEEN as error:
            self._quarantine.put(job.job_id, "looking at it", error)
        record = self.records.setdefault(job.job_id, JobRecord(job.job_id, last_seen=bounds.state.time))
        return Job(
            job.job_id, Form(max(1, record.workers)), user=job.user, account=job.account, partition=job.partition,
            name=job.name, state=job.state, reason=job.reason, arrival=record.arrival,
            pinned=self._quarantine.reason(job.job_id) or "cannot be understood",
        )  # fmt: skip

    def _looked_at(
        self,
        job: SlurmJob,
        comment: JobComment,
        fault: str | None,
        facts: NodeBook,
        bounds: Bounds,
        acting_only: bool,
    ) -> Sight:
        now = bounds.state.time
        record = self._records.of(job, now)
        record.user, record.name, record.model, record.batch = job.user, job.name, comment.model or "", comment.batch
        if record.total_steps is None and comment.steps is not None:
            record.total_steps = float(comment.steps)
        news = self._book.get(job.job_id)
        if news is not None and news.report.restart >= job.restarts:
            self._records.note_progress(record, news)
        pinned = fault or pinned_reason(job, comment, record, self._config, facts, acting_only)
        if pinned is None and job.job_id in self._denied:
            pinned = f"is not this controller's to change ({self._denied[job.job_id]})"
        if job.state is JobState.RUNNING:
            self._lessons.forget(job)
        form = self._form(job, comment, record, facts, bounds)
        graph = self._graph(job, comment, record, now)
        if graph is not None and form.sizes:  # it keeps the sizes that its graph can have
            sizes = tuple(n for n in form.sizes if graph.at(n) is not None)
            form = replace(form, sizes=sizes, max_nodes=max(form.min_nodes, min(form.max_nodes, max(sizes))))
        self._records.note_run(record, job, facts, now)
        return Sight(job, comment, record, pinned, form, graph, placement_of(job, facts))

    def _job(self, sight: Sight, facts: NodeBook, bounds: Bounds) -> Job:
        job, comment, record, pinned, form, graph, placement = sight
        now = bounds.state.time
        types = facts.gpu_types
        speeds = self._estimates.speeds(sight, form.workers, types, now)
        scaled = {n: self._estimates.speeds(sight, n, types, now) for n in form.sizes if n != form.workers}
        predicted, outlives = (None, 1.0) if pinned else self._expected(sight, types, now)
        needs = NO_NEEDS if pinned else bounds.needs(job, record)
        shown = Job(
            job_id=job.job_id,
            form=form,
            user=job.user,
            account=job.account,
            qos=job.qos,
            partition=job.partition,
            name=job.name,
            model=comment.model or "",
            batch=comment.batch,
            state=job.state,
            reason=job.reason,
            arrival=record.arrival,
            started=record.run_since,
            eligible=job.eligible,
            total_steps=record.total_steps,
            predicted_steps=predicted,
            outlives=outlives,
            done_steps=record.steps if job.state is JobState.RUNNING else record.saved_step or 0.0,
            speeds=speeds,
            scaled=scaled or _NOT_SCALED,
            placement=placement,
            pinned=pinned,
            unmovable=None
            if pinned
            else self._unmovable(
                sight, speeds if placement.workers == form.workers else scaled.get(placement.workers, {}), now
            ),
            restart_cost_s=self._restart_cost(record, comment, now),
            restarts=job.restarts,
            attained_s=record.attained_s,
            weight=self._weight(job, comment, record),
            deadline=_deadline(comment, record),
            time_limit_s=job.time_limit_s,
            array_id=job.array_id,
            het_id=job.het_id,
            fork=comment.fork if job.array_id else None,
            prefer=comment.prefer or _NO_TYPES,
            graph=graph.name if graph else "",
            needs=needs,
            blocked=None
            if pinned
            else self._blocked(job, record, bounds.spent(needs), now) or _only_where_avoided(sight, facts, now),
            ruled_out=_not_named(comment.types, types),
        )
        return self._within_limit(_by_what_is_known(self._reckoned(shown, record, now)), job, comment, record)

    def _form(self, job: SlurmJob, comment: JobComment, record: JobRecord, facts: NodeBook, bounds: Bounds) -> Form:
        """What :func:`form_of` says, less the nodes that Slurm would refuse and the sizes that its owner may not
        have."""
        now = bounds.state.time
        self._note_vain_wait(job, record, bounds)
        form = form_of(job, comment, record, facts, now)
        only, closed = bounds.closed(job, now)
        if only is not None or closed:
            open_ = form.nodes if form.nodes is not None else frozenset(facts)
            form = shared_form(replace(form, nodes=(open_ if only is None else open_ & only) - closed))
        if form.sizes:
            sizes = tuple(
                n for n in form.sizes if n == form.workers or bounds.may_have(job, record, n, min(n, form.max_nodes))
            )
            form = replace(form, sizes=sizes)
        return form

    def _blocked(self, job: SlurmJob, record: JobRecord, spent: bool, now: float) -> str | None:
        """Why Slurm would not start the waiting job. A reason that it gives while it may start it at any moment is
        news; of a job that was put off it gives none. Where a quota is ``spent`` that is known better."""
        if job.state is not JobState.PENDING:
            return None
        if spent:
            return waits(record, now)
        if job.reason not in TRANSIENT_HOLDS and not job.held and keeps_back(job.reason):
            self._lessons.learn(job, job.reason, now, self._config.controller.round_s, tried=record.placed)
        return waits(record, now) or self._lessons.reason(job, now)

    def _note_vain_wait(self, job: SlurmJob, record: JobRecord, bounds: Bounds) -> None:
        """A job that was given nodes, and waits although their GPUs are free, lacks something there that nobody has
        reckoned with: those nodes are not tried again for a while."""
        if job.state is not JobState.PENDING or not record.placed or job.reason not in ("Resources", "Priority"):
            return
        free = {n.name: sum(c for _, c in n.gpus) - sum(c for _, c in n.used) for n in bounds.state.nodes}
        each = (gpus_asked(job) or record.workers) // max(1, job.num_nodes)
        if job.req_nodes and all(free.get(name, 0) >= each for name in job.req_nodes):
            until = bounds.state.time + PASS_ROUNDS * self._config.controller.round_s
            record.keep_off(job.req_nodes, until)

    def _within_limit(self, shown: Job, job: SlurmJob, comment: JobComment, record: JobRecord) -> Job:
        """A waiting job only sees the GPU types on which it is done within its time limit, where it is so on some and
        does not go on after the limit."""
        if shown.pinned or shown.running or job.time_limit_s is None or goes_on(comment, record):
            return shown
        types = types_within(shown, job.time_limit_s)
        if types is None:
            return shown
        late = _not_named(types, tuple(shown.speeds), "too slow for its time limit")
        return replace(
            shown, form=shared_form(replace(shown.form, types=types)), ruled_out={**late, **shown.ruled_out}
        )  # fmt: skip

    def _expected(self, sight: Sight, types: tuple[str, ...], now: float) -> tuple[float | None, float]:
        """``predicted_steps`` and ``outlives`` of a job that may be steered, where neither its owner nor its script
        says how many steps it makes, and nobody shares them out among copies."""
        job, record = sight.job, sight.record
        copy = sight.comment.fork is not None and job.array_id
        if self._forecaster is None or record.total_steps is not None or copy:
            return None, 1.0
        before, forecast = Forecast.of(record), self._forecaster.of(job, record, now)
        # another version that expects the same is no news
        if forecast is not None and (before is None or in_words(before) != in_words(forecast)):
            self._records.events.append(Event(job.job_id, "forecast", in_words(forecast)))
        if forecast is None or not self._config.predict.use:
            return None, 1.0
        # it counts seconds on the fastest of these types, which need not be one of this site
        known = self._estimates.speeds(sight, sight.form.workers, forecast.gpu_types or types, None)
        return forecast.size_s * max((s.steps_per_s for s in known.values()), default=1.0), forecast.outlives

    def _reckoned(self, job: Job, record: JobRecord, now: float) -> Job:
        """With what a job must have done by the time that it runs: where its size is stated, to tell a false statement;
        where it is predicted, as its steps, if it reports none."""
        if record.run_since is None or job.fork is not None:
            return job
        steps = max(0.0, now - record.run_since) * job.rate(job.placement)
        if job.total_steps is not None:
            return replace(job, reckoned_steps=steps)
        silent = record.steps_per_s is None and record.steps == 0
        return replace(job, done_steps=steps) if silent and job.predicted_steps is not None else job

    def _weight(self, job: SlurmJob, comment: JobComment, record: JobRecord) -> float:
        """What the job weighs; its record says where that is less than it states."""
        weight = weight_of(comment.weight, job, self._config.guard, self._standing)
        if weight.lowered and weight.lowered != record.lowered:
            self._records.events.append(Event(job.job_id, "weight", weight.lowered))
        record.lowered = weight.lowered
        return weight.value

    def _graph(self, job: SlurmJob, comment: JobComment, record: JobRecord, now: float) -> NamedGraph | None:
        """The job's graph; None if it names none, or none that can be used, which its record then says."""
        before = record.graph_fault
        graph, record.graph_fault = None, ""
        if comment.graph is not None and record.workers:
            run = f"{job.job_id}/{record.restarts}"
            graph, record.graph_fault = self._graphs.of(
                run, comment.graph, record.workers, job.work_dir, job.user, now
            )  # fmt: skip
        if record.graph_fault and record.graph_fault != before:
            self._records.events.append(Event(job.job_id, "graph", record.graph_fault))
        return graph

    def _unmovable(self, sight: Sight, speeds: Mapping[str, Speed], now: float) -> str | None:
        """``speeds``: of the gang that it runs with."""
        job, comment, record = sight.job, sight.comment, sight.record
        fixed = self._fixed(comment, record)
        if fixed is not None:
            self._stays.add(job.job_id)
        if job.state is not JobState.RUNNING:
            return None
        if record.unsaved and record.unsaved_until > now:
            return (
                "did not save within jobs.ack_timeout_s when it was asked to, though it says that it can; "
                f"asked again in {record.unsaved_until - now:.0f} s"
            )
        return (
            fixed or unmovable_reason(self._config.guard, record.moves, record.run_since or now, now)
            or self._unmeasured(sight, speeds, now)
        )  # fmt: skip

    def _unmeasured(self, sight: Sight, speeds: Mapping[str, Speed], now: float) -> str | None:
        """That a run which counts its steps has not told its speed yet: it is measured before it is judged."""
        news, since = self._book.get(sight.job.job_id), sight.record.run_since
        if news is None or news.ended or news.report.restart != sight.job.restarts or since is None:
            return None
        unknown = [t for t in sight.placement.by_type if t not in speeds or speeds[t].basis is not Basis.MEASURED]
        silent = news.first_step is not None and now - news.first_step > _TELLS_WITHIN_S
        if not unknown or silent or now - since > _MEASURED_WITHIN_S:
            return None
        return f"its speed on {' and '.join(unknown)} is being measured"

    def _fixed(self, comment: JobComment, record: JobRecord) -> str | None:
        """Why the job keeps its place once it runs, however long that is; None if it need not."""
        lose = comment.lose if comment.lose is not None else self._config.jobs.lose_progress
        if not (record.resumable or comment.ckpt or lose):
            return "has no checkpoint support, and neither lose=yes nor jobs.lose_progress lets it lose progress"
        return unmovable_reason(self._config.guard, record.moves)

    def _restart_cost(self, record: JobRecord, comment: JobComment, now: float) -> float:
        """Seconds that a move costs; of a job that cannot save, all that it has run."""
        saves = record.resumable or bool(comment.ckpt)
        lost_s = 0.0 if saves or record.run_since is None else max(0.0, now - record.run_since)
        if comment.restart is not None:
            return comment.restart + lost_s
        if record.start_s is None:
            return self._config.jobs.restart_cost_s + lost_s
        return (record.save_s or 0.0) + RESTART_GAP_S + record.start_s + lost_s


def _by_what_is_known(job: Job) -> Job:
    """A running job of whose speed nothing is known stays with the GPU types that it has: data sheets compare types,
    they do not tell what a move would gain."""
    held = job.placement.by_type
    speeds = job.speeds_at(job.placement.workers)
    if not job.running or job.pinned or not held or all(t in speeds and speeds[t].error is not None for t in held):
        return job
    return replace(job, form=shared_form(replace(job.form, types=frozenset(held))))


def _only_where_avoided(sight: Sight, facts: NodeBook, now: float) -> str | None:
    """That a waiting job has room only on nodes that are not tried for a while; None if it has elsewhere too, or
    nowhere."""
    form, until = sight.form, {n: u for n, u in sight.record.avoid.items() if u > now and n in facts}
    if not until or sight.job.state is not JobState.PENDING:
        return None
    usable = {n: f.gpus for n, f in facts.items() if f.available and f.gpu_type and form.admits_type(f.gpu_type)}
    avoided = set(until) & facts.open_to(sight.job.partition, sight.job.features) & usable.keys()
    elsewhere = sum(gpus for node, gpus in usable.items() if form.admits_node(node))
    least = form.gang_sizes[0]
    if elsewhere >= least or elsewhere + sum(usable[n] for n in avoided) < least:
        return None
    when = clock(min(until[n] for n in avoided))
    return f"could run on {fold(sorted(avoided))} only, which is not tried for it until {when} (its history says why)"


@functools.lru_cache(maxsize=1024)
def _not_named(
    accepted: frozenset[str] | None, offered: tuple[str, ...], why: str = "not in its types="
) -> Mapping[str, str]:
    """One mapping for all jobs alike."""
    return {} if accepted is None else {gpu_type: why for gpu_type in offered if gpu_type not in accepted}


def _deadline(comment: JobComment, record: JobRecord) -> float | None:
    if comment.deadline is not None:
        return comment.deadline
    return None if comment.deadline_after_s is None else record.arrival + comment.deadline_after_s


def _nodes(
    state: ClusterState, facts: Mapping[str, NodeFacts], raw: Mapping[str, SlurmJob], jobs: Iterable[Job]
) -> tuple[Node, ...]:
    """The nodes as a policy sees them: what jobs hold there that it may not move counts as taken.

    A node with several GPU types is taken whole: stock Slurm cannot be told which of them an untyped request gets.
    """
    gpus: dict[str, dict[str, int]] = {}
    cpus: dict[str, float] = {}
    memory: dict[str, float] = {}
    for job in jobs:
        if not (job.steerable and job.running):
            continue
        for node, gpu_type, n in job.placement.items():
            on_node = gpus.setdefault(node, {})
            on_node[gpu_type] = on_node.get(gpu_type, 0) + n
        shown = raw[job.job_id]
        for node in job.placement.nodes:
            cpus[node] = cpus.get(node, 0.0) + shown.num_cpus / len(job.placement.nodes)
            memory[node] = memory.get(node, 0.0) + shown.memory_bytes / len(job.placement.nodes)
    return tuple(
        _node(n, facts[n.name], gpus.get(n.name, {}),
              node_room(n, cpus.get(n.name, 0.0), memory.get(n.name, 0.0), state.memory_counts))
        for n in state.nodes
    )  # fmt: skip


def _node(
    node: SlurmNode, facts: NodeFacts, ours: Mapping[str, int], room: tuple[int | None, int | None, bool]
) -> Node:
    total = dict(node.gpus)
    taken = total if facts.several_types else {t: max(0, n - ours.get(t, 0)) for t, n in node.used}
    return Node(
        node.name, total, taken, node.available, node.state, node.reason, node.features, node.partitions, *room
    )  # fmt: skip

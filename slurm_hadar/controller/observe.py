"""From what Slurm says, what jobs report and what is remembered, to one Snapshot."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slurm_hadar.comment import JobComment, is_ours, read
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.bounds import Bounds, Lessons, keeps_back, node_room
from slurm_hadar.controller.forecasts import Forecast, Forecaster, in_words
from slurm_hadar.controller.gains import basis
from slurm_hadar.controller.guard import unmovable_reason
from slurm_hadar.controller.job_graphs import GraphBook, NamedGraph
from slurm_hadar.controller.journal import Event, JobRecord
from slurm_hadar.controller.keeping import Keeping
from slurm_hadar.controller.notes import Seal
from slurm_hadar.controller.quarantine import UNFORESEEN, Quarantine
from slurm_hadar.controller.reports import JobNews, ReportBook
from slurm_hadar.controller.script_failures import note_failure, waits
from slurm_hadar.controller.steering import (
    TRANSIENT_HOLDS,
    NodeBook,
    NodeFacts,
    form_of,
    gpus_asked,
    may_retry,
    node_facts,
    pinned_reason,
    placement_of,
    shared_form,
    unreadable,
)
from slurm_hadar.controller.time_limits import goes_on, types_within
from slurm_hadar.controller.usage import Usage
from slurm_hadar.controller.weights import Standing, standing_of, weight_of
from slurm_hadar.controller.words import clock
from slurm_hadar.controller.writes import RESTART_GAP_S
from slurm_hadar.model import NO_NEEDS, Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.slurm.parsing import fold
from slurm_hadar.slurm.state import ClusterState, SlurmJob, SlurmNode
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.store import ThroughputStore, storable, workload_key
from slurm_hadar.throughput.table import worker_batch

__all__ = ["AVOID_ROUNDS", "PASS_ROUNDS", "Observation", "Observer"]

AVOID_ROUNDS = 10  # for a node that Slurm refuses to a job
PASS_ROUNDS = 2  # for one where the job did not get what seemed free
_NOT_SCALED: Mapping[int, Mapping[str, Speed]] = {}  # these two are one for all jobs, of which there are many
_NO_TYPES: frozenset[str] = frozenset()
LOST_NODE_S = 120.0  # as long as Slurm itself puts off a job that it has requeued
_MEASURED_WITHIN_S = 120.0  # a first step may be long in coming; who tells no speed by then is judged without
_UNSEEN_S = 60.0  # in which a node may have gone and come back


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


class _Workload(NamedTuple):
    """What an estimate is for; ``elastic_from`` is the gang size that its batch is stated for, None if not elastic."""

    key: str
    workers: int
    elastic_from: int | None
    gpu_types: tuple[str, ...]
    most_nodes: int = 0  # of a job with a graph
    user: str = ""  # where what jobs of one user have measured is known


class _Sight(NamedTuple):
    """What is known of a job before its speed is: enough to file what it has measured."""

    job: SlurmJob
    comment: JobComment
    record: JobRecord
    pinned: str | None
    form: Form
    graph: NamedGraph | None
    placement: Placement

    def workload(self, workers: int) -> str:
        """What the speed of a gang of ``workers`` is filed under: its model and then batch per worker, or user and job
        name where it names no model."""
        batch = self.comment.batch
        if self.form.sizes:
            batch = worker_batch(batch, max(1, self.form.workers), workers)
        graph = self.graph.name if self.graph else ""
        return workload_key(self.comment.model or "", batch, self.job.user, self.job.name, graph)


class Observer:
    """Keeps the records of jobs over rounds and builds snapshots from them."""

    def __init__(
        self,
        config: Config,
        book: ReportBook,
        estimator: Estimator,
        records: dict[str, JobRecord],
        usage: Usage,
        forecaster: Forecaster | None = None,
        graphs: GraphBook | None = None,
        keeping: Keeping | None = None,
        seal: Seal | None = None,
        quarantine: Quarantine | None = None,
        lessons: Lessons | None = None,
        store: ThroughputStore | None = None,
    ) -> None:
        """``store``: where the speeds that jobs report are filed; None = nowhere."""
        self._config = config
        self._store = store
        self._seal = seal or Seal()
        self._quarantine = quarantine or Quarantine()
        self._lessons = lessons or Lessons()
        self._forecaster = forecaster
        self._book = book
        self._estimator = estimator
        self.records = records
        self._usage = usage
        self._graphs = graphs or GraphBook(config.network)
        self._keeping = keeping or Keeping()
        self._estimates: dict[_Workload, dict[str, Speed]] = {}
        self._owners: dict[tuple[str, str], str] = {}  # whose measurements count: by model and user
        self._noted: set[_Workload] = set()
        self._lost: dict[str, float] = {}  # nodes that were out of use lately, and until when that counts
        self._denied: dict[str, str] = {}
        self._standing = Standing()
        self._events: list[Event] = []
        self._stays: set[str] = set()

    def reconfigure(self, config: Config, forecaster: Forecaster | None) -> None:
        """Go by another configuration. Between rounds only."""
        self._config, self._forecaster = config, forecaster

    def deny(self, jobs: Mapping[str, str]) -> None:
        """Leave these jobs alone as long as this controller runs: Slurm said that they are not its to change."""
        self._denied.update(jobs)
        for job_id in jobs:
            self.records[job_id].steered = False

    def observe(self, state: ClusterState, *, acting_only: bool = False) -> Observation:
        """Build the snapshot. With ``acting_only``, jobs of partitions that are not in mode act are pinned."""
        self._estimates.clear()
        self._owners.clear()
        self._events = []
        self._stays = set()
        if self._forecaster is not None:
            self._forecaster.refresh()
        facts = node_facts(state.nodes, self._config.gpus.memory_gb)
        self._lost = {node: until for node, until in self._lost.items() if until > state.time}
        self._lost.update({n.name: state.time + LOST_NODE_S for n in state.nodes if not n.available})
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
        failed = self._failed_restarts(state, comments) if acting_only else {}
        ended = self._note_ended(state, {*active, *failed})
        bounds = Bounds(state)
        sights = {i: self._sight(j, comments[i], facts, bounds, acting_only) for i, j in active.items()}
        self._learn(filter(None, sights.values()), state.time)
        jobs = [self._seen(j, sights[i], facts, bounds) for i, j in active.items()]
        nodes = _nodes(state, facts, active, jobs)
        with self._keeping():
            self._usage.save()
        snapshot = Snapshot(
            state.time, nodes, tuple(jobs), state.partitions, self._config.controller.round_s,
            user_usage=self._usage.by_user(state.time), account_usage=self._usage.by_account(state.time),
            quotas=tuple(bounds.quotas.values()),
        )  # fmt: skip
        events = tuple(self._events)
        return Observation(snapshot, state, active, self.records, facts, ended, events, self._stays, failed)

    def _failed_restarts(self, state: ClusterState, comments: Mapping[str, JobComment]) -> dict[str, SlurmJob]:
        """The jobs that Slurm is to start once more, elsewhere; their records stay."""
        found = {}
        for job in state.jobs:
            record = self.records.get(job.job_id)
            if job.state is not JobState.FAILED or record is None or job.job_id in self._denied:
                continue
            with self._quarantine.over(job.job_id, "a failed restart"):
                self._note_failure(record, job)
                if may_retry(job, comments[job.job_id], record, self._config):
                    self._note_end(record, state.time)
                    record.keep_off(job.nodes, state.time + LOST_NODE_S)
                    found[job.job_id] = job
        return found

    def _note_ended(self, state: ClusterState, kept: Collection[str]) -> tuple[tuple[JobRecord, str], ...]:
        """Close the records of jobs that Slurm shows as over or shows no more, but for those that are kept."""
        final = {j.job_id: j.state_text for j in state.jobs if not j.state.active}
        over = []
        for job_id in [i for i in self.records if i not in kept]:
            record = self.records.pop(job_id)
            self._denied.pop(job_id, None)
            record.ended, record.final = state.time, final.get(job_id, "GONE")
            with self._quarantine.over(job_id, "its end"):
                self._note_progress(record, self._book.get(job_id))
                self._note_end(record, state.time)
            over.append((record, record.final))
        return tuple(over)

    def _sight(
        self, job: SlurmJob, comment: JobComment, facts: NodeBook, bounds: Bounds, acting_only: bool
    ) -> _Sight | None:
        """None for a job that cannot be made sense of."""
        fault = unreadable(job) or self._quarantine.reason(job.job_id)
        try:
            return self._looked_at(job, comment, fault, facts, bounds, acting_only)
        except UNFORESEEN as error:
            self._quarantine.put(job.job_id, "looking at it", error)
        return None

    def _seen(self, job: SlurmJob, sight: _Sight | None, facts: NodeBook, bounds: Bounds) -> Job:
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

    def _learn(self, sights: Iterable[_Sight], now: float) -> None:
        """File what running jobs have measured, before any speed is estimated: all jobs alike go by it at once."""
        if self._store is None:
            return
        for sight in sights:
            if sight.job.state is JobState.RUNNING:
                with self._quarantine.over(sight.job.job_id, "learning from it"):
                    self._learn_of(sight, self._store, now)

    def _learn_of(self, sight: _Sight, store: ThroughputStore, now: float) -> None:
        job, where, news = sight.job, sight.placement, self._book.get(sight.job.job_id)
        if news is None or not news.speeds or news.report.restart != job.restarts or len(where.by_type) != 1:
            return
        (gpu_type,) = where.by_type
        speeds, news.speeds = news.speeds, []
        measured = sum(speeds) / len(speeds)
        if not storable(measured):
            return
        with self._keeping():
            store.record(
                sight.workload(where.workers), gpu_type, where.workers, measured, now, spread=len(where.nodes) > 1,
                nodes=len(where.nodes) if sight.graph else None, user=job.user,
            )  # fmt: skip

    def _looked_at(
        self,
        job: SlurmJob,
        comment: JobComment,
        fault: str | None,
        facts: NodeBook,
        bounds: Bounds,
        acting_only: bool,
    ) -> _Sight:
        now = bounds.state.time
        record = self._record(job, now)
        record.user, record.name, record.model, record.batch = job.user, job.name, comment.model or "", comment.batch
        if record.total_steps is None and comment.steps is not None:
            record.total_steps = float(comment.steps)
        news = self._book.get(job.job_id)
        if news is not None and news.report.restart >= job.restarts:
            self._note_progress(record, news)
        pinned = fault or pinned_reason(job, comment, record, self._config, facts)
        if pinned is None and job.job_id in self._denied:
            pinned = f"is not this controller's to change ({self._denied[job.job_id]})"
        mode = self._config.mode(job.partition)
        if pinned is None and acting_only and mode is not Mode.ACT:
            pinned = f"partition {job.partition} is in mode {mode}"
        if job.state is JobState.RUNNING:
            self._lessons.forget(job)
        form = self._form(job, comment, record, facts, bounds)
        graph = self._graph(job, comment, record, now)
        if graph is not None and form.sizes:  # it keeps the sizes that its graph can have
            sizes = tuple(n for n in form.sizes if graph.at(n) is not None)
            form = replace(form, sizes=sizes, max_nodes=max(form.min_nodes, min(form.max_nodes, max(sizes))))
        self._note_run(record, job, facts, now)
        return _Sight(job, comment, record, pinned, form, graph, placement_of(job, facts))

    def _job(self, sight: _Sight, facts: NodeBook, bounds: Bounds) -> Job:
        job, comment, record, pinned, form, graph, placement = sight
        now = bounds.state.time
        types = facts.gpu_types
        speeds = self._speeds(sight, form.workers, types, now)
        scaled = {n: self._speeds(sight, n, types, now) for n in form.sizes if n != form.workers}
        predicted, outlives = (None, 1.0) if pinned else self._expected(sight, types, now)
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
            needs=NO_NEEDS if pinned else bounds.needs(job, record),
            blocked=None if pinned else self._blocked(job, record, now) or _only_where_avoided(sight, facts, now),
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

    def _blocked(self, job: SlurmJob, record: JobRecord, now: float) -> str | None:
        """Why Slurm would not start the waiting job. A reason that it gives while it may start it at any moment is
        news; of a job that was put off it gives none."""
        if job.state is not JobState.PENDING:
            return None
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

    def _expected(self, sight: _Sight, types: tuple[str, ...], now: float) -> tuple[float | None, float]:
        """``predicted_steps`` and ``outlives`` of a job that may be steered, where neither its owner nor its script
        says how many steps it makes, and nobody shares them out among copies."""
        job, record = sight.job, sight.record
        copy = sight.comment.fork is not None and job.array_id
        if self._forecaster is None or record.total_steps is not None or copy:
            return None, 1.0
        before, forecast = Forecast.of(record), self._forecaster.of(job, record, now)
        # another version that expects the same is no news
        if forecast is not None and (before is None or in_words(before) != in_words(forecast)):
            self._events.append(Event(job.job_id, "forecast", in_words(forecast)))
        if forecast is None or not self._config.predict.use:
            return None, 1.0
        # it counts seconds on the fastest of these types, which need not be one of this site
        known = self._speeds(sight, sight.form.workers, forecast.gpu_types or types, None)
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
            self._events.append(Event(job.job_id, "weight", weight.lowered))
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
            self._events.append(Event(job.job_id, "graph", record.graph_fault))
        return graph

    def _speeds(self, sight: _Sight, workers: int, types: tuple[str, ...], now: float | None) -> dict[str, Speed]:
        """Estimated once a round for all jobs alike; with ``now`` the estimate is kept, so that its error can be told
        later."""
        comment, form, graph = sight.comment, sight.form, sight.graph
        workers = max(1, workers)
        elastic = max(1, form.workers) if form.sizes else None
        key = sight.workload(workers)
        who = (comment.model or "", sight.job.user)
        if who not in self._owners:
            self._owners[who] = self._estimator.owner(*who)
        owner = self._owners[who]
        wanted = _Workload(key, workers, elastic, types, form.max_nodes if graph else 0, owner)
        if wanted not in self._estimates:
            by_nodes = self._graphs.factors(graph, form, workers, types) if graph else None
            speeds = self._estimator.speeds(
                comment.model or "", comment.batch, workers, types, key=key, elastic_from=elastic, by_nodes=by_nodes,
                user=owner,
            )  # fmt: skip
            self._estimates[wanted] = speeds
            if now is not None and wanted not in self._noted:
                self._noted.add(wanted)
                with self._keeping():
                    self._estimator.note(key, workers, speeds, now, owner)
        return self._estimates[wanted]

    def _record(self, job: SlurmJob, now: float) -> JobRecord:
        """The job's record, new for a new job; Slurm changes submit time only together with the restart count.

        A slurmctld that crashed may have lost a restart: then both are older than we know. Since 24.11 a job that is
        requeued shows its next count while it still leaves its nodes, and its next submit time only after that.
        """
        record = self.records.get(job.job_id)
        submit = job.submit or now
        same = record is not None and (
            job.restarts > record.restarts
            or (job.restarts == record.restarts and (submit == record.submit or job.restarts > 0))
            or (job.restarts < record.restarts and submit <= record.submit)
        )
        if record is None or not same:
            shape, steered = _shape(job), False
            note = read(job.comment)[0]
            if job.req_nodes and note.asked and self._seal.fits(job.job_id, job.user, note.asked, note.asked_mac):
                shape, steered = note.asked, True  # these nodes are ours, whatever became of the journal
            record = JobRecord(
                job.job_id, submit, job.restarts, submit, *shape, steered, work_dir=job.work_dir, last_seen=now
            )
            self.records[job.job_id] = record
        self._note_failure(record, job)
        if job.restarts > record.restarts:
            # The last words of the run that is over count: its checkpoint was saved after the last round looked.
            news = self._book.get(job.job_id)
            over = news.before if news is not None and news.report.restart > record.restarts else news
            self._note_progress(record, over)
            lost = self._note_restart(record, job, submit, now)
            if is_ours(job.comment):
                self._events.append(Event(job.job_id, "restart", _restarted(record, lost)))
        record.restarts, record.submit, record.last_seen = job.restarts, submit, now
        return record

    def _note_failure(self, record: JobRecord, job: SlurmJob) -> None:
        if (event := note_failure(record, job.restarts, self._book.get(job.job_id))) is not None:
            self._events.append(event)

    def _note_restart(self, record: JobRecord, job: SlurmJob, submit: float, now: float) -> float:
        """Begin the record of another run; returns how many steps are to be done again.

        A run whose node was lost may not be over there: Slurm ends it when the node is back, and a new run of the job
        with it. Where nobody has looked for a while, it may have been lost meanwhile.
        """
        unseen = now - record.last_seen > _UNSEEN_S
        lost = [node for node in record.ran_on if unseen or node in self._lost]
        if lost:
            record.keep_off(lost, now + LOST_NODE_S)
            why = f"not tried on {fold(lost)} for {LOST_NODE_S:.0f} s: the run before may not be over there"
            self._events.append(Event(job.job_id, "barred", why))
        record.ran_on = ()
        record.restarts, record.submit, record.run_since, record.booked = job.restarts, submit, None, None
        record.limit_asked = None
        again = max(0.0, record.steps - (record.saved_step or 0.0))
        record.lost_steps += again
        record.steps = record.saved_step or 0.0
        if record.saved_step is None:  # it begins anew: what it did so far is not part of its work
            record.ran_s = {}
        return again

    def _note_run(self, record: JobRecord, job: SlurmJob, facts: Mapping[str, NodeFacts], now: float) -> None:
        """Attained service in GPU-seconds, booked at each sight of the running job, once whoever controls."""
        if job.state is not JobState.RUNNING:
            self._note_end(record, now)
            return
        record.ran_on = job.nodes
        if record.run_since is None or record.booked is None:
            record.run_since = record.booked = min(job.start or now, now)
            if is_ours(job.comment) and not record.placed:
                self._events.append(Event(job.job_id, "slurm", f"on {fold(job.nodes)} at {clock(record.run_since)}"))
        ran_s = max(0.0, now - record.booked)
        record.attained_s += ran_s * (gpus_asked(job) or record.workers)
        by_type = _gpu_seconds(job, facts, ran_s)
        self._usage.book(job.user, job.account, by_type, now)
        if by_type:
            most = max(sorted(by_type), key=lambda gpu_type: by_type[gpu_type])
            record.ran_more(most, ran_s)
            record.last_type = most
        record.booked = now

    def _note_end(self, record: JobRecord, now: float) -> None:
        """The last stretch of a job that ran when it was last seen: until it said goodbye, else half of the time since
        then, as it may have ended at any moment of it."""
        if record.booked is not None and record.last_type:
            news = self._book.get(record.job_id)
            bye = news is not None and news.report.kind == "bye" and news.report.restart == record.restarts
            said = news.heard if news is not None and bye else (record.booked + now) / 2
            record.ran_more(record.last_type, max(0.0, min(said, now) - record.booked))
        record.run_since = record.booked = None

    def _note_progress(self, record: JobRecord, news: JobNews | None) -> None:
        if news is None or news.report.restart < record.restarts:
            return
        report = news.report
        record.resumable = report.resumable or record.resumable
        if report.total_steps:
            record.total_steps, record.reported = report.total_steps, True
        if report.consolidated_steps is not None:  # of a copy: what counts is in a consolidation, and never lost
            record.steps = record.saved_step = float(report.consolidated_steps)
        elif report.steps is not None:
            record.steps = report.steps
        record.steps_per_s = report.steps_per_s if report.steps_per_s is not None else record.steps_per_s
        if news.saved_step is not None and report.consolidated_steps is None:
            record.saved_step = news.saved_step
        record.forgotten = report.forgotten or 0
        record.save_s = report.save_s if report.save_s is not None else record.save_s
        record.stall_s = report.stall_s if report.stall_s is not None else record.stall_s
        if news.first_step is not None and record.run_since is not None:
            record.start_s = max(0.0, news.first_step - record.run_since)

    def _unmovable(self, sight: _Sight, speeds: Mapping[str, Speed], now: float) -> str | None:
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

    def _unmeasured(self, sight: _Sight, speeds: Mapping[str, Speed], now: float) -> str | None:
        """That a run which counts its steps has not told its speed yet: it is measured before it is judged."""
        news, since = self._book.get(sight.job.job_id), sight.record.run_since
        if news is None or news.ended or news.report.restart != sight.job.restarts or since is None:
            return None
        unknown = [t for t in sight.placement.by_type if t not in speeds or basis(speeds[t]) != "measured"]
        if not unknown or now - since > _MEASURED_WITHIN_S:
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


def _only_where_avoided(sight: _Sight, facts: NodeBook, now: float) -> str | None:
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


def _restarted(record: JobRecord, lost: float) -> str:
    """How a job's next run begins, in the words of its history."""
    where = (
        "from the beginning" if record.saved_step is None else f"from its checkpoint at step {record.saved_step:.0f}"
    )
    return f"run {record.restarts + 1} {where}" + (f"; {lost:.0f} steps are done again" if lost else "")


def _shape(job: SlurmJob) -> tuple[int, int, int, int]:
    """Gang size, nodes, tasks and CPUs as the owner asked for them."""
    count = job.gpus[0].count if job.gpus else 0
    nodes = max(1, job.num_nodes)
    workers = count * nodes if job.gpus and job.gpus[0].per == "node" else count
    return workers, nodes, max(1, job.num_tasks), max(1, job.num_cpus)


def _gpu_seconds(job: SlurmJob, facts: Mapping[str, NodeFacts], ran_s: float) -> dict[str, float]:
    """By GPU type; where Slurm does not say how a job's GPUs lie on its nodes they count as spread evenly."""
    gpus = gpus_asked(job) or 0
    by_type: dict[str, float] = {}
    for name in job.nodes:
        gpu_type = facts[name].gpu_type if name in facts else None
        if gpu_type and gpus:
            by_type[gpu_type] = by_type.get(gpu_type, 0.0) + ran_s * gpus / len(job.nodes)
    return by_type


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

"""What is known of each job in a round: its record is brought up to date first, and nothing changes it after that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_hadar.comment import JobComment
from slurm_hadar.config import Config
from slurm_hadar.controller.journal import Event, JobRecord
from slurm_hadar.controller.observe.graphs import NamedGraph
from slurm_hadar.controller.observe.jobs.records import JobRecords
from slurm_hadar.controller.observe.jobs.script_failures import waits
from slurm_hadar.controller.observe.jobs.weights import Standing, standing_of, weight_of
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.prediction.forecasts import Forecast, in_words
from slurm_hadar.controller.steering.bounds import QuotaBook
from slurm_hadar.controller.steering.forms import form_of, gpus_asked, placement_of, shared_form, size_kept, whole_of
from slurm_hadar.controller.steering.lessons import keeps_back, of_a_known_throttle, of_one_partition, unfit_reason
from slurm_hadar.controller.steering.nodes import NodeBook
from slurm_hadar.controller.steering.promises import Promises
from slurm_hadar.controller.steering.rules import TRANSIENT_HOLDS, pinned_reason, unreadable
from slurm_hadar.controller.words import clock
from slurm_hadar.model import EMPTY, NO_NEEDS, Form, JobState, Mix, Needs, Placement
from slurm_hadar.slurm.node_lists import fold
from slurm_hadar.slurm.state import Reservation, SlurmJob
from slurm_hadar.throughput.measurements import workload_key
from slurm_hadar.throughput.table import worker_batch

__all__ = ["FactFinder", "JobFacts"]

# What Slurm says of a job while nodes are not available to it. Nothing is to be learned from that as long as some are
# being switched off: in a moment they are free.
_ABOUT_NODES = ("ReqNodeNotAvail", "Nodes required for job are DOWN")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """``pinned``: why the job is left to Slurm, None for one that may be steered. ``placement``: the GPUs that it runs
    on; ``whole``: all of its nodes', where it was given these whole. ``needs``: what it takes beside GPUs. ``blocked``:
    why Slurm would not start it now, ``blocked_until``: for how long (None: nobody knows). ``opens``: nodes that its
    form leaves out for now, and until when. ``weight``: what it counts.
    ``forecast``: how long it is expected to be, where nobody states it and forecasts are to be used. ``host``: the job
    on whose GPU it runs as a guest. ``at_once``: it waits, and is left to Slurm, which may start it at any moment: it
    is not to be put off any more."""

    job: SlurmJob
    comment: JobComment
    record: JobRecord
    pinned: str | None
    form: Form
    graph: NamedGraph | None
    placement: Placement
    needs: Needs
    blocked: str | None
    weight: float
    forecast: Forecast | None
    host: str | None = None
    blocked_until: float | None = None
    opens: Mapping[str, float] = field(default_factory=dict)
    at_once: bool = False
    whole: Placement = EMPTY

    def workload(self, workers: int) -> str:
        """What the speed of a gang of ``workers`` is filed under: its model and then batch per worker, or user and job
        name where it names no model."""
        batch = self.comment.batch
        if self.form.sizes:
            batch = worker_batch(batch, max(1, self.form.workers), workers)
        graph = self.graph.name if self.graph else ""
        return workload_key(self.comment.model or "", batch, self.job.user, self.job.name, graph)


class FactFinder:
    """Finds the facts of one round's jobs, one after the other.

    Parameters
    ----------
    denied: jobs that Slurm does not let this controller change, and its words.
    acting_only: jobs of partitions that are not in mode act are pinned.
    """

    def __init__(
        self,
        config: Config,
        sources: Sources,
        records: JobRecords,
        view: SlurmView,
        denied: Mapping[str, str],
        acting_only: bool,
    ) -> None:
        self._config = config
        self._sources = sources
        self._records = records
        self._view = view
        self._denied = denied
        self._acting_only = acting_only
        self._now = view.state.time
        self.quota_book = QuotaBook(view.state)
        self._standing = self._standing_now()
        self._switching_off = any(node.off and not node.available for node in view.state.nodes)

    def find(self, job: SlurmJob) -> JobFacts:
        """Bring the job's record up to date, and say what is known of it now."""
        comment = self._view.comments[job.job_id]
        fault = unreadable(job) or self._sources.quarantine.reason(job.job_id)
        record = self._records.of(job, self._now)
        self._records.take_in(job, comment, record)
        if job.state is JobState.RUNNING:
            self._sources.lessons.forget(job)
        self._keep_off_vain_nodes(job, record)
        graph = self._graph(job, comment, record)
        placement = placement_of(job, self._view.facts)
        whole = whole_of(job, placement, self._view.alone) if placement else EMPTY
        self._records.note_run(record, job, self._view, whole, self._now)
        pinned = self._pinned(job, comment, record, fault)
        form = self._form(job, comment, record, graph)
        if pinned is None and job.state is JobState.PENDING:
            pinned = self._sources.lessons.never(job, self._now) or self.quota_book.beyond(job, record, form)
        unfit = None if pinned else unfit_reason(job, record, self._now)
        pinned = pinned or unfit
        needs = NO_NEEDS if pinned else self.quota_book.needs(job, record)
        reservation = None if pinned else self.quota_book.awaited(job, self._now)
        return JobFacts(
            job=job,
            comment=comment,
            record=record,
            pinned=pinned,
            form=form,
            graph=graph,
            placement=placement,
            needs=needs,
            blocked=None if pinned else self._blocked(job, record, form, needs, reservation),
            blocked_until=reservation.start if reservation else None,
            opens={} if pinned else self._opens(job, record),
            weight=self._weight(job, comment, record),
            forecast=None if pinned else self._forecast(job, comment, record),
            whole=whole,
            at_once=unfit is not None and job.state is JobState.PENDING,
        )

    def keep(self, facts: JobFacts, promises: Promises) -> JobFacts:
        """The facts of a job that may be steered, less the nodes that Slurm keeps for others."""
        kept = {} if facts.pinned else promises.closed(facts.job)
        if not kept:
            return facts
        blocked = facts.blocked
        if facts.job.state is JobState.PENDING and blocked is None:
            needed = _only_room(facts.job, facts.form, self._view.facts, kept)
            blocked = kept_for(kept, needed) if needed else None
        open_ = facts.form.nodes if facts.form.nodes is not None else frozenset(self._view.facts)
        return replace(facts, form=shared_form(replace(facts.form, nodes=open_.difference(kept))), blocked=blocked)

    def _standing_now(self) -> Standing:
        source = self._config.policy.weight_from
        shared, usage = source == "fairshare", self._sources.usage
        users = usage.by_user(self._now) if shared else {}
        accounts = usage.by_account(self._now) if shared else {}
        return standing_of(source, self._view.state.jobs, users, accounts)

    def _pinned(self, job: SlurmJob, comment: JobComment, record: JobRecord, fault: str | None) -> str | None:
        pinned = fault or pinned_reason(job, comment, record, self._config, self._view.facts, self._acting_only)
        if pinned is None and job.job_id in self._denied:
            return f"is not this controller's to change ({self._denied[job.job_id]})"
        return pinned

    def _form(self, job: SlurmJob, comment: JobComment, record: JobRecord, graph: NamedGraph | None) -> Form:
        """What :func:`form_of` says, less the nodes that Slurm would refuse, the sizes that its owner may not have, and
        those that its graph cannot have."""
        facts, book = self._view.facts, self.quota_book
        form = form_of(job, comment, record, facts, self._now)
        self._note_size(job, comment, record)
        only, closed = book.closed(job, self._now)
        closed |= self._avoided(job, record).keys() | self._sources.boots.closed(self._now).keys()
        closed -= frozenset(job.nodes)  # where it runs it may stay
        if only is not None or closed:
            open_ = form.nodes if form.nodes is not None else frozenset(facts)
            form = shared_form(replace(form, nodes=(open_ if only is None else open_ & only) - closed))
        if form.sizes:
            sizes = tuple(
                n for n in form.sizes if n == form.workers or book.may_have(job, record, n, min(n, form.max_nodes))
            )
            form = replace(form, sizes=sizes)
        if graph is not None and form.sizes:
            sizes = tuple(n for n in form.sizes if graph.at(n) is not None)
            form = replace(form, sizes=sizes, max_nodes=max(form.min_nodes, min(form.max_nodes, max(sizes))))
        return form

    def _opens(self, job: SlurmJob, record: JobRecord) -> dict[str, float]:
        """The nodes that are not tried for a waiting job now, and would be later."""
        avoided = self._avoided(job, record)
        if not avoided:
            return {}
        only, closed = self.quota_book.closed(job, self._now)
        open_ = self._view.facts.open_to(job.partition, job.features, job.asks) - closed
        return {n: until for n, until in avoided.items() if n in open_ and (only is None or n in only)}

    def _avoided(self, job: SlurmJob, record: JobRecord) -> dict[str, float]:
        """Where a waiting job is not tried for what became of it, or of one like it, there, and until when."""
        if job.state is not JobState.PENDING:
            return {}
        vain, off = self._sources.lessons.vain.closed(job, record), self._sources.boots.closed(self._now)
        avoided = {**record.avoid, **off, **vain}
        return {n: until for n, until in avoided.items() if until > self._now and n in self._view.facts}

    def _note_size(self, job: SlurmJob, comment: JobComment, record: JobRecord) -> None:
        """Why the job keeps its size, though its comment allows others."""
        before, wished = record.size_kept, comment.gpus is not None and record.workers > 0 and not job.shards
        record.size_kept = (size_kept(job, record, self._view.facts) or "") if wished else ""
        if record.size_kept and record.size_kept != before:
            self._records.events.append(Event(job.job_id, "size", record.size_kept))

    def _blocked(
        self, job: SlurmJob, record: JobRecord, form: Form, needs: Needs, reservation: Reservation | None
    ) -> str | None:
        """Why Slurm would not start the waiting job. A reason that it gives while it may start it at any moment is
        news; of a job that was put off it gives none. Where a quota is spent, or its ``reservation`` has not begun,
        that is known better."""
        if job.state is not JobState.PENDING:
            return None
        failed, lessons = waits(record, self._now), self._sources.lessons
        learned = None
        if reservation is not None:
            learned = f"its reservation {reservation.name} begins at {clock(reservation.start)}"
        elif not self.quota_book.spent(needs):
            explained = bool(form.sizes) and self.quota_book.explains(needs, form.workers)
            explained = explained or (self._switching_off and job.reason.startswith(_ABOUT_NODES))
            known = of_one_partition(job) or of_a_known_throttle(job) or explained
            if not known and job.reason not in TRANSIENT_HOLDS and not job.held and keeps_back(job.reason):
                first_s = self._config.controller.round_s
                lessons.learn(job, job.reason, self._now, first_s, tried=record.placed)
            learned = lessons.reason(job, self._now) if failed is None and not known else None
        return (
            failed
            or learned
            or only_where_reserved(job, form, self._view.facts, self.quota_book.reserved(job, self._now), self._now)
            or only_where_avoided(job, self._avoided(job, record), form, self._view.facts)
        )

    def _keep_off_vain_nodes(self, job: SlurmJob, record: JobRecord) -> None:
        """A job that was given nodes, and waits although their GPUs are free, lacks something there that nobody has
        reckoned with."""
        if job.state is not JobState.PENDING or not record.placed or job.reason not in ("Resources", "Priority"):
            return
        free = {n.name: sum(c for _, c in n.gpus) - n.gpus_held for n in self._view.state.nodes}
        each = (gpus_asked(job) or record.workers) // max(1, job.num_nodes)
        if job.req_nodes and all(free.get(name, 0) >= each for name in job.req_nodes):
            round_s = self._config.controller.round_s
            self._sources.lessons.tried_in_vain(job, record, job.req_nodes, self._now, round_s)

    def _graph(self, job: SlurmJob, comment: JobComment, record: JobRecord) -> NamedGraph | None:
        """The job's graph; None if it names none, or none that can be used, which its record then says."""
        before = record.graph_fault
        graph, record.graph_fault = None, ""
        if comment.graph is not None and record.workers:
            run = f"{job.job_id}/{record.restarts}"
            graph, record.graph_fault = self._sources.graphs.of(
                run, comment.graph, record.workers, job.work_dir, job.user, self._now
            )
        if record.graph_fault and record.graph_fault != before:
            self._records.events.append(Event(job.job_id, "graph", record.graph_fault))
        return graph

    def _weight(self, job: SlurmJob, comment: JobComment, record: JobRecord) -> float:
        """What the job weighs; its record says where that is less than it states."""
        weight = weight_of(comment.weight, job, self._config.guard, self._standing)
        if weight.lowered and weight.lowered != record.lowered:
            self._records.events.append(Event(job.job_id, "weight", weight.lowered))
        record.lowered = weight.lowered
        return weight.value

    def _forecast(self, job: SlurmJob, comment: JobComment, record: JobRecord) -> Forecast | None:
        """Of a job whose owner and script do not say how many steps it makes, and whose steps nobody shares out among
        copies."""
        copy = comment.fork is not None and job.array_id
        if self._sources.forecaster is None or record.total_steps is not None or copy:
            return None
        before, forecast = Forecast.of(record), self._sources.forecaster.of(job, record, self._now)
        # another version that expects the same is no news
        if forecast is not None and (before is None or in_words(before) != in_words(forecast)):
            self._records.events.append(Event(job.job_id, "forecast", in_words(forecast)))
        return forecast if self._config.predict.use else None


def kept_for(kept: Mapping[str, SlurmJob], nodes: Collection[str]) -> str:
    """That the job has room only on ``nodes``, which Slurm keeps for other jobs until they start."""
    first = min((kept[n] for n in nodes), key=lambda job: (job.start or 0.0, job.job_id))
    its = {n for n in nodes if kept[n] is first}
    more = f", and {fold(sorted(set(nodes) - its))} for others" if len(its) < len(nodes) else ""
    when = f"job {first.job_id}, planned for {clock(first.start or 0.0)}"
    return (
        f"Slurm keeps {fold(sorted(its))} for {when}{more}; only what ends before, by its time limit, may start there"
    )


def only_where_reserved(
    job: SlurmJob, form: Form, facts: NodeBook, reserved: Mapping[str, Reservation], now: float
) -> str | None:
    """That a waiting job has room only on nodes that others have reserved; None if it has elsewhere too, or nowhere."""
    nodes = _only_room(job, form, facts, reserved.keys() - job.exc_nodes) if reserved else set()
    if not nodes:
        return None
    first = min((reserved[n] for n in nodes), key=lambda r: (r.start, r.name))
    its = fold(sorted(n for n in nodes if reserved[n] is first))
    if first.start <= now:
        return f"{its} is kept by reservation {first.name} until {clock(first.end)}"
    return (
        f"reservation {first.name} of {its} begins at {clock(first.start)}; only what ends before, by its time limit "
        "(--time), may start there"
    )


def only_where_avoided(job: SlurmJob, until: Mapping[str, float], form: Form, facts: NodeBook) -> str | None:
    """That a waiting job has room only on nodes that are not tried ``until`` a moment; None if it has elsewhere too, or
    nowhere."""
    avoided = _only_room(job, form, facts, until) if until else set()
    if not avoided:
        return None
    when = clock(min(until[n] for n in avoided))
    said = "its history, or that of a job like it, says why"
    return f"could run on {fold(sorted(avoided))} only, which is not tried for it until {when} ({said})"


def _only_room(job: SlurmJob, form: Form, facts: NodeBook, closed: Collection[str]) -> set[str]:
    """Those of the ``closed`` nodes, which ``form`` may admit or not, without which the job has no room in the cluster,
    whatever runs there; none where it has room elsewhere too, or nowhere."""
    usable = {n for n, f in facts.items() if f.available and f.gpu_type and form.admits_type(f.gpu_type)}
    needed = set(closed) & facts.open_to(job.partition, job.features, job.asks) & usable
    elsewhere = {node for node in usable if form.admits_node(node)} - needed
    return needed if _has_room(form, facts, elsewhere | needed) and not _has_room(form, facts, elsewhere) else set()


def _has_room(form: Form, facts: NodeBook, nodes: Iterable[str]) -> bool:
    """Whether the smallest gang fits on so many of the nodes as it may have, of one type where it must be."""
    counts: dict[str, list[int]] = {}
    for node in nodes:
        kind = str(facts[node].gpu_type) if form.mix is Mix.NEVER else ""
        counts.setdefault(kind, []).append(facts[node].gpus)
    return any(sum(sorted(of)[-form.max_nodes :]) >= form.gang_sizes[0] for of in counts.values())

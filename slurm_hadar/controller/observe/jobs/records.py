"""The life of each job's record: what Slurm forgets of a job (first submission, service, restarts, progress) and we do
not."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from slurm_hadar.comment import JobComment, is_ours, read
from slurm_hadar.config import Config
from slurm_hadar.controller.agents.reports import JobNews
from slurm_hadar.controller.journal import Event, JobRecord
from slurm_hadar.controller.observe.company import part_of_gpu
from slurm_hadar.controller.observe.jobs.script_failures import note_failure
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.steering.forms import gpus_asked
from slurm_hadar.controller.steering.nodes import NodeFacts
from slurm_hadar.controller.steering.rules import may_retry, out_of_scope
from slurm_hadar.controller.words import clock
from slurm_hadar.model import JobState, Placement
from slurm_hadar.slurm.node_lists import fold
from slurm_hadar.slurm.state import ClusterState, SlurmJob

__all__ = ["LOST_NODE_S", "JobRecords"]

LOST_NODE_S = 120.0  # as long as Slurm itself puts off a job that it has requeued
_UNSEEN_S = 60.0  # in which a node may have gone and come back


class JobRecords:
    """The records of all jobs that are not over, by job (``all``), brought up to date once a round.

    ``events`` is what has happened to jobs since :meth:`begin`.
    """

    def __init__(self, config: Config, sources: Sources) -> None:
        self.all, self._past = sources.records, sources.past
        self.events: list[Event] = []
        self._config = config
        self._book, self._usage, self._recall = sources.book, sources.usage, sources.recall
        self._seal, self._quarantine, self._boots = sources.seal, sources.quarantine, sources.boots
        self._before_s = self._round_s = 0.0  # when the round before and this one looked
        self._lost: dict[str, float] = {}  # nodes that were out of use lately, and until when that counts
        self._not_up: dict[str, str] = {}  # those that are down or switched off, and Slurm's reason

    def reconfigure(self, config: Config) -> None:
        """Go by another configuration from the next round on."""
        self._config = config

    def clock_set(self, by_s: float) -> None:
        """Moments of jobs that are not over become those of the new time."""
        self._round_s += by_s
        self._lost = {node: until + by_s for node, until in self._lost.items()}
        self._boots.clock_set(by_s)
        for record in self.all.values():
            record.clock_set(by_s)

    def begin(self, state: ClusterState) -> None:
        """Another round."""
        self.events = []
        self._before_s, self._round_s = self._round_s, state.time
        self._lost = {node: until for node, until in self._lost.items() if until > state.time}
        # one that is switched off has lost nobody
        self._lost.update({n.name: state.time + LOST_NODE_S for n in state.nodes if not (n.available or n.off)})
        self._not_up = {n.name: n.reason for n in state.nodes if n.off or not n.available}
        self._boots.look(state.nodes)

    def failed_restarts(self, view: SlurmView, denied: Collection[str]) -> dict[str, SlurmJob]:
        """The jobs that Slurm is to start once more, elsewhere; their records stay."""
        found, now = {}, view.state.time
        for job in view.state.jobs:
            record = self.all.get(job.job_id)
            if job.state is not JobState.FAILED or record is None or job.job_id in denied:
                continue
            with self._quarantine.over(job.job_id, "a failed restart"):
                self._note_failure(record, job)
                if may_retry(job, view.comments[job.job_id], record, self._config):
                    self._note_end(record, now)
                    record.keep_off(job.nodes, now + LOST_NODE_S)
                    found[job.job_id] = job
        return found

    def close(self, state: ClusterState, kept: Collection[str]) -> tuple[tuple[JobRecord, str], ...]:
        """Close the records of jobs that Slurm shows as over or shows no more, but for those that are kept."""
        final = {j.job_id: j.state_text for j in state.jobs if not j.state.active}
        over = []
        for job_id in [i for i in self.all if i not in kept]:
            record = self.all.pop(job_id)
            record.ended, record.final = state.time, final.get(job_id, "GONE")
            with self._quarantine.over(job_id, "its end"):
                self.note_progress(record, self._book.get(job_id))
                self._note_end(record, state.time)
            over.append((record, record.final))
            self._past.append(record.past)
        return tuple(over)

    def of(self, job: SlurmJob, now: float) -> JobRecord:
        """The job's record, new for a new job."""
        record = self.all.get(job.job_id) or self._recalled(job)
        submit = job.submit or now
        if record is None or not record.is_of(submit, job.restarts):
            record = JobRecord(
                job.job_id, submit, job.restarts, submit, *_shape(job), work_dir=job.work_dir, last_seen=now,
                shards=job.shards, node_range=_node_range(job), first_seen=now,
            )  # fmt: skip
            self.all[job.job_id] = record
        elif job.state is JobState.PENDING:
            self._note_asked(record, job)
        if job.req_nodes and not record.steered:
            self._note_placed(record, job)
        self._note_failure(record, job)
        if job.restarts > record.restarts:
            # The last words of the run that is over count: its checkpoint was saved after the last round looked.
            over = self._words_of(record)
            self.note_progress(record, over)
            lost = self._note_restart(record, job, submit, now, _cut_short(record, over))
            if is_ours(job.comment):
                self.events.append(Event(job.job_id, "restart", _restarted(record, lost, read(job.comment)[0])))
        record.restarts, record.submit, record.last_seen = job.restarts, submit, now
        return record

    def hear_out(self) -> None:
        """Take in what jobs have said since the round looked."""
        for job_id, record in self.all.items():
            with self._quarantine.over(job_id, "its last words"):
                self.note_progress(record, self._words_of(record))

    def _words_of(self, record: JobRecord) -> JobNews | None:
        """The newest word of the run that is on record, another of which may have begun since."""
        news = self._book.get(record.job_id)
        return news.before if news is not None and news.report.restart > record.restarts else news

    def _recalled(self, job: SlurmJob) -> JobRecord | None:
        """The record of a job that was over and was put back into the queue, which Slurm does as long as it shows the
        job. It goes on; of the run that is over nothing is left on its nodes."""
        record = self._recall(job.job_id) if job.restarts else None
        if record is None or record.ended is None or job.restarts <= record.restarts:
            return None
        if (record.user, record.work_dir) != (job.user, job.work_dir):
            return None  # Slurm has begun to count jobs anew
        record.ended, record.final, record.ran_on = None, "", ()
        self.all[job.job_id] = record
        return record

    def _note_asked(self, record: JobRecord, job: SlurmJob) -> None:
        """What the owner has changed of a waiting job: its nodes are not ours any more, if they are not those that it
        was given; and its shape is what it asks for now, as long as Slurm was told of none of ours. After that, and
        after a run, Slurm does not say how many nodes a waiting job asks for."""
        if record.steered and record.given and not set(job.req_nodes) <= set(record.given):
            record.steered, record.given = False, ()
        if record.reshaped or job.restarts or job.fault is not None:
            return
        shape, before = _shape(job), (record.workers, record.nodes, record.tasks, record.cpus)
        if record.steered or (shape, job.shards) == (before, record.shards):
            return
        record.workers, record.nodes, record.tasks, record.cpus = shape
        record.shards = job.shards
        if is_ours(job.comment):
            self.events.append(Event(job.job_id, "asked", _asked(shape, job.shards)))

    def _note_placed(self, record: JobRecord, job: SlurmJob) -> None:
        """That a controller gave the job its nodes, which the comment says: this one, whatever became of the journal,
        or that of another host. What the owner asked for is believed with this one's seal only; without it the shape is
        what Slurm shows, and who forges the note loses no more than an own ``-w``."""
        note = read(job.comment)[0]
        if note.asked is None or note.asked_mac is None:
            return
        if not self._seal.fits(job.job_id, job.user, note.asked, note.asked_mac):
            record.steered = out_of_scope(job, self._config) is None  # others' controllers act, too
        elif not record.reshaped:  # else the journal knows better: the owner has named other nodes since
            record.steered, record.node_range = True, ()
            record.workers, record.nodes, record.tasks, record.cpus = note.asked
            if job.shards:
                record.shards, record.workers = note.asked[0], 1

    def take_in(self, job: SlurmJob, comment: JobComment, record: JobRecord) -> None:
        """What the job's comment says, and what it has reported in this run."""
        record.user, record.name, record.model, record.batch = job.user, job.name, comment.model or "", comment.batch
        if record.total_steps is None and comment.steps is not None:
            record.total_steps = float(comment.steps)
        news = self._book.get(job.job_id)
        if news is not None and news.report.restart >= job.restarts:
            self._note_wanted(record, news)
            _note_first_step(record, job, news)
            self.note_progress(record, news)

    def _note_wanted(self, record: JobRecord, news: JobNews) -> None:
        """What a server wants; while it starts, what the run before wanted."""
        wanted = news.report.wanted
        if wanted is not None and wanted != record.wanted:
            record.wanted = wanted
            self.events.append(Event(record.job_id, "wanted", f"its server wants {wanted} worker{'s'[: wanted > 1]}"))

    def _note_failure(self, record: JobRecord, job: SlurmJob) -> None:
        if (event := note_failure(record, job.restarts, self._book.get(job.job_id))) is not None:
            self.events.append(event)

    def _note_restart(self, record: JobRecord, job: SlurmJob, submit: float, now: float, cut: bool) -> float:
        """Begin the record of another run; returns how many steps are to be done again.

        A run whose node was lost may not be over there: Slurm ends it when the node is back, and a new run of the job
        with it, or takes the node out of use. A node may be lost and back between two rounds, which is
        taken to be so where the run was ``cut`` short, or where nobody has looked for a while. Of a run that we have
        ended nothing is left (``ran_on`` is empty).
        """
        self._note_no_boot(record, now)
        unseen = now - record.last_seen > _UNSEEN_S
        lost = [node for node in record.ran_on if unseen or cut or node in self._lost]
        if lost:
            record.keep_off(lost, now + LOST_NODE_S)
            why = f"not tried on {fold(lost)} for {LOST_NODE_S:.0f} s: the run before may not be over there"
            self.events.append(Event(job.job_id, "barred", why))
        record.ran_on = ()
        record.restarts, record.submit, record.run_since, record.booked = job.restarts, submit, None, None
        record.untold_s = 0.0
        record.limit_asked = record.steps_per_s = None  # until the new run has told its own
        again = max(0.0, record.steps - (record.saved_step or 0.0))
        record.lost_steps += again
        record.steps = record.saved_step or 0.0
        if record.saved_step is None:  # it begins anew: what it did so far is not part of its work
            record.ran_s = {}
        return again

    def _note_no_boot(self, record: JobRecord, now: float) -> None:
        """Slurm has given up nodes that were to be made ready for the job: it put that back, and they are off or down.
        No job is tried there for a while."""
        failed = [node for node in record.readied if node in self._not_up]
        record.readied = {}
        if failed:
            until = self._boots.failed(failed, now)
            record.keep_off(failed, until)  # whatever becomes of this controller
            why = self._not_up[failed[0]]
            said = f" ({why})" if why else ""
            lost = f"{fold(failed)} did not come up{said}; no job is tried there until {clock(until)}"
            self.events.append(Event(record.job_id, "barred", lost))

    def note_run(self, record: JobRecord, job: SlurmJob, view: SlurmView, whole: Placement, now: float) -> None:
        """Attained service in GPU-seconds: the time since it was last booked, in each round that sees the job run. Its
        user has had all GPUs of nodes that it was given ``whole``, and its part of one that it shares. While its nodes
        are made ready it does not run: where they were switched on for it, Slurm sets its start to the end of that."""
        if job.state is not JobState.RUNNING:
            self._note_end(record, now)
            return
        if job.configuring:
            record.readied = dict.fromkeys(job.nodes, job.start or now)
            record.given = job.nodes if record.steered else ()
            return
        self._note_ready(record, job)
        goes_on = record.ran_on == job.nodes  # it was suspended
        record.ran_on = job.nodes
        record.given = job.nodes if record.steered else ()
        if record.run_since is None or record.booked is None:
            record.run_since = record.booked = min(job.start or now, now)
            if goes_on:  # Slurm shows when it first began; it may have gone on at any moment since the last round
                record.booked = max(record.booked, ((self._before_s or now) + now) / 2)
            if is_ours(job.comment) and not record.placed and not goes_on:
                self.events.append(Event(job.job_id, "slurm", f"on {fold(job.nodes)} at {clock(record.run_since)}"))
        ran_s = max(0.0, now - record.booked)
        company = _company(record, view.companies.get(job.job_id))
        part = part_of_gpu(company)
        record.serve(ran_s, gpus_asked(job) or record.workers, part)
        keeps = record.company.get("keeps")
        record.held_up_s += ran_s * (0.0 if keeps is None else 1.0 - min(1.0, float(keeps)))
        before_s = record.booked - record.run_since if record.untold_s is None else record.untold_s
        record.untold_s = min(
            before_s + ran_s * _kept(company), _silent_s(self._book.get(job.job_id), record.restarts, now)
        )
        gpus = whole.by_type or _gpus_by_type(job, view.facts)
        self._usage.book(job.user, job.account, {t: n * part for t, n in gpus.items()}, ran_s, now)
        if gpus:
            most = max(sorted(gpus), key=lambda gpu_type: gpus[gpu_type])
            record.ran_more(most, ran_s)
            record.last_type = most
        record.booked = now

    def _note_ready(self, record: JobRecord, job: SlurmJob) -> None:
        """Its nodes are ready; where the start is as it was they were up before."""
        began = min(record.readied.values(), default=None)
        if began is not None and job.start is not None and job.start > began:
            self._boots.took(job.start - began)
        record.readied = {}

    def _note_end(self, record: JobRecord, now: float) -> None:
        """The last stretch of a job that ran when it was last seen: until it said goodbye, else half of the time since
        then, as it may have ended at any moment of it."""
        if record.booked is not None and record.last_type:
            news = self._book.get(record.job_id)
            bye = news is not None and news.report.kind == "bye" and news.report.restart == record.restarts
            said = news.heard if news is not None and bye else (record.booked + now) / 2
            record.ran_more(record.last_type, max(0.0, min(said, now) - record.booked))
        record.run_since = record.booked = None

    def _note_begin(self, record: JobRecord, steps: int) -> None:
        """A run's training has begun at so many steps: does it go on from where the run before had saved?"""
        again = (record.saved_step or 0.0) - steps
        if record.restarts and again > 0:
            why = f"its checkpoint at step {record.saved_step:.0f} cannot be used, as its output says"
            self.events.append(Event(record.job_id, "anew", f"{why}; {again:.0f} steps are done again"))
            record.lost_steps += again
            record.saved_step = None

    def _note_total(self, record: JobRecord, steps: float) -> None:
        """What the script states of all its trainings. Seen by rounds: that is what they have gone by."""
        before = record.disbelieved
        record.stated(steps)
        if (why := record.disbelieved) and not before:
            now = f"to {steps:.0f} steps now: it is taken to go on for as long again as it has run"
            self.events.append(Event(record.job_id, "raised", f"{why}, {now}"))

    def note_progress(self, record: JobRecord, news: JobNews | None) -> None:
        """Take what the job reports of its run into its record; what it said of a run before counts no more."""
        if news is None or news.report.restart < record.restarts:
            return
        report = news.report
        if news.began_at is not None and not news.weighed:
            news.weighed = True
            self._note_begin(record, news.began_at)
        record.resumable = report.resumable or record.resumable
        if report.total_steps:
            record.total_steps, record.reported = report.total_steps, True
            self._note_total(record, report.total_steps + news.earlier_steps)
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


def _note_first_step(record: JobRecord, job: SlurmJob, news: JobNews) -> None:
    """How long the run's start took, where its first step was heard of: not by who has begun to listen later."""
    heard = news.first_step if record.steps_per_s is None and not news.midway else None
    since = job.start if record.run_since is None and job.state is JobState.RUNNING else record.run_since
    if heard is not None and since is not None:
        record.start_s = max(0.0, heard - since)


def _silent_s(news: JobNews | None, run: int, now: float) -> float:
    """Seconds since a job told how many steps it has made in this run; infinite where it has told none, or the same
    number from the beginning."""
    told = news is not None and news.report.restart == run and news.report.steps is not None
    return max(0.0, now - news.heard) if news is not None and told and news.first_step is not None else math.inf


def _company(record: JobRecord, seen: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What is known of the company in which the job is ``seen``: where it is the same, as the last round knew it."""
    return record.company if seen is not None and record.company.get("with") == seen["with"] else seen


def _kept(company: Mapping[str, Any] | None) -> float:
    """The share of its speed that a job has in its company: an equal part of the GPU where nobody knows it."""
    keeps = None if company is None else company.get("keeps")
    return part_of_gpu(company) if keeps is None else min(1.0, float(keeps))


def _cut_short(record: JobRecord, news: JobNews | None) -> bool:
    """Whether the run had an agent, which has neither said that its command is over nor that it is told to end: it is
    where a job is put back into the queue by its owner or in favour of another, and is killed where a node is lost."""
    if news is None or news.report.restart != record.restarts:
        return False
    return news.report.kind != "bye" and not news.report.told_to_end


def _restarted(record: JobRecord, lost: float, comment: JobComment) -> str:
    """How a job's next run begins, in the words of its history. A copy of a forked job has no checkpoint, and of what a
    script saves by itself nobody is told."""
    if comment.fork is not None:
        return f"run {record.restarts + 1} from the newest consolidation"
    if record.saved_step is not None:
        where = f"from its checkpoint at step {record.saved_step:.0f}"
    else:
        where = "from what its script has saved (ckpt=yes)" if comment.ckpt else "from the beginning"
    return f"run {record.restarts + 1} {where}" + (f"; {lost:.0f} steps are done again" if lost else "")


def _node_range(job: SlurmJob) -> tuple[int, ...]:
    """The fewest and most nodes that a waiting job asks for; () where that is one number, or Slurm has settled it."""
    ranged = job.state is JobState.PENDING and job.fault is None and job.max_nodes > job.num_nodes
    return (job.num_nodes, job.max_nodes) if ranged else ()


def _asked(shape: tuple[int, int, int, int], shards: int) -> str:
    workers, nodes, tasks, cpus = shape
    part = f"{shards} shard{'s'[: shards > 1]}" if shards else f"{workers} GPU{'s'[: workers != 1]}"
    counts = ((nodes, "node"), (tasks, "task"), (cpus, "CPU"))
    return f"its owner asks now for {part}, " + ", ".join(f"{n} {what}{'s'[: n > 1]}" for n, what in counts)


def _shape(job: SlurmJob) -> tuple[int, int, int, int]:
    """Gang size, nodes, tasks and CPUs as the owner asked for them. Shards are of one GPU. Of a job that runs and has
    its nodes for itself Slurm shows the CPUs of the nodes: what it asked for is not known, and does not matter."""
    count = job.gpus[0].count if job.gpus else min(1, job.shards)
    nodes = max(1, job.max_nodes if job.state is JobState.PENDING else job.num_nodes)
    tasks = max(1, job.num_tasks)
    workers = count * {"node": nodes, "task": tasks}.get(job.gpus[0].per if job.gpus else "", 1)
    cpus = tasks if job.exclusive and job.state is JobState.RUNNING else max(1, job.num_cpus)
    return workers, nodes, tasks, cpus


def _gpus_by_type(job: SlurmJob, facts: Mapping[str, NodeFacts]) -> Mapping[str, float]:
    """Where Slurm does not say how a job's GPUs lie on its nodes they count as spread evenly."""
    gpus = gpus_asked(job) or 0
    by_type: dict[str, float] = {}
    for name in job.nodes:
        gpu_type = facts[name].gpu_type if name in facts else None
        if gpu_type and gpus:
            by_type[gpu_type] = by_type.get(gpu_type, 0.0) + gpus / len(job.nodes)
    return by_type

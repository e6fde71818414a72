"""From what Slurm says, what jobs report and what is remembered, to one Snapshot.

Two steps: the records of jobs are brought up to date (:mod:`slurm_hadar.controller.observe.jobs.records`,
:mod:`slurm_hadar.controller.observe.jobs.facts`); then the snapshot is made of the facts, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec

from slurm_hadar.comment import JobComment
from slurm_hadar.config import Config, SharedGpus
from slurm_hadar.controller.journal import Event, JobRecord
from slurm_hadar.controller.observe.job_views import JobViews, unreadable_job
from slurm_hadar.controller.observe.jobs.facts import FactFinder, JobFacts
from slurm_hadar.controller.observe.jobs.preempting import Preempting
from slurm_hadar.controller.observe.jobs.records import JobRecords
from slurm_hadar.controller.observe.node_views import node_views
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.observe.speeds.estimates import Estimates
from slurm_hadar.controller.observe.speeds.peers import Peers
from slurm_hadar.controller.observe.speeds.shared import learn_shared
from slurm_hadar.controller.observe.speeds.shared_gpus import (
    gpu_bytes,
    measured_companies,
    note_company,
    note_needs,
    pairings,
    with_company,
)
from slurm_hadar.controller.observe.speeds.sharers import as_sharers
from slurm_hadar.controller.prediction.forecasts import Forecaster
from slurm_hadar.controller.safety.quarantine import UNFORESEEN
from slurm_hadar.controller.steering.promises import Promises
from slurm_hadar.model import Job, Snapshot
from slurm_hadar.slurm.state import ClusterState, SlurmJob

__all__ = ["Observation", "Observer"]

_P = ParamSpec("_P")


@dataclass(frozen=True)
class Observation:
    """One round's view. ``snapshot`` is what the policy gets; ``raw`` what Slurm said, by job, and ``comments`` what
    jobs' comments say; ``records`` the memory brought up to date; ``ended`` jobs that are over since the last round,
    with their final state; ``events`` what else has happened to jobs since; ``stays`` the steerable jobs that keep
    their place once they run, however long; ``retries`` jobs that are over and shall not be, which are in ``records``
    too; ``at_once`` the waiting jobs that are not to be put off any more, as Slurm may start them at any moment."""

    snapshot: Snapshot
    view: SlurmView
    records: dict[str, JobRecord]
    ended: tuple[tuple[JobRecord, str], ...] = ()
    events: tuple[Event, ...] = ()
    stays: Set[str] = frozenset()
    retries: Mapping[str, SlurmJob] = field(default_factory=dict)
    at_once: Set[str] = frozenset()

    @property
    def state(self) -> ClusterState:
        """All that Slurm said."""
        return self.view.state

    @property
    def raw(self) -> Mapping[str, SlurmJob]:
        return self.view.active

    @property
    def comments(self) -> Mapping[str, JobComment]:
        return self.view.comments

    @property
    def finished(self) -> tuple[tuple[str, str], ...]:
        return tuple((record.job_id, final) for record, final in self.ended)

    @property
    def read_s(self) -> float:
        return self.state.read_s

    def with_snapshot(self, snapshot: Snapshot) -> Observation:
        """The same view, with another snapshot for the policy."""
        return replace(self, snapshot=snapshot)


class Observer:
    """Keeps the records of jobs over rounds and builds snapshots from them."""

    def __init__(self, config: Config, sources: Sources) -> None:
        self._config = config
        self._sources = sources
        self._records = JobRecords(config, sources)
        self._estimates = Estimates(sources)
        self._denied: dict[str, str] = {}

    @property
    def records(self) -> dict[str, JobRecord]:
        """Of all jobs that are not over."""
        return self._records.all

    def reconfigure(self, config: Config, forecaster: Forecaster | None) -> None:
        """Go by another configuration. Between rounds only."""
        self._config, self._sources.forecaster = config, forecaster
        self._records.reconfigure(config)

    def clock_set(self, by_s: float) -> None:
        """What runs goes on by the new time, and has run for no longer or shorter than it has."""
        self._records.clock_set(by_s)
        self._sources.lessons.clock_set(by_s)

    def hear_out(self) -> None:
        """No other round follows: what jobs have said since this one looked is taken in."""
        self._records.hear_out()

    def is_denied(self, job_id: str) -> bool:
        """Whether Slurm has said that the job is not this controller's to change."""
        return job_id in self._denied

    def deny(self, jobs: Mapping[str, str]) -> None:
        """Leave these jobs alone as long as this controller runs: Slurm said that they are not its to change."""
        self._denied.update(jobs)
        for job_id in jobs:
            self.records[job_id].steered = False

    def observe(self, view: SlurmView, *, acting_only: bool = False) -> Observation:
        """Build the snapshot. With ``acting_only``, jobs of partitions that are not in mode act are pinned."""
        self._begin(view)
        failed = self._records.failed_restarts(view, self._denied) if acting_only else {}
        ended = self._records.close(view.state, {*view.active, *failed})
        for record, _ in ended:
            self._denied.pop(record.job_id, None)
        finder = FactFinder(self._config, self._sources, self._records, view, self._denied, acting_only)
        known = self._facts(finder, view)
        self._estimates.learn(filter(None, known.values()), view.state.time)
        learn_shared(self._sources, known, view.facts, view.state.time)
        note_needs(known, self._sources)
        with self._sources.best_effort():
            self._sources.usage.save()
        jobs, stays = self._views(view, known)
        jobs = as_sharers(jobs, known, view.active.values(), view.facts, self._sources)
        snapshot = self._snapshot(view, jobs, finder)
        note_company(known, view.active.values(), snapshot)
        at_once = frozenset(job_id for job_id, facts in known.items() if facts is not None and facts.at_once)
        events = tuple(self._records.events)
        return Observation(snapshot, view, self.records, ended, events, stays, failed, at_once)

    def _begin(self, view: SlurmView) -> None:
        """Another round: what is gone is forgotten, and more may be known."""
        sources = self._sources
        self._estimates.begin()
        self._records.begin(view.state)
        if sources.forecaster is not None:
            sources.forecaster.refresh()
        sources.book.expect({job_id: comment.key for job_id, comment in view.comments.items()})
        sources.quarantine.keep(view.active)
        sources.lessons.expire(view.active)
        sources.lessons.vain.look(view.state.nodes, view.state.time)
        sources.graphs.forget(f"{job_id}/{record.restarts}" for job_id, record in self.records.items())

    def _facts(self, finder: FactFinder, view: SlurmView) -> dict[str, JobFacts | None]:
        """Of every job; None for one that cannot be made sense of."""
        known = {job_id: self._contained(job_id, finder.find, job) for job_id, job in view.active.items()}
        preempting = Preempting(view, filter(None, known.values()), finder.quota_book)
        if preempting:
            known = self._each(known, preempting.leave)
        promises = Promises((f.job for f in known.values() if f is not None and f.pinned), view.state.time)
        if promises:
            known = self._each(known, finder.keep, promises)
        return with_company(known, view.active.values())

    def _each(
        self, known: Mapping[str, JobFacts | None], step: Callable[Concatenate[JobFacts, _P], JobFacts],
        *args: _P.args, **kw: _P.kwargs,
    ) -> dict[str, JobFacts | None]:  # fmt: skip
        """What a step makes of the facts of each job."""
        return {j: None if f is None else self._contained(j, step, f, *args, **kw) for j, f in known.items()}

    def _contained(self, job_id: str, step: Callable[_P, JobFacts], *args: _P.args, **kw: _P.kwargs) -> JobFacts | None:
        """What a step says of a job. Where it fails that is the job's fault, and quarantines it."""
        with self._sources.quarantine.over(job_id, "looking at it"):
            return step(*args, **kw)
        return None

    def _views(self, view: SlurmView, known: Mapping[str, JobFacts | None]) -> tuple[tuple[Job, ...], frozenset[str]]:
        """The jobs as a policy sees them, and those that keep their place."""
        now, peers = view.state.time, Peers(self.records.values(), self._sources.past)
        views = JobViews(self._config, self._estimates, self._sources.book, view.facts, now, peers)
        jobs, stays = [], set[str]()
        for job_id, facts in known.items():
            try:
                if facts is not None:
                    jobs.append(views.view(facts))
                    stays.update([job_id] if views.stays(facts) else ())
                    continue
            except UNFORESEEN as error:
                self._sources.quarantine.put(job_id, "looking at it", error)
            record = self.records.setdefault(job_id, JobRecord(job_id, last_seen=view.state.time))
            why = self._sources.quarantine.reason(job_id) or "cannot be understood"
            jobs.append(unreadable_job(view.active[job_id], record, why))
        return tuple(jobs), frozenset(stays)

    def _snapshot(self, view: SlurmView, jobs: tuple[Job, ...], finder: FactFinder) -> Snapshot:
        state, usage = view.state, self._sources.usage
        return Snapshot(
            state.time,
            node_views(view, jobs, self._sources.boots),
            jobs,
            state.partitions,
            self._config.controller.round_s,
            user_usage=usage.by_user(state.time),
            account_usage=usage.by_account(state.time),
            quotas=tuple(finder.quota_book.quotas.values()),
            pairings=pairings(jobs, view.facts, self._sources, self._config.jobs),
            turns=self._config.jobs.shared_gpus is SharedGpus.TURNS,
            measured=measured_companies(jobs, self._sources),
            gpu_bytes=gpu_bytes(view.facts),
        )

"""How fast the jobs of a round run on each GPU type: filed as they report it, estimated once for all jobs alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slurm_hadar.controller.observe.jobs.facts import JobFacts
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.model import JobState, Speed
from slurm_hadar.throughput.measurements import storable
from slurm_hadar.throughput.store import ThroughputStore

__all__ = ["Estimates"]


class _Workload(NamedTuple):
    """What an estimate is for; ``elastic_from`` is the gang size that its batch is stated for, None if not elastic."""

    key: str
    workers: int
    elastic_from: int | None
    gpu_types: tuple[str, ...]
    most_nodes: int = 0  # of a job with a graph
    user: str = ""  # where what jobs of one user have measured is known


class Estimates:
    """The speeds of one round's jobs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._estimates: dict[_Workload, dict[str, Speed]] = {}
        self._owners: dict[tuple[str, str], str] = {}  # whose measurements count: by model and user
        self._noted: set[_Workload] = set()

    def begin(self) -> None:
        """Another round: more may be known."""
        self._estimates.clear()
        self._owners.clear()

    def learn(self, found: Iterable[JobFacts], now: float) -> None:
        """File what running jobs have measured; before any speed of the round is asked for, so that all jobs alike go
        by it at once."""
        if self._sources.store is None:
            return
        for facts in found:
            if facts.job.state is JobState.RUNNING:
                with self._sources.quarantine.over(facts.job.job_id, "learning from it"):
                    self._learn_of(facts, self._sources.store, now)

    def _learn_of(self, facts: JobFacts, store: ThroughputStore, now: float) -> None:
        job, where, news = facts.job, facts.placement, self._sources.book.get(facts.job.job_id)
        if news is None or news.report.restart != job.restarts or len(where.by_type) != 1:
            return
        speeds, news.speeds = news.speeds, []
        if job.shares:  # only what it made alone on its GPU is a speed that others can be told by
            speeds = [speed for company, speed in news.shared_speeds if not company]
        if not speeds:
            return
        (gpu_type,) = where.by_type
        measured = sum(speeds) / len(speeds)
        if not storable(measured):
            return
        with self._sources.best_effort():
            store.record(
                facts.workload(where.workers),
                gpu_type,
                where.workers,
                measured,
                now,
                spread=len(where.nodes) > 1,
                nodes=len(where.nodes) if facts.graph else None,
                user=job.user,
            )

    def speeds(self, facts: JobFacts, workers: int, types: tuple[str, ...], now: float | None) -> dict[str, Speed]:
        """Estimated once a round for all jobs alike; with ``now`` the estimate is kept, so that its error can be told
        later."""
        comment, form, graph = facts.comment, facts.form, facts.graph
        workers = max(1, workers)
        elastic = max(1, form.workers) if form.sizes else None
        key = facts.workload(workers)
        who = (comment.model or "", facts.job.user)
        if who not in self._owners:
            self._owners[who] = self._sources.estimator.owner(*who)
        owner = self._owners[who]
        wanted = _Workload(key, workers, elastic, types, form.max_nodes if graph else 0, owner)
        if wanted not in self._estimates:
            by_nodes = self._sources.graphs.factors(graph, form, workers, types) if graph else None
            speeds = self._sources.estimator.speeds(
                comment.model or "",
                comment.batch,
                workers,
                types,
                key=key,
                elastic_from=elastic,
                by_nodes=by_nodes,
                user=owner,
            )
            self._estimates[wanted] = speeds
            if now is not None and wanted not in self._noted:
                self._noted.add(wanted)
                with self._sources.best_effort():
                    self._sources.estimator.record_estimates(key, workers, speeds, now, owner)
        return self._estimates[wanted]

"""How fast the jobs of a round run on each GPU type: filed as they report it, estimated once for all jobs alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slurm_hadar.comment import JobComment
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.controller.observe.job_graphs import GraphBook, NamedGraph
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.model import Form, JobState, Placement, Speed
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.store import ThroughputStore, storable, workload_key
from slurm_hadar.throughput.table import worker_batch

__all__ = ["Estimates", "Sight"]


class _Workload(NamedTuple):
    """What an estimate is for; ``elastic_from`` is the gang size that its batch is stated for, None if not elastic."""

    key: str
    workers: int
    elastic_from: int | None
    gpu_types: tuple[str, ...]
    most_nodes: int = 0  # of a job with a graph
    user: str = ""  # where what jobs of one user have measured is known


class Sight(NamedTuple):
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


class Estimates:
    """The speeds of one round's jobs.

    Parameters
    ----------
    estimator: who carries rates over from what is known. store: where those that jobs report are filed; None = nowhere.
    book: what jobs report. graphs: of their communication.
    best_effort: where a journal that cannot be written is complained of.
    quarantine: where one job's fault stays that job's.
    """

    def __init__(
        self, estimator: Estimator, store: ThroughputStore | None, book: ReportBook, graphs: GraphBook,
        best_effort: BestEffort, quarantine: Quarantine,
    ) -> None:  # fmt: skip
        self._estimator, self._store, self._book, self._graphs = estimator, store, book, graphs
        self._best_effort, self._quarantine = best_effort, quarantine
        self._estimates: dict[_Workload, dict[str, Speed]] = {}
        self._owners: dict[tuple[str, str], str] = {}  # whose measurements count: by model and user
        self._noted: set[_Workload] = set()

    def begin(self) -> None:
        """Another round: more may be known."""
        self._estimates.clear()
        self._owners.clear()

    def learn(self, sights: Iterable[Sight], now: float) -> None:
        """File what running jobs have measured; before any speed of the round is asked for, so that all jobs alike go
        by it at once."""
        if self._store is None:
            return
        for sight in sights:
            if sight.job.state is JobState.RUNNING:
                with self._quarantine.over(sight.job.job_id, "learning from it"):
                    self._learn_of(sight, self._store, now)

    def _learn_of(self, sight: Sight, store: ThroughputStore, now: float) -> None:
        job, where, news = sight.job, sight.placement, self._book.get(sight.job.job_id)
        if news is None or not news.speeds or news.report.restart != job.restarts or len(where.by_type) != 1:
            return
        (gpu_type,) = where.by_type
        speeds, news.speeds = news.speeds, []
        measured = sum(speeds) / len(speeds)
        if not storable(measured):
            return
        with self._best_effort():
            store.record(
                sight.workload(where.workers), gpu_type, where.workers, measured, now, spread=len(where.nodes) > 1,
                nodes=len(where.nodes) if sight.graph else None, user=job.user,
            )  # fmt: skip

    def speeds(self, sight: Sight, workers: int, types: tuple[str, ...], now: float | None) -> dict[str, Speed]:
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
                with self._best_effort():
                    self._estimator.note(key, workers, speeds, now, owner)
        return self._estimates[wanted]

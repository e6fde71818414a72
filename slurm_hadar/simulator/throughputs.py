"""How fast the jobs of a trace run: a throughput table read from a file, and its figures per job."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import MOST_GPUS
from slurm_hadar.graphs.factors import Fleet
from slurm_hadar.graphs.files import graph_of
from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.model import Speed
from slurm_hadar.simulator.job_types import job_type
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.inference import SPREAD, elastic_growth, relative_speed
from slurm_hadar.throughput.table import ReferenceTable, Row, gavel_reference, read_table, reference, workload

if TYPE_CHECKING:  # the trace formats need rates in their turn
    from slurm_hadar.simulator.traces.model import TraceJob

__all__ = ["Rates", "load_table"]

_KEY = re.compile(r"\('(?P<job_type>.+)', (?P<gpus>\d+)\)")
_SPREAD_SUFFIX = "_unconsolidated"
_TABLE, _TRACE = "table", "trace"


def load_table(path: Path | None, *, gavel: bool = False) -> ReferenceTable:
    """The table in ``path``: our CSV (as ``reference.csv``) or Gavel's JSON; None = the one shipped with the package,
    with ``gavel`` the figures of Gavel's simulator.

    Raises TraceError naming file and entry.
    """
    if path is None:
        return gavel_reference() if gavel else reference()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TraceError(f"throughput table {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"throughput table {path} cannot be read: {error}") from None
    if text.lstrip().startswith("{"):
        return _from_gavel(text, str(path))
    table = read_table(text.splitlines(), str(path))
    if not table.rows:
        raise TraceError(f"throughput table {path} has no rows")
    return table


def _from_gavel(text: str, name: str) -> ReferenceTable:
    """Gavel's rates are summed over a job's workers; divided by their number they are steps of the whole job."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{name}:{error.lineno}: is not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, or thousands of brackets
        raise TraceError(f"{name}: is not valid JSON: {error}") from None
    rows = []
    for worker_type, jobs in content.items():
        gpu_type = worker_type.removesuffix(_SPREAD_SUFFIX)
        spread = worker_type.endswith(_SPREAD_SUFFIX)
        if not gpu_type:
            raise TraceError(f"{name}: {worker_type!r} names no GPU type")
        if not isinstance(jobs, Mapping):
            raise TraceError(f"{name}: {worker_type} must be an object of job types")
        for key, figures in jobs.items():
            rows += _gavel_row(key, figures, gpu_type, spread, f"{name}: {worker_type}")
    if not rows:
        raise TraceError(f"throughput table {name} has no rates above 0")
    return ReferenceTable(rows)


def _gavel_row(key: str, figures: Any, gpu_type: str, spread: bool, where: str) -> list[Row]:
    match = _KEY.fullmatch(key)
    if not match:
        raise TraceError(f"{where}: key {key[:80]!r} must read ('<job type>', <gpus>)")
    if len(match["gpus"]) > len(str(MOST_GPUS)) or not 1 <= int(match["gpus"]) <= MOST_GPUS:
        raise TraceError(f"{where}: key {key[:80]!r}: a job has from 1 to {MOST_GPUS} GPUs")
    (model, batch), gpus = job_type(match["job_type"], f"{where}: key"), int(match["gpus"])
    rate = figures.get("null") if isinstance(figures, Mapping) else None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= sys.float_info.max:
        raise TraceError(f"{where}: {key}: 'null' (the rate without co-location) must be a number of at least 0")
    if rate / gpus == 0:
        return []
    return [Row(model, batch, gpus, gpu_type, spread, rate / gpus, "gavel")]


class Rates:
    """Speeds of a trace's jobs on the GPU types of a cluster.

    A published figure is taken as it stands. Where the table has this workload with this gang on other types but not
    on one that it covers elsewhere, the job cannot run there (out of memory). What the table does not have at all is
    estimated as in the live controller (:class:`Estimator`). ``summed`` multiplies rates by the number of workers, as
    Gavel counts. On the nodes of ``fleet`` a job with a graph has the factors that follow from it. An elastic job's
    speeds at other sizes than the trace's follow from those of that size by :func:`elastic_growth`, unless the trace
    gives them; with ``sizes_by_table`` they are the table's where it has them.
    """

    def __init__(
        self,
        table: ReferenceTable,
        gpu_types: Iterable[str],
        *,
        summed: bool = False,
        fleet: Fleet | None = None,
        sizes_by_table: bool = False,
    ) -> None:
        self.gpu_types = tuple(gpu_types)
        self._table = table
        self._summed = summed
        self._fleet = fleet
        self._sizes_by_table = sizes_by_table
        self._graphs: dict[tuple[str, int], JobGraph] = {}
        self._estimator = Estimator(table)
        self._known: dict[tuple[str, int | None, int], Mapping[str, Speed]] = {}
        self.guessed: set[str] = set()

    def of(self, job: TraceJob, workers: int) -> Mapping[str, Speed]:
        """The speeds of ``job`` with a gang of ``workers``, by its graph where it has one.

        Raises GraphError if its file has gone since the trace was read.
        """
        found = self._without_graph(job, workers)
        if not job.graph or self._fleet is None:
            return found
        if (job.graph, workers) not in self._graphs:
            self._graphs[job.graph, workers] = graph_of(job.graph, workers)
        graph, most = self._graphs[job.graph, workers], job.nodes[1] if job.nodes else workers
        return {
            t: replace(s, by_nodes=self._fleet.factors(graph, t, relative_speed(t), most)) for t, s in found.items()
        }

    def rated(self, job: TraceJob) -> TraceJob:
        """The job with its estimated speeds as rates of its own, if it names no model and has none: other readers of
        the trace have nothing else to go by."""
        if job.model or job.steps_per_s:
            return job
        return replace(job, steps_per_s={t: s.steps_per_s for t, s in self._without_graph(job, job.workers).items()})

    def _without_graph(self, job: TraceJob, workers: int) -> Mapping[str, Speed]:
        """The speeds of ``job`` with a gang of ``workers``, in steps of the job as its trace counts them."""
        factor = float(job.workers) if self._summed else 1.0
        if workers != job.workers:
            return self._resized(job, workers, factor)
        asked = self._asked(job)
        return _scaled(asked, factor) if factor != 1.0 else asked

    def _resized(self, job: TraceJob, workers: int, factor: float) -> Mapping[str, Speed]:
        """With another size than the trace's first. A step is the same work at any size: its workers share one batch.
        So the speeds follow from those of the first size, where there are no figures."""
        apart = self._published(job.model, job.batch, workers)
        if workers in job.scaled:
            given = job.scaled[workers]
            spreads = {t: apart[t].spread if t in apart else SPREAD for t in given}
            return {t: Speed(given[t] * factor, spreads[t], _TRACE) for t in self.gpu_types if t in given}
        asked, grown = self._asked(job), factor * elastic_growth(job.workers, workers)
        spreads = {t: apart[t].spread if t in apart else s.spread for t, s in asked.items()}
        found = {t: Speed(s.steps_per_s * grown, spreads[t], s.source, s.error) for t, s in asked.items()}
        return self._by_table(job, workers, factor, found) if self._sizes_by_table and not job.steps_per_s else found

    def _by_table(
        self, job: TraceJob, workers: int, factor: float, estimates: Mapping[str, Speed]
    ) -> Mapping[str, Speed]:
        """The same with the table's figures for the batch that each worker then has, where it is a whole number."""
        batch, odd = divmod((job.batch or 0) * job.workers, workers)
        if odd or not batch:
            return estimates
        published = _scaled(self._published(job.model, batch, workers), factor)
        chosen = {t: s if s.source == _TABLE else estimates.get(t) for t, s in published.items()}
        return {t: s for t, s in chosen.items() if s is not None}

    def _asked(self, job: TraceJob) -> Mapping[str, Speed]:
        """With as many workers as the trace says."""
        published = self._published(job.model, job.batch, job.workers)
        if job.steps_per_s:
            given = {t: job.steps_per_s[t] for t in self.gpu_types if t in job.steps_per_s}
            spread = {t: published[t].spread if t in published else SPREAD for t in given}
            return {t: Speed(rate, 1.0 if job.workers == 1 else spread[t], _TRACE) for t, rate in given.items()}
        self._count_guesses(job, published)
        return published

    def _count_guesses(self, job: TraceJob, speeds: Mapping[str, Speed]) -> None:
        name = workload(job.model, job.batch) or "an unnamed model"
        self.guessed |= {f"{name} on {job.workers} {t}" for t, s in speeds.items() if s.source != _TABLE}

    def _published(self, model: str, batch: int | None, workers: int) -> Mapping[str, Speed]:
        key = (model, batch, workers)
        if key not in self._known:
            estimates = self._estimator.speeds(model, batch, workers, self.gpu_types)
            on_other = any(self._rate(model, batch, t, workers) for t in self._table.gpu_types)
            speeds = {}
            for gpu_type, speed in estimates.items():
                rate = self._rate(model, batch, gpu_type, workers)
                if rate is None and on_other and gpu_type in self._table.gpu_types:
                    continue
                speeds[gpu_type] = Speed(rate, speed.spread, _TABLE, 0.0) if rate else speed
            self._known[key] = speeds
        return self._known[key]

    def _rate(self, model: str, batch: int | None, gpu_type: str, workers: int) -> float | None:
        return self._table.steps_per_s(model, batch, gpu_type, workers)


def _scaled(speeds: Mapping[str, Speed], factor: float) -> Mapping[str, Speed]:
    return {t: Speed(s.steps_per_s * factor, s.spread, s.source, s.error) for t, s in speeds.items()}

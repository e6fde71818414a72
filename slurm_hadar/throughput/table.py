"""The reference table: published training speeds of common model families, shipped with the package."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import MOST_GPUS, MOST_STEPS_PER_S

__all__ = ["ReferenceTable", "Row", "read_table", "reference", "worker_batch", "workload"]

FIELDS = ("model", "batch", "gpus", "gpu_type", "placement", "steps_per_s", "source")


def workload(model: str, batch: int | None) -> str:
    """The key of a workload: ``resnet18:64``, or just the model where no batch size is known."""
    return model if batch is None else f"{model}:{batch}"


def worker_batch(batch: int | None, asked: int, workers: int) -> int | None:
    """The batch per worker of an elastic gang of ``workers`` that keeps the batch of the whole gang, where ``batch`` is
    the one per worker of a gang of ``asked``; None if unknown."""
    return None if batch is None else max(1, round(batch * asked / workers))


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure: the rate of a whole job with ``gpus`` workers, on one node or spread over several."""

    model: str
    batch: int | None
    gpus: int
    gpu_type: str
    spread: bool
    steps_per_s: float
    source: str


class ReferenceTable:
    """Look-ups over a set of :class:`Row`; exact only, the estimator does the guessing."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._steps_per_s = {(r.model, r.batch, r.gpu_type, r.gpus, r.spread): r.steps_per_s for r in self.rows}
        self.models = tuple(sorted({r.model for r in self.rows}))
        self.gpu_types = tuple(sorted({r.gpu_type for r in self.rows}))

    def batches(self, model: str) -> tuple[int | None, ...]:
        """Batch sizes known for ``model``, ascending; empty for an unknown model."""
        return tuple(sorted({r.batch for r in self.rows if r.model == model}, key=lambda b: b or 0))

    def steps_per_s(
        self, model: str, batch: int | None, gpu_type: str, gpus: int = 1, *, spread: bool = False
    ) -> float | None:
        """The published rate of the whole job, or None where the table has none."""
        return self._steps_per_s.get((model, batch, gpu_type, gpus, spread))


def read_table(lines: Iterable[str], name: str = "table") -> ReferenceTable:
    """Parse the CSV format of ``reference.csv``. Raises TraceError naming file, line and field."""
    numbered = ((i, line) for i, line in enumerate(lines, 1) if line.strip() and not line.startswith("#"))
    rows: list[Row] = []
    header_seen = False
    for number, line in numbered:
        try:
            values = next(csv.reader([line]))
        except csv.Error as error:
            raise TraceError(f"{name}:{number}: is no line of a CSV table: {error}") from None
        if not header_seen:
            if tuple(values) != FIELDS:
                raise TraceError(f"{name}:{number}: header must be {','.join(FIELDS)}")
            header_seen = True
            continue
        rows.append(_row(values, f"{name}:{number}"))
    return ReferenceTable(rows)


def _row(values: list[str], where: str) -> Row:
    if len(values) != len(FIELDS):
        raise TraceError(f"{where}: {len(values)} fields where {len(FIELDS)} are expected")
    record = dict(zip(FIELDS, values, strict=True))
    try:
        gpus, rate = int(record["gpus"]), float(record["steps_per_s"])
        batch = int(record["batch"]) if record["batch"] else None
    except ValueError as error:
        raise TraceError(f"{where}: batch, gpus and steps_per_s must be numbers ({error})") from error
    if gpus < 1 or not 0 < rate < float("inf") or (batch is not None and batch < 1):
        raise TraceError(f"{where}: batch, gpus and steps_per_s must be positive")
    if gpus > MOST_GPUS or rate > MOST_STEPS_PER_S:
        raise TraceError(f"{where}: gpus must be at most {MOST_GPUS}, and steps_per_s at most {MOST_STEPS_PER_S:g}")
    if not record["gpu_type"].strip():
        raise TraceError(f"{where}: gpu_type is empty")
    if record["placement"] not in ("one_node", "spread"):
        raise TraceError(f"{where}: placement must be one_node or spread, not {record['placement']!r}")
    spread = record["placement"] == "spread"
    return Row(record["model"], batch, gpus, record["gpu_type"], spread, rate, record["source"])


@functools.cache
def reference() -> ReferenceTable:
    """The table shipped with the package."""
    return _shipped("reference.csv")


@functools.cache
def gavel_reference() -> ReferenceTable:
    """The same with Gavel's simulation figures throughout, odd ones too: to take on its simulator's assumptions."""
    odd = _shipped("gavel_recommendation.csv")
    return ReferenceTable([*(row for row in reference().rows if row.model not in odd.models), *odd.rows])


def _shipped(name: str) -> ReferenceTable:
    source = resources.files("slurm_hadar.throughput") / name
    return read_table(source.read_text(encoding="utf-8").splitlines(), name)

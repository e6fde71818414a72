"""Traces: what arrived when, and how much work it was. One file per format; :func:`read_trace` knows them all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, MOST_GPUS, reading
from slurm_hadar.simulator.traces import accounting, gavel, pai, philly, recurring, table_csv
from slurm_hadar.simulator.traces.accounting import node_types
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["FORMATS", "Trace", "TraceJob", "node_types", "read_text", "read_trace"]

#: Formats by name.
FORMATS = ("csv", "gavel", "sacct", "pai")
_READERS = {"csv": table_csv, "gavel": gavel, "sacct": accounting}


def read_trace(
    source: str | Path,
    table: ReferenceTable,
    format: str | None = None,  # noqa: A002
    types_of: Mapping[str, str] | None = None,
    seed: int = 0,
    gpus: int | None = None,
) -> Trace:
    """Read a trace from a file, or draw one from ``philly:...`` or ``recurring:...``; a folder is one of PAI tables.

    ``format`` is one of :data:`FORMATS`, or None to go by the content. ``table`` gives the rates that work is measured
    with where a trace does not count steps. ``types_of`` are GPU types of nodes, for accounting that does not record
    them; ``seed`` that of a drawn trace which names none, and ``gpus`` the cluster's, which ``recurring:`` sizes its
    load by. Raises TraceError naming file, line and field.
    """
    if str(source).startswith(philly.PREFIX):
        return philly.read(str(source), table, seed)
    if str(source).startswith(recurring.PREFIX):
        return recurring.read(str(source), table, seed, gpus)
    path = Path(source)
    with reading(path):
        if format == "pai" or (format is None and path.is_dir()):
            return _filled(pai.read(path, table))
        data = path.read_bytes()
        # users name their jobs, in whatever encoding
        named = format == "sacct" or accounting.looks_like(data.partition(b"\n")[0].decode("utf-8-sig", "replace"))
        reader = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", "replace" if named else "strict")
        text = reader.read()
    return read_text(text, str(path), table, format, types_of)


def read_text(
    text: str,
    name: str,
    table: ReferenceTable,
    format: str | None = None,  # noqa: A002
    types_of: Mapping[str, str] | None = None,
) -> Trace:
    """As :func:`read_trace`, of a text that is called ``name`` in errors."""
    lines = text.split("\n")  # line ends of other alphabets may stand in a job's name
    chosen = format or _recognise(lines, name)
    if chosen == "pai":
        raise TraceError(f"{name}: a PAI trace is a folder of tables, not one text")
    if chosen == "sacct":
        trace = accounting.read(text, name, table, types_of)
    elif chosen == "gavel":
        trace = gavel.read(lines, name, table)
    else:
        trace = table_csv.read(lines, name)
    return _filled(trace)


def _filled(trace: Trace) -> Trace:
    if not trace.jobs:
        why = next((line for line in trace.assumptions if "left out" in line), "")
        raise TraceError(f"trace {trace.name} has no jobs" + (f": {why}" if why else ""))
    for job in trace.jobs:
        if not 0 <= job.arrival_s <= LATEST_S:
            raise TraceError(f"{trace.name}: job {job.job_id} arrives over {LATEST_S:g} s after the first")
        if job.workers > MOST_GPUS:
            raise TraceError(f"{trace.name}: job {job.job_id} has over {MOST_GPUS} GPUs")
    return trace


def _recognise(lines: list[str], name: str) -> str:
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    for format_name, reader in _READERS.items():
        if reader.looks_like(first):
            return format_name
    raise TraceError(f"trace {name}: format not recognised by its first line; name it ({', '.join(_READERS)})")

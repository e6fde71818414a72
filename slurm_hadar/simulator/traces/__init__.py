"""Traces: what arrived when, and how much work it was. One file per format; :func:`read_trace` knows them all."""

from __future__ import annotations

from pathlib import Path

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.traces import gavel, philly, table_csv
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["FORMATS", "Trace", "TraceJob", "read_trace"]

#: Formats by name; each can tell by the first line whether a file is its own.
FORMATS = {"csv": table_csv, "gavel": gavel}


def read_trace(source: str | Path, table: ReferenceTable, format: str | None = None) -> Trace:  # noqa: A002
    """Read a trace from a file, or draw one from ``philly:...``.

    ``format`` is one of :data:`FORMATS`, or None to go by the content. ``table`` gives the rates that drawn jobs are
    measured with. Raises TraceError naming file, line and field.
    """
    if str(source).startswith(philly.PREFIX):
        return philly.read(str(source), table)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TraceError(f"trace {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path} cannot be read: {error}") from None
    lines = text.splitlines()
    trace = FORMATS[format or _recognise(lines, path)].read(lines, str(path))
    if not trace.jobs:
        raise TraceError(f"trace {path} has no jobs")
    return trace


def _recognise(lines: list[str], path: Path) -> str:
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    for name, reader in FORMATS.items():
        if reader.looks_like(first):
            return name
    raise TraceError(f"trace {path}: format not recognised by its first line; name it ({', '.join(FORMATS)})")

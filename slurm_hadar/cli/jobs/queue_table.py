"""The queue on a screen: as one table where that is wide enough, else what matters most on a line for each job, and
where it runs or why it waits below."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from slurm_hadar.cli.common import cell
from slurm_hadar.controller.answers.lines import Line
from slurm_hadar.controller.words import done, plain, sharing
from slurm_hadar.units import span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["show"]

_TITLES = ("JOB", "USER", "NAME", "STATE", "GPUS", "WHERE", "STEPS/S", "DONE", "SIZE", "AGE", "WHY")
_RIGHT = frozenset(("GPUS", "STEPS/S", "DONE", "AGE"))
_ALWAYS = ("JOB", "NAME", "STATE", "GPUS")
_IF_ROOM = ("USER", "AGE", "DONE", "STEPS/S", "SIZE")  # the most important first
_BELOW = ("WHERE", "WHY")
_NAME, _SHORT_NAME = 20, 12
_COLOURS = {"running": "green", "pending": "yellow", "completing": "cyan", "starting": "cyan"}
_INDENT = 4
_Row = dict[str, str]


def show(out: Console, lines: Sequence[Line]) -> None:
    """A pipe has room for everything."""
    now = time.time()
    rows = [_row(line, now) for line in lines]
    widths = _widths(rows)
    if sum(widths.values()) + 2 * (len(_TITLES) - 1) <= out.width:
        out.print(_table(rows))
        return
    if sum(n + 2 for title, n in widths.items() if title not in _BELOW) > out.width:
        rows = [{**row, "NAME": _shortened(row["NAME"])} for row in rows]
        widths = _widths(rows)
    for text in _narrow(rows, widths, out.width):
        out.print(text, soft_wrap=True)


def _row(line: Line, now: float) -> _Row:
    values = (
        line.job_id,
        line.user,
        line.name[:_NAME],
        line.state,
        str(line.gpus),
        "; ".join(part for part in (line.where, sharing(line.shares)) if part),  # with the GPU that it shares
        "-" if line.steps_per_s is None else f"{line.steps_per_s:.3g}",
        done(line.done_share, line.size),
        _size(line),
        span(now - line.arrival),
        line.why,
    )
    return {title: plain(value) for title, value in zip(_TITLES, values, strict=True)}


def _size(line: Line) -> str:
    """Where it is known from how long the job is; of a prediction also how long it takes alone on the fastest GPUs."""
    if line.size == "predicted" and line.forecast is not None:
        return f"predicted {span(line.forecast['expected_s'])}"
    return line.size or "-"


def _table(rows: Sequence[_Row]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in _TITLES:
        table.add_column(title, justify="right" if title in _RIGHT else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row[t], _COLOURS.get(row[t], "") if t == "STATE" else "") for t in _TITLES))
    return table


def _shortened(name: str) -> str:
    return name if len(name) <= _SHORT_NAME else name[: _SHORT_NAME - 1] + "…"


def _kept(widths: dict[str, int], width: int) -> tuple[str, ...]:
    """The columns for which a line has room."""
    left = width - sum(widths[t] + 2 for t in _ALWAYS)
    more = set()
    for title in _IF_ROOM:
        if widths[title] + 2 > left:
            break
        more.add(title)
        left -= widths[title] + 2
    return tuple(t for t in _TITLES if t in _ALWAYS or t in more)


def _widths(rows: Sequence[_Row]) -> dict[str, int]:
    from rich.cells import cell_len

    return {title: max(len(title), *(cell_len(row[title]) for row in rows)) for title in _TITLES}


def _narrow(rows: Sequence[_Row], widths: dict[str, int], width: int) -> Iterator[Text]:
    """A heading, and of each job a line and what stands below it."""
    from rich.text import Text

    kept = _kept(widths, width)
    yield Text("  ".join(_padded(t, t, widths) for t in kept), style="bold")
    for row in rows:
        line = Text()
        for title in kept:
            colour = _COLOURS.get(row[title], "") if title == "STATE" else ""
            line.append(("  " if line else "") + _padded(row[title], title, widths), style=colour)
        line.rstrip()
        yield line
        for title in _BELOW:
            if row[title] not in ("", "-"):
                yield from _wrapped(row[title], width)


def _padded(text: str, title: str, widths: dict[str, int]) -> str:
    from rich.cells import cell_len

    blanks = " " * (widths[title] - cell_len(text))
    return blanks + text if title in _RIGHT else text + blanks


def _wrapped(text: str, width: int) -> Iterator[Text]:
    from rich.text import Text

    indent = " " * _INDENT
    for line in textwrap.wrap(text, max(20, width), initial_indent=indent, subsequent_indent=indent):
        yield Text(line)

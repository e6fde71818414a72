"""How a tuning run stands, for people: one line, and a table of the trials that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurm_hadar.cli.common import cell
from slurm_hadar.controller.words import plain
from slurm_hadar.units import lasting

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult

    from slurm_hadar.tuning.session import Result

__all__ = ["Screenful", "best_line", "standing_line", "standing_table", "study_line"]


def study_line(name: str, counts: Mapping[str, int], tuned: bool) -> str:
    """A study's trials by Optuna's states. ``tuned``: a tuner is at work, to which all that are not over are RUNNING;
    which of them run is its to say."""
    if tuned:
        over = {state: n for state, n in counts.items() if state not in ("running", "waiting")}
        counts = {"not over": sum(counts.values()) - sum(over.values()), **over}
    return f"study {name}: " + (", ".join(f"{n} {state}" for state, n in counts.items() if n) or "no trials")


def best_line(best: Result, metric: str | None, tuned: bool) -> str:
    """The trial that would be the search's result if it ended now. ``tuned``: it goes on."""
    line = f"best: trial {best.number}, {metric or 'value'} {best.value:.6g}"
    if not best.complete:
        return f"{line}, by its last report (no trial is complete)"
    return f"{line}, of those that are complete" if tuned else line


def standing_line(stands: Mapping[str, Any]) -> str:
    """Of what :func:`slurm_hadar.tuning.view.snapshot` tells: those that wait are counted here alone."""
    counts, best = stands["counts"], stands["best"]
    text = f"{counts['ended']} of {stands['trials']} trials are over, {counts['runs']} run on {stands['gpus_busy']} of "
    text += f"{stands['gpus']} GPUs"
    if counts["waits"]:
        text += f", {counts['waits']} wait for GPUs"
    if counts["at its rung"]:
        text += f", {counts['at its rung']} at their rung for others"
    if best is not None:
        text += f"; best {stands.get('metric', 'value')} ever reported {best['value']:.6g} (trial {best['trial']})"
    if stands["group_left_s"] is not None:
        text += f"; this group needs {lasting(stands['group_left_s'])} or more"
    return text


def standing_table(stands: Mapping[str, Any]) -> Group:
    """The line, and a row for each trial that runs, itself of one line."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("trial", "state", "width", "GPUs", "step", stands.get("metric", "value"), "ends in", box=None)
    for row in _running(stands):
        value = "" if row["value"] is None else f"{row['value']:.6g}"
        ends = "" if row["left_s"] is None else lasting(row["left_s"])
        gpus = " ".join(row["gpus"])
        texts = (str(row["trial"]), row["state"], row["width"], gpus, str(row["step"]), value, ends)
        table.add_row(*map(cell, texts))
    return Group(Text(plain(standing_line(stands)), style="italic"), table)


def _running(stands: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in stands["rows"] if row["state"] == "runs"]


class Screenful:
    """The table for a terminal on which it is drawn over and over: always lower than that, since what has left the
    screen at its top can be drawn over no more."""

    def __init__(self, stands: Mapping[str, Any]) -> None:
        self._stands = stands

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        lines = console.render_lines(standing_table(self._stands), options, pad=False)
        room = max(1, console.height - 1)  # the last one is the cursor's when the table is taken away
        if (cut := len(lines) - room) > 0:
            hidden = min(cut + 1, len(_running(self._stands)))
            lines[room - 1 :] = [[Segment(f" ... and {hidden} more")]]
        for line in lines:
            yield from line
            yield Segment.line()

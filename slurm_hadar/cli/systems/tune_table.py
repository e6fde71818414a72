"""How a tuning run stands, for people: one line, and a table of the trials that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurm_hadar.cli.common import cell, plain
from slurm_hadar.units import lasting

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult

__all__ = ["Screenful", "standing_line", "standing_table"]


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
        text += f"; best {stands.get('metric', 'value')} {best['value']:.6g} (trial {best['trial']})"
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

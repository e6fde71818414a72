"""The parts of the terminal's screen beside the table of jobs, as texts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from slurm_hadar.controller.answers.trends import Trend
from slurm_hadar.controller.answers.view import Picture, TypeUse
from slurm_hadar.controller.words import clock, gpus, plain
from slurm_hadar.tui.rows import UserRow
from slurm_hadar.tui.signs import Signs
from slurm_hadar.units import counted, span

__all__ = ["bars", "beat", "moves", "trend", "users"]

_MOVES = 3
MOST_USERS = 8


def beat(picture: Picture, sort: str, words: str) -> Text:
    """The first line: the controller's state, and what the table shows."""
    last = picture.beat
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(clock(picture.time), "bold")
    if last.time is None:
        text.append("  no round yet", "yellow")
    elif last.alive:
        text.append(f"  {last.mode} {last.policy}, round {span(last.age_s)} ago", "green")
    else:
        text.append(f"  controller silent for {span(last.age_s)}", "bold red")
    text.append(
        f"  {counted(picture.total, 'job')}, {picture.waiting} wait{'s' if picture.waiting == 1 else ''}  by {sort}"
    )
    if len(picture.lines) < picture.total:
        text.append(f" (of the first {len(picture.lines)})")
    if words:
        text.append(f"  with '{plain(words)}'", "reverse")
    return text


def bars(types: Sequence[TypeUse], width: int, signs: Signs) -> Text:
    """A line per GPU type: used, free, down."""
    text = Text(no_wrap=True, overflow="ellipsis")
    names = max((len(use.gpu_type) for use in types), default=0)
    room = max(10, min(60, width - names - 32))
    for index, use in enumerate(types):
        used = round(room * use.used / use.gpus) if use.gpus else 0
        down = min(room - used, round(room * use.down / use.gpus)) if use.gpus else 0
        text.append("\n" if index else "")
        text.append(f"{plain(use.gpu_type):<{names}} ")
        text.append(signs.used * used, "green")
        text.append(signs.free * (room - used - down), "dim")
        text.append(signs.down * down, "red")
        text.append(f" {use.used} of {use.gpus} used" + (f", {use.down} down" if use.down else ""))
    return text


def trend(found: Trend, width: int, signs: Signs) -> Text:
    """How full the cluster was and how many jobs waited in the last rounds; nothing before there are two."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if len(found.times) < 2:
        return text
    room = max(8, min(60, (width - 50) // 2))
    text.append("GPUs used ")
    text.append(signs.sparkline(found.used, 1.0, room), "green")
    text.append(f" {100 * found.used[-1]:.0f} %  waiting ")
    text.append(signs.sparkline(found.waiting, max(found.waiting), room), "yellow")
    text.append(f" {found.waiting[-1]}, most {max(found.waiting)}, in {span(found.times[-1] - found.times[0])}")
    return text


def users(rows: Sequence[UserRow], width: int) -> Text:
    """A line per user: GPUs held, jobs that run and wait."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'USER':<12} {'GPUS':>5} {'RUN':>5} {'WAIT':>5}  GPUS BY TYPE", "bold")
    for row in rows[:MOST_USERS]:
        held = ", ".join(f"{gpus(count)} {plain(t)}" for t, count in sorted(row.held.items()))
        line = f"{plain(row.user)[:12]:<12} {gpus(sum(row.held.values())):>5} {row.running:>5} {row.waiting:>5}  {held}"
        text.append(f"\n{line[: width - 1]}")
    if len(rows) > MOST_USERS:
        text.append(f"\nand {len(rows) - MOST_USERS} more users", "dim")
    return text


def moves(picture: Picture, width: int, signs: Signs) -> Text:
    """The last decisions."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for index, entry in enumerate(picture.moves[:_MOVES]):
        text.append("\n" if index else "")
        words = f"{clock(entry['time'])}  job {entry['job_id']} {entry['what']}: {entry['detail_words']}"
        text.append(signs.cut_to(plain(words), max(20, width - 1)))
    return text

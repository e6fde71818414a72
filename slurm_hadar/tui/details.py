"""A job in words, for a terminal: what it does or why it waits, its speeds, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_hadar.controller.answers.view import TIERS
from slurm_hadar.controller.words import about, clock, place, plain, sharing
from slurm_hadar.model import Placement, outruns
from slurm_hadar.units import counted, span

__all__ = ["in_lines"]


def in_lines(found: Mapping[str, Any], now: float) -> list[str]:
    """Of what :func:`slurm_hadar.controller.answers.view.job_view` says, one text per line."""
    lines = [*_standing(found, now), *_speeds(found["speeds"]), *_fork(found["fork"])]
    if found["runs"]:
        lines += ["", "Where it ran"]
        lines += [
            f"  {clock(r['began'])} to {clock(r['ended']) if r['ended'] else 'now'}  {_place(r['held'])}"
            for r in found["runs"][-10:]
        ]
    lines += ["", "History"]
    lines += [
        f"  {clock(entry['time'])}  {entry['what']}" + (f": {entry['detail_words']}" if entry["detail_words"] else "")
        for entry in found["history"]
    ] or ["  nothing was decided about it yet"]
    return [plain(line) for line in lines]


def _standing(found: Mapping[str, Any], now: float) -> list[str]:
    line, record, wait = found["line"], found["record"], found["wait"]
    who = line or record
    lines = [f"Job {found['job_id']}" + (f", {who['name']} of {who['user']}" if who else "")]
    if record is not None and record["ended"]:
        lines.append(f"  has ended ({clock(record['ended'])}, {record['final'].lower() or 'unknown'})")
    elif wait:
        lines.append(f"  {TIERS.get(wait['tier'], wait['tier'])}: {wait['why']}")
        if wait["wanted"]:
            lines.append(f"  would take    {_place(wait['wanted'])}")
        if wait["price"] is not None:
            lines.append(f"  price         {wait['price']:.4g}" + _payoff(wait))
        if wait["starts"]:
            lines.append(f"  starts about  {about(wait['starts'])}")
    elif line:
        lines.append(f"  is {line['state']}" + (f" on {_place(line['held'])}" if line["held"] else ""))
        if shares := sharing(line["shares"]):
            lines.append(f"  shares        {shares}")
    if line:
        ago = span(now - line["arrival"])
        lines.append(f"  submitted     {clock(line['arrival'])}, {ago} ago; {counted(line['gpus'], 'GPU')}")
    if record is not None:
        lines.append(f"  steps         {_steps(record, found['size'])}")
        moved = f"{counted(record['moves'], 'time')}, {record['had_s'] / 3600:.2f} GPU-hours so far"
        lines.append(f"  moved         {moved}")
    return lines


def _steps(record: Mapping[str, Any], size: str) -> str:
    steps, total = record["steps"], record["total_steps"]
    if total is None or not size:
        return f"{steps:.0f} of ? ({size or 'its length is not known'})"
    return f"{steps:.0f} of {total:.0f} ({size}{', and outrun' if outruns(steps, total) else ''})"


def _payoff(wait: Mapping[str, Any]) -> str:
    if wait["payoff"] is None:
        return ""
    return f" against utility {wait['price'] + wait['payoff']:.4g}: payoff {wait['payoff']:.4g}"


def _speeds(speeds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not speeds:
        return []
    lines = ["", "Speed on each GPU type"]
    for gpu_type, speed in speeds.items():
        if speed["basis"] == "unknown":
            lines.append(f"  {gpu_type:<10} not known: {speed['source']}")
        else:
            error = f"± {100 * speed['error']:.0f} %"
            lines.append(f"  {gpu_type:<10} {speed['steps_per_s']:>8.3g} steps/s {error:>7}  {speed['source']}")
    return lines


def _fork(fork: Mapping[str, Any] | None) -> list[str]:
    if fork is None:
        return []
    total = "?" if fork["total_steps"] is None else f"{fork['total_steps']:.0f}"
    lines = ["", f"Copies of job {fork['job_id']}: {fork['steps']} of {total} steps are consolidated"]
    for copy in fork["copies"]:
        lines.append(
            f"  {copy['job_id']:<12} {copy['state']:<9} {_place(copy['held']) if copy['held'] else copy['why']}"
        )
    return lines


def _place(held: Mapping[str, Mapping[str, int]]) -> str:
    return place(Placement.of(held))

"""What is expected of a job, in words and as JSON: the part of ``hadar explain`` that looks ahead."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from slurm_hadar.controller.answers.expectation import Answer, Holder, Interval, WhatIf
from slurm_hadar.controller.steering.time_limits import Overtime
from slurm_hadar.controller.words import clock, place
from slurm_hadar.units import between, span

__all__ = ["as_dict", "chance", "in_words", "moment"]

_SAME_S = 60.0  # ends closer than this are no reason to change anything


def as_dict(expected: Answer) -> dict[str, Any]:
    """As JSON has it: times in epoch seconds, intervals as [low, high]."""
    content = asdict(expected)
    content["where"] = expected.where.as_dict()
    content["start"], content["end"] = _pair(expected.start), _pair(expected.end)
    content["what_if"] = [{**asdict(w), "start": _pair(w.start)} for w in expected.what_if]
    return content


def _pair(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.low, interval.high]


def in_words(expected: Answer, now: float) -> list[str]:
    """Lines for people: start, end, who holds the GPUs, and what other GPU types would change."""
    lines = []
    if not expected.runs:
        where = f" on {place(expected.where)}" if expected.where else ""
        lines.append(f"  start        {moment(expected.start, now, expected.until)}{where}")
    if expected.end is not None:
        lines.append(f"  end          {_when(expected.end, now)}")
    if chance(expected):
        lines.append(f"               {chance(expected)}")
    if not expected.runs and (expected.start is not None or expected.end is not None):
        lines.append("               (if nothing else is submitted, and if jobs take as long as they are expected to)")
    if expected.holders and (expected.start is None or expected.start.low > now + _SAME_S):
        lines.append(f"  held by      {_holders(expected.holders)}")
    if expected.overtime is not None:
        lines.append(f"  time limit   {_overtime(expected.overtime, expected.runs)}")
    return lines + [line for w in expected.what_if if (line := _what_if(w, expected, now))]


def chance(expected: Answer) -> str:
    """By when it is done in all likelihood; "" where that is not known."""
    return "" if expected.end_80 is None else f"80 % to end by {clock(expected.end_80)}"


def moment(start: Interval | None, now: float, until: float) -> str:
    """When something is expected that is looked for until then."""
    if start is None:
        return f"not within the next {span(until - now)}, as far as could be looked ahead"
    return _when(start, now)


def _when(interval: Interval, now: float) -> str:
    low, high = max(0.0, interval.low - now), interval.high
    if high is None:
        return f"in {span(low)} at the earliest ({clock(interval.low)})"
    late = max(0.0, high - now)
    if late <= _SAME_S:
        return "within a minute"
    when = between(low, late)
    earliest = f"{clock(now + low)} to " if " to " in when else ""
    return f"in about {when} ({earliest}{clock(high)})"


def _holders(holders: tuple[Holder, ...]) -> str:
    return ", ".join(
        f"job {h.job_id} ({h.user}, {h.gpus} GPU{'s' if h.gpus > 1 else ''}, "
        + (f"{span(h.left_s)} left)" if h.left_s is not None else "nobody knows how long)")
        for h in holders
    )


def _overtime(over: Overtime, runs: bool) -> str:
    """That it will not be done in time, what comes of that, and what its owner can do about it."""
    needs = " and ".join(f"{span(seconds)} on {gpu_type}" for gpu_type, seconds in over.needs_s.items())
    limit = f"{span(over.limit_s)}{' left' if runs else ''}"
    if over.goes_on:
        return f"{limit}, and it needs {needs}: at its limit it saves, and goes on in another run"
    mend = "requeue_on_timeout=yes in its comment lets it go on in another run (if it can save)"
    if over.fits:
        return f"{limit}, and it needs {needs}: it is started on {' or '.join(over.fits)} only; {mend}"
    return f"{limit}, and it needs {needs}: Slurm ends it before it is done; {mend}, or ask for a longer --time"


def _what_if(case: WhatIf, expected: Answer, now: float) -> str:
    """One line for another type; "" for the one that the job starts on anyhow."""
    head = f"  on {case.gpu_type:<9}"
    if set(expected.where.by_type) == {case.gpu_type} and case.accepted:
        return ""
    if case.why:
        return f"{head} {case.why}"
    if case.start is None:
        return f"{head} would not start within that time"
    too_long = expected.overtime is not None and case.gpu_type in expected.overtime.needs_s
    terms = "" if case.accepted else " if its time limit let it" if too_long else " if it accepted that type"
    text = f"{head} would start {_when(case.start, now)}{terms}"
    if case.end is None:
        return text
    text += "," if terms else ""
    middle = expected.end
    if middle is None or middle.high is None:
        return f"{text} and end {clock(case.end)}"
    late = case.end - (middle.low + middle.high) / 2
    if abs(late) <= _SAME_S:
        return f"{text} and end at about the same time"
    return f"{text} and end {span(abs(late))} {'later' if late > 0 else 'earlier'}"

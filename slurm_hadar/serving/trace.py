"""A trace of requests: CSV with a header, documented in docs/serving.md, or drawn."""

from __future__ import annotations

import csv
import io
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_hadar.errors import ConfigError, TraceError
from slurm_hadar.fields import LATEST_S, number, positive, reading, rows, within
from slurm_hadar.serving.arrivals import Arrivals, is_drawn
from slurm_hadar.serving.spans import LONGEST_S, seconds

__all__ = [
    "COLUMNS",
    "Intended",
    "Kind",
    "TracedRequest",
    "drawn",
    "intended_of",
    "read_trace",
    "with_slo",
    "write_trace",
]

COLUMNS = ("arrival_s", "application", "exec_s", "deadline_s")
_DRAWN_KEYS = ("apps", "load", "spread", "drift", "period")
_LONG_AGO_S = 1e6  # a trace that begins later after its clock's zero is on a clock of its own, as epoch seconds are
_TWO = "short/10ms/80+long/100ms/20"


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """``exec_s``: run time alone on a worker of speed 1. ``deadline_s`` is a time on the clock of ``arrival_s``; NaN
    where the trace has none. ``model``: of several, which a trace in a file does not have."""

    arrival_s: float
    application: str
    exec_s: float
    deadline_s: float = math.nan
    model: str = ""


@dataclass(frozen=True, slots=True)
class Intended:
    """A request that is to be sent, seconds after the start, whatever became of those before it."""

    at_s: float
    application: str
    deadline_s: float


@dataclass(frozen=True)
class Kind:
    """An application of drawn traces: its typical run time, and its part of the requests."""

    name: str
    exec_s: float
    weight: float


def read_trace(
    source: str, assume: Callable[[str], None] = lambda _: None, *, timed: bool = False
) -> tuple[TracedRequest, ...]:
    """Of a file, or drawn by a text such as ``poisson:load=0.7``; by arrival. Raises TraceError, with ``timed`` also
    where one has no deadline.

    ``assume`` is told what had to be assumed: ``deadline_s`` is a time on the clock of ``arrival_s``, but where one
    lies before its arrival, all are taken as spans after each arrival, as in traces of jobs. Not where most lie after
    their arrivals and become later with them: then the one is a mistake, which is refused.
    """
    if is_drawn(source):
        if timed:
            raise TraceError(f"{source}: drawn requests have no deadlines: give --slo, such as 100ms or 1.5xP99")
        return drawn(source)
    path = Path(source)
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    found = [(_request(row, where), where) for where, row in rows(text.splitlines(), source, COLUMNS[:3], COLUMNS[3:])]
    if not found:
        raise TraceError(f"{source}: has no requests, only a header; add a line for each request")
    if timed and (bare := next((where for request, where in found if math.isnan(request.deadline_s)), None)):
        raise TraceError(f"{bare}: has no deadline_s: add it, or give --slo for all")
    requests = [request for request, _ in found]
    if (early := next((where for request, where in found if request.deadline_s < request.arrival_s), None)) is not None:
        requests = _by_spans(found, early)
        assume(f"deadline_s is counted from each request's arrival, since that of {early} lies before its arrival_s")
    return _near_zero(sorted(requests, key=lambda request: request.arrival_s))


def _near_zero(requests: Sequence[TracedRequest]) -> tuple[TracedRequest, ...]:
    """By a clock that begins with the trace, to the microsecond, where theirs began long before: epoch seconds are
    2e-7 s apart as numbers, and what is due in the moment in which it ends would be late."""
    origin_s = math.floor(requests[0].arrival_s)
    if origin_s < _LONG_AGO_S:
        return tuple(requests)
    return tuple(
        replace(r, arrival_s=round(r.arrival_s - origin_s, 6), deadline_s=round(r.deadline_s - origin_s, 6))
        for r in requests
    )


def _by_spans(found: Sequence[tuple[TracedRequest, str]], early: str) -> list[TracedRequest]:
    """Requests whose ``deadline_s`` are spans; ``early``: where one is that cannot be a time."""
    if _are_times([request for request, _ in found if not math.isnan(request.deadline_s)]):
        raise TraceError(
            f"{early}: deadline_s lies before arrival_s, and most others lie after theirs and become later with them, "
            "as times on its clock do: correct it, or add arrival_s to all of them if they are seconds after it"
        )
    for request, where in found:
        if request.deadline_s == 0:
            raise TraceError(
                f"{where}: deadline_s must be above 0: it is counted from arrival_s, since that of {early} lies before "
                "its own"
            )
    return [replace(request, deadline_s=request.arrival_s + request.deadline_s) for request, _ in found]


def _are_times(requests: Sequence[TracedRequest]) -> bool:
    """Whether deadlines, some of which lie before their arrivals, are rather on their clock than spans: most lie after
    them, and a line through them rises as it does there (slope 1; of spans 0)."""
    if 2 * sum(r.deadline_s < r.arrival_s for r in requests) >= len(requests):
        return False
    mean_s = statistics.fmean(r.arrival_s for r in requests)
    apart = [r.arrival_s - mean_s for r in requests]
    together = sum(a * r.deadline_s for a, r in zip(apart, requests, strict=True))
    return together > 0.5 * sum(a * a for a in apart)


def _request(row: Mapping[str, str], where: str) -> TracedRequest:
    """``deadline_s`` as it stands."""
    arrival_s = within(row["arrival_s"], where, "arrival_s", 0, LATEST_S)
    exec_s = positive(row["exec_s"], where, "exec_s", LONGEST_S)
    if not row["application"]:
        raise TraceError(f"{where}: application is empty")
    if not row.get("deadline_s"):
        return TracedRequest(arrival_s, row["application"], exec_s)
    deadline_s = number(row["deadline_s"], where, "deadline_s")
    if deadline_s < 0:
        raise TraceError(f"{where}: deadline_s must not be below 0, as {row['deadline_s']!r} is")
    return TracedRequest(arrival_s, row["application"], exec_s, deadline_s)


def drawn(text: str) -> tuple[TracedRequest, ...]:
    """``poisson:`` or ``bursts:`` with rate or load (rate times mean run time), seconds and seed; and apps
    (``name/time/weight+...``), spread (standard deviation of run times in parts of their application's), drift and
    period (run times swing by this part, once in so many seconds). Raises TraceError."""
    values = Arrivals.values(text, _DRAWN_KEYS)
    kinds = _kinds(values.get("apps", _TWO), text)
    mean_s = sum(k.exec_s * k.weight for k in kinds) / sum(k.weight for k in kinds)
    rate = positive(values["load"], text, "load") / mean_s if "load" in values else None
    if rate is not None and "rate" in values:
        raise TraceError(f"{text}: rate and load say the same; give one of them")
    arrivals = Arrivals.read(text, values, rate)
    spread = number(values.get("spread", "0.05"), text, "spread")
    drift, period_s = (
        number(values.get("drift", "0"), text, "drift"),
        positive(values.get("period", "3600"), text, "period"),
    )
    if not 0 <= spread <= 3 or not 0 <= drift < 1:
        raise TraceError(f"{text}: spread must be from 0 to 3, and drift from 0 and under 1")
    dice = random.Random(f"run times {arrivals.seed}")
    weights = [k.weight for k in kinds]
    sigma = math.sqrt(math.log1p(spread**2))
    found = []
    for arrival_s in arrivals.times():
        kind = dice.choices(kinds, weights)[0]
        factor = math.exp(sigma * dice.gauss(0, 1) - sigma**2 / 2)
        factor *= 1 + drift * math.sin(2 * math.pi * arrival_s / period_s)
        found.append(TracedRequest(arrival_s, kind.name, kind.exec_s * factor))
    if not found:
        raise TraceError(f"{text}: nobody comes; raise rate or seconds")
    return tuple(found)


def _kinds(text: str, where: str) -> list[Kind]:
    kinds = []
    for part in text.split("+"):
        name, _, rest = part.partition("/")
        time, _, weight = rest.partition("/")
        try:
            kinds.append(Kind(name, seconds(time, "run time"), positive(weight or "1", where, "weight")))
        except ConfigError:
            raise TraceError(f"{where}: {part!r} must read NAME/TIME/WEIGHT, such as short/10ms/80") from None
    return kinds


def with_slo(trace: Sequence[TracedRequest], slo: str) -> tuple[TracedRequest, ...]:
    """With deadlines by ``100ms`` after arrival, or ``1.5xP99``: so many times the 99th percentile of run times. Raises
    ConfigError."""
    text = slo.lower()
    if text.endswith("xp99"):
        ordered = sorted(r.exec_s for r in trace)
        factor = seconds(text.removesuffix("xp99"), "--slo")
        span_s = factor * ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    else:
        span_s = seconds(text, "--slo")
    return tuple(replace(r, deadline_s=r.arrival_s + span_s) for r in trace)


def intended_of(
    source: str, slo_s: float, mix: Mapping[str, float], assume: Callable[[str], None] = lambda _: None
) -> tuple[Intended, ...]:
    """What a load sends: a file's requests (``assume`` as in :func:`read_trace`), or those of a drawn process, whose
    applications come by the weights of ``mix``. Raises TraceError."""
    if is_drawn(source):
        arrivals = Arrivals.read(source, Arrivals.values(source))
        dice = random.Random(f"mix {arrivals.seed}")
        names, weights = list(mix), list(mix.values())
        found = tuple(Intended(at_s, dice.choices(names, weights)[0], slo_s) for at_s in arrivals.times())
    else:
        found = tuple(
            Intended(r.arrival_s, r.application, slo_s if math.isnan(r.deadline_s) else r.deadline_s - r.arrival_s)
            for r in read_trace(source, assume)
        )
    if not found:
        raise TraceError(f"{source}: nobody comes; raise rate or seconds")
    return found


def write_trace(trace: Iterable[TracedRequest]) -> str:
    """As text that :func:`read_trace` reads to the same requests."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for r in trace:
        writer.writerow((r.arrival_s, r.application, r.exec_s, "" if math.isnan(r.deadline_s) else r.deadline_s))
    return out.getvalue()

"""Where things stand in the pictures: geometry in plain numbers, which the templates turn into SVG.

Where ``x`` and ``width`` are shares of a picture's width, they are in percent: it is as wide as its page, and its text
stays as large as it is.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["COLOURS", "blocks", "curves", "gantt", "small_curve", "ticks"]

#: How many colours of their own GPU types have; the style sheet says which.
COLOURS = 7
_WIDTH, _TOP = 1000.0, 22.0
_GPU_HEIGHT, _NODE_GAP = 16.0, 6.0
_LETTER, _PAD = 0.95, 1.2  # percent of the narrowest drawing: an id that is cut would be another job's
_SMALL = 36.0  # height of a small curve


def ticks(since: float, until: float, width: float = 100.0, left: float = 0.0) -> list[dict[str, Any]]:
    """At most nine round local times between two epoch seconds, unless days are too many: ``x`` and ``text``."""
    steps = (60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800)
    step = next((s for s in steps if (until - since) / s <= 8), steps[-1])
    offset = dt.datetime.fromtimestamp(since).astimezone().utcoffset() or dt.timedelta()
    first = math.ceil((since + offset.total_seconds()) / step) * step - offset.total_seconds()
    found = []
    while first <= until:
        when = dt.datetime.fromtimestamp(first).astimezone()
        text = when.strftime("%d %b" if step >= 86_400 or (when.hour, when.minute) == (0, 0) else "%H:%M")
        found.append({"x": round(left + (first - since) / (until - since) * width, 1), "text": text})
        first += step
    return found


def blocks(gpus: Iterable[str | None]) -> list[tuple[str | None, int]]:
    """A node's GPUs as (who holds them, how many): those of one job are one block, free ones stand alone."""
    found: list[tuple[str | None, int]] = []
    for holder, group in itertools.groupby(gpus):
        count = len(list(group))
        found += [(None, 1)] * count if holder is None else [(holder, count)]
    return found


def small_curve(
    trend: Mapping[str, Any], value: Callable[[Mapping[str, Any]], float | None], top: float
) -> dict[str, Any] | None:
    """A small curve of one figure of :func:`slurm_hadar.web.content.overview`'s samples, from 0 to ``top`` or more.
    ``value`` gives it, None = it was not recorded. None where fewer than two samples have it."""
    samples = [(point["time"], found) for point in trend["points"] if (found := value(point)) is not None]
    if len(samples) < 2:
        return None
    since, length = trend["since"], trend["until"] - trend["since"]
    top = max(top, *(found for _, found in samples), 1.0)
    points = [((when - since) / length * 100.0, _SMALL - 1.5 - found / top * (_SMALL - 3.0)) for when, found in samples]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    edges = [0.0, *((a[0] + b[0]) / 2 for a, b in itertools.pairwise(points)), 100.0]
    spots = [
        {"x": round(low, 1), "width": round(max(0.0, high - low), 1), "time": when, "value": found}
        for (when, found), low, high in zip(samples, edges, edges[1:], strict=False)
    ]
    area = f"{points[0][0]:.1f},{_SMALL} {line} {points[-1][0]:.1f},{_SMALL}"
    return {"height": _SMALL, "line": line, "area": area, "spots": spots}


def gantt(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of what :func:`slurm_hadar.web.content.timeline` says: a lane for each node, and bars of the jobs in them."""
    since, until = content["since"], content["until"]
    scale, y = 100.0 / (until - since), _TOP
    lanes, tops = [], {}
    for lane in content["lanes"]:
        height = lane["gpus"] * _GPU_HEIGHT
        tops[lane["node"], lane["gpu_type"]] = (y, lane["gpus"])
        lanes.append({**lane, "y": y, "height": height})
        y += height + _NODE_GAP
    bars = []
    free: dict[tuple[str, str], list[float]] = {key: [-math.inf] * gpus for key, (_, gpus) in tops.items()}
    for run in content["runs"]:
        until_when = _moment(run["ended"]) if run["ended"] else "now"
        owner = f" of {run['user']}" if run["user"] else ""
        words = f"job {run['job_id']}{owner}: {run['count']} x {run['gpu_type']} of {run['node']}, "
        words += f"{_moment(run['began'])} to {until_when}"
        key = (run["node"], run["gpu_type"])
        began, ended = max(since, run["began"]), min(until, run["ended"] or until)
        x, length = (began - since) * scale, max(0.1, (ended - began) * scale)
        for first, count in _rows(free[key], run["count"], run["began"], run["ended"] or math.inf):
            bars.append(
                {
                    "x": round(x, 2),
                    "y": tops[key][0] + first * _GPU_HEIGHT,
                    "width": round(length, 2),
                    "height": count * _GPU_HEIGHT - 1,
                    "run": run,
                    "words": words,
                    "label": run["job_id"] if length >= _LETTER * len(run["job_id"]) + _PAD else "",
                    "look": f"j{run['colour']}" + ("" if run["steered"] else " pinned"),
                }
            )
    return {"height": y + 4, "top": _TOP, "lanes": lanes, "bars": bars, "ticks": ticks(since, until)}


def _moment(moment: float) -> str:
    """Local time, quickly made: there are thousands on a page."""
    return time.strftime("%d %b %H:%M", time.localtime(moment))


def _rows(free: list[float], count: int, began: float, ended: float) -> Iterable[tuple[int, int]]:
    """Which of a node's rows a run takes, as (first, how many): free ones, else those that are free soonest, since the
    end of a run is only known from one look to the next."""
    open_rows = [i for i, until in enumerate(free) if until <= began]
    chosen = sorted(open_rows[:count])
    if len(chosen) < count:
        rest = sorted((i for i in range(len(free)) if i not in chosen), key=lambda i: free[i])
        chosen = sorted(chosen + rest[: count - len(chosen)])
    groups: list[list[int]] = []
    for row in chosen:
        free[row] = ended
        if groups and groups[-1][-1] == row - 1:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [(group[0], len(group)) for group in groups]


def curves(content: Mapping[str, Any], height: float = 300.0) -> dict[str, Any] | None:
    """Of what :func:`slurm_hadar.web.content.prices` says: a line for each GPU type and the band between its cheapest
    and dearest node, and for each moment what all of them are; None where there is nothing to draw."""
    series: Mapping[str, Sequence[Mapping[str, float]]] = content["series"]
    top = max((p["high"] for points in series.values() for p in points), default=0.0)
    if not series:
        return None
    since, until, left = content["since"], content["until"], 64.0
    width, bottom = _WIDTH - left - 12, height - 26.0
    scale = _round_up(top)

    def x(moment: float) -> float:
        return round(left + float((moment - since) / (until - since)) * width, 1)

    def y(price: float) -> float:
        return round(bottom - price / scale * (bottom - 10.0), 1)

    lines = []
    moments: dict[float, list[str]] = {}
    for index, (gpu_type, points) in enumerate(sorted(series.items())):
        band = [(p["time"], p["high"]) for p in points] + [(p["time"], p["low"]) for p in reversed(points)]
        lines.append(
            {
                "gpu_type": gpu_type,
                "colour": index % COLOURS,
                "line": " ".join(f"{x(p['time'])},{y(p['mean'])}" for p in points),
                "band": " ".join(f"{x(moment)},{y(price)}" for moment, price in band),
                "single": [(x(p["time"]), y(p["mean"])) for p in points] if len(points) == 1 else [],
            }
        )
        for p in points:
            moments.setdefault(p["time"], []).append(f"{gpu_type} {p['mean']:.3g}")
    step = width / 240
    spots = [
        {"x": round(x(moment) - step / 2, 1), "width": round(step, 1), "words": f"{_moment(moment)}: {', '.join(said)}"}
        for moment, said in sorted(moments.items())
    ]
    levels = [{"y": y(scale * part / 4), "text": f"{scale * part / 4:.3g}"} for part in range(5)]
    return {"width": _WIDTH, "height": height, "left": left, "right": left + width, "top": 10.0, "bottom": bottom,
            "lines": lines, "levels": levels, "ticks": ticks(since, until, width, left), "spots": spots}  # fmt: skip


def _round_up(value: float) -> float:
    """The next number that reads well: 1, 2, 3, 4, 5, 6, 8 or 10 times a power of ten; 1 for zero."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if value <= step * power * (1 + 1e-9)
    )

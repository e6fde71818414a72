"""The picture of a tuning run: which trial had which GPUs when, the best value over time, and the use of the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_hadar.names import by_number
from slurm_hadar.pages.plots import Look, drawing
from slurm_hadar.units import unit_of

__all__ = ["Stay", "best_over_time", "gpu_use", "stays", "tuning_picture"]

_MOST_LABELS = 60
_MOST = 1e300  # of a value on an axis, whose ends and steps are floats, too


@dataclass(frozen=True, slots=True)
class Stay:
    """A trial's run on a GPU: seconds since the first event; ``width`` as it was granted, ``place`` and ``places``
    where several share the GPU."""

    trial: int
    gpu: str
    begin_s: float
    end_s: float
    width: str


def stays(events: Sequence[Mapping[str, Any]]) -> list[Stay]:
    """From the record of a run; one whose end is not there lasted as long as anything is known of its tuner."""
    began: dict[tuple[int, int], Mapping[str, Any]] = {}
    found: list[Stay] = []
    last_s = zero_s = float(events[0]["time"]) if events else 0.0

    def end(start: Mapping[str, Any], at_s: float) -> None:
        for gpu in start["gpus"]:
            found.append(Stay(start["trial"], gpu, start["time"] - zero_s, at_s - zero_s, start["width"]))

    for event in events:
        if event["event"] == "start":
            began[event["trial"], event["run"]] = event
        elif event["event"] == "end" and (start := began.pop((event["trial"], event["run"]), None)) is not None:
            end(start, event["time"])
        elif event["event"] == "began":  # another tuner: what the one before it had ended with it
            for start in began.values():
                end(start, last_s)
            began.clear()
        last_s = event["time"]
    for start in began.values():
        end(start, last_s)
    return sorted(found, key=lambda s: (by_number(s.gpu), s.begin_s))


def best_over_time(events: Sequence[Mapping[str, Any]], maximize: bool) -> list[tuple[float, float]]:
    """(seconds, best value yet), where it changes; reports count."""
    found: list[tuple[float, float]] = []
    for event in events:
        value = event.get("value")
        if event["event"] not in ("value", "over") or not isinstance(value, int | float):
            continue
        if not found or (value > found[-1][1] if maximize else value < found[-1][1]):
            found.append((event["time"] - events[0]["time"], float(value)))
    return found


def gpu_use(runs: Sequence[Stay], gpus: int, until_s: float) -> float:
    """Share of all GPU time in which a GPU had a trial."""
    busy_s = 0.0
    by_gpu: dict[str, list[Stay]] = {}
    for stay in runs:
        by_gpu.setdefault(stay.gpu, []).append(stay)
    for own in by_gpu.values():
        covered_s = 0.0
        for stay in sorted(own, key=lambda s: s.begin_s):
            busy_s += max(0.0, stay.end_s - max(covered_s, stay.begin_s))
            covered_s = max(covered_s, stay.end_s)
    return busy_s / (gpus * until_s) if gpus and until_s > 0 else 0.0


def tuning_picture(events: Sequence[Mapping[str, Any]], maximize: bool, metric: str = "value") -> bytes:
    """A PNG; the record must have an event at least."""
    look, runs = Look.of(dark=False), stays(events)
    until_s = max([e["time"] - events[0]["time"] for e in events[-1:]] + [s.end_s for s in runs] + [1e-3])
    lanes = sorted({s.gpu for s in runs}, key=by_number)
    unit = unit_of(until_s)
    with drawing(look, 3, 1, 10, 4.6 + 0.34 * len(lanes)) as (figure, axes, buffer):
        top, middle, bottom = axes[:, 0]
        middle.get_gridspec().set_height_ratios([max(2, len(lanes)), 4, 2])
        _gantt(top, look, runs, lanes, unit.seconds)
        values = best_over_time(events, maximize)
        if values:
            times = [t / unit.seconds for t, _ in values] + [until_s / unit.seconds]
            heights = [max(-_MOST, min(value, _MOST)) for _, value in (*values, values[-1])]
            middle.step(times, heights, where="post", color=look.colour(0), lw=1.8)
        middle.set_title(f"best {metric} so far")
        middle.grid(axis="y")
        edges = sorted({s.begin_s for s in runs} | {s.end_s for s in runs})
        busy = [len({s.gpu for s in runs if s.begin_s <= t < s.end_s}) for t in edges]
        if edges:
            bottom.fill_between([t / unit.seconds for t in edges], busy, step="post", color=look.colour(2), alpha=0.7)
        bottom.set_ylim(0, max(1, len(lanes)))
        bottom.set_title(f"GPUs with a trial: {100 * gpu_use(runs, len(lanes), until_s):.0f} % of the time")
        bottom.set_xlabel(unit.name)
        for axis in (top, middle, bottom):
            axis.set_xlim(0, until_s / unit.seconds)
        figure.align_ylabels()
    return buffer.getvalue()


def _gantt(axis: Any, look: Look, runs: Sequence[Stay], lanes: Sequence[str], unit_s: float) -> None:
    """A bar for each stay; those that share a GPU lie above each other within its lane."""
    for row, gpu in enumerate(lanes):
        ends: list[float] = []
        placed = []
        for stay in (s for s in runs if s.gpu == gpu):
            level = next((n for n, end_s in enumerate(ends) if end_s <= stay.begin_s), len(ends))
            ends[level : level + 1] = [stay.end_s]
            placed.append((stay, level))
        height = 0.86 / max(1, len(ends))
        for stay, level in placed:
            left, long = stay.begin_s / unit_s, (stay.end_s - stay.begin_s) / unit_s
            full = "/" not in stay.width
            size, bottom = (0.86, row - 0.43) if full else (height, row - 0.43 + level * height)
            axis.barh(bottom, long, size, left, align="edge", color=look.colour(stay.trial), alpha=0.85, lw=0)
            if len(runs) <= _MOST_LABELS:
                axis.annotate(str(stay.trial), (left, bottom + size / 2), xytext=(2, 0), fontsize=7,
                              textcoords="offset points", va="center", annotation_clip=True)  # fmt: skip
    axis.set_yticks(range(len(lanes)), lanes)
    axis.set_ylim(max(1, len(lanes)) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.set_title("trials on GPUs (numbers are trials; a bar over several GPUs is one trial's)")

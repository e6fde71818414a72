"""The pictures of comparisons and reports: one look for all of them, made from plain data.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which people with any colour vision tell apart; lines
differ in their dashes too. Times come in seconds, and are drawn in the unit that suits the longest. Each function
returns a PNG as bytes.
"""

from __future__ import annotations

import heapq
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slurm_hadar.names import by_number
from slurm_hadar.units import lasting, number, unit_of

__all__ = [
    "HOUR_S",
    "Interval",
    "Look",
    "Lanes",
    "counts",
    "drawing",
    "gantt",
    "jct_cdf",
    "lanes_of",
    "overview",
    "utilisation",
]

#: (job, node, GPU type, GPUs, start in seconds, end in seconds)
Interval = Sequence[Any]

#: GPUs of one type on one node, in the order to be drawn: {(node, GPU type): count}
Lanes = Mapping[tuple[str, str], int]

_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
HOUR_S = 3600.0
_BINS = 240
_MOST_TIMES_QUICKEST = 3.0


@dataclass(frozen=True)
class Look:
    """Light or dark. The colours are those of the pages that hold the pictures."""

    paper: str
    ink: str
    faint: str
    series: tuple[str, ...]
    other: str

    @classmethod
    def of(cls, dark: bool) -> Look:
        """The dark one, or the light one."""
        if dark:
            series = ("#56b4e9", "#e69f00", "#2fc6a0", "#e493c0", "#ff8a4d", "#f0e442", "#9fb4ff")
            return cls("#15191f", "#d9dee5", "#3a424d", series, "#7d8794")
        series = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4a9c")
        return cls("#ffffff", "#1d232b", "#d5dae1", series, "#8a929c")

    def colour(self, index: int) -> str:
        """That of a series by its number; after the last one they begin again."""
        return self.series[index % len(self.series)]


@contextmanager
def drawing(look: Look, rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Any, Any, io.BytesIO]]:
    """A figure in our look; its PNG is in the buffer when the block is left."""
    os.environ.pop("MPLBACKEND", None)  # a notebook's, which may be unknown here; of ours there is the one below
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "figure.facecolor": look.paper,
        "axes.facecolor": look.paper,
        "savefig.facecolor": look.paper,
        "text.color": look.ink,
        "axes.labelcolor": look.ink,
        "axes.edgecolor": look.faint,
        "xtick.color": look.ink,
        "ytick.color": look.ink,
        "grid.color": look.faint,
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.parse_math": False,  # names of models and policies are no formulas, whatever signs they have
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,
        "axes.formatter.limits": (-6, 9),
        "legend.frameon": False,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
    }
    buffer = io.BytesIO()
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False), buffer
        figure.savefig(buffer, format="png", dpi=144)


def overview(policies: Sequence[Mapping[str, Any]], bounds: Mapping[str, float], dark: bool = False) -> bytes:
    """Average JCT and TTD of each policy as bars, with the lower bounds as lines."""
    look = Look.of(dark)
    with drawing(look, 1, 2, 10, 0.9 + 0.42 * len(policies)) as (_, axes, buffer):
        for axis, key, bound, title in (
            (axes[0, 0], "avg_jct_s", bounds.get("avg_jct_s"), "Average job completion time"),
            (axes[0, 1], "ttd_s", bounds.get("ttd_s"), "Total time duration, the makespan"),
        ):
            longest_s = max([*(p[key] or 0.0 for p in policies), bound or 0.0, 1e-9])
            unit = unit_of(longest_s)
            values = [(p[key] or 0.0) / unit.seconds for p in policies]
            rows = range(len(policies))[::-1]
            axis.barh(rows, values, height=0.62, color=[look.colour(i) for i in range(len(policies))])
            for row, value in zip(rows, values, strict=True):
                axis.annotate(number(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center")
            axis.set_yticks(rows, [p["label"] for p in policies] if axis is axes[0, 0] else [""] * len(policies))
            axis.set_xlim(0, longest_s / unit.seconds * 1.14)
            axis.tick_params(axis="y", length=0)
            axis.spines["left"].set_visible(False)
            axis.set_title(f"{title} ({unit.name})")
            axis.set_ylim(-0.5, len(policies) - (0.15 if bound else 0.5))
            if bound:
                _bound(axis, look, bound / unit.seconds)
    return buffer.getvalue()


def _bound(axis: Any, look: Look, at: float) -> None:
    axis.axvline(at, color=look.ink, lw=1.2, ls=(0, (4, 2)))
    axis.annotate(
        f"lower bound {number(at)}",
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        ha="right",
        va="top",
        fontsize=8,
        xytext=(-4, -1),
        textcoords="offset points",
    )


def jct_cdf(jcts_s: Mapping[str, Sequence[float]], dark: bool = False, jobs: Mapping[str, int] | None = None) -> bytes:
    """For each policy, the share of the jobs that were done within a time; ``jobs``: how many there were, where not all
    were done."""
    import numpy as np

    look = Look.of(dark)
    with drawing(look, 1, 1, 10, 4.4) as (_, axes, buffer):
        axis = axes[0, 0]
        every = np.concatenate([np.asarray(v, float) for v in jcts_s.values() if len(v)] or [np.array([HOUR_S])])
        wide = float(every.max()) > 20 * float(np.median(every))
        unit = unit_of(float(np.median(every) if wide else every.max()))
        for index, (label, values) in enumerate(jcts_s.items()):
            if not len(values):
                continue
            times = np.sort(np.asarray(values, float))
            share = np.arange(1, len(times) + 1) / ((jobs or {}).get(label) or len(times))
            least = float(every.min()) / unit.seconds if wide else 0.0
            axis.step(
                [least, *times / unit.seconds],
                [0.0, *share],
                where="post",
                lw=1.8,
                color=look.colour(index),
                ls=_DASHES[index % len(_DASHES)],
                label=f"{label}: average {lasting(float(times.mean()))}",
            )
        if wide:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set(xlabel=f"job completion time ({unit.name})", ylabel="share of the jobs done", ylim=(0, 1.02))
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axis.grid(True, lw=0.5)
        axis.legend(loc="lower right", handlelength=3)
    return buffer.getvalue()


def counts(
    series: Mapping[str, Sequence[tuple[float, float]]], since: str, end_s: float, what: str, dark: bool = False
) -> bytes:
    """Counts over time from 0 to ``end_s``, each a list of (seconds, count) that holds until the next; ``since`` says
    when 0 is."""
    look, unit = Look.of(dark), unit_of(end_s)
    with drawing(look, 1, 1, 10, 3.4) as (figure, axes, buffer):
        axis = axes[0, 0]
        for index, (label, points) in enumerate(series.items()):
            held = [*points, (end_s, points[-1][1])] if points else []
            axis.step(
                [t / unit.seconds for t, _ in held],
                [n for _, n in held],
                where="post",
                label=label,
                lw=1.6,
                color=look.colour(index),
                ls=_DASHES[index % len(_DASHES)],
            )
        axis.set(xlabel=f"{unit.words} since {since}", xlim=(0, end_s / unit.seconds), title=what)
        axis.set_ylim(bottom=0)
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.grid(True, lw=0.5)
        figure.legend(loc="outside lower center", ncols=len(series), handlelength=3)
    return buffer.getvalue()


def utilisation(
    intervals: Mapping[str, Iterable[Interval]],
    gpus: Mapping[str, int],
    by_type: Mapping[str, Mapping[str, float]],
    dark: bool = False,
    since: str = "the first arrival",
    end_s: float | None = None,
) -> bytes:
    """The share of all GPUs held over time, by policy, and beside it the mean by GPU type.

    ``by_type`` is {policy: {GPU type: share of 0 to 1}}. Time begins and ends as in :func:`gantt`.
    """
    import numpy as np

    look = Look.of(dark)
    held = {label: list(rows) for label, rows in intervals.items()}
    end, late = horizon(held, end_s)
    unit = unit_of(end)
    edges = np.linspace(0.0, end, _BINS + 1)
    total = max(1, sum(gpus.values()))
    with drawing(look, 1, 2, 10, 3.8) as (figure, axes, buffer):
        left, right = axes[0]
        left.get_gridspec().set_width_ratios([2.4, 1])
        for index, (label, rows) in enumerate(held.items()):
            middles, share = (edges[:-1] + edges[1:]) / 2 / unit.seconds, held_per_bin(rows, edges) / total
            left.plot(
                middles,
                share,
                color=look.colour(index),
                lw=1.6,
                ls=_DASHES[index % len(_DASHES)],
                label=label + late.get(label, ""),
            )
        left.set(xlabel=f"{unit.words} since {since}", xlim=(0, end / unit.seconds), ylim=(0, 1.04), title="GPUs held")
        left.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        left.grid(True, lw=0.5)
        if len(held) > 1:
            figure.legend(
                *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(held)), handlelength=3
            )
        width = 0.8 / max(1, len(held))
        for index, label in enumerate(held):
            shares = [by_type.get(label, {}).get(t) or 0.0 for t in gpus]
            at = [i - 0.4 + width * (index + 0.5) for i in range(len(gpus))]
            right.bar(at, shares, width=width * 0.92, color=look.colour(index))
        right.set_xticks(range(len(gpus)), [f"{t} x {n}" for t, n in gpus.items()])
        right.set(ylim=(0, 1.04), title="on average, by GPU type")
        right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        right.grid(True, axis="y", lw=0.5)
        right.tick_params(axis="x", length=0)
    return buffer.getvalue()


def horizon(panels: Mapping[str, Sequence[Interval]], end_s: float | None = None) -> tuple[float, dict[str, str]]:
    """The end of the time axis in seconds, and what to say of the policies that go beyond it."""
    if end_s is not None:
        return end_s, {}
    ends = {label: max(row[5] for row in rows) for label, rows in panels.items() if rows}
    if not ends:
        return HOUR_S, {}
    end = min(max(ends.values()), _MOST_TIMES_QUICKEST * min(ends.values()))
    late = {label: f" (cut off, ends after {lasting(e)})" for label, e in ends.items() if e > end}
    return end, late


def held_per_bin(rows: Iterable[Interval], edges: Any) -> Any:
    """Mean number of GPUs held in each bin, exactly: by the integral of the step function of holdings."""
    import numpy as np

    events: dict[float, float] = {}
    for _, _, _, count, start, end in rows:
        events[start] = events.get(start, 0.0) + count
        events[end] = events.get(end, 0.0) - count
    times = np.array(sorted(events))
    if not len(times):
        return np.zeros(len(edges) - 1)
    level = np.cumsum([events[t] for t in times])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    return np.diff(np.interp(edges, times, area)) / np.diff(edges)


def gantt(
    intervals: Mapping[str, Iterable[Interval]],
    models: Mapping[str, str],
    lanes: Lanes,
    dark: bool = False,
    since: str = "the first arrival",
    end_s: float | None = None,
) -> bytes:
    """Who held which GPUs when: one panel per policy, one line per GPU, colours by model.

    ``models`` maps jobs to what colours them. ``since`` says when second 0 is, at which time begins. It ends at
    ``end_s``; without that, what takes more than three times as long as the quickest policy is cut off, and said so.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    look = Look.of(dark)
    panels = {label: list(rows) for label, rows in intervals.items()}
    colours = _colours(look, panels, models)
    total = max(1, sum(lanes.values()))
    end, late = horizon(panels, end_s)
    unit = unit_of(end)
    height = 0.9 + len(panels) * (0.45 + min(4.0, max(1.2, 0.045 * total)))
    with drawing(look, max(1, len(panels)), 1, 10, height) as (figure, axes, buffer):
        for axis, (label, rows) in zip(axes[:, 0], panels.items(), strict=True):
            shapes, fill = [], []
            for lane, row in bars_of(rows, lanes):
                left, right = row[4] / unit.seconds, row[5] / unit.seconds
                shapes.append(((left, lane), (left, lane + 0.92), (right, lane + 0.92), (right, lane)))
                fill.append(colours.get(models.get(row[0], ""), look.other))
            axis.add_collection(PolyCollection(shapes, facecolors=fill, edgecolors=look.paper, linewidths=0.15))
            axis.set(xlim=(0, end / unit.seconds), ylim=(total, 0), title=label + late.get(label, ""))
            _type_axis(axis, look, lanes)
        axes[-1, 0].set_xlabel(f"{unit.words} since {since}")
        names = [*colours] + (["others"] if any(m not in colours for m in models.values()) else [])
        handles = [Patch(color=colours.get(n, look.other), label=n or "no model named") for n in names]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(7, max(1, len(handles))), fontsize=9)
    return buffer.getvalue()


def lanes_of(panels: Iterable[Iterable[Interval]], known: Lanes | None = None) -> Lanes:
    """The lanes for :func:`gantt`: those that are ``known`` to be there, and what was ever held at once beyond them, in
    all panels; types in the order in which ``known`` has them, nodes in that of their names' numbers."""
    most = dict(known or {})
    for rows in panels:
        events: dict[tuple[str, str], list[tuple[float, int]]] = {}
        for _, node, gpu_type, count, start, end in rows:
            events.setdefault((node, gpu_type), []).extend([(start, count), (end, -count)])
        for lane, changes in events.items():
            level = 0
            for _, change in sorted(changes):
                level += change
                most[lane] = max(most.get(lane, 0), level)
    order: dict[str, int] = {}
    for gpu_type in (*(t for _, t in known or ()), *sorted(t for _, t in most)):
        order.setdefault(gpu_type, len(order))
    return {lane: most[lane] for lane in sorted(most, key=lambda lane: (order[lane[1]], by_number(lane[0])))}


def _colours(look: Look, panels: Mapping[str, Iterable[Interval]], models: Mapping[str, str]) -> dict[str, str]:
    """The models that hold most GPU time get colours of their own, in the same order whatever the policies do."""
    first = next(iter(panels.values()), ())
    weight: dict[str, float] = dict.fromkeys(models.values(), 0.0)
    for job, _, _, count, start, end in first:
        model = models.get(job, "")
        weight[model] = weight.get(model, 0.0) + count * (end - start)
    ranked = sorted(weight, key=lambda m: (-weight[m], m))
    return {model: look.colour(i) for i, model in enumerate(sorted(ranked[: len(look.series)]))}


def bars_of(rows: Iterable[Interval], lanes: Lanes) -> Iterator[tuple[int, Interval]]:
    """Each interval's GPUs on the lanes of its node that came free first; GPUs of one type on a node are alike."""
    free: dict[tuple[str, str], list[tuple[float, int]]] = {}
    base = 0
    for place, count in lanes.items():
        free[place] = [(float("-inf"), base + i) for i in range(count)]
        base += count
    for row in sorted(rows, key=lambda r: (r[4], r[5])):
        lane_heap = free.get((row[1], row[2]))
        if lane_heap is None:
            continue
        for _ in range(min(row[3], len(lane_heap))):
            _, lane = heapq.heappop(lane_heap)
            yield lane, row
            heapq.heappush(lane_heap, (row[5], lane))


def _type_axis(axis: Any, look: Look, lanes: Lanes) -> None:
    """GPU types on the vertical axis, with a line between them."""
    spans: dict[str, list[int]] = {}
    base = 0
    for (_, gpu_type), count in lanes.items():
        spans.setdefault(gpu_type, [base, base])[1] = base + count
        base += count
    axis.set_yticks([(a + b) / 2 for a, b in spans.values()], [f"{t} x {b - a}" for t, (a, b) in spans.items()])
    axis.tick_params(axis="y", length=0)
    for first, _ in spans.values():
        if first:
            axis.axhline(first, color=look.ink, lw=0.6)

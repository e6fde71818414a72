"""The picture of what a knob trades: average JCT against TTD, with labels that cover nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_hadar.pages.plots import HOUR_S, Look, drawing

__all__ = ["Reached", "merged", "trade_off"]

#: (label, average JCT in seconds, TTD in seconds)
Reached = tuple[str, float, float]

_SIDES = ((7, 0, "left", "center"), (0, 6, "center", "bottom"), (0, -6, "center", "top"), (5, 5, "left", "bottom"),
          (5, -5, "left", "top"), (-5, 5, "right", "bottom"), (-7, 0, "right", "center"), (-5, -5, "right", "top"),
          (14, 14, "left", "bottom"), (14, -14, "left", "top"), (-14, -14, "right", "top"))  # fmt: skip
_BEYOND = (_SIDES[3], *_SIDES)  # a falling convex curve leaves that corner free


def trade_off(
    panels: Mapping[str, tuple[Sequence[Reached], Sequence[Reached], Mapping[str, float]]],
    curve_label: str,
) -> bytes:
    """Average JCT against TTD on logarithmic axes: per panel a curve over a policy's parameter, other policies as
    points, and the lower bounds as dashed lines. Points that lie almost on one another share a label."""
    look = Look.of(dark=False)
    with drawing(look, 1, len(panels), 7.0 * len(panels), 6.6) as (figure, axes, buffer):
        for axis, (title, (curve, points, bounds)) in zip(axes[0], panels.items(), strict=True):
            _hours(axis, [*curve, *points], bounds)
            axis.set(title=title, xlabel="average JCT (h)", ylabel="TTD, the makespan (h)")
            axis.grid(True, which="both", lw=0.4)
            axis.axvline(bounds["avg_jct_s"] / HOUR_S, color=look.ink, lw=1.2, ls=(0, (4, 2)), label="lower bounds")
            axis.axhline(bounds["ttd_s"] / HOUR_S, color=look.ink, lw=1.2, ls=(0, (4, 2)))
            for rows, colour, line, label in (
                (points, look.colour(1), "", "Gavel's simulator"),
                (curve, look.colour(0), "-", curve_label),
            ):
                axis.plot(
                    [x / HOUR_S for _, x, _ in rows],
                    [y / HOUR_S for _, _, y in rows],
                    marker="o",
                    ms=5,
                    ls=line,
                    color=colour,
                    label=label,
                )
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels are placed in what is now fixed
        for axis, (curve, points, _) in zip(axes[0], panels.values(), strict=True):
            ours = (merged(curve, ", "), look.colour(0), _BEYOND)
            _labels(axis, (ours, (merged(points, "\n"), look.colour(1), _SIDES)))
    return buffer.getvalue()


def _hours(axis: Any, rows: Sequence[Reached], bounds: Mapping[str, float]) -> None:
    """Logarithmic axes from a little below the bounds to beyond the points, with ticks that can be read."""
    from matplotlib.ticker import LogLocator, NullLocator

    for side, at, bound in (("x", 1, bounds["avg_jct_s"]), ("y", 2, bounds["ttd_s"])):
        most = max(float(row[at]) for row in rows)
        axis.set(**{f"{side}scale": "log", f"{side}lim": (0.88 * bound / HOUR_S, 1.25 * most / HOUR_S)})
        scale = axis.xaxis if side == "x" else axis.yaxis
        scale.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
        scale.set_minor_locator(NullLocator())
        scale.set_major_formatter(lambda value, _: f"{value:g}")


def merged(points: Sequence[Reached], joint: str) -> list[Reached]:
    """Points within 4 % of one another in both directions as one, with all their names."""
    groups: list[list[Reached]] = []
    for point in points:
        near = (g for g in groups if all(abs(point[i] / g[0][i] - 1.0) < 0.04 for i in (1, 2)))  # type: ignore[operator]
        group = next(near, None)
        if group is None:
            groups.append([point])
        else:
            group.append(point)
    return [(joint.join(p[0] for p in g), g[0][1], g[0][2]) for g in groups]


def _labels(axis: Any, series: Iterable[tuple[Sequence[Reached], str, Sequence[Any]]]) -> None:
    """Each label beside its point, on the first of its sides where it covers least of points, lines and other labels.
    Those on the right are placed first, since a label goes to the right if it can."""
    renderer = axis.figure.canvas.get_renderer()
    rows = [(row, colour, sides) for points, colour, sides in series for row in sorted(points, key=lambda p: -p[1])]
    spots = [axis.transData.transform((x / HOUR_S, y / HOUR_S)) for (_, x, y), _, _ in rows]
    for line in axis.lines:
        knots = line.get_transform().transform(line.get_xydata()) if line.get_linestyle() != "None" else ()
        spots += [a + share / 100 * (b - a) for a, b in itertools.pairwise(knots) for share in range(100)]
    taken: list[Any] = []
    for (label, x, y), colour, sides in rows:
        tried: list[tuple[int, int, Any, Any]] = []
        for dx, dy, ha, va in sides:
            text = axis.annotate(
                label,
                (x / HOUR_S, y / HOUR_S),
                xytext=(dx, dy),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=8,
                color=colour,
                linespacing=1.0,
            )
            extent = text.get_window_extent(renderer)
            around = extent.padded(2)
            covers = sum(extent.padded(-1).overlaps(other) for other in taken) + sum(
                around.contains(*spot) for spot in spots
            )
            outside = not (axis.bbox.x0 <= extent.x0 and extent.x1 <= axis.bbox.x1)
            tried.append((covers + 2 * outside, len(tried), text, extent))
            text.remove()
        _, _, text, extent = min(tried, key=lambda t: t[:2])
        axis.add_artist(text)
        taken.append(extent)

"""Draws the pictures of docs/concepts.md: python docs/pictures/draw.py [FOLDER], default the folder of this file.

Each picture is an SVG on a light card of its own, so that it reads the same on light and on dark pages. The placements
and times in them are made up to show one thing each; they are no measurements.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CARD, INK, DIM = "#f7f7f4", "#22252b", "#6b7078"
BLUE, ORANGE, GREEN, GREY = "#3b76af", "#d9822b", "#4f9a5b", "#c9ccd1"
plt.rcParams.update({
    "svg.hashsalt": "slurm_hadar", "font.size": 10, "text.color": INK, "axes.edgecolor": DIM, "xtick.color": DIM,
    "ytick.color": INK, "axes.labelcolor": DIM, "figure.facecolor": CARD, "axes.facecolor": CARD,
})  # fmt: skip


def _panel(height: float = 2.4) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    return figure, axes


def _bar(axes: Axes, row: float, start: float, end: float, color: str, words: str, **more: object) -> None:
    axes.barh(row, end - start, left=start, height=0.62, color=color, edgecolor=CARD, linewidth=1.5, **more)
    axes.text(
        (start + end) / 2, row, words, ha="center", va="center", color=INK if color == GREY else "white", fontsize=9
    )


def _lanes(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)


def rounds() -> Figure:
    """Three rounds on two GPU types: a job starts at once, one waits for its type, one moves up when it pays."""
    figure, axes = _panel()
    _lanes(axes, ["v100", "k80", "waits"])
    _bar(axes, 0, 0, 2, BLUE, "job 1")
    _bar(axes, 0, 2, 4, ORANGE, "job 2")
    _bar(axes, 1, 0, 2, ORANGE, "job 2")
    _bar(axes, 1, 2, 4, GREEN, "job 3")
    _bar(axes, 2, 1, 2, GREY, "job 3")
    for moment, words in ((0, "round 1"), (1, "round 2\njob 3 came"), (2, "round 3\njob 1 has ended"), (3, "round 4")):
        axes.axvline(moment, color=DIM, linewidth=1, linestyle=":")
        axes.text(moment + 0.03, -0.55, words, va="bottom", fontsize=8.5, color=DIM)
    axes.set_xticks(range(5), ["0", "360 s", "720 s", "1080 s", "1440 s"])
    axes.set_xlim(-0.02, 4.05)
    return figure


def leases() -> Figure:
    """The begin time of a waiting job, pushed ahead each round; after the controller's death Slurm starts the job."""
    figure, axes = _panel()
    _lanes(axes, ["controller", "job waits", "job runs"])
    _bar(axes, 0, 0, 2.4, BLUE, "a round every 360 s")
    axes.text(2.45, 0, "killed", va="center", color=ORANGE, fontweight="bold")
    for number in range(3):
        axes.annotate("", (number + 2, 1 + 0.2 * (number - 1)), (number, 1 + 0.2 * (number - 1)),
                      arrowprops={"arrowstyle": "-|>", "color": DIM, "linewidth": 1.4})  # fmt: skip
        axes.plot(number, 1 + 0.2 * (number - 1), "o", color=DIM, markersize=4)
    axes.axvline(4, color=DIM, linewidth=1, linestyle=":", ymax=0.62)
    axes.text(4.05, 1, "the last lease runs out", va="center", fontsize=9, color=DIM)
    _bar(axes, 2, 4, 6, GREEN, "started by Slurm itself")
    axes.set_xticks(range(7), ["round 1", "2", "3", "", "", "", ""])
    axes.set_xlim(-0.05, 6.05)
    return figure


def moves() -> Figure:
    """A move: ask, save at a step's end, requeue, start elsewhere, resume at the same step."""
    figure, axes = _panel(2.2)
    _lanes(axes, ["k80-1", "v100-1"])
    _bar(axes, 0, 0, 3, ORANGE, "steps 0 to 400")
    _bar(axes, 0, 3, 3.7, GREY, "save")
    _bar(axes, 1, 4.0, 5.3, GREY, "start, load")
    _bar(axes, 1, 5.3, 8, BLUE, "steps 400 to 2,000")
    axes.annotate("scontrol requeue,\nthen the new node", (4.0, 0.75), (4.15, 0.1), fontsize=9, color=DIM,
                  va="center", arrowprops={"arrowstyle": "-|>", "color": DIM})  # fmt: skip
    axes.text(3.0, -0.4, "asked to save", ha="right", fontsize=9, color=DIM)
    axes.set_xticks([])
    axes.set_xlabel("time")
    return figure


def prices() -> Figure:
    """Gain against price: who values the fast GPUs most gets them, the others take what costs all jobs least."""
    figure, axes = _panel(2.6)
    names = ["job 1: 9 x faster on v100", "job 2: 4 x faster", "job 3: 2 x faster"]
    gains, price = [9.0, 4.0, 2.0], 3.0
    _lanes(axes, names)
    for row, gain in enumerate(gains):
        wins = gain > price
        axes.barh(row, gain, height=0.55, color=BLUE if wins else GREY)
        axes.text(
            max(gain, price) + 0.1,
            row,
            "payoff > 0: runs on v100" if wins else "payoff < 0: k80, or waits",
            va="center",
            fontsize=9,
        )
    axes.axvline(price, color=ORANGE, linewidth=2)
    axes.text(price + 0.06, -0.55, "price of a v100 now", color=ORANGE, va="bottom", fontsize=9)
    axes.set_xlim(0, 12.5)
    axes.set_xticks([])
    axes.set_xlabel("what the job gains from a v100")
    return figure


def forks() -> Figure:
    """A forked job: copies on unlike nodes make shares of its steps, and their weights are consolidated."""
    figure, axes = _panel()
    _lanes(axes, ["copy 0, v100", "copy 1, p100", "copy 2, k80"])
    for period in range(3):
        for row, (steps, color) in enumerate([(60, BLUE), (30, ORANGE), (10, GREEN)]):
            _bar(axes, row, period * 2, period * 2 + 1.8, color, f"{steps} steps")
        axes.axvline(period * 2 + 1.9, color=INK, linewidth=2)
    axes.text(1.95, -0.4, "consolidation: weights averaged by steps", fontsize=8.5, color=DIM, va="bottom")
    axes.text(5.87, -0.4, "300 of 300 steps", fontsize=8.5, color=DIM, va="bottom", ha="right")
    axes.set_xticks([])
    axes.set_xlabel("time")
    return figure


def main(folder: Path) -> None:
    """Write every picture as FOLDER/NAME.svg."""
    for draw in (rounds, leases, moves, prices, forks):
        figure = draw()
        figure.savefig(folder / f"{draw.__name__}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

"""Real against simulated job completion times as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw"]

COLOURS = ("#0072b2", "#d55e00", "#009e73")
MARKS = {1: "o", 2: "s", 4: "D"}


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """A scatter per policy as PNG: one mark per job, the diagonal, and a band of 10 % around it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(5.4 * len(found), 5.2), squeeze=False)
    for axis, one, colour in zip(axes[0], found, COLOURS, strict=False):
        _scatter(axis, one, colour)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _scatter(axis: Any, one: dict[str, Any], colour: str) -> None:
    jobs = one["per_job"]
    most = 1.08 * max(max(j["real_jct_s"], j["sim_jct_s"]) for j in jobs)
    axis.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color=colour, alpha=0.12, lw=0, label="within 10 %")
    axis.plot([0, most], [0, most], color="#555555", lw=0.8)
    for gpus in sorted({j["gpus"] for j in jobs}):
        mine = [j for j in jobs if j["gpus"] == gpus]
        axis.scatter([j["real_jct_s"] for j in mine], [j["sim_jct_s"] for j in mine], marker=MARKS.get(gpus, "^"), s=36,
                     color=colour, edgecolor="white", lw=0.6, label=f"{gpus} GPU{'s' if gpus > 1 else ''}",
                     zorder=3)  # fmt: skip
    axis.set_title(
        f"{one['policy']}: {one['jobs']} jobs, mean error {100 * one['mean_error']:.1f} %", loc="left", fontsize=11
    )
    axis.set_xlabel("real job completion time, s")
    axis.set_ylabel("simulated job completion time, s")
    axis.set_xlim(0, most)
    axis.set_ylim(0, most)
    axis.set_aspect("equal")
    axis.legend(loc="lower right", frameon=False, fontsize=9)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)

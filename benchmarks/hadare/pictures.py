"""Gantt charts of mixes with their copies, and validation against steps and against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hadare.families import FAMILIES

__all__ = ["curves", "gantt"]

TITLES = {"hadare": "HadarE", "hadar": "Hadar", "gavel_las": "Gavel (least attained service)"}


def gantt(mixes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One chart per policy: a row per node, a bar per copy, a colour per job."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    names = sorted(mixes[0]["jct_s"], key=lambda name: int(name.rpartition("-")[2]))
    colours = dict(zip(names, map(plt.get_cmap("tab20"), range(20)), strict=False))
    figure, axes = plt.subplots(len(mixes), 1, figsize=(11, 2.6 * len(mixes)), sharex=True, squeeze=False)
    for axis, mix in zip(axes[:, 0], mixes, strict=True):
        _chart(axis, mix, colours)
    axes[-1, 0].set_xlabel("seconds since the submission")
    handles = [Rectangle((0, 0), 1, 1, color=colours[n]) for n in names]
    figure.legend(handles, names, loc="lower center", ncols=min(6, len(names)), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _chart(axis: Any, mix: Mapping[str, Any], colours: Mapping[str, Any]) -> None:
    nodes = sorted({s["node"] for s in mix["stints"]} | {"v100-1", "v100-2", "p100-1", "p100-2", "k80-1"}, reverse=True)
    for row, node in enumerate(nodes):
        lanes: list[float] = []
        for stint in sorted((s for s in mix["stints"] if s["node"] == node), key=lambda s: s["start_s"]):
            lane = next((i for i, end in enumerate(lanes) if end <= stint["start_s"] + 1.0), len(lanes))
            lanes[lane : lane + 1] = [stint["end_s"]]
            width = stint["end_s"] - stint["start_s"]
            axis.barh(row - 0.2 + 0.4 * lane, width, 0.38, left=stint["start_s"], color=colours[stint["job"]])
    axis.set_yticks(range(len(nodes)), nodes)
    axis.set_title(
        f"{TITLES.get(mix['policy'], mix['policy'])}: {mix['ttd_s']:.0f} s, nodes busy {mix['cru']:.0%}", loc="left"
    )
    axis.spines[["top", "right"]].set_visible(False)


def curves(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Validation of the first seed of each family and setting, against the job's steps and against seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    families = [f for f in FAMILIES if any(r["family"] == f for r in runs)]
    figure, axes = plt.subplots(2, len(families), figsize=(3.6 * len(families), 6.4), squeeze=False)
    for column, family in enumerate(families):
        ours = sorted((r for r in runs if r["family"] == family), key=lambda r: (r["setting"]["copies"], r["seed"]))
        seed = min(r["seed"] for r in ours)
        for run in (r for r in ours if r["seed"] == seed):
            for row, x in enumerate((0, 1)):
                axes[row, column].plot(
                    [p[x] for p in run["curve"]], [p[2] for p in run["curve"]], label=run["setting"]["name"]
                )
        axes[0, column].set_title(family)
        for row, label in enumerate(("steps of the job", "seconds")):
            axes[row, column].set_xlabel(label)
            axes[row, column].set_yscale("log")
            axes[row, column].spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("validation")
    axes[1, 0].set_ylabel("validation")
    axes[0, 0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)

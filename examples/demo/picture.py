"""One picture of both runs: who held which GPUs when, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.demo.record import JobTrack, RunRecord

__all__ = ["draw"]

TYPE_COLOURS = {"v100": "#3b6fb6", "p100": "#4f9d69", "k80": "#c77d2e"}


def draw(records: Sequence[RunRecord], path: Path) -> None:
    """Write a Gantt chart of the runs side by side as PNG: one lane per GPU, one colour per job."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [t.name for t in records[0].jobs.values()]
    colours = [plt.get_cmap(colormap)(index) for colormap in ("tab20", "tab20b") for index in range(20)]
    palette = {name: colours[index % len(colours)] for index, name in enumerate(names)}
    longest = max(r.ttd_s for r in records) * 1.04
    figure, axes = plt.subplots(len(records), 1, figsize=(11, 3.6 * len(records)), sharex=True, squeeze=False)
    for axis, record in zip(axes[:, 0], records, strict=True):
        _gantt(axis, record, palette)
        axis.set_xlim(0, longest)
    axes[-1, 0].set_xlabel("seconds since the first submission")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _gantt(axis: Any, record: RunRecord, palette: Mapping[str, tuple[float, ...]]) -> None:
    lanes: dict[str, tuple[int, int]] = {}
    ticks, labels = [], []
    for node, (gpu_type, count) in sorted(record.nodes.items(), key=lambda item: item[1][0], reverse=True):
        base = sum(n for _, n in lanes.values())
        lanes[node] = (base, count)
        ticks.append(base + count / 2)
        labels.append(f"{node}\n{count} x {gpu_type}")
        axis.axhspan(base, base + count, color=TYPE_COLOURS.get(gpu_type, "#999999"), alpha=0.10, lw=0)
    for lane, start, end, height, track in _bars(record, lanes):
        axis.barh(lane, end - start, left=start, height=height - 0.12, align="edge", color=palette[track.name],
                  edgecolor="white", lw=0.8)  # fmt: skip
        if end - start > 6:
            axis.text(start + 0.6, lane + height / 2 - 0.06, track.name, va="center", ha="left", fontsize=7.5)
    summary = record.summary()
    title = "stock Slurm" if record.policy == "stock" else "Hadar"
    axis.set_title(
        f"{title}: average JCT {summary['avg_jct_s']:.0f} s, TTD {summary['ttd_s']:.0f} s, "
        f"GPU utilisation {summary['gru']:.0%}, {summary['moves']:.0f} move{'s'[: summary['moves'] != 1]}",
        loc="left",
        fontsize=11,
    )
    axis.axvline(summary["ttd_s"] + min(t.submit_s for t in record.jobs.values()), color="black", lw=0.8, ls=":")
    axis.set_yticks(ticks, labels)
    axis.set_ylim(0, sum(n for _, n in lanes.values()))
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _bars(record: RunRecord, lanes: dict[str, tuple[int, int]]) -> list[tuple[int, float, float, int, JobTrack]]:
    """Each stint as (lane, start, end, height): on each node the lowest lanes that are free for its whole length."""
    taken: dict[str, list[tuple[float, float, int, int]]] = {node: [] for node in lanes}
    bars = []
    stints = sorted(((s, t) for t in record.jobs.values() for s in t.stints), key=lambda st: st[0].start_s)
    for stint, track in stints:
        height = track.workers // len(stint.nodes)
        for node in stint.nodes:
            base, count = lanes[node]
            # Sampled ends lag by up to a sample, so a little overlap is no conflict.
            busy = [(o, h) for s, e, o, h in taken[node] if s < stint.end_s - 1.0 and e - 1.0 > stint.start_s]
            free = [o for o in range(count - height + 1) if all(o + height <= b or o >= b + h for b, h in busy)]
            offset = free[0] if free else 0
            taken[node].append((stint.start_s, stint.end_s, offset, height))
            bars.append((base + offset, stint.start_s, stint.end_s, height, track))
    return bars

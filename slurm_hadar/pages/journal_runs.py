"""What a journal knows of who ran where: the stretch of time it can speak of, and the GPUs that jobs held in it."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from slurm_hadar.controller.journal import Reader
from slurm_hadar.pages.plots import Lanes, lanes_of
from slurm_hadar.simulator.virtual.cluster import Interval

__all__ = ["Held", "Window", "held_in", "window_of"]

_MOST_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class Window:
    """From the first to the last look at the cluster, in epoch seconds; ``looks`` are all of them, the oldest first."""

    looks: Sequence[float]

    @property
    def since(self) -> float:
        """Epoch second of the first look."""
        return self.looks[0]

    @property
    def until(self) -> float:
        """Epoch second of the last look."""
        return self.looks[-1]

    @property
    def length_s(self) -> float:
        """Seconds between the two."""
        return self.until - self.since

    def over(self, began: float, seen_gone: float) -> float:
        """When a run was over that a look did not see any more: in the middle between that look and the one before."""
        at = bisect.bisect_left(self.looks, seen_gone)
        if at == 0 or at == len(self.looks) or self.looks[at] != seen_gone:
            return seen_gone
        return max(began, (self.looks[at - 1] + seen_gone) / 2)


@dataclass(frozen=True)
class Held:
    """``intervals`` (seconds from the window's begin) of all jobs whose GPUs could be told, ``steered`` those of jobs
    that were ours to steer; ``lanes`` are the GPUs that there are."""

    intervals: Sequence[Interval]
    steered: Sequence[Interval]
    lanes: Lanes
    began: Mapping[str, float]

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by type."""
        total: dict[str, int] = {}
        for (_, gpu_type), count in self.lanes.items():
            total[gpu_type] = total.get(gpu_type, 0) + count
        return total

    def shares(self, intervals: Iterable[Interval], length_s: float) -> dict[str, float]:
        """By GPU type, the share of all GPU time in which a job held the GPU."""
        gpu_s = dict.fromkeys(self.gpus, 0.0)
        for held in intervals:
            gpu_s[held.gpu_type] += held.count * (held.end_s - held.start_s)
        return {t: gpu_s[t] / (count * length_s) for t, count in self.gpus.items()}


def window_of(rounds: Sequence[Mapping[str, Any]]) -> Window | None:
    """Of rounds, the oldest first; None where fewer than two looked, between which something could have happened."""
    if len(rounds) < 2 or rounds[-1]["time"] <= rounds[0]["time"]:
        return None
    return Window([r["time"] for r in rounds])


def held_in(journal: Reader, window: Window) -> Held:
    """Who held what: from the time at which Slurm started the job to when it was seen to be gone, whether or not the
    controller had started it.

    A job is seen to be gone up to a round late, half of which is taken off. Where others had its GPUs by then, it is
    over when they began: on each node jobs never hold more GPUs than it has. Raises StoreError.
    """
    runs = [r for r in journal.runs_since(window.since, _MOST_RUNS) if r.began < window.until]
    known = {
        (node, t): count
        for node, text in journal.node_texts().items()
        for t, count in json.loads(text)["gpus"].items()
        if count
    }
    by_lane: dict[tuple[str, str], list[tuple[Interval, bool]]] = {}
    for run in runs:
        end = window.until if run.ended is None else min(window.over(run.began, run.ended), window.until)
        for node, gpu_type, count in run.held.items():
            row = Interval(run.job_id, node, gpu_type, count, run.began - window.since, end - window.since)
            by_lane.setdefault((node, gpu_type), []).append((row, run.steered))
    rows = [pair for lane, held in by_lane.items() for pair in _fitting(held, known.get(lane))]
    shown = [
        (replace(row, start_s=max(0.0, row.start_s)), steered)
        for row, steered in rows
        if row.end_s > max(0.0, row.start_s)
    ]
    intervals = [row for row, _ in shown]
    began: dict[str, float] = {}
    for run in runs:
        began[run.job_id] = min(run.began, began.get(run.job_id, run.began))
    return Held(
        intervals, [row for row, steered in shown if steered], lanes_of([map(astuple, intervals)], known), began
    )


def _fitting(held: Sequence[tuple[Interval, bool]], gpus: int | None) -> list[tuple[Interval, bool]]:
    """What jobs held of one node's GPUs of a type, in order of their begin, of which there are ``gpus`` (None = the
    node is gone, and nobody knows): whoever is the first to be seen gone is over where there would be too many."""
    rows = sorted(held, key=lambda pair: pair[0].start_s)
    if gpus is None:
        return rows
    done: list[tuple[Interval, bool]] = []
    there: list[tuple[Interval, bool]] = []
    for row, steered in rows:
        done += [pair for pair in there if pair[0].end_s <= row.start_s]
        there = sorted((pair for pair in there if pair[0].end_s > row.start_s), key=lambda pair: pair[0].end_s)
        while there and sum(pair[0].count for pair in there) + row.count > gpus:
            first, its = there.pop(0)
            done.append((replace(first, end_s=row.start_s), its))
        there.append((row, steered))
    return done + there

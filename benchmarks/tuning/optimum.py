"""The shortest schedule of a small group of trials without resizes, by trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.trials import Trial, height

__all__ = ["optimum_s"]

_Slots = tuple[tuple[float, ...], ...]  # of a type: when each part of each GPU comes free


def optimum_s(trials: Sequence[Trial], pool: Sequence[GpuType], limits: Limits, known_s: float = float("inf")) -> float:
    """Seconds, or ``known_s`` if nothing is shorter. Exponential: for about six trials on four GPUs.

    Each order of the trials, each with every width and type, starts every trial as soon as its GPUs are free; the best
    schedule without resizes is among them.
    """
    widest = min(limits.widest, max(t.count for t in pool))
    widths = sorted({Fraction(1, limits.packed), *map(Fraction, range(1, widest + 1))})
    times = [[[height(t, w) / g.speed for g in pool] for w in widths] for t in trials]
    capacity = sum(g.count * g.speed for g in pool)
    areas = [min(float(w) * own[k][0] * pool[0].speed for k, w in enumerate(widths)) for own in times]
    best = known_s

    def place(left: tuple[int, ...], gpus: tuple[_Slots, ...], end_s: float, done: float) -> None:
        nonlocal best
        if not left:
            best = min(best, end_s)
            return
        if max(end_s, (done + sum(areas[n] for n in left)) / capacity) >= best:
            return
        tried = set()
        for n in left:
            if trials[n].budget_s in tried and len({(t.alpha, t.beta) for t in trials}) == 1:
                continue  # alike
            tried.add(trials[n].budget_s)
            rest = tuple(m for m in left if m != n)
            for k, width in enumerate(widths):
                for g in range(len(pool)):
                    after = _taken(gpus[g], width, times[n][k][g])
                    if after is not None and after[1] < best:
                        changed = (*gpus[:g], after[0], *gpus[g + 1 :])
                        place(rest, changed, max(end_s, after[1]), done + areas[n])

    empty = tuple(tuple((0.0,) * limits.packed for _ in range(g.count)) for g in pool)
    place(tuple(range(len(trials))), empty, 0.0, 0.0)
    return best


def _taken(gpus: _Slots, width: Fraction, seconds: float) -> tuple[_Slots, float] | None:
    """The GPUs after a trial has had those that come free first, and when it ends; None if there are too few."""
    if width < 1:
        at = min(range(len(gpus)), key=lambda i: gpus[i][0])
        end_s = gpus[at][0] + seconds
        changed = tuple(sorted((*gpus[at][1:], end_s)))
        return tuple(sorted((*gpus[:at], changed, *gpus[at + 1 :]))), end_s
    count = int(width)
    if count > len(gpus):
        return None
    order = sorted(gpus, key=lambda parts: parts[-1])
    end_s = order[count - 1][-1] + seconds
    return tuple(sorted((*order[count:], *[(end_s,) * len(gpus[0])] * count))), end_s

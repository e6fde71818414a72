"""Colours of jobs and users: as far apart as ten colours allow, for every kind of colour vision."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

__all__ = ["PALETTE", "by_job", "by_user", "spread"]

#: (fill, text upon it). No two fills are nearer than 0.1 in Oklab, neither to normal eyes nor as people without red,
#: green or blue cones see them (simulated as by Machado, Oliveira and Fernandes, 2009); text has a contrast of at least
#: 4.5 (WCAG 2, level AA). In an order in which neighbours differ most.
PALETTE = (
    ("#3344aa", "#ffffff"), ("#99bb00", "#000000"), ("#773366", "#ffffff"), ("#00ccff", "#000000"),
    ("#aa1100", "#ffffff"), ("#eebbaa", "#000000"), ("#7766aa", "#ffffff"), ("#aa7700", "#000000"),
    ("#6688ff", "#000000"), ("#ee77aa", "#000000"),
)  # fmt: skip
_NEAR = 2


def by_job(job_id: str) -> int:
    """The colour that a job would like: jobs that were submitted one after the other want different ones."""
    numbers = job_id.replace("+", "_").split("_")
    return sum(int(n) for n in numbers if n.isdecimal() and len(n) < 20) % len(PALETTE)


def by_user(user: str) -> int:
    """The colour that a user would like."""
    return zlib.crc32(user.encode("utf-8", "replace")) % len(PALETTE)


def spread(shown: Iterable[tuple[str, int, Collection[int]]], kept: Mapping[str, int] | None = None) -> dict[str, int]:
    """A colour for each of those that are shown together.

    Parameters
    ----------
    shown: name, the colour that it would like, and where it is (numbers of places; near ones are side by side). Who
        comes first chooses first, and keeps its colour whatever comes after it.
    kept: colours that are given already.

    As long as there are no more than colours, no two are alike. Beyond that, those in one place are not, and those side
    by side as far as that can be had.
    """
    found: dict[str, int] = {}
    uses = [0] * len(PALETTE)
    taken: list[set[int]] = [set() for _ in PALETTE]
    kept = kept or {}
    for name, wish, places in sorted(shown, key=lambda one: one[0] not in kept):
        if name in found:
            continue
        colour = kept[name] if name in kept else _free_one(wish, places, uses, taken)
        found[name] = colour
        uses[colour] += 1
        taken[colour].update(places)
    return found


def _free_one(wish: int, places: Collection[int], uses: Sequence[int], taken: Sequence[Set[int]]) -> int:
    around = [{place + step for place in places for step in (-away, away)} for away in range(_NEAR + 1)]

    def cost(colour: int) -> tuple[int, int, int]:
        away = next((n for n, near in enumerate(around) if not taken[colour].isdisjoint(near)), len(around))
        return -away, uses[colour], (colour - wish) % len(PALETTE)

    return min(range(len(PALETTE)), key=cost)

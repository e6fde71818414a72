"""The time that a page looks back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.controller.journal import Reader

__all__ = ["SPANS", "Window", "window"]

#: {name in the address: (words, seconds)}
SPANS = {"1h": ("1 h", 3600.0), "6h": ("6 h", 21_600.0), "1d": ("1 day", 86_400.0), "7d": ("7 days", 604_800.0)}
_LEAST_S, _MOST_S = 60.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Window:
    """From ``since`` to ``until`` (epoch seconds); ``span`` is its name in the address, "" = fitted to the data."""

    since: float
    until: float
    span: str

    @property
    def length_s(self) -> float:
        """Seconds from its beginning to its end."""
        return self.until - self.since


def window(journal: Reader, query: Mapping[str, str], now: float) -> Window:
    """What was asked for by ``span``, else what fits: since the first round that is known of, at most a day."""
    span = query.get("span", "")
    if span in SPANS:
        return Window(now - SPANS[span][1], now, span)
    first = journal.first_round()
    known_s = _LEAST_S if first is None else now - first
    return Window(now - min(max(known_s, _LEAST_S), _MOST_S), now, "")

"""Nodes that Slurm's power saving switches on for a job: how long that takes, and which of them do not come up.

A node that did not come up is free again to Slurm as soon as it is switched off, as where a cloud has no more machines
of its kind: the next job would wait there in vain, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from slurm_hadar.slurm.state import SlurmNode

__all__ = ["Boots"]

_GUESS_S = 180.0  # until the first boot was seen
_FIRST_OFF_S, _LONGEST_OFF_S = 600.0, 3600.0


@dataclass(slots=True)
class _Failure:
    times: int
    until: float


@dataclass
class Boots:
    """What one controller has seen of them."""

    _took_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    _failed: dict[str, _Failure] = field(default_factory=dict)

    def took(self, seconds: float) -> None:
        """So long a job waited for a node to come up."""
        self._took_s.append(seconds)

    def expected_s(self, node: SlurmNode) -> float:
        """Seconds until a job that is placed there can begin: the median of those seen, of a node that comes up already
        half of it; 0 where it is up."""
        if not (node.off or node.coming_up):
            return 0.0
        whole_s = median(self._took_s) if self._took_s else _GUESS_S
        return whole_s / 2 if node.coming_up else whole_s

    def failed(self, nodes: Iterable[str], now: float) -> float:
        """These did not come up; returns until when no job is tried there. Twice as long each further time in a row."""
        last = now
        for node in nodes:
            failure = self._failed.setdefault(node, _Failure(0, 0.0))
            if failure.until <= now:  # else another job waited there, too
                failure.until = now + min(_LONGEST_OFF_S, _FIRST_OFF_S * 2**failure.times)
                failure.times += 1
            last = max(last, failure.until)
        return last

    def look(self, nodes: Iterable[SlurmNode]) -> None:
        """A new round: those that are up now are as good as any."""
        if self._failed:
            up = {node.name for node in nodes if node.available and not (node.off or node.coming_up)}
            self._failed = {name: failure for name, failure in self._failed.items() if name not in up}

    def closed(self, now: float) -> Mapping[str, float]:
        """The nodes where no job is to be tried, each with the moment until which."""
        return {name: failure.until for name, failure in self._failed.items() if failure.until > now}

    def clock_set(self, by_s: float) -> None:
        """The clock was set: they are left alone for as long as before."""
        for failure in self._failed.values():
            failure.until += by_s

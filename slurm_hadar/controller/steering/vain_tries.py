"""Where jobs were placed in vain though there was room, for a reason that nobody knows, and who is not tried there.

What keeps one job from a node most likely keeps its like from it, and from nodes that are no freer. So all of them
look elsewhere for a while, and on another GPU type once two nodes of one were tried: else each would be tried on each
node of the fastest type, again and again, while others stand idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob, SlurmNode

__all__ = ["VainTries"]

_FIRST_ROUNDS = 2
_LONGEST_S = 1800.0
_ENOUGH = 2  # nodes of one GPU type

_Like = tuple[object, ...]


class _Free(NamedTuple):
    gpus: int
    cpus: int

    def within(self, other: _Free) -> bool:
        return self.gpus <= other.gpus and self.cpus <= other.cpus


@dataclass
class _Try:
    """By which attempt and in which round a node was tried, until when its like are not tried there, and what was free
    after that (None: not looked at yet)."""

    attempt: int
    at_round: int
    until: float
    free: _Free | None = None


@dataclass
class VainTries:
    """What is known of one controller's tries."""

    _tries: dict[_Like, dict[str, _Try]] = field(default_factory=dict)
    _closed: dict[_Like, dict[str, float]] = field(default_factory=dict)
    _round: int = 0
    _attempts: int = 0

    def note(self, job: SlurmJob, record: JobRecord, nodes: Iterable[str], now: float, round_s: float) -> None:
        """The job was placed on these nodes, and was not started. Each further round with such a try doubles the time
        in which its like are not tried there."""
        tries = self._tries.setdefault(_like(job, record), {})
        before = {t.at_round for t in tries.values()} - {self._round}
        first_s = _FIRST_ROUNDS * round_s
        wait_s = max(first_s, min(_LONGEST_S, first_s * 2 ** min(len(before), 30)))
        self._attempts += 1
        for node in nodes:
            tries[node] = _Try(self._attempts, self._round, now + wait_s)

    def clock_set(self, by_s: float) -> None:
        """The clock was set: nodes are left out for as long as before."""
        for tries in self._tries.values():
            for tried in tries.values():
                tried.until += by_s

    def look(self, nodes: Iterable[SlurmNode], now: float) -> None:
        """A new round: what is over, or has more room than when it was tried, may be tried again."""
        self._round += 1
        if not self._tries:
            return
        known = {node.name: node for node in nodes}
        free = {name: _free(node) for name, node in known.items()}
        for tries in self._tries.values():
            for name, tried in list(tries.items()):
                tried.free = tried.free or free.get(name)
                if tried.until <= now or name not in free or (tried.free and not free[name].within(tried.free)):
                    del tries[name]
        self._tries = {like: tries for like, tries in self._tries.items() if tries}
        self._closed = {like: _closed(tries, known, free) for like, tries in self._tries.items()}

    def closed(self, job: SlurmJob, record: JobRecord) -> Mapping[str, float]:
        """The nodes where a waiting job is not to be tried, each with the moment until which."""
        return self._closed.get(_like(job, record), {}) if self._closed and job.state is JobState.PENDING else {}


def _closed(tries: Mapping[str, _Try], known: Mapping[str, SlurmNode], free: Mapping[str, _Free]) -> dict[str, float]:
    found = {name: tried.until for name, tried in tries.items()}
    of_type: dict[tuple[str, ...], list[str]] = {}
    for name in tries:
        of_type.setdefault(_types(known[name]), []).append(name)
    for types, names in of_type.items():
        if len({tries[name].attempt for name in names}) < _ENOUGH:  # not one gang's
            continue
        until = max(tries[name].until for name in names)
        for name, node in known.items():
            if _types(node) == types and any(free[name].within(free[tried]) for tried in names):
                found[name] = until
                if name in tries:
                    tries[name].until = until
    return found


def _types(node: SlurmNode) -> tuple[str, ...]:
    return tuple(gpu_type for gpu_type, _ in node.gpus)


def _free(node: SlurmNode) -> _Free:
    return _Free(sum(count for _, count in node.gpus) - node.gpus_held, node.cpus - node.cpus_used)


def _like(job: SlurmJob, record: JobRecord) -> _Like:
    """What two jobs have in common that Slurm treats alike."""
    return (
        job.user, job.account, job.qos, job.partition, job.features, job.asks, job.reservation, job.licenses,
        job.exclusive, job.by_user, job.mcs, job.time_limit_s, job.memory_bytes, record.workers, record.nodes,
        record.tasks, record.cpus, record.shards,
    )  # fmt: skip

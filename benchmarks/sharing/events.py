"""Random events on one GPU: whoever comes, ends or dies, the memory is never promised twice and nobody is stuck."""

from __future__ import annotations

import random
from dataclasses import dataclass

from slurm_hadar.sharing.entry import Applicant, let_in
from slurm_hadar.sharing.lanes import Demand, GpuMemory, at_boundary, is_safe, keep, keep_no_more, release
from slurm_hadar.sharing.turns import Policy, Standing

__all__ = ["Tally", "play"]

CAPACITY = 16 * 10**9
_EPISODE = 2000  # events on one GPU, after which all who are left end one by one
_QUEUE = 12


@dataclass
class Tally:
    """Of all events."""

    events: int = 0
    arrivals: int = 0
    entered: int = 0
    kept: int = 0
    violations: int = 0
    stuck: int = 0  # an empty GPU while somebody waits


class _Gpu:
    def __init__(self, policy: Policy, rng: random.Random, tally: Tally) -> None:
        self._policy, self._rng, self._tally = policy, rng, tally
        self._memory = GpuMemory(CAPACITY)
        self._waiting: list[Applicant] = []
        self._standings: dict[str, Standing] = {}
        self._arrived = 0

    def event(self) -> None:
        """One arrival, end at a boundary, death in mid-iteration, boundary, or some who keep memory or give it back."""
        present, lanes = list(self._memory.demands), self._memory.lanes
        what = self._rng.choice(("arrive", "end", "die", "boundary", "keep", "free", "leave the queue"))
        if what == "arrive" and len(self._waiting) < _QUEUE:
            self._arrive()
        elif what in ("end", "die") and present:
            self.end(self._rng.choice(present), dies=what == "die")
        elif what == "boundary" and lanes:
            self._memory = at_boundary(self._memory, self._rng.choice(lanes).number)
        elif what in ("keep", "free") and present:
            names = self._rng.sample(present, self._rng.randint(1, len(present)))
            kept = keep(self._memory, names) if what == "keep" else keep_no_more(self._memory, names)
            self._tally.kept += what == "keep" and kept is not None
            self._memory = kept or self._memory
        elif what == "leave the queue" and self._waiting and self._rng.random() < 0.2:
            self._waiting.pop(self._rng.randrange(len(self._waiting)))
        self._enter()

    def _arrive(self) -> None:
        # from tiny to the whole GPU, and to the last byte
        alone = self._rng.choice((CAPACITY, round(CAPACITY * self._rng.random() ** 3)))
        persistent = round(alone * self._rng.choice((0.0, 1.0, self._rng.random() ** 4)))
        standing = Standing(self._arrived, self._rng.randrange(10**12), self._rng.randrange(10**12))
        standing.weight = self._rng.choice((1, 1, 5))
        self._waiting.append(Applicant(str(self._arrived), Demand(persistent, alone - persistent), standing))
        self._arrived += 1
        self._tally.arrivals += 1

    def end(self, name: str, *, dies: bool) -> None:
        number = self._memory.lane_of(name).number
        self._memory = release(self._memory, name)
        self._memory = self._memory if dies else at_boundary(self._memory, number)
        del self._standings[name]

    def _enter(self) -> None:
        inside = list(self._standings.values())
        self._memory, entered, self._waiting = let_in(self._policy, self._memory, self._waiting, inside)
        self._standings.update({applicant.name: applicant.standing for applicant in entered})
        self._tally.events += 1
        self._tally.entered += len(entered)
        self._tally.violations += not is_safe(self._memory)
        self._tally.stuck += bool(self._waiting) and not self._memory.demands

    def drain(self) -> None:
        """All end, one by one: everybody must have come in by then."""
        while self._memory.demands:
            self.end(self._rng.choice(list(self._memory.demands)), dies=self._rng.random() < 0.5)
            self._enter()
        self._tally.stuck += len(self._waiting)


def play(events: int, seed: int) -> Tally:
    """At least so many events, on GPUs with each of the policies in turn."""
    rng, tally, policies = random.Random(seed), Tally(), list(Policy)
    episode = 0
    while tally.events < events:
        gpu = _Gpu(policies[episode % len(policies)], rng, tally)
        for _ in range(min(_EPISODE, events - tally.events)):
            gpu.event()
        gpu.drain()
        episode += 1
    return tally

"""On which GPU of its node Slurm puts a job with shards, and of how many shards it is told so that it is the right one.

Slurm takes a node list, and no GPU. On the node it gives the first GPU, by number, with as many shards free as the job
asks for (seen on 22.05). So the number of shards decides: one that is to have a GPU for itself asks for more
than is free on those that are in use; one that is to run beside another asks for all that is left there, so that no
third job comes to them. Never does a job ask for less than its owner wrote. Our definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.observe.speeds.shared_gpus import on_gpus
from slurm_hadar.controller.safety.guard import Change, ChangeKind, fit
from slurm_hadar.controller.steering.rules import NodeFacts
from slurm_hadar.policies.toolkit.company import beside
from slurm_hadar.policies.toolkit.turn_shares import EQUAL
from slurm_hadar.slurm.state import SlurmJob, SlurmNode

__all__ = ["seated"]

_HOST_FIRST = "the job beside which it is to run is started first"


def seated(seen: Observation, changes: Sequence[Change], may_have: Callable[[SlurmJob, int], bool]) -> list[Change]:
    """The changes, with the shards that Slurm is to be told of; who would come to another GPU than is meant waits, or
    stays. ``may_have``: whether a job's owner may ask for so many shards."""
    if not any(c.kind.occupies and seen.raw[c.job_id].shards for c in changes):
        return list(changes)
    seats = _Seats(seen, changes, may_have)
    found, vetoed = [], {}
    for change in changes:
        if change.kind.occupies and seen.raw[change.job_id].shards:
            change, why = seats.take(change)
            if why:
                vetoed[change.job_id] = why
        found.append(change)
    return fit(seen.snapshot, found, vetoed)


@dataclass
class _Gpus:
    """The GPUs of a node: shards free on each before and after this round's stops, and the jobs that stay there."""

    before: list[int]
    after: list[int]
    stay: list[list[str]]
    per_gpu: int

    def in_use(self, number: int) -> bool:
        return bool(self.stay[number]) or self.after[number] < self.per_gpu

    def least(self, number: int, asked: int) -> int | None:
        """The fewest shards for which Slurm takes this GPU, whenever it looks; None if there are none."""
        before_it = max((*self.before[:number], *self.after[:number]), default=0)
        least = max(asked, before_it + 1)
        if least > self.after[number]:
            return None
        # as long as this one is not free, Slurm would take one behind it
        behind = max(self.after[number + 1 :], default=0)
        return least if least <= self.before[number] or behind < least else None


class _Seats:
    def __init__(self, seen: Observation, changes: Iterable[Change], may_have: Callable[[SlurmJob, int], bool]) -> None:
        self._seen = seen
        self._may_have = may_have
        self._changes = {c.job_id: c for c in changes}
        self._nodes: dict[str, _Gpus | None] = {}
        self._there = on_gpus(seen.raw.values())
        self._slurm = {n.name: n for n in seen.state.nodes}
        hosts = {c.job_id: c.host for c in self._changes.values() if c.host is not None}
        #: With whom each job is to be on a GPU, either way round.
        self._partner = {**{host: guest for guest, host in hosts.items()}, **hosts}
        self._claimed: set[str] = set()

    def take(self, change: Change) -> tuple[Change, str]:
        """The change with its shards, and why it cannot be now ("" = it can)."""
        (node,) = change.new.nodes
        gpus, job = self._of(node), self._seen.raw[change.job_id]
        if gpus is None:
            return change, f"Slurm does not say which GPUs of {node} are in use"
        asked = self._seen.records[change.job_id].shards or job.shards
        partner = self._partner.get(change.job_id)
        if partner is None:
            return self._alone(change, job, gpus, asked)
        if change.host is not None and not self._stays(partner):
            return change, _HOST_FIRST
        if not self._stays(partner):  # its guest comes to it, later
            return self._alone(change, job, gpus, asked)
        return self._beside(change, job, gpus, asked, partner)

    def _alone(self, change: Change, job: SlurmJob, gpus: _Gpus, asked: int) -> tuple[Change, str]:
        """For a GPU of its own: more shards than are free where somebody is. Half of the GPU at least, so that the next
        one needs no more than one shard above that, and all of them can have guests; all of it where the job shares
        with nobody."""
        used = [max(gpus.before[n], gpus.after[n]) for n in range(len(gpus.after)) if gpus.in_use(n)]
        shares = self._seen.snapshot.job[job.job_id].slow_down > 1
        wanted = max(asked, gpus.per_gpu // 2 if shares else gpus.per_gpu)
        shards = max(wanted if self._may_have(job, wanted) else asked, 1 + max(used, default=0))
        if shards > asked and not self._may_have(job, shards):
            return change, f"its owner may not ask for the {shards} shards that keep it off a GPU that is in use"
        free = next((n for n in range(len(gpus.after)) if not gpus.in_use(n)), None)
        if free is not None:
            gpus.after[free] -= shards
            gpus.before[free] = min(gpus.before[free], gpus.after[free])
            gpus.stay[free].append(job.job_id)
        return replace(change, shards=shards), ""

    def _beside(self, change: Change, job: SlurmJob, gpus: _Gpus, asked: int, partner: str) -> tuple[Change, str]:
        """To the partner's GPU; if Slurm would not take that one, to that of another host that both accept."""
        reached = {n: least for n in range(len(gpus.after)) if (least := gpus.least(n, asked)) is not None}
        wanted = [n for n in reached if gpus.stay[n] == [partner]]
        for number in wanted or reached:
            host = gpus.stay[number][0] if len(gpus.stay[number]) == 1 else None
            if host is None or not self._accepted(change, host, partner):
                continue
            whole = gpus.after[number]
            shards = whole if self._may_have(job, whole) else reached[number]
            if shards > asked and not self._may_have(job, shards):
                continue
            gpus.after[number] -= shards
            gpus.before[number] = max(0, gpus.before[number] - shards)
            gpus.stay[number].append(job.job_id)
            self._claimed.add(host)
            turns = change.turns if host == partner else EQUAL  # another host was not asked for more
            return replace(change, shards=shards, host=host if change.host is not None else None, turns=turns), ""
        return change, f"Slurm would not put it on the GPU of job {partner}, whose company it was to be"

    def _accepted(self, change: Change, host: str, partner: str) -> bool:
        if host in self._claimed or not self._stays(host):
            return False
        if host == partner:
            return True
        jobs = self._seen.snapshot.job
        free = change.host is not None and host not in self._partner and self._changes[host].host is None
        return free and beside(self._seen.snapshot, jobs[change.job_id], jobs[host], change.new) is not None

    def _stays(self, job_id: str) -> bool:
        change = self._changes.get(job_id)
        return change is not None and change.kind is ChangeKind.STAY

    def _of(self, name: str) -> _Gpus | None:
        if name not in self._nodes:
            self._nodes[name] = self._look(self._slurm[name], self._seen.view.facts[name])
        return self._nodes[name]

    def _look(self, node: SlurmNode, facts: NodeFacts) -> _Gpus | None:
        """None where Slurm does not say enough."""
        if node.whole is None or (node.name, None) in self._there or any(n >= facts.gpus for n in node.whole):
            return None
        stopping = {c.job_id for c in self._changes.values() if c.kind.stops}
        frees = any(
            c.kind.stops and node.name in c.old.nodes and not self._seen.raw[c.job_id].shards
            for c in self._changes.values()
        )
        gpus = _Gpus([], [], [], facts.per_gpu)
        for number in range(facts.gpus):
            there = self._there.get((node.name, number), [])
            stay = [j for j in there if j.job_id not in stopping]
            taken = number in node.whole
            gpus.before.append(0 if taken else max(0, facts.per_gpu - sum(map(_shards, there))))
            gpus.after.append((facts.per_gpu if frees else 0) if taken else facts.per_gpu - sum(map(_shards, stay)))
            gpus.stay.append([j.job_id for j in stay])
        return gpus


def _shards(job: SlurmJob) -> int:
    """Of another kind of part nobody knows how many shards it takes away: none is left."""
    return job.shards or 1 << 20

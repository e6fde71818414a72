"""On which GPU of its node Slurm puts a job with shards, and of how many shards it is told so that it is the right one.

Slurm takes a node list, and no GPU. On the node it gives the first GPU, by number, with as many shards free as the job
asks for (seen on 22.05). So the number of shards decides: one that is to have a GPU for itself asks for more
than is free on those that are in use; one that is to run beside others asks for all that is left there, less what those
need who may still come: as many jobs like itself as all there would accept, for most pairs none. So nobody comes who is
too many, and who is wanted finds room. Never does a job ask for less than its owner wrote. Our definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from slurm_hadar.controller.observe.company import on_gpus
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change, ChangeKind, fit
from slurm_hadar.controller.steering.nodes import NodeFacts
from slurm_hadar.policies.toolkit.shared_gpus.company import all_accept, keep_together, may_be_several
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL
from slurm_hadar.slurm.state import SlurmJob, SlurmNode

__all__ = ["seated"]

#: Further jobs for which a guest leaves room at most.
MOST_MORE = 64
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
        self._guests: dict[str, list[str]] = {}
        for change in self._changes.values():
            if change.host is not None:
                self._guests.setdefault(change.host, []).append(change.job_id)
        self._claimed: set[str] = set()

    def take(self, change: Change) -> tuple[Change, str]:
        """The change with its shards, and why it cannot be now ("" = it can)."""
        (node,) = change.new.nodes
        gpus, job = self._of(node), self._seen.raw[change.job_id]
        if gpus is None:
            return change, f"Slurm does not say which GPUs of {node} are in use"
        asked = self._seen.records[change.job_id].shards or job.shards
        if change.host is not None:
            return self._beside(change, job, gpus, asked) if self._stays(change.host) else (change, _HOST_FIRST)
        if not any(map(self._stays, self._guests.get(change.job_id, ()))):  # whose guests come to it, later
            return self._alone(change, job, gpus, asked)
        return self._beside(change, job, gpus, asked)

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

    def _beside(self, change: Change, job: SlurmJob, gpus: _Gpus, asked: int) -> tuple[Change, str]:
        """To the GPU of its company; if Slurm would not take that one, to another where all accept it."""
        reached = {n: least for n in range(len(gpus.after)) if (least := gpus.least(n, asked)) is not None}
        company = change.host or change.job_id
        wanted = [n for n in reached if gpus.stay[n] and all(self._company(j) == company for j in gpus.stay[n])]
        for number in wanted or reached:
            there = gpus.stay[number]
            host = self._company(there[0]) if there else ""
            if number not in wanted and not self._accepted(change, host, there):
                continue
            shards = max(reached[number], gpus.after[number] - self._room_for_more(job.job_id, there, asked))
            shards = shards if self._may_have(job, shards) else reached[number]
            if shards > asked and not self._may_have(job, shards):
                continue
            gpus.after[number] -= shards
            gpus.before[number] = max(0, gpus.before[number] - shards)
            there.append(job.job_id)
            self._claimed.add(host)
            if number in wanted:
                return replace(change, shards=shards), ""
            # another host was not asked for more turns
            return replace(change, shards=shards, host=host, turns=EQUAL), ""
        others = ", ".join(j for j in (change.host, *self._guests.get(company, ())) if j not in (None, change.job_id))
        return change, f"Slurm would not put it on the GPU of job {others}, whose company it was to be"

    def _room_for_more(self, job_id: str, there: Sequence[str], asked: int) -> int:
        """The shards that jobs like this one would need which may still come, as all who are there then accept them.
        One whose duty is not known is the last."""
        snapshot = self._seen.snapshot
        jobs = [snapshot.job[j] for j in (*there, job_id)]
        gpu_type = next((t for job in jobs for t in job.placement.by_type), "")
        if not snapshot.turns or jobs[-1].duty.get(gpu_type, 1.0) >= 1:
            return 0
        more = 0
        while more < MOST_MORE and all_accept(snapshot, [*jobs, *[jobs[-1]] * (more + 1)], gpu_type):
            more += 1
        return more * asked

    def _company(self, job_id: str) -> str:
        """The host by the plan of a job that stays."""
        change = self._changes.get(job_id)
        return job_id if change is None or change.host is None else change.host

    def _accepted(self, change: Change, host: str, there: Sequence[str]) -> bool:
        """Whether a job that was to be another's guest may be that of this host, with all who are on its GPU; nobody
        else comes there in this round, and no guest of it has other than equal turns."""
        guests = self._guests.get(host, ())
        known = all(self._stays(j) and self._company(j) == host and self._changes[j].turns == EQUAL for j in there)
        if change.host is None or host in self._claimed or not known or not {host, *guests} <= {*there}:
            return False
        snapshot = self._seen.snapshot
        jobs = [snapshot.job[j] for j in (*there, change.job_id)]
        (gpu_type,) = change.new.by_type
        if len(jobs) == 2:
            return keep_together(snapshot, jobs[1], jobs[0], gpu_type) is not None
        return snapshot.turns and may_be_several(jobs, gpu_type) and all_accept(snapshot, jobs, gpu_type)

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

"""Waiting jobs for which Slurm may stop others: those are left to it.

Only Slurm stops jobs that are not steered. With ``preempt/partition_prio`` it does so for jobs of partitions with a
higher ``PriorityTier``, but not for one that is put off, which might wait behind others for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from slurm_hadar.controller.observe.jobs.facts import JobFacts
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.steering.bounds import QuotaBook
from slurm_hadar.controller.steering.forms import placement_of
from slurm_hadar.controller.steering.nodes import NodeBook
from slurm_hadar.model import NO_NEEDS, Form, JobState, Mix, Partition
from slurm_hadar.policies.toolkit.gangs import find_on_type
from slurm_hadar.slurm.state import Fittings, SlurmJob

__all__ = ["Preempting"]


class _Victim(NamedTuple):
    """A job that Slurm may stop for those of a higher tier, and the GPUs that it has, by node. One that is ending may
    have been stopped for that: whom it makes way for is not to be put off meanwhile."""

    job: SlurmJob
    partition: Partition
    gpus: Mapping[str, int]


class Preempting:
    """Of one round, once it is known of each job whether it is steered. False where Slurm has nobody to stop."""

    def __init__(self, view: SlurmView, known: Iterable[JobFacts], quotas: QuotaBook) -> None:
        self._nodes = view.facts
        self._quotas = quotas
        self._now = view.state.time
        self._partitions = {p.name: p for p in view.state.partitions}
        self._victims: list[_Victim] = []
        if not view.state.stops_by_tier:
            return
        self._free = {n.name: sum(c for _, c in n.gpus) - n.gpus_held for n in view.state.nodes if n.available}
        self._movable = dict(self._free)  # with what steered jobs hold, and jobs that are ending, not for others
        for facts in known:
            self._take_in(facts)
        self._known: dict[tuple[str, str, Fittings, tuple[str, ...], Form, int], SlurmJob | None] = {}

    def _take_in(self, facts: JobFacts) -> None:
        job, partition = facts.job, self._partitions.get(facts.job.partition)
        if job.state not in (JobState.RUNNING, JobState.COMPLETING):
            return
        held = placement_of(replace(job, state=JobState.RUNNING), self._nodes)
        gpus = {node: count for node, _, count in held.items()}
        if facts.pinned is None:
            self._add(self._movable, gpus)
        elif partition is not None and partition.preemptible:
            if gpus and not job.shares:
                self._victims.append(_Victim(job, partition, gpus))
        elif job.state is JobState.COMPLETING:
            self._add(self._movable, gpus)

    def __bool__(self) -> bool:
        return bool(self._victims)

    def leave(self, facts: JobFacts) -> JobFacts:
        """The facts of a job, which is left to Slurm where it has room only if Slurm stops others for it. Whom the
        policy may stop is the policy's business."""
        victim = self._for(facts) if self._asks(facts) else None
        if victim is None:
            return facts
        why = (
            "has room only where Slurm may stop jobs of partitions with a lower PriorityTier for it, such as job "
            f"{victim.job_id} in partition {victim.partition}"
        )
        return replace(facts, pinned=why, needs=NO_NEEDS, blocked=None, blocked_until=None, forecast=None, at_once=True)

    def _asks(self, facts: JobFacts) -> bool:
        """Whether the job waits for whole GPUs, and for nothing else that is known; and is not to be kept off nodes, of
        which Slurm knows nothing."""
        job = facts.job
        if facts.pinned is not None or job.state is not JobState.PENDING or job.held or facts.blocked is not None:
            return False
        if job.shares or facts.comment.fork is not None or self._quotas.spent(facts.needs):
            return False
        return all(until <= self._now for until in facts.record.avoid.values())

    def _for(self, facts: JobFacts) -> SlurmJob | None:
        """One whom Slurm may stop for the job; None if it has room without that, or not even so."""
        job, form, count = facts.job, facts.form, facts.record.nodes
        key = (job.partition, job.features, job.asks, job.exc_nodes, form, count)
        if key not in self._known:
            asked = replace(form, sizes=(), min_nodes=count, max_nodes=count)
            names = job.partition.split(",") if self._only_there(job, asked) and not self._room(job, form) else ()
            self._known[key] = next((v for p in names if (v := self._victim(job, asked, p)) is not None), None)
        return self._known[key]

    def _only_there(self, job: SlurmJob, asked: Form) -> bool:
        """Whether Slurm, which knows nothing of types that are not for the job, starts it nowhere but where it may
        run."""
        open_ = self._nodes.open_to(job.partition, job.features, job.asks).difference(job.exc_nodes)
        types = {self._nodes[name].gpu_type for name in open_ if self._nodes[name].gpus}
        if asked.types is not None and not types <= asked.types:
            return False
        return asked.max_nodes == 1 or asked.mix is not Mix.NEVER or len(types) == 1

    def _room(self, job: SlurmJob, form: Form) -> bool:
        """Whether the policy could make room for the job."""
        open_ = self._open(job, form, self._movable)
        return any(_found(replace(form, sizes=(), workers=size), open_, self._nodes) for size in form.gang_sizes)

    def _victim(self, job: SlurmJob, asked: Form, name: str) -> SlurmJob | None:
        """One whom Slurm may stop for the job in this partition of its own."""
        partition = self._partitions.get(name)
        if partition is None or not partition.up:
            return None
        lower = [victim for victim in self._victims if victim.partition.tier < partition.tier]
        free = dict(self._free)
        for victim in lower:
            self._add(free, victim.gpus)
        found = _found(asked, self._open(replace(job, partition=name), asked, free), self._nodes)
        return next((victim.job for victim in lower if not victim.gpus.keys().isdisjoint(found)), None)

    def _add(self, free: dict[str, int], gpus: Mapping[str, int]) -> None:
        """Those of a job that is ending Slurm may show as free already."""
        for name, count in gpus.items():
            if name in free:
                free[name] = min(self._nodes[name].gpus, free[name] + count)

    def _open(self, job: SlurmJob, form: Form, free: Mapping[str, int]) -> dict[str, int]:
        """The GPUs on nodes that are open to the job."""
        open_ = self._nodes.open_to(job.partition, job.features, job.asks).difference(job.exc_nodes)
        return {
            name: count
            for name, count in free.items()
            if name in open_ and form.admits_node(name) and form.admits_type(self._nodes[name].gpu_type or "")
        }


def _found(form: Form, free: Mapping[str, int], nodes: NodeBook) -> Sequence[str]:
    """Nodes that the gang may have together; () if there are none."""
    kinds: dict[str, list[str]] = {}
    for name in free:
        if (gpu_type := nodes[name].gpu_type) is not None:
            kinds.setdefault(gpu_type if form.mix is Mix.NEVER else "", []).append(name)
    for names in kinds.values():
        gang = find_on_type(form, range(len(names)), [free[name] for name in names])
        if gang:
            return [names[slot] for slot, _ in gang]
    return ()

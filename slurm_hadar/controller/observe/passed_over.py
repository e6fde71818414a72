"""Why a job waits beside free GPUs: the question that its owner asks first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.model import Form, Job, Snapshot, Speed, Tenant, Tier, Wait
from slurm_hadar.policies.toolkit.arena import open_nodes
from slurm_hadar.policies.toolkit.gangs import find_on_type
from slurm_hadar.policies.toolkit.tenants import unwelcome

__all__ = ["PassedOver"]

_AS_FAST = 1.05  # closer than this nobody is told that a type is slower


class PassedOver:
    """Of one round, once all its ``changes`` are known: the GPU types that have room left for a waiting job, each with
    what speaks against it."""

    def __init__(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        self._snapshot = snapshot
        free = snapshot.capacity()
        self._tenants = {n.name: set(n.tenants) for n in snapshot.nodes} if snapshot.has_tenants else {}
        self._copies: dict[str, set[str]] = {}  # of a forked job one copy at most is on a node
        for change in changes:
            job = snapshot.job[change.job_id]
            alone = job.needs.exclusive
            if job.fork is not None:
                self._copies.setdefault(job.parent, set()).update(change.new.nodes)
            for node in change.new.nodes if self._tenants else ():
                self._tenants.setdefault(node, set()).add(job.tenant)
            for node, gpu_type, count in change.new.items():
                if node in free and gpu_type in free[node]:
                    free[node][gpu_type] -= free[node][gpu_type] if alone else count
        self._free = {  # by type, the nodes that have some left
            gpu_type: {n: types[gpu_type] for n, types in free.items() if types.get(gpu_type, 0) > 0}
            for gpu_type in {t for types in free.values() for t, count in types.items() if count > 0}
        }
        self._known: dict[
            tuple[str, Form, frozenset[tuple[str, Speed]], frozenset[tuple[str, str]], Tenant | None, str | None], str
        ] = {}

    def words(self, job: Job, wait: Wait) -> str:
        """As more clauses of the reason ``wait`` gives; "" where nothing is free for it, or something else keeps it."""
        if not self._free or wait.tier not in (Tier.POLICY, Tier.CAPACITY):
            return ""
        tenant = job.tenant if self._tenants else None
        parent = job.parent if job.fork is not None else None
        key = (job.partition, job.form, frozenset(job.speeds.items()), frozenset(job.ruled_out.items()), tenant, parent)
        if key not in self._known:
            self._known[key] = "".join(f"; {clause}" for clause in self._clauses(job))
        return self._known[key]

    def _clauses(self, job: Job) -> Iterator[str]:
        open_ = open_nodes(self._snapshot, job)
        open_ -= {n for n, there in self._tenants.items() if unwelcome(job.tenant, there)}
        open_ -= self._copies.get(job.parent, set())
        best = max((s.steps_per_s for t, s in job.speeds.items() if job.form.admits_type(t)), default=0.0)
        for gpu_type in sorted(self._free):
            room = [count for node, count in self._free[gpu_type].items() if node in open_]
            if not find_on_type(replace(job.form, types=None), range(len(room)), room):
                continue
            if not job.form.admits_type(gpu_type):
                why = job.form.shortage([gpu_type]) or job.ruled_out.get(gpu_type, "not among the types that it takes")
                yield f"{gpu_type} is free, but {why.removeprefix(gpu_type).strip()}"
            elif (speed := job.speeds.get(gpu_type)) is not None and speed.steps_per_s * _AS_FAST < best:
                times = best / speed.steps_per_s if speed.steps_per_s > 0 else float("inf")
                by = "" if speed.error is not None else ", by the data sheets"
                so_many = f"{times:.2g}" if times < 100 else f"{times:.0f}"
                yield f"{gpu_type} is free, but {so_many} times as slow for it{by}"

"""Whose jobs may be on a node together: ``--exclusive=user``, ``ExclusiveUser=YES`` and ``--exclusive=mcs``.

A policy hands out GPUs, and such nodes are open to some jobs only, which depends on what it plans. So a job is not
shown the nodes where it is not welcome. Our definition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from slurm_hadar.model import Form, Job, JobState, Snapshot, Tenant

__all__ = ["kept_apart", "settled", "unwelcome"]

_There = Mapping[str, Collection[Tenant]]


def unwelcome(tenant: Tenant, there: Iterable[Tenant]) -> str | None:
    """Why a job cannot be on a node beside those that are there, as the begin of a clause; None if it can."""
    other = next((one for one in there if not one.admits(tenant)), None)
    if other is None:
        return None
    if other.mcs != tenant.mcs:
        return "jobs with another MCS label are"
    return "jobs of others are" if tenant.by_user else "a job that shares its nodes with its own user's only is"


def settled(snapshot: Snapshot) -> dict[str, set[Tenant]]:
    """Who is on which node and stays there this round, whatever is planned."""
    found = {n.name: set(n.tenants) for n in snapshot.nodes}
    for job in snapshot.jobs:
        if job.steerable and job.state is not JobState.PENDING and not (job.running and job.movable):
            for node in job.placement.nodes:
                found.setdefault(node, set()).add(job.tenant)
    return found


def kept_apart(snapshot: Snapshot, there: _There, kept_off: dict[str, str]) -> Snapshot:
    """The snapshot with each job shown the nodes only where all who are ``there`` admit it, or where it runs;
    ``kept_off`` gets the reasons."""
    closed: dict[Tenant, dict[str, str]] = {}
    forms: dict[tuple[Form, Tenant], Form] = {}

    def apart(job: Job) -> Job:
        tenant = job.tenant
        if tenant not in closed:
            closed[tenant] = {n: why for n, tenants in there.items() if (why := unwelcome(tenant, tenants))}
        if not job.steerable or not closed[tenant]:
            return job
        key = (job.form, tenant)
        if key not in forms:
            open_ = job.form.nodes if job.form.nodes is not None else snapshot.node_names
            forms[key] = replace(job.form, nodes=frozenset(open_).difference(closed[tenant]))
        form = forms[key]
        if job.running:
            own = (n for n in job.placement.nodes if job.form.admits_node(n))
            return replace(job, form=replace(form, nodes=(form.nodes or frozenset()).union(own)))
        node, why = next(iter(closed[tenant].items()))
        kept_off.setdefault(job.job_id, f"{why} on {node}")
        return job if form.nodes == job.form.nodes else replace(job, form=form)

    return snapshot.with_jobs([apart(job) for job in snapshot.jobs])

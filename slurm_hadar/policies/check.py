"""Whether a plan keeps the contract that every policy must keep. The controller asks before it acts."""

from __future__ import annotations

from collections import Counter

from slurm_hadar.model import Job, JobState, Placement, Plan, Snapshot
from slurm_hadar.policies.toolkit.arena import Arena, open_nodes
from slurm_hadar.policies.toolkit.shared_gpus.company import all_accept, beside, together
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL, affords

__all__ = ["check_plan"]


def check_plan(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Every violation as one line; an empty list means that the plan may be carried out.

    * Only known, steerable jobs that are pending or running are placed.
    * A running job that is not movable keeps exactly its placement.
    * A new placement lies on available nodes that the job's partition and form leave open, is allowed by its form,
      and gives it a speed above zero. A running job may keep what it holds, even on a node that is being drained.
    * On no (node, type) do new placements push the GPUs in use above what the policy may hand out.
    * A guest is placed on the one GPU of a host that is no guest itself; both of them accept what that costs their
      speed. By turns there may be several guests, by equal turns and with all accepting it. One that is there already
      may stay. Who has fewer turns than the other accepts that too, until the next round at least, or could be stopped.
    * No two copies of one forked job are newly put on the same node.
    * Every active steerable job that is not placed has a Wait, and no placed job has one.
    """
    problems = []
    for job_id, placement in plan.placements.items():
        job = snapshot.job.get(job_id)
        why = "is not in the snapshot" if job is None else _refused(snapshot, job, placement)
        if why:
            problems.append(f"job {job_id}: {why}")
    arena = Arena.of(snapshot)
    problems += _unmoved(arena, plan)
    problems += _over_capacity(arena, plan)
    problems += _ill_paired(snapshot, plan)
    problems += _doubled_copies(snapshot, plan)
    problems += _unexplained(snapshot, plan)
    return problems


def _refused(snapshot: Snapshot, job: Job, placement: Placement) -> str | None:
    if not job.steerable:
        return f"is placed but must not be steered ({job.pinned or job.state})"
    if not placement:
        return "is placed on nothing; a job that waits must be left out"
    if job.running and placement == job.placement:
        return None
    if job.state not in (JobState.PENDING, JobState.RUNNING):
        return f"is placed although it is {job.state}"
    if job.running and not job.placement:
        return "is placed anew although it runs on GPUs that are not known"
    refusal = job.form.refusal(placement)
    if refusal:
        return f"placement {placement} has {refusal}"
    return _closed_node(snapshot, job, placement) or (
        f"has no speed above zero on {placement}" if job.rate(placement) <= 0 else None
    )


def _closed_node(snapshot: Snapshot, job: Job, placement: Placement) -> str | None:
    nodes = open_nodes(snapshot, job)
    for name in placement.nodes:
        node = snapshot.node.get(name)
        if node is None or not node.available:
            return f"node {name} is not available" if node else f"node {name} does not exist"
        if name not in nodes:
            return f"node {name} is not in partition {job.partition}"
    return None


def _unmoved(arena: Arena, plan: Plan) -> list[str]:
    return [
        f"job {job_id}: must keep {placement} but would get {plan.placement(job_id)}"
        for job_id, placement in arena.kept.items()
        if plan.placement(job_id) != placement
    ]


def _over_capacity(arena: Arena, plan: Plan) -> list[str]:
    used: Counter[tuple[str, str]] = Counter()
    new: set[tuple[str, str]] = set()
    for job_id, placement in [*plan.placements.items(), *arena.bound.items()]:
        if job_id in plan.guests:
            continue
        job = arena.snapshot.job.get(job_id)
        for node, gpu_type, count in (placement if job is None else job.holds(placement)).items():
            used[node, gpu_type] += count
            if job is not None and placement != job.placement:
                new.add((node, gpu_type))
    most = {(n.name, t): c for n in arena.snapshot.nodes for t, c in n.steerable_gpus.items()}
    return [
        f"{node}: {used[node, gpu_type]} {gpu_type} in use where {most.get((node, gpu_type), 0)} may be handed out"
        for node, gpu_type in sorted(new)
        if used[node, gpu_type] > most.get((node, gpu_type), 0)
    ]


def _ill_paired(snapshot: Snapshot, plan: Plan) -> list[str]:
    problems = []
    hosts = Counter(plan.guests.values())
    for guest_id, host_id in plan.guests.items():
        guest, host = snapshot.job.get(guest_id), snapshot.job.get(host_id)
        where = plan.placement(guest_id)
        stays = guest is not None and guest.host == host_id
        several = hosts[host_id] > 1
        if guest is None or host is None or host_id in plan.guests or (several and not (stays or snapshot.turns)):
            why = "is the guest of a job that can have none"
        elif where != plan.placement(host_id) or where.workers != 1:
            why = f"is the guest of {host_id}, but not on its one GPU"
        elif several and guest_id in plan.turns:
            why = f"has other than equal turns beside {host_id}, where there are more than two"
        elif several and not stays and not _all_accept(snapshot, plan, host_id):
            why = f"is the guest of {host_id}, which not all on its GPU accept"
        elif beside(snapshot, guest, host, where) is None and not stays:
            why = f"is the guest of {host_id}, which they do not both accept"
        elif (share := plan.turns.get(guest_id, EQUAL)) != EQUAL and not _accepted(snapshot, guest, host, where, share):
            why = f"has {share:g} of the turns beside {host_id}, which they do not both accept"
        else:
            continue
        problems.append(f"job {guest_id}: {why}")
    return problems


def _all_accept(snapshot: Snapshot, plan: Plan, host_id: str) -> bool:
    there = [host_id, *(guest for guest, host in plan.guests.items() if host == host_id)]
    jobs = [snapshot.job[job_id] for job_id in there if job_id in snapshot.job]
    return all_accept(snapshot, jobs, next(iter(plan.placement(host_id).by_type)))


def _accepted(snapshot: Snapshot, guest: Job, host: Job, where: Placement, share: float) -> bool:
    """Whether both afford this share of the turns until the next round; who may be stopped may also be passed over."""
    able = snapshot.turns and 0.0 <= share <= 1.0 and beside(snapshot, guest, host, where) is not None
    kept = together(snapshot, guest, host, next(iter(where.by_type)), share) if able else None
    if kept is None:
        return False
    passed, keeps = (host, kept[1]) if share > EQUAL else (guest, kept[0])
    return passed.gives_way and ((passed.running and passed.movable) or affords(passed, keeps, snapshot.round_s))


def _doubled_copies(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Two copies on a node would only share its GPUs; those that Slurm itself put there may stay."""
    there: dict[tuple[str, str], list[str]] = {}
    for job_id, placement in plan.placements.items():
        job = snapshot.job.get(job_id)
        if job is not None and job.fork is not None:
            for node in placement.nodes:
                there.setdefault((job.parent, node), []).append(job_id)
    return [
        f"job {ids[0]}: shares node {node} with {ids[1]}, a copy of the same job {parent}"
        for (parent, node), ids in sorted(there.items())
        if len(ids) > 1 and any(plan.placement(i) != snapshot.job[i].placement for i in ids)
    ]


def _unexplained(snapshot: Snapshot, plan: Plan) -> list[str]:
    problems = []
    for job in snapshot.steerable_jobs:
        if job.job_id not in plan.placements and job.job_id not in plan.waits:
            problems.append(f"job {job.job_id}: neither runs nor has a reason to wait")
    problems += [f"job {j}: has both a placement and a reason to wait" for j in plan.waits if j in plan.placements]
    return problems

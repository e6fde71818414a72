"""What jobs that take turns on one GPU keep of their speeds, who accepts whose company, and whose GPU is which.

Of many small jobs each uses the GPU for a part of its time: it loads data between two iterations, or answers now and
then. Its *duty* d is that part: of the time in which it does not wait for others the share in which it has a turn. By
turns every job gets its duty as long as that is no more than a fair share of the GPU's time, and what it does not use
is the others' (max-min fairness; Bertsekas and Gallager, Data Networks, 1992, section 6.5.2, by "water-filling";
that a GPU's time be divided so by duties is our definition, after the many small jobs of Salus, MLSys 2020, section
5.3)::

    got_i = min(d_i, level)     with the level at which sum(got) = 1, or at which all have what they want
    keeps_i = got_i / d_i

Of jobs whose duty is not known (1) each of k keeps 1/k. Not in it: that a job which comes while another is in its turn
waits for the end of that. What was measured of a company goes before what is reckoned.

**Whose duty is believed.** A duty is what a user's jobs have told. It counts among jobs of that user alone: of a
company of several users all duties are taken to be 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slurm_hadar.model import Job, Kept, Placement, Plan, Snapshot
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL, kept_by
from slurm_hadar.throughput.table import workload

__all__ = [
    "ROUNDING",
    "all_accept",
    "beside",
    "by_duty",
    "duties_of",
    "fits",
    "heir",
    "keep_together",
    "kept_by_each",
    "keeps",
    "level",
    "likeness",
    "may_be_several",
    "may_share",
    "on_same_gpu",
    "pair_measured",
    "pairs_like",
    "same_gpu",
    "shares_kept",
    "together",
]

ROUNDING = 1e-9


def level(duties: Iterable[float]) -> float:
    """The most of a GPU's time that any of these jobs gets, 0 to 1; 1 of none."""
    left, wanted = 1.0, sorted(duties)
    for number, duty in enumerate(wanted):
        fair = left / (len(wanted) - number)
        if duty > fair:
            return fair
        left = max(0.0, left - duty)
    return wanted[-1] if wanted else 1.0


def keeps(duties: Sequence[float]) -> tuple[float, ...]:
    """What each of the jobs with these duties, above 0 to 1, keeps of its speed by equal turns."""
    most = level(duties)
    return tuple(1.0 if duty <= most else most / duty for duty in duties)


def by_duty(guest: Any, host: Any, share: float) -> tuple[Any, Any]:
    """The same of two, guest and host, where the guest has this ``share`` of the turns that both want. Arrays are taken
    element by element."""
    gets = np.minimum(guest, np.maximum(share, 1.0 - host)), np.minimum(host, np.maximum(1.0 - share, 1.0 - guest))
    return gets[0] / guest, gets[1] / host


def duties_of(jobs: Sequence[Job], gpu_type: str) -> list[float]:
    """The duties to reckon with among these jobs on a GPU of this type."""
    if len({job.user for job in jobs}) > 1:
        return [1.0] * len(jobs)
    return [job.duty.get(gpu_type, 1.0) for job in jobs]


def fits(takes: Iterable[tuple[int, int] | None], gpu_bytes: int | None) -> bool:
    """Whether jobs that take turns have room: the sum of their persistent bytes and the largest of their ephemeral ones
    is no more than the GPU has (Salus' safety condition, MLSys 2020, section 3.3.2). Who takes nobody knows what counts
    for nothing: then it is the broker that lets in only who fits."""
    known = [sizes for sizes in takes if sizes is not None]
    if not known or gpu_bytes is None:
        return True
    return sum(persistent for persistent, _ in known) + max(ephemeral for _, ephemeral in known) <= gpu_bytes


# What is kept


def likeness(job: Job) -> str:
    """What pairings call the job."""
    return job.pairs_as or workload(job.model, job.batch)


def pairs_like(snapshot: Snapshot, job: Job) -> Hashable:
    """The same of jobs that :func:`keep_together` tells no difference between."""
    by_duty = (job.user, tuple(sorted(job.duty.items()))) if snapshot.turns else None
    return likeness(job), job.slow_down, may_share(job), by_duty


def may_share(job: Job) -> bool:
    """Whether the job may have company on its GPU at all."""
    return job.slow_down > 1 and job.fork is None and 1 in job.form.gang_sizes


def pair_measured(snapshot: Snapshot, one: str, other: str, gpu_type: str) -> bool:
    """Whether it was measured what two workloads keep beside each other."""
    known = snapshot.measured
    return bool(known) and (one, (other,), gpu_type) in known and (other, (one,), gpu_type) in known


def beside(snapshot: Snapshot, guest: Job, host: Job, where: Placement) -> Kept | None:
    """What guest and host keep of their speeds together on the one GPU of ``where``; None if that is not known, or
    less than one of them accepts."""
    (gpu_type,) = where.by_type
    return keep_together(snapshot, guest, host, gpu_type)


def keep_together(snapshot: Snapshot, guest: Job, host: Job, gpu_type: str) -> Kept | None:
    """The same on a GPU of this type."""
    kept = together(snapshot, guest, host, gpu_type)
    if kept is None or not (may_share(guest) and may_share(host)):
        return None
    accepted = kept[0] * guest.slow_down >= 1 - ROUNDING and kept[1] * host.slow_down >= 1 - ROUNDING
    return kept if accepted else None


def together(snapshot: Snapshot, guest: Job, host: Job, gpu_type: str, share: float = EQUAL) -> Kept | None:
    """What guest and host keep where the guest has this share of the turns, whether or not they accept it; None if that
    is not known."""
    one, other = likeness(guest), likeness(host)
    kept = snapshot.pairings.get((one, other, gpu_type))
    if kept is None:
        return None
    if snapshot.turns:
        own, its = duties_of((guest, host), gpu_type)
        if min(own, its) < 1 and not pair_measured(snapshot, one, other, gpu_type):
            found = by_duty(own, its, share)
            return float(found[0]), float(found[1])
    return kept_by(kept, share)


def kept_by_each(snapshot: Snapshot, jobs: Sequence[Job], gpu_type: str) -> list[float] | None:
    """What each of these keeps on one GPU by equal turns; None where some two of them could not be there together."""
    if len(jobs) == 2:
        pair = together(snapshot, jobs[0], jobs[1], gpu_type)
        return None if pair is None else list(pair)
    names = [likeness(job) for job in jobs]
    if any((one, other, gpu_type) not in snapshot.pairings for n, one in enumerate(names) for other in names[:n]):
        return None
    found = list(keeps(duties_of(jobs, gpu_type) if snapshot.turns else [1.0] * len(jobs)))
    for number, name in enumerate(names if snapshot.measured else ()):
        others = tuple(sorted(names[:number] + names[number + 1 :]))
        found[number] = snapshot.measured.get((name, others, gpu_type), found[number])
    return found


def all_accept(snapshot: Snapshot, jobs: Sequence[Job], gpu_type: str) -> bool:
    """Whether all of these may have one GPU by equal turns: each accepts what it keeps, and there is memory for them.
    Of three and more nothing is known but by turns, and beside each other no more is assumed than that."""
    if len(jobs) < 2:
        return True
    kept = kept_by_each(snapshot, jobs, gpu_type) if all(map(may_share, jobs)) else None
    if kept is None or any(k * job.slow_down < 1 - ROUNDING for k, job in zip(kept, jobs, strict=True)):
        return False
    return fits((job.takes for job in jobs), snapshot.gpu_bytes.get(gpu_type))


def may_be_several(jobs: Sequence[Job], gpu_type: str) -> bool:
    """Whether these may be among more than two that a plan puts on one GPU: of one user, and with one at most whose
    duty is not known."""
    unknown = sum(job.duty.get(gpu_type, 1.0) >= 1 for job in jobs)
    return unknown <= 1 and len({job.user for job in jobs}) == 1


def shares_kept(snapshot: Snapshot, jobs: Mapping[str, Job]) -> dict[str, float]:
    """What guests and hosts among ``jobs``, by id, keep of their speeds now; of those alone, and of company that is not
    known, nothing is said."""
    guests: dict[str, list[Job]] = {}
    for job in jobs.values():
        if job.host is not None and job.host in jobs and job.placement:
            guests.setdefault(job.host, []).append(job)
    found: dict[str, float] = {}
    for host_id, there in guests.items():
        host, gpu_type = jobs[host_id], next(iter(there[0].placement.by_type))
        kept: Sequence[float] | None
        if len(there) == 1:
            kept = together(snapshot, there[0], host, gpu_type, there[0].turns)
        else:
            kept = kept_by_each(snapshot, [*there, host], gpu_type)
        if kept is not None:
            found.update(zip([*(j.job_id for j in there), host_id], kept, strict=True))
    return found


# Whose GPU is which


def on_same_gpu(snapshot: Snapshot, plan: Plan, job: Job) -> bool:
    """Whether a running job that the plan leaves at its placement goes on on the very GPU that it has.

    Placements count GPUs and do not name them. Of those who are on a GPU now the first keeps it that the plan makes
    nobody's guest, its host before the guests; if there is none, it is that of the first new host that comes to them.
    """
    gpu, host = job.host or job.job_id, plan.guests.get(job.job_id)
    if heir(snapshot, plan, gpu) is not None or host is None:
        return same_gpu(snapshot, plan, job, host)
    there = (snapshot.job[j] for j in (gpu, *snapshot.guests_of.get(gpu, ())) if j in snapshot.job)
    stay = (plan.guests[j.job_id] for j in there if j.job_id in plan.guests and plan.placement(j.job_id) == j.placement)
    comers = (h for h in stay if snapshot.job[h].placement != job.placement)
    return host == next(comers, None)


def same_gpu(snapshot: Snapshot, plan: Plan, job: Job, host: str | None) -> bool:
    """Whether a running job keeps its GPU as the guest of ``host`` (None = as nobody's), by a plan that need not say
    whose guest it is."""
    keeps_it = heir(snapshot, plan, job.host or job.job_id)
    if keeps_it is not None:
        return (host or job.job_id) == keeps_it
    return host is None or snapshot.job[host].placement != job.placement


def heir(snapshot: Snapshot, plan: Plan, gpu: str) -> str | None:
    """Which of the jobs that are on the GPU of this host goes on there as its host."""
    for job_id in (gpu, *snapshot.guests_of.get(gpu, ())):
        job = snapshot.job.get(job_id)
        stays = job is not None and job.running and job_id not in plan.guests
        if job is not None and stays and plan.placement(job_id) == job.placement and job.placement:
            return job_id
    return None

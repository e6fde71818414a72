"""Several jobs on one GPU: who of those that wait runs beside whom, after a policy has given out whole GPUs.

Many trainings leave half of a GPU idle, and two of them on one then do more than one alone. A policy gives out whole
GPUs and knows nothing of this; a job that runs beside another is shown to it as one that waits, which by and by is
nearer to its end. What its plan leaves waiting is then matched with what it lets run.

What a pair is worth says :mod:`slurm_hadar.policies.toolkit.shared_gpus.matching`; what jobs keep of their speeds
together, and who accepts that, :mod:`slurm_hadar.policies.toolkit.shared_gpus.company`.

**By turns**, where the snapshot says so, a guest may have more than half of the turns, up to all of them, as far as its
host accepts that (:mod:`slurm_hadar.policies.toolkit.shared_gpus.turn_shares`); the pairs and shares of the largest sum
are chosen. And who is to be stopped for another stays on its GPU and leaves that one all turns instead: it is as the
policy wants it, nobody is requeued, and who was stopped goes on at once when the other one has ended. To the policy,
who has more turns is the one that runs, and the other waits. More than two come to a GPU after that, by equal turns,
where their duties leave time (:mod:`slurm_hadar.policies.toolkit.shared_gpus.crowding`).

Pairs are of jobs with one GPU each: of gangs there are no published figures (Gavel's table has none above zero).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_hadar.model import EMPTY, Job, JobState, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.toolkit.admission import refusals
from slurm_hadar.policies.toolkit.shared_gpus.company import (
    all_accept,
    beside,
    heir,
    kept_by_each,
    may_share,
    shares_kept,
    together,
)
from slurm_hadar.policies.toolkit.shared_gpus.crowding import more_guests
from slurm_hadar.policies.toolkit.shared_gpus.matching import UNKNOWN_RUNTIME_S, best_pairs, to_go_s
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL, LARGER, affords, knows_length, patience_s

__all__ = ["UNKNOWN_RUNTIME_S", "with_guests"]

#: Of the speed that a guest would have on the GPU that suits it best: as fast as there.
_AS_FAST = 0.95

_Allocate = Callable[[Any, Snapshot], Plan]


def with_guests(allocate: _Allocate) -> _Allocate:
    """``allocate`` of a policy that gives out whole GPUs, made to put jobs that wait beside jobs that run where the
    snapshot knows pairings. Where it knows none, it is as it was. One that ``pairs`` says itself which jobs that its
    plan leaves waiting are whose guests; it is shown who was whose."""

    @functools.wraps(allocate)
    def allocate_with_guests(self: Any, snapshot: Snapshot) -> Plan:
        if not snapshot.pairings:
            return allocate(self, snapshot)
        content = frozenset() if self.pairs else _content(snapshot)
        shown, fixed = _without_guests(snapshot, content, told=self.pairs)
        if self.pairs:
            plan = allocate(self, shown)
            return plan if plan.abstains else _admitted(snapshot, plan, {**fixed, **plan.guests}, {}, fixed)
        plan = allocate(self, replace(shown, pairings={}))  # one policy may ask another in its turn
        return plan if plan.abstains else _paired(snapshot, _with_waits(plan, content), fixed, content)

    return allocate_with_guests


def _content(snapshot: Snapshot) -> frozenset[str]:
    """Guests that by their duties are as fast as on a GPU of their own of any type: a policy that saw them wait would
    give them one, for which they would be restarted and others wait."""
    if not snapshot.turns:
        return frozenset()
    kept = shares_kept(snapshot, snapshot.job)
    guests = (snapshot.job[j] for there in snapshot.guests_of.values() for j in there)
    able = (j for j in guests if j.steerable and j.running and j.movable and j.placement and j.turns == EQUAL)
    return frozenset(
        job.job_id
        for job in able
        if job.duty.get(next(iter(job.placement.by_type)), 1.0) < 1
        and kept.get(job.job_id, 0.0) * job.rate(job.placement) >= _AS_FAST * job.best_rate()
    )


def _with_waits(plan: Plan, content: frozenset[str]) -> Plan:
    """The plan with those whom the policy was not shown, until it is seen whose guests they are."""
    wait = Wait(Tier.POLICY, "the job whose guest it was leaves its GPU, and it is worth more to be nobody's")
    return replace(plan, waits={**plan.waits, **dict.fromkeys(sorted(content), wait)}) if content else plan


def _without_guests(snapshot: Snapshot, content: frozenset[str], *, told: bool) -> tuple[Snapshot, dict[str, str]]:
    """The jobs as a policy sees them that knows no guests: as jobs that wait, ``told`` or not whose guests they are;
    without those that are ``content``. A guest that must keep its place is not shown, and keeps its host there too;
    those are what else is returned."""
    fixed = {j.job_id: j.host for j in snapshot.jobs if j.host is not None and j.steerable and not j.movable}
    bound = {host: guest for guest, host in fixed.items()}
    passed = {} if told else _passed_over(snapshot, fixed)
    jobs = []
    for job in snapshot.jobs:
        if job.job_id in fixed or job.job_id in content:
            continue
        if job.job_id in passed:
            job = replace(job, state=JobState.PENDING, placement=EMPTY, started=None)
        elif job.host is not None and passed.get(job.host) == job.job_id:
            job = replace(job, host=None)
        elif job.host is not None and job.steerable and job.running:
            job = replace(job, state=JobState.PENDING, placement=EMPTY, started=None, host=job.host if told else None)
        elif job.job_id in bound and job.movable:
            job = replace(job, unmovable=f"job {bound[job.job_id]} runs on its GPU too, and must keep its place")
        jobs.append(job)
    return snapshot.with_jobs(jobs), fixed


def _passed_over(snapshot: Snapshot, fixed: Mapping[str, str]) -> dict[str, str]:
    """Hosts whose one guest has more turns than they have, with that guest, where both could be moved: the guest is the
    one that runs, to a policy, and the host waits."""
    hosts = Counter(j.host for j in snapshot.jobs if j.host is not None)
    free = (j for j in snapshot.jobs if j.host is not None and j.steerable and j.movable and j.job_id not in fixed)
    return {
        guest.host: guest.job_id
        for guest in free
        if guest.host is not None and guest.turns > EQUAL and hosts[guest.host] == 1
        if (host := snapshot.job.get(guest.host)) is not None and host.running and host.steerable and host.movable
    }


def _settled(snapshot: Snapshot, plan: Plan, fixed: Mapping[str, str], content: frozenset[str]) -> dict[str, str]:
    """The guests that are content and stay, with whoever of those on their GPU goes on as its host."""
    found: dict[str, str] = {}
    for host, guests in snapshot.guests_of.items():
        theirs = [g for g in guests if g in content]
        if theirs and (first := heir(snapshot, plan, host)) is not None:
            found.update(_staying(snapshot, plan, first, theirs, fixed))
    return found


def _paired(snapshot: Snapshot, plan: Plan, fixed: Mapping[str, str], content: frozenset[str]) -> Plan:
    """The plan with its guests. Those whom the cluster would refuse for something else than GPUs are left out."""
    bound = {**fixed, **_settled(snapshot, plan, fixed, content)}
    crowds = _crowds(snapshot, plan)
    turns: dict[str, float] = {}
    if snapshot.turns:
        plan, turns = _stood_aside(snapshot, plan, frozenset([*bound, *bound.values(), *crowds, *_crowded(snapshot)]))
        turns.update(_shares_where_bound(snapshot, fixed))
    aside = plan.guests
    taken = frozenset([*bound.values(), *crowds, *aside, *aside.values()])
    free = replace(plan, waits={job_id: wait for job_id, wait in plan.waits.items() if job_id not in bound})
    best = best_pairs(snapshot, free, taken, _kept_in_crowds(snapshot, plan, crowds, bound))
    guests = {**bound, **aside, **{guest: pair.host for guest, pair in best.items()}}
    turns.update({guest: pair.share for guest, pair in best.items()})
    for host, others in crowds.items():
        guests.update(_staying(snapshot, plan, host, [g for g in others if g not in guests], bound))
    turns = {guest: share for guest, share in turns.items() if share != EQUAL}
    gains = {guest: pair.gain for guest, pair in best.items()}
    if snapshot.turns:
        more = more_guests(snapshot, _with(plan, guests, {}), frozenset(guests[g] for g in turns))
        guests.update({guest: crowded.host for guest, crowded in more.items()})
        gains.update({guest: crowded.gain for guest, crowded in more.items()})
        rest = _resting(snapshot, plan, {**guests, **dict.fromkeys(crowds, "")})
        guests, turns = {**guests, **rest}, {**turns, **dict.fromkeys(rest, 0.0)}
    return _admitted(snapshot, replace(plan, turns=turns), guests, gains, bound)


def _stood_aside(snapshot: Snapshot, plan: Plan, others: frozenset[str]) -> tuple[Plan, dict[str, float]]:
    """The plan in which jobs that it stops for others are these ones' hosts instead, and each such guest's share.

    A guest that the plan lets go on where its host is to stop keeps it. A job for which another is stopped is its
    guest: the shortest of them comes to who can be asked for most. ``others`` have their company.
    """
    jobs = snapshot.job
    hosts: dict[str, Job] = {}
    together = {j.job_id: j.host for j in snapshot.jobs if j.host is not None}
    busy = {*others, *together, *together.values()}
    leaving = [j for j in snapshot.jobs if j.job_id in plan.waits and _stays_aside(j) and j.job_id not in others]
    for host in leaving:
        guest = next((jobs[g] for g, h in together.items() if h == host.job_id and g not in others), None)
        if guest is not None and plan.placement(guest.job_id) == guest.placement and _together(snapshot, guest, host):
            hosts[guest.job_id] = host
    full = _full(snapshot, plan)
    asked = sorted((j for j in leaving if j.job_id not in busy), key=lambda j: (-patience_s(j), j.job_id))
    coming = [jobs[j] for j, where in plan.placements.items() if where.workers == 1 and j not in busy]
    for guest in sorted(coming, key=lambda j: (to_go_s(j), j.job_id)):
        where = plan.placements[guest.job_id]
        if (guest.running and guest.placement == where) or not full >= {cell[:2] for cell in where.items()}:
            continue
        able = (j for j in asked if j.placement == where and beside(snapshot, guest, j, where) is not None)
        if (asked_for := next(able, None)) is not None:
            hosts[guest.job_id] = asked_for
            asked.remove(asked_for)
    kept = {host.job_id: host.placement for host in hosts.values()}
    waits = {job_id: wait for job_id, wait in plan.waits.items() if job_id not in kept}
    guests = {guest: host.job_id for guest, host in hosts.items()}
    plan = replace(plan, placements={**plan.placements, **kept}, waits=waits, guests=guests)
    return plan, {guest: _least_share(snapshot, jobs[guest], host) for guest, host in hosts.items()}


def _least_share(snapshot: Snapshot, guest: Job, host: Job) -> float:
    """All turns; equal ones where those already cost the guest nothing."""
    (gpu_type,) = host.placement.by_type
    kept = together(snapshot, guest, host, gpu_type)
    return EQUAL if kept is not None and kept[0] >= 1.0 else 1.0


def _resting(snapshot: Snapshot, plan: Plan, taken: Mapping[str, str]) -> dict[str, str]:
    """Guests that the plan leaves waiting, with the hosts to whom they leave all turns where nobody else is a guest."""
    found: dict[str, str] = {}
    for guest in snapshot.jobs:
        host = snapshot.job.get(guest.host or "")
        if host is None or guest.job_id in taken or host.job_id in {*taken, *taken.values(), *found.values()}:
            continue
        there = plan.placement(host.job_id) == host.placement and host.running
        if there and guest.job_id in plan.waits and _stays_aside(guest) and _together(snapshot, guest, host):
            found[guest.job_id] = host.job_id
    return found


def _stays_aside(job: Job) -> bool:
    able = job.running and job.steerable and job.movable and job.gives_way
    return able and job.placement.workers == 1 and may_share(job)


def _together(snapshot: Snapshot, guest: Job, host: Job) -> bool:
    """Whether two that are on one GPU may stay there."""
    return guest.placement == host.placement and beside(snapshot, guest, host, guest.placement) is not None


def _full(snapshot: Snapshot, plan: Plan) -> set[tuple[str, str]]:
    """The (node, GPU type) of which the plan leaves no GPU free."""
    used: Counter[tuple[str, str]] = Counter()
    for where in plan.placements.values():
        for node, gpu_type, count in where.items():
            used[node, gpu_type] += count
    capacity = snapshot.capacity()
    return {cell for cell, count in used.items() if count >= capacity.get(cell[0], {}).get(cell[1], 0)}


def _shares_where_bound(snapshot: Snapshot, fixed: Mapping[str, str]) -> dict[str, float]:
    """Of guests that cannot leave, where they are the only ones."""
    alone = {g: h for g, h in fixed.items() if len(snapshot.guests_of[h]) == 1}
    return {g: _share_where_bound(snapshot, snapshot.job[g], snapshot.job[h]) for g, h in alone.items()}


def _share_where_bound(snapshot: Snapshot, guest: Job, host: Job) -> float:
    """The guest's share of the turns where it cannot leave: who is nearer to its end, for its weight, has the largest
    that the other one affords until then."""
    kept = beside(snapshot, guest, host, guest.placement) if guest.placement.workers == 1 else None
    if kept is None or not (knows_length(guest) and knows_length(host)):
        return EQUAL
    first, last = guest.weight / to_go_s(guest), host.weight / to_go_s(host)
    if first == last:
        return EQUAL
    ahead, passed, own, its = (guest, host, 0, 1) if first > last else (host, guest, 1, 0)
    if not passed.gives_way:
        return EQUAL
    (gpu_type,) = guest.placement.by_type
    if kept[own] >= 1.0:
        return EQUAL
    for larger in LARGER:
        share = larger if ahead is guest else 1.0 - larger
        keeps = together(snapshot, guest, host, gpu_type, share) or kept
        for_s = to_go_s(ahead) * ahead.best_rate() / ahead.rate(ahead.placement) / keeps[own]
        if affords(passed, keeps[its], max(snapshot.round_s, for_s)):
            return share
    return EQUAL


def _admitted(
    snapshot: Snapshot, plan: Plan, guests: Mapping[str, str], gains: Mapping[str, float], fixed: Mapping[str, str]
) -> Plan:
    """The plan with these guests, or where the cluster would refuse one of them, with those that are there already."""
    found = _with(plan, guests, gains)
    refused = {r.job_id for r in refusals(snapshot, found)}
    if refused:
        staying = {g: h for g, h in guests.items() if g in fixed or snapshot.job[g].host == h}
        found = _with(plan, staying, {})
    return found


def _crowded(snapshot: Snapshot) -> list[str]:
    """All who are on a GPU with more than one other."""
    return [j for host, guests in snapshot.guests_of.items() if len(guests) > 1 for j in (host, *guests)]


def _crowds(snapshot: Snapshot, plan: Plan) -> dict[str, list[str]]:
    """Of GPUs with more than two jobs those where one of them goes on as the host by the plan: that one, with the
    others. Who have run longest come first."""
    found: dict[str, list[str]] = {}
    for host, guests in snapshot.guests_of.items():
        there = (snapshot.job[j] for j in (host, *guests) if j in snapshot.job)
        ours = [j.job_id for j in there if j.steerable and j.running]
        if len(ours) > 2 and (first := heir(snapshot, plan, host)) is not None:
            found[first] = [j for j in ours if j != first]
    return found


def _kept_in_crowds(
    snapshot: Snapshot, plan: Plan, crowds: Mapping[str, Sequence[str]], fixed: Mapping[str, str]
) -> dict[str, float]:
    """What those who may stay in their crowds keep of their speeds there: they leave for more only."""
    found: dict[str, float] = {}
    for host, others in crowds.items():
        stay = _staying(snapshot, plan, host, others, fixed)
        jobs = [snapshot.job[j] for j in dict.fromkeys([host, *(g for g, h in fixed.items() if h == host), *stay])]
        kept = kept_by_each(snapshot, jobs, next(iter(plan.placement(host).by_type)))
        by_job = dict(zip([j.job_id for j in jobs], kept or (), strict=False))
        found.update({guest: by_job[guest] for guest in stay if guest in by_job})
    return found


def _staying(
    snapshot: Snapshot, plan: Plan, host: str, others: Sequence[str], fixed: Mapping[str, str]
) -> dict[str, str]:
    """Those of a crowd for whom there is nothing better, as long as all accept what so many leave each of them."""
    jobs = snapshot.job
    there = [jobs[host], *(jobs[g] for g, h in fixed.items() if h == host)]
    (gpu_type,) = plan.placement(host).by_type
    stay: dict[str, str] = {}
    for guest in others:
        company = [*there, jobs[guest]]
        if guest not in plan.placements and guest not in fixed and all_accept(snapshot, company, gpu_type):
            stay[guest], there = host, company
    return stay


def _with(plan: Plan, guests: Mapping[str, str], gains: Mapping[str, float]) -> Plan:
    placements = {**plan.placements, **{guest: plan.placements[host] for guest, host in guests.items()}}
    waits = {job_id: wait for job_id, wait in plan.waits.items() if job_id not in guests}
    turns = {guest: share for guest, share in plan.turns.items() if guest in guests}
    payoffs = {**plan.payoffs, **gains}
    return replace(plan, placements=placements, waits=waits, payoffs=payoffs, guests=dict(guests), turns=turns)

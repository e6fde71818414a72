"""Two jobs on one GPU: who of those that wait runs beside whom, after a policy has given out whole GPUs.

Many trainings leave half of a GPU idle, and two of them on one then do more than one alone. A policy gives out whole
GPUs and knows nothing of this; a job that runs beside another is shown to it as one that waits, which by and by is
nearer to its end. What its plan leaves waiting is then matched with what it lets run.

What a pair is worth is our definition, and speaks of the sum of completion times, as Hadar's prices do: by how much
that sum falls in a second of two jobs together. Of two jobs and one GPU it is exact. A guest that ends before its host
has T to do, and would else wait D; what it does brings its end nearer by more than that, since it need not wait. One
that ends after its host goes on alone then, and is held up as whoever is behind that. On a cluster of G GPUs every job
behind the guest is nearer to its end, and every job behind the host is held up, by one G-th::

    gain = w_g own + n_g / G kept_g - (w_h + n_h / G) (1 - kept_h)
    own  = kept_g (1 + D / T) - 1        if the guest ends first
           kept_g - (1 - kept_h)         else

with w the jobs' weights, n_g and n_h the others that wait and have more to do than the guest, and than the host, kept_h
what the host keeps of its speed, and kept_g what the guest does of that on its fastest GPU type, less what a move there
costs it. D is what shorter jobs that wait have to do, over G, and the rest of the job that will be done first. Of all
pairs that gain, those of the largest sum are chosen (an assignment, in O(jobs^3) at worst).

**By turns**, where the snapshot says so, a guest may have more than half of the turns, up to all of them, as far as its
host accepts that (:mod:`slurm_hadar.policies.toolkit.turn_shares`); the pairs and shares of the largest sum are chosen.
And who is to be stopped for another stays on its GPU and leaves that one all turns instead: it is as the policy wants
it, nobody is requeued, and who was stopped goes on at once when the other one has ended. To the policy, who has more
turns is the one that runs, and the other waits.

Pairs are of jobs with one GPU each: of gangs there are no published figures (Gavel's table has none above zero).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from slurm_hadar.model import EMPTY, Job, JobState, Kept, Pairing, Placement, Plan, Snapshot, Tier
from slurm_hadar.policies.toolkit.admission import refusals
from slurm_hadar.policies.toolkit.arena import open_nodes
from slurm_hadar.policies.toolkit.turn_shares import EQUAL, LARGER, affords, kept_by, knows_length, patience_s
from slurm_hadar.throughput.table import workload

__all__ = ["UNKNOWN_RUNTIME_S", "beside", "keep_together", "on_same_gpu", "pairs_like", "shares_kept", "with_guests"]

#: Run time on its best type that is assumed of a job whose steps nobody states or predicts, where nothing else is said.
UNKNOWN_RUNTIME_S = 3600.0

_Allocate = Callable[[Any, Snapshot], Plan]
_Array = np.ndarray[Any, np.dtype[np.float64]]
_ROUNDING = 1e-9


def beside(snapshot: Snapshot, guest: Job, host: Job, where: Placement) -> Kept | None:
    """What guest and host keep of their speeds together on the one GPU of ``where``; None if that is not known, or
    less than one of them accepts."""
    (gpu_type,) = where.by_type
    return keep_together(snapshot, guest, host, gpu_type)


def keep_together(snapshot: Snapshot, guest: Job, host: Job, gpu_type: str) -> Kept | None:
    """The same on a GPU of this type."""
    kept = snapshot.pairings.get((_likeness(guest), _likeness(host), gpu_type))
    if kept is None or not (_may_share(guest) and _may_share(host)):
        return None
    accepted = kept[0] * guest.slow_down >= 1 - _ROUNDING and kept[1] * host.slow_down >= 1 - _ROUNDING
    return kept if accepted else None


def pairs_like(job: Job) -> Hashable:
    """The same of jobs that :func:`keep_together` tells no difference between."""
    return _likeness(job), job.slow_down, _may_share(job)


def shares_kept(pairings: Mapping[Pairing, Kept], jobs: Mapping[str, Job]) -> dict[str, float]:
    """What guests and hosts among ``jobs``, by id, keep of their speeds now; of those alone, and of pairs that are not
    known, nothing is said."""
    found: dict[str, float] = {}
    for guest in jobs.values():
        host = jobs.get(guest.host or "")
        if host is None or not guest.placement:
            continue
        kept = pairings.get((_likeness(guest), _likeness(host), next(iter(guest.placement.by_type))))
        if kept is not None:
            found[guest.job_id], found[host.job_id] = kept_by(kept, guest.turns)
    return found


def on_same_gpu(snapshot: Snapshot, plan: Plan, job: Job) -> bool:
    """Whether a running job that the plan leaves at its placement goes on on the very GPU that it has.

    Placements count GPUs and do not name them. So it is the same one if the job's company stays the same, if the host
    that it was the guest of leaves, or if its new host comes to that place in this round.
    """
    host = plan.guests.get(job.job_id)
    return host == job.host or _takes_over(snapshot, plan, job, host)


def _takes_over(snapshot: Snapshot, plan: Plan, job: Job, host: str | None) -> bool:
    """Whether the job's GPU is its own to hold, alone or with a new host."""
    if job.host is not None and job.host not in plan.guests and plan.placement(job.host) == job.placement:
        return False
    if host is None:
        return True
    new = snapshot.job[host]
    return new.placement != job.placement or new.host == job.job_id


def with_guests(allocate: _Allocate) -> _Allocate:
    """``allocate`` of a policy that gives out whole GPUs, made to put jobs that wait beside jobs that run where the
    snapshot knows pairings. Where it knows none, it is as it was. One that ``pairs`` says itself which jobs that its
    plan leaves waiting are whose guests; it is shown who was whose."""

    @functools.wraps(allocate)
    def allocate_with_guests(self: Any, snapshot: Snapshot) -> Plan:
        if not snapshot.pairings:
            return allocate(self, snapshot)
        shown, fixed = _without_guests(snapshot, told=self.pairs)
        if self.pairs:
            plan = allocate(self, shown)
            return plan if plan.abstains else _admitted(snapshot, plan, {**fixed, **plan.guests}, {}, fixed)
        plan = allocate(self, replace(shown, pairings={}))  # one policy may ask another in its turn
        return plan if plan.abstains else _paired(snapshot, plan, fixed)

    return allocate_with_guests


def _without_guests(snapshot: Snapshot, *, told: bool) -> tuple[Snapshot, dict[str, str]]:
    """The jobs as a policy sees them that knows no guests: as jobs that wait, ``told`` or not whose guests they are. A
    guest that must keep its place is not shown, and keeps its host there too; those are what else is returned."""
    fixed = {j.job_id: j.host for j in snapshot.jobs if j.host is not None and j.steerable and not j.movable}
    bound = {host: guest for guest, host in fixed.items()}
    passed = {} if told else _passed_over(snapshot, fixed)
    jobs = []
    for job in snapshot.jobs:
        if job.job_id in fixed:
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


def _paired(snapshot: Snapshot, plan: Plan, fixed: Mapping[str, str]) -> Plan:
    """The plan with its guests. Those whom the cluster would refuse for something else than GPUs are left out."""
    crowds = _crowds(snapshot)
    turns: dict[str, float] = {}
    if snapshot.turns:
        plan, turns = _stood_aside(snapshot, plan, frozenset([*fixed, *fixed.values(), *crowds]))
        turns.update({g: _share_where_bound(snapshot, snapshot.job[g], snapshot.job[h]) for g, h in fixed.items()})
    aside = plan.guests
    taken = frozenset([*fixed.values(), *crowds, *aside, *aside.values()])
    best = _Matching.of(snapshot, plan, taken).best()
    guests = {**fixed, **aside, **{guest: pair.host for guest, pair in best.items()}}
    turns.update({guest: pair.share for guest, pair in best.items()})
    for host, others in crowds.items():
        guests.update(_staying(snapshot, plan, host, [g for g in others if g not in guests], fixed))
    if snapshot.turns:
        rest = _resting(snapshot, plan, {**guests, **dict.fromkeys(crowds, "")})
        guests, turns = {**guests, **rest}, {**turns, **dict.fromkeys(rest, 0.0)}
    plan = replace(plan, turns={guest: share for guest, share in turns.items() if share != EQUAL})
    return _admitted(snapshot, plan, guests, {guest: pair.gain for guest, pair in best.items()}, fixed)


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
    for guest in sorted(coming, key=lambda j: (_to_go_s(j), j.job_id)):
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
    return replace(plan, placements={**plan.placements, **kept}, waits=waits, guests=guests), dict.fromkeys(guests, 1.0)


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
    return able and job.placement.workers == 1 and _may_share(job)


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


def _share_where_bound(snapshot: Snapshot, guest: Job, host: Job) -> float:
    """The guest's share of the turns where it cannot leave: who is nearer to its end, for its weight, has the largest
    that the other one affords until then."""
    kept = beside(snapshot, guest, host, guest.placement) if guest.placement.workers == 1 else None
    if kept is None or not (knows_length(guest) and knows_length(host)):
        return EQUAL
    first, last = guest.weight / _to_go_s(guest), host.weight / _to_go_s(host)
    if first == last:
        return EQUAL
    ahead, passed, own, its = (guest, host, 0, 1) if first > last else (host, guest, 1, 0)
    if not passed.gives_way:
        return EQUAL
    for larger in LARGER:
        share = larger if ahead is guest else 1.0 - larger
        keeps = kept_by(kept, share)
        for_s = _to_go_s(ahead) * ahead.best_rate() / ahead.rate(ahead.placement) / keeps[own]
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


def _crowds(snapshot: Snapshot) -> dict[str, list[str]]:
    """Hosts with several guests, which no plan makes: who gives out parts of GPUs by himself does. Guests that have run
    longest first."""
    found: dict[str, list[Job]] = {}
    for job in snapshot.jobs:
        if job.host is not None and job.steerable and job.running:
            found.setdefault(job.host, []).append(job)
    return {
        host: [j.job_id for j in sorted(guests, key=lambda j: (j.started or 0.0, j.job_id))]
        for host, guests in found.items()
        if len(guests) > 1
    }


def _staying(
    snapshot: Snapshot, plan: Plan, host: str, guests: Sequence[str], fixed: Mapping[str, str]
) -> dict[str, str]:
    """Those of a crowd for whom there is nothing better, as long as all accept what so many leave each of them: by
    turns, the time over their number."""
    jobs = snapshot.job
    if plan.placement(host) != jobs[host].placement:
        return {}
    there = [jobs[host], *(jobs[g] for g, h in fixed.items() if h == host)]
    stay: dict[str, str] = {}
    for guest in guests:
        together = [*there, jobs[guest]]
        (gpu_type,) = plan.placement(host).by_type
        if snapshot.pairings.get((_likeness(jobs[guest]), _likeness(jobs[host]), gpu_type)) is None:
            continue
        if guest not in plan.placements and all(len(together) <= j.slow_down + _ROUNDING for j in together):
            stay[guest], there = host, together
    return stay


def _with(plan: Plan, guests: Mapping[str, str], gains: Mapping[str, float]) -> Plan:
    placements = {**plan.placements, **{guest: plan.placements[host] for guest, host in guests.items()}}
    waits = {job_id: wait for job_id, wait in plan.waits.items() if job_id not in guests}
    turns = {guest: share for guest, share in plan.turns.items() if guest in guests}
    payoffs = {**plan.payoffs, **gains}
    return replace(plan, placements=placements, waits=waits, payoffs=payoffs, guests=dict(guests), turns=turns)


def _likeness(job: Job) -> str:
    return job.pairs_as or workload(job.model, job.batch)


def _may_share(job: Job) -> bool:
    return job.slow_down > 1 and job.fork is None and 1 in job.form.gang_sizes


class _Pair(NamedTuple):
    """A guest's host, its share of the turns there, and what the pair gains."""

    host: str
    share: float
    gain: float


@dataclass(frozen=True)
class _Matching:
    """Who may be whose guest, and what that gains."""

    snapshot: Snapshot
    plan: Plan
    guests: tuple[Job, ...]
    hosts: tuple[Job, ...]

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan, taken: frozenset[str]) -> _Matching:
        hosts = [snapshot.job[j] for j, p in plan.placements.items() if p.workers == 1 and j not in taken]
        waiting = (snapshot.job[j] for j, wait in plan.waits.items() if wait.tier is not Tier.CANNOT_RUN)
        free = (JobState.PENDING, JobState.RUNNING)
        able = (j for j in waiting if _may_share(j) and j.state in free and j.movable and j.blocked is None)
        guests = [j for j in able if j.placement or not j.running]  # of some it is not known yet where they run
        return cls(snapshot, plan, tuple(guests), tuple(j for j in hosts if _may_share(j)))

    def best(self) -> dict[str, _Pair]:
        """The pairs of the largest gain in all, by guest."""
        if not self.guests or not self.hosts:
            return {}
        from scipy.optimize import linear_sum_assignment  # only who shares pays for SciPy

        shares = (*LARGER, EQUAL) if self.snapshot.turns else (EQUAL,)
        by_share = [self._gains(share) for share in shares]
        gains, which = np.max(by_share, axis=0), np.argmax(by_share, axis=0)
        chosen = zip(*linear_sum_assignment(np.maximum(gains, 0.0), maximize=True), strict=True)
        return {
            self.guests[g].job_id: _Pair(self.hosts[h].job_id, shares[which[g, h]], float(gains[g, h]))
            for g, h in chosen
            if gains[g, h] > 0
        }

    def _gains(self, share: float) -> _Array:
        """By guest and host, where guests have this share of the turns; minus infinity for pairs that cannot be."""
        queue = _Queue.of(self.snapshot, self.plan)
        places = [self.plan.placements[h.job_id] for h in self.hosts]
        host_s = np.array([_to_go_s(h) for h in self.hosts])
        host_weights = np.array([h.weight for h in self.hosts])
        gains = np.full((len(self.guests), len(self.hosts)), -np.inf)
        kept_of: dict[tuple[str, float], tuple[_Array, _Array]] = {}
        for row, guest in enumerate(self.guests):
            likeness = _likeness(guest), guest.slow_down
            if likeness not in kept_of:
                kept_of[likeness] = self._kept(guest, places)
            kept, host_keeps = kept_of[likeness]
            possible = kept > 0
            if share != EQUAL:
                kept, host_keeps = kept_by((kept, host_keeps), share)
                possible &= knows_length(guest)
            kept = kept * self._relative(guest, places)
            possible &= kept > 0
            if not possible.any():
                continue
            to_go_s, speed, delays_s = _to_go_s(guest), np.where(possible, kept, 1.0), self._delays_s(guest, places)
            guest_ends, host_ends = to_go_s / speed, host_s / np.maximum(host_keeps, _ROUNDING)
            if share != EQUAL:
                possible &= self._afford(host_keeps, np.maximum(self.snapshot.round_s, delays_s + guest_ends))
            together_s = np.maximum(self.snapshot.round_s, np.minimum(guest_ends, host_ends))
            speed = speed * (1 - np.minimum(1.0, delays_s / together_s))
            first = guest_ends <= host_ends
            own = np.where(first, speed * (1 + queue.wait_s(to_go_s) / to_go_s) - 1, speed - (1 - host_keeps))
            held_up = host_weights + queue.behind(host_s) - (to_go_s > host_s) / queue.gpus
            gain = guest.weight * own + queue.behind(to_go_s) * speed - held_up * (1 - host_keeps)
            gains[row] = np.where(possible, gain, -np.inf)
        return gains

    def _afford(self, keeps: _Array, for_s: _Array) -> Any:
        """Which hosts accept to keep so much of their speeds for so long, of those that can be told to, and whose ends
        are known."""
        each = zip(self.hosts, keeps, for_s, strict=True)
        return np.array([h.gives_way and knows_length(h) and affords(h, float(k), float(s)) for h, k, s in each])

    def _kept(self, guest: Job, places: Sequence[Placement]) -> tuple[_Array, _Array]:
        """What such a guest keeps beside each host, 0 where it cannot be; and what the host does, 1 there."""
        pairs = [beside(self.snapshot, guest, host, p) for host, p in zip(self.hosts, places, strict=True)]
        return np.array([p[0] if p else 0.0 for p in pairs]), np.array([p[1] if p else 1.0 for p in pairs])

    def _relative(self, guest: Job, places: Sequence[Placement]) -> _Array:
        """How fast the guest alone is at the hosts' places, against its fastest type; 0 where it may not be. One that
        could not be moved any more would be there to its end, and goes to its fastest type only."""
        best, least = guest.best_rate(), 0.0 if guest.unmovable is None else 1.0 - _ROUNDING
        of = {p: guest.rate(p) / best if best > 0 and _admits(self.snapshot, guest, p) else 0.0 for p in {*places}}
        return np.array([of[p] if of[p] >= least else 0.0 for p in places])

    def _delays_s(self, guest: Job, places: Sequence[Placement]) -> _Array:
        """What it costs the guest to get to each host."""
        away_s = guest.restart_cost_s if guest.running or guest.done_steps > 0 else 0.0
        delays = np.full(len(places), away_s)
        for column, host in enumerate(self.hosts):
            if guest.running and guest.placement == places[column]:
                same = guest.host == host.job_id or _takes_over(self.snapshot, self.plan, guest, host.job_id)
                delays[column] = 0.0 if same else away_s
        return delays


@dataclass(frozen=True)
class _Queue:
    """What waits, in ascending order of what is left of each; and how long the first GPU is not free."""

    left_s: _Array
    ahead_s: _Array
    free_s: float
    gpus: int

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan) -> _Queue:
        left_s = np.sort(np.array([_to_go_s(snapshot.job[j]) for j in plan.waits]))
        gpus = max(1, sum(n for there in snapshot.capacity().values() for n in there.values()))
        free_s = min(_to_go_s(snapshot.job[j]) for j in plan.placements)
        return cls(left_s, np.concatenate([[0.0], np.cumsum(left_s)]), free_s, gpus)

    def behind(self, left_s: Any) -> Any:
        """How many have more to do, for each GPU."""
        return (len(self.left_s) - np.searchsorted(self.left_s, left_s, side="right")) / self.gpus

    def wait_s(self, left_s: float) -> float:
        """How long one with so much to do would wait."""
        return float(self.ahead_s[np.searchsorted(self.left_s, left_s, side="left")]) / self.gpus + self.free_s


def _admits(snapshot: Snapshot, job: Job, where: Placement) -> bool:
    if job.running and job.placement == where:
        return job.rate(where) > 0
    there = (n for n in where.nodes if n in snapshot.node and snapshot.node[n].available)
    open_ = {*where.nodes} == {*there} & open_nodes(snapshot, job)
    return open_ and job.form.refusal(where) is None and job.rate(where) > 0


def _to_go_s(job: Job) -> float:
    """What is left of a job, in seconds on its fastest GPU type."""
    rate = job.best_rate()
    return job.steps_to_go(rate, UNKNOWN_RUNTIME_S) / rate if rate > 0 else UNKNOWN_RUNTIME_S

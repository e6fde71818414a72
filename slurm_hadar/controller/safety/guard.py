"""Limits on what one round may do: the plan in, the changes that are allowed out.

Whatever is vetoed keeps what it has, and whatever counted on GPUs that then do not come free waits. The result never
exceeds capacity: it is checked against the GPUs that jobs which stay really hold.
"""

from __future__ import annotations

import enum
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from slurm_hadar.config import Config, GuardSection
from slurm_hadar.model import EMPTY, Basis, Job, JobState, Placement, Plan, Snapshot, Tier
from slurm_hadar.policies.toolkit.admission import refusals
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.shared_gpus.company import all_accept, may_be_several, on_same_gpu, shares_kept
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL
from slurm_hadar.units import span

__all__ = ["Change", "ChangeKind", "changes_of", "limit", "fit", "unmovable_reason"]


_SERVES = "it is a server of models, which is not stopped for others"
_HOST_GONE = "the job beside which it was to run is not there"
_NO_ROOM = "the GPUs it was to start on did not come free"


class ChangeKind(enum.StrEnum):
    """What a plan means for one job, seen from what it does now."""

    STAY = "stay"
    START = "start"
    MOVE = "move"
    PREEMPT = "preempt"
    WAIT = "wait"

    @property
    def stops(self) -> bool:
        """Whether a running job is stopped."""
        return self in (ChangeKind.MOVE, ChangeKind.PREEMPT)

    @property
    def occupies(self) -> bool:
        """Whether the job takes GPUs it does not hold yet."""
        return self in (ChangeKind.START, ChangeKind.MOVE)


@dataclass(frozen=True, slots=True)
class Change:
    """What shall happen to one job: from ``old`` to ``new``. ``reason`` is the policy's; ``veto`` is why it is put off
    instead, "" for a change that may be. ``payoff`` orders changes when not all may be. ``host``: the job on whose GPU
    it then is a guest, with this share of the ``turns`` there. ``shards``: of how many shards of its GPU Slurm is told,
    0 = as many as its owner asked for. ``tier``: what kind of reason the policy's is, of a job that is to wait."""

    kind: ChangeKind
    job_id: str
    old: Placement = EMPTY
    new: Placement = EMPTY
    reason: str = ""
    payoff: float = 0.0
    price: float | None = None
    veto: str = ""
    host: str | None = None
    turns: float = EQUAL
    shards: int = 0
    tier: Tier | None = None

    @property
    def why(self) -> str:
        """What people are told."""
        return f"put off: {self.veto}" if self.veto else self.reason


def changes_of(snapshot: Snapshot, plan: Plan) -> list[Change]:
    """What ``plan`` changes, for every steerable job, in order of arrival."""
    return [_change(snapshot, job, plan) for job in snapshot.steerable_jobs]


def _change(snapshot: Snapshot, job: Job, plan: Plan) -> Change:
    job_id = job.job_id
    new = plan.placements.get(job_id, EMPTY)
    wait = plan.waits.get(job_id)
    why, price, tier = (wait.why, wait.price, wait.tier) if wait else ("", None, None)
    payoff = plan.payoffs.get(job_id, 0.0)
    company: dict[str, Any] = {"host": plan.guests.get(job_id), "turns": plan.turns.get(job_id, EQUAL)}
    if job_id in plan.guests and job.host != plan.guests[job_id]:
        why = why or _company(snapshot, job, plan)
    if job.state is not JobState.RUNNING:
        kind = ChangeKind.START if new.shares else ChangeKind.WAIT
        return Change(kind, job_id, EMPTY, new, why, payoff, price, **company, tier=tier)
    old = job.placement
    stays = new == old and on_same_gpu(snapshot, plan, job)
    kind = ChangeKind.STAY if stays else ChangeKind.MOVE if new else ChangeKind.PREEMPT
    if kind is ChangeKind.MOVE and not why:
        why = _gain(job, old, new) if new != old else f"to a GPU of its own, no longer on that of job {job.host}"
    return Change(kind, job_id, old, new, why, payoff, price, **company, tier=tier)


def _company(snapshot: Snapshot, guest: Job, plan: Plan) -> str:
    host_id, where = plan.guests[guest.job_id], plan.placements[guest.job_id]
    guests = [snapshot.job[g] for g, h in plan.guests.items() if h == host_id]
    shown = (replace(g, host=host_id, placement=where, turns=plan.turns.get(g.job_id, EQUAL)) for g in guests)
    kept = shares_kept(snapshot, {host_id: snapshot.job[host_id], **{g.job_id: g for g in shown}})
    others = [host_id, *(g.job_id for g in guests if g is not guest)]
    company = f"on one GPU with {'job' if len(others) == 1 else 'jobs'} {', '.join(others)}"
    if not kept:
        return company
    mine, least = (f"{100 * share:.0f} %" for share in (kept[guest.job_id], min(kept[j] for j in others)))
    theirs = f"that one {least}" if len(others) == 1 else f"each of those {least} at least"
    return f"{company}: it keeps {mine} of its speed, {theirs}"


def _gain(job: Job, old: Placement, new: Placement) -> str:
    before, after = job.rate(old), job.rate(new)
    if before <= 0 or after <= 0:
        return "moved by the plan"
    known = {s.basis for p in (old, new) for t in p.by_type if (s := job.speeds_at(p.workers).get(t)) is not None}
    if Basis.UNKNOWN in known:
        return f"{after / before:.3g} times as fast by the data sheets; its speed is not known"
    return f"{before:.3g} -> {after:.3g} steps/s" + ("" if known == {Basis.MEASURED} else " (estimated)")


def unmovable_reason(guard: GuardSection, moves: int, since: float = -math.inf, now: float = 0.0) -> str | None:
    """Why the limits let a job that runs ``since`` then (epoch seconds) stay where it is, after so many moves; None if
    they do not."""
    if moves >= guard.max_moves_per_job:
        return f"was moved {moves} times, the most that guard.max_moves_per_job allows"
    if now - since < guard.min_run_s:
        until = time.strftime("%H:%M:%S", time.localtime(since + guard.min_run_s))
        return f"is younger than guard.min_run_s = {guard.min_run_s:g} s until {until}"
    return None


def limit(snapshot: Snapshot, changes: Iterable[Change], config: Config) -> list[Change]:
    """Apply the configuration's limits; the changes with the largest payoff are kept, and those that make room for
    them."""
    guard = config.guard
    changes = [_served(snapshot.job[c.job_id], c) for c in changes]
    vetoed = _stretched(snapshot, changes, guard.max_stretch) | _not_worth_a_boot(snapshot, changes)
    idle = (ChangeKind.WAIT, ChangeKind.STAY)
    active = [c for c in changes if c.kind not in idle and c.job_id not in vetoed]
    budget = max(1, int(guard.max_changed_share * len(changes))) if guard.max_changed_share < 1 else len(changes)
    if vetoed or len(active) > budget or sum(c.kind.stops for c in active) > guard.max_preemptions:
        vetoed |= _Quota(Arena.of(snapshot), active, guard, budget).put_off()
    return fit(snapshot, changes, vetoed)


class _Quota:
    """Which changes a round makes when it may not make all.

    A change counts together with those that make room for it, since nothing would come of it without them: all of these
    or none. Only where the first of all is more than a round may do, as many are stopped for it as may be, and the next
    round goes on from there. ``_free``: GPUs per slot after what is admitted; ``_leaving``: who is to leave each slot.
    """

    def __init__(self, arena: Arena, active: Sequence[Change], guard: GuardSection, budget: int) -> None:
        self._active, self._guard, self._budget = active, guard, budget
        self._held = {j.job_id: arena.gang(j.held) for j in arena.snapshot.steerable_jobs if j.host is None}
        self._wanted = {c.job_id: arena.gang(c.new) for c in active if c.host is None}
        self._free = arena.capacity.copy()
        for slot, count in itertools.chain.from_iterable(self._held.values()):
            self._free[slot] -= count
        self._leaving: dict[int, list[Change]] = {}
        for change in sorted((c for c in active if c.kind.stops), key=lambda c: bool(c.new)):
            for slot, _ in self._held.get(change.job_id, ()):
                self._leaving.setdefault(slot, []).append(change)
        self._admitted, self._stops = set[str](), 0

    def put_off(self) -> dict[str, str]:
        """Who waits or stays for now, and why."""
        vetoed, later = dict[str, str](), set[int]()  # slots of those put off
        coming = {c.job_id for c in self._active}  # who is to be a guest of one of these comes after it
        for change in sorted(self._active, key=lambda c: (not c.new, c.host in coming, -c.payoff, c.job_id)):
            if change.job_id in self._admitted:
                continue
            group, enough = self._with_room(change)
            why = self._beyond(group) if enough else _NO_ROOM
            if not change.new and not later.isdisjoint(slot for slot, _ in self._held.get(change.job_id, ())):
                why = why or "who was to have its GPUs is put off"
            if not why:
                self._admit(group)
                continue
            vetoed[change.job_id] = why
            later |= {slot for c in group for slot, _ in self._wanted.get(c.job_id, ())}
            if change.new and enough and not self._admitted:
                most = min(self._guard.max_preemptions, self._budget)
                self._admit([c for c in group if c.kind is ChangeKind.PREEMPT][:most])
        return {job_id: why for job_id, why in vetoed.items() if job_id not in self._admitted}

    def _with_room(self, change: Change) -> tuple[list[Change], bool]:
        """The change with those of others that make room for it, as far as they are not admitted; and whether that is
        room enough."""
        group, free = {change.job_id: change}, self._free.copy()
        todo = [change]
        while todo:
            one = todo.pop()
            self._make(one, free)
            short = (slot for c in group.values() for slot, _ in self._wanted.get(c.job_id, ()) if free[slot] < 0)
            slot = next(short, None)
            if slot is None:
                return [*group.values()], True
            leaves = (c for c in self._leaving.get(slot, ()) if c.job_id not in group)
            todo = [*itertools.islice((c for c in leaves if c.job_id not in self._admitted), 1)]
            group |= {c.job_id: c for c in todo}
        return [*group.values()], False

    def _beyond(self, group: Sequence[Change]) -> str:
        """The limit that would not be kept if these changes were made too; "" if all are."""
        guard, stops = self._guard, sum(c.kind.stops for c in group)
        if stops and self._stops + stops > guard.max_preemptions:
            return f"guard.max_preemptions = {guard.max_preemptions} a round"
        if len(self._admitted) + len(group) > self._budget:
            return f"guard.max_changed_share = {guard.max_changed_share:g} of the queue a round"
        return ""

    def _admit(self, group: Sequence[Change]) -> None:
        for change in group:
            self._admitted.add(change.job_id)
            self._stops += change.kind.stops
            self._make(change, self._free)

    def _make(self, change: Change, free: list[int]) -> None:
        """What is free when this is done."""
        for gang, sign in ((self._held.get(change.job_id, ()), 1), (self._wanted.get(change.job_id, ()), -1)):
            for slot, count in gang:
                free[slot] += sign * count


def _served(job: Job, change: Change) -> Change:
    """A server of models is not stopped for others: it goes on, where it is, with the fewest GPUs that it may have
    there. Who calls itself one gains what any job has that does not say that it saves: it keeps its place."""
    if not job.serves or change.kind is not ChangeKind.PREEMPT:
        return change
    least = _fewest(job)
    if least == job.placement:
        return _veto(change, _SERVES)
    return replace(change, kind=ChangeKind.MOVE, new=least, reason=f"{_SERVES}, and goes on with fewer GPUs")


def _fewest(job: Job) -> Placement:
    """The smallest gang on the nodes that the job has, with as many GPUs on each."""
    shares = job.placement.shares
    for size in job.form.gang_sizes:
        each, rest = divmod(size, len(shares))
        smaller = Placement(tuple((node, ((counts[0][0], each),)) for node, counts in shares))
        fits = rest == 0 < each and all(len(counts) == 1 and counts[0][1] >= each for _, counts in shares)
        if fits and job.form.refusal(smaller) is None:
            return smaller
    return job.placement


def _with_hosts(snapshot: Snapshot, changes: Sequence[Change]) -> list[Change]:
    """The same with guests only where their hosts are: where a veto has left a host elsewhere, a guest that runs stays
    with the host that it has, if that stays, and else ends its run; one that waits waits on. More than one guest a host
    has only where all there accept that."""
    stay = {c.job_id for c in changes if c.kind is ChangeKind.STAY and c.host is None}
    there: dict[str, list[str]] = {}
    found = []
    kept = [_keeping_host(snapshot, change, stay) for change in changes]
    own = {c.job_id: c.new for c in kept if c.host is None and c.new}
    for change in sorted(kept, key=lambda c: c.kind is not ChangeKind.STAY):
        old = snapshot.job[change.job_id].host
        crowded = change.host != old and not _has_room(snapshot, there, change.host, change)
        if change.host is not None and (crowded or own.get(change.host) != change.new):
            alone = old is None and change.kind is ChangeKind.STAY  # the GPU that it was to share is still its own
            goes_on = old is not None and own.get(old) == change.old and _has_room(snapshot, there, old, change)
            if alone or goes_on:
                stays = ChangeKind.STAY
                change = replace(change, kind=stays, new=change.old, host=old, turns=EQUAL, veto=_HOST_GONE)
            else:
                kind = ChangeKind.PREEMPT if change.old else ChangeKind.WAIT
                change = replace(change, kind=kind, new=EMPTY, host=None, reason=_HOST_GONE, veto="")
        if change.host is not None:
            there.setdefault(change.host, []).append(change.job_id)
        found.append(change)
    order = {c.job_id: number for number, c in enumerate(changes)}
    return sorted(found, key=lambda c: order[c.job_id])


def _keeping_host(snapshot: Snapshot, change: Change, stay: Set[str]) -> Change:
    """One that keeps what it has has its old host, if that was to go and does not; one that waits has none."""
    if change.kind is ChangeKind.WAIT and change.host is not None:
        return replace(change, host=None, turns=EQUAL)
    old = snapshot.job[change.job_id].host
    left = change.host is None and old in stay
    kept = change.kind is ChangeKind.STAY and (change.veto or left)
    return replace(change, host=old, turns=EQUAL) if kept else change


def _has_room(snapshot: Snapshot, there: Mapping[str, Sequence[str]], host: str | None, change: Change) -> bool:
    """Whether the job may be the host's guest beside those that are that by now."""
    guests = there.get(host or "", ())
    if host is None or not guests:
        return True
    jobs = [snapshot.job[j] for j in (host, *guests, change.job_id)]
    (gpu_type,) = (change.new or change.old).by_type
    return snapshot.turns and may_be_several(jobs, gpu_type) and all_accept(snapshot, jobs, gpu_type)


def _stretched(snapshot: Snapshot, changes: Sequence[Change], most: float) -> dict[str, str]:
    """Who is not stopped for others, and why: who since its submission has run too small a share of the time. Moves are
    no stops: the job goes on. Copies count together, as their parent goes on with any of them."""
    stopped = [c.job_id for c in changes if c.kind is ChangeKind.PREEMPT]
    if not most or not stopped:
        return {}
    served: dict[str, float] = {}
    for job in snapshot.jobs:
        served[job.parent] = served.get(job.parent, 0.0) + job.attained_s
    why = f"guard.max_stretch = {most:g}, and it has run less than 1/{most:g} of the time since its submission"
    jobs = map(snapshot.job.__getitem__, stopped)
    return {j.job_id: why for j in jobs if snapshot.time - j.arrival > most * served[j.parent] / j.form.workers}


def _not_worth_a_boot(snapshot: Snapshot, changes: Sequence[Change]) -> dict[str, str]:
    """Who is not moved for its own sake to a node that has to be switched on first, since until that is up it would
    have done there what it gains: policies know what a restart costs, and of no boots. One that is moved to make room
    for others gains nothing by itself."""
    vetoed = {}
    for change in changes:
        nodes = [node for node in change.new.nodes if node not in change.old.nodes]
        boot_s = max((snapshot.node[n].boot_s for n in nodes), default=0.0)
        if change.kind is not ChangeKind.MOVE or not boot_s:
            continue
        job = snapshot.job[change.job_id]
        before, after, left = job.rate(change.old), job.rate(change.new), job.expected_remaining_steps
        if left is not None and 0 < before < after and left / before <= left / after + job.restart_cost_s + boot_s:
            vetoed[job.job_id] = f"it gains less than the {span(boot_s)} that its new nodes take to be switched on"
    return vetoed


def fit(snapshot: Snapshot, changes: Iterable[Change], vetoed: Mapping[str, str]) -> list[Change]:
    """Turn vetoed changes into staying or waiting, and make the rest fit into what then is free.

    ``vetoed`` maps a job to the reason. A move whose target is not free any more becomes a stay, which may in turn
    take GPUs from others: repeated until nothing changes, at most once per job. So does what the cluster would refuse
    beside those who stay, as for want of CPUs.
    """
    vetoed = dict(vetoed)
    pending = list(changes)
    arena = Arena.of(snapshot)
    while True:
        settled, failed = _fit(Ledger(arena, arena.capacity), pending, vetoed)
        failed = failed or (_refused(snapshot, settled) if vetoed else {})
        if not failed:
            return _with_hosts(snapshot, settled) if snapshot.pairings else settled
        vetoed.update(failed)


def _fit(ledger: Ledger, changes: list[Change], vetoed: Mapping[str, str]) -> tuple[list[Change], dict[str, str]]:
    gang = ledger.arena.gang
    decided: dict[str, Change] = {c.job_id: _veto(c, vetoed[c.job_id]) for c in changes if c.job_id in vetoed}
    for change in changes:
        held = decided.get(change.job_id, change)
        if held.kind is ChangeKind.STAY and not _is_guest(ledger.arena.snapshot, held):
            ledger.take(gang(ledger.arena.snapshot.job[held.job_id].held))
    failed: dict[str, str] = {}
    new = [c for c in changes if c.kind is not ChangeKind.WAIT and c.kind is not ChangeKind.STAY and c.kind.occupies]
    for change in sorted(new, key=lambda c: (not c.kind.stops, -c.payoff, c.job_id)):
        if change.job_id in decided or change.host is not None:
            continue
        if ledger.has_room(change.new):
            ledger.take(gang(change.new))
        elif change.kind is ChangeKind.MOVE:
            failed[change.job_id] = "the GPUs it was to move to did not come free"
        else:
            decided[change.job_id] = _veto(change, _NO_ROOM)
    return ([decided.get(c.job_id, c) for c in changes] if decided else changes), failed


def _refused(snapshot: Snapshot, changes: Sequence[Change]) -> dict[str, str]:
    """The jobs that would not start where these changes have them, with the reasons."""
    placements = {c.job_id: c.new for c in changes if c.new}
    plan = Plan("settled", placements, payoffs={c.job_id: c.payoff for c in changes})
    return {r.job_id: r.words for r in refusals(snapshot, plan)}


def _is_guest(snapshot: Snapshot, change: Change) -> bool:
    """Whether one who stays takes no GPU of its own; one that was to go stays as what it is."""
    return (snapshot.job[change.job_id].host if change.veto else change.host) is not None


def _veto(change: Change, why: str) -> Change:
    kind = ChangeKind.WAIT if change.kind in (ChangeKind.START, ChangeKind.WAIT) else ChangeKind.STAY
    new = change.old if kind is ChangeKind.STAY else EMPTY
    return replace(change, kind=kind, new=new, veto=why)

"""Which jobs that wait are matched with which that run, one with one.

What a pair is worth is our definition, and speaks of the sum of completion times, as Hadar's prices do: by how much
that sum falls in a second of two jobs together. Of two jobs and one GPU it is exact. A guest that ends before its host
has T to do, and would else wait D; what it does brings its end nearer by more than that, since it need not wait. One
that ends after its host goes on alone then, and is held up as whoever is behind that; one that cannot be moved any more
has the GPU to its end, before all who have less to do. On a cluster of G GPUs every job behind the guest is nearer to
its end, and every job behind the host is held up, by one G-th::

    gain = w_g own + n_g / G kept_g - (w_h + n_h / G) (1 - kept_h)
    own  = kept_g (1 + D / T) - 1                                       if the guest ends first
           kept_g - (1 - kept_h)                                        else, if it can be moved
           D / t - (1 - kept_g) - m_g / (G w_g) (T / t - kept_g)        else

with w the jobs' weights, n_g and n_h the others that wait and have more to do than the guest, and than the host, m_g
those that have less than the guest, t the time of the two together, kept_h what the host keeps of its speed, and kept_g
what the guest does of that on its fastest GPU type, less what a move there costs it. D is what shorter jobs that wait
have to do, over G, and the rest of the job that will be done first. Of all pairs that gain, those of the largest sum
are chosen (an assignment, in O(jobs^3) at worst).

By turns a guest may have other shares of the turns than half, and where duties are known they say what a pair keeps
(:mod:`slurm_hadar.policies.toolkit.shared_gpus.company`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from slurm_hadar.model import Job, JobState, Placement, Plan, Snapshot, Tier
from slurm_hadar.policies.toolkit.arena import open_nodes
from slurm_hadar.policies.toolkit.shared_gpus.company import (
    ROUNDING,
    by_duty,
    likeness,
    may_share,
    pair_measured,
    same_gpu,
)
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import (
    EQUAL,
    LARGER,
    affordable,
    kept_by,
    knows_length,
    patience_s,
)

__all__ = ["UNKNOWN_RUNTIME_S", "Pair", "Queue", "Reach", "able_guests", "best_pairs", "own_gain", "to_go_s"]

#: Run time on its best type that is assumed of a job whose steps nobody states or predicts, where nothing else is said.
UNKNOWN_RUNTIME_S = 3600.0

_Array = np.ndarray[Any, np.dtype[np.float64]]


class Pair(NamedTuple):
    """A guest's host, its share of the turns there, and what the pair gains."""

    host: str
    share: float
    gain: float


def able_guests(snapshot: Snapshot, plan: Plan) -> list[Job]:
    """Who of those that the plan leaves waiting may be a guest."""
    waiting = (snapshot.job[j] for j, wait in plan.waits.items() if wait.tier is not Tier.CANNOT_RUN)
    free = (JobState.PENDING, JobState.RUNNING)
    able = (j for j in waiting if may_share(j) and j.state in free and j.movable and j.blocked is None)
    return [j for j in able if j.placement or not j.running]  # of some it is not known yet where they run


def best_pairs(snapshot: Snapshot, plan: Plan, taken: frozenset[str], floors: Mapping[str, float]) -> dict[str, Pair]:
    """The pairs of the largest gain in all, by guest, with hosts that are not ``taken``. ``floors``: what guests keep
    where they may stay; they leave for more only."""
    guests = able_guests(snapshot, plan)
    hosts = [snapshot.job[j] for j, p in plan.placements.items() if p.workers == 1 and j not in taken]
    return _Matching(snapshot, plan, guests, [j for j in hosts if may_share(j)], floors).best()


class Reach:
    """How fast jobs would be at these places, which are on one GPU each."""

    def __init__(self, snapshot: Snapshot, places: Sequence[Placement]) -> None:
        self._snapshot, self._places = snapshot, places
        self._known: dict[Hashable, _Array] = {}

    def relative(self, guest: Job) -> _Array:
        """How fast the guest alone is at each place, against its fastest type; 0 where it may not be. One that could
        not be moved any more would be there to its end, and goes to its fastest type only."""
        like = guest.form, guest.partition, guest.unmovable is None, tuple(guest.speeds.items())
        here = guest.placement if guest.running else None
        if (like, here) not in self._known:
            best, least = guest.best_rate(), 0.0 if guest.unmovable is None else 1.0 - ROUNDING
            admitted = {p for p in {*self._places} if best > 0 and _admits(self._snapshot, guest, p)}
            of = {p: guest.rate(p) / best for p in admitted}
            self._known[like, here] = np.array([r if (r := of.get(p, 0.0)) >= least else 0.0 for p in self._places])
        return self._known[like, here]


class _Matching:
    """Who may be whose guest, and what that gains."""

    def __init__(
        self, snapshot: Snapshot, plan: Plan, guests: Sequence[Job], hosts: Sequence[Job], floors: Mapping[str, float]
    ) -> None:
        self.snapshot, self.plan, self.guests, self.hosts, self.floors = snapshot, plan, guests, hosts, floors
        self.places = [plan.placements[h.job_id] for h in hosts]
        self.types = [next(iter(p.by_type)) for p in self.places]
        self.type_names = sorted({*self.types})
        self.type_codes = np.array([self.type_names.index(t) for t in self.types], int)
        self.users = np.array([h.user for h in hosts])
        self.reach = Reach(snapshot, self.places)
        self.slow_downs = np.array([h.slow_down for h in hosts])
        self.duties = np.array([h.duty.get(t, 1.0) for h, t in zip(hosts, self.types, strict=True)])
        self.patience_s = np.array([patience_s(h) for h in hosts])
        self.can_be_told = np.array([h.gives_way and knows_length(h) for h in hosts], bool)
        self._pairs: dict[str, tuple[_Array, _Array, Any]] = {}

    def best(self) -> dict[str, Pair]:
        """The pairs of the largest gain in all, by guest. Of shares that gain as much, equal ones are taken."""
        if not self.guests or not self.hosts:
            return {}
        from scipy.optimize import linear_sum_assignment  # only who shares pays for SciPy

        shares = (EQUAL, *LARGER) if self.snapshot.turns else (EQUAL,)
        gains_of = self._gains(shares)
        gains, which = np.max(gains_of, axis=0), np.argmax(gains_of, axis=0)
        which = np.where(gains_of[0] >= gains - ROUNDING, 0, which)
        chosen = zip(*linear_sum_assignment(np.maximum(gains, 0.0), maximize=True), strict=True)
        return {
            self.guests[g].job_id: Pair(self.hosts[h].job_id, shares[which[g, h]], float(gains[g, h]))
            for g, h in chosen
            if gains[g, h] > 0
        }

    def _gains(self, shares: Sequence[float]) -> _Array:
        """By share, guest and host; minus infinity for pairs that cannot be."""
        queue = Queue.of(self.snapshot, self.plan)
        gains = np.full((len(shares), len(self.guests), len(self.hosts)), -np.inf)
        host_s = np.array([to_go_s(h) for h in self.hosts])
        behind = np.array([h.weight for h in self.hosts]) + queue.behind(host_s)
        for row, guest in enumerate(self.guests):
            relative, delays_s = self.reach.relative(guest), self._delays_s(guest)
            for number, share in enumerate(shares if knows_length(guest) else (EQUAL,)):
                kept, host_keeps = self._kept(guest, share)
                kept = kept * relative
                possible = kept > 0
                if not possible.any():
                    continue
                left_s, speed = to_go_s(guest), np.where(possible, kept, 1.0)
                guest_ends, host_ends = left_s / speed, host_s / np.maximum(host_keeps, ROUNDING)
                if share != EQUAL:
                    possible &= self._afford(host_keeps, np.maximum(self.snapshot.round_s, delays_s + guest_ends))
                together_s = np.maximum(self.snapshot.round_s, np.minimum(guest_ends, host_ends))
                speed = speed * (1 - np.minimum(1.0, delays_s / together_s))
                possible &= speed > self.floors.get(guest.job_id, -1.0)
                own = own_gain(
                    guest.weight, left_s, speed, together_s, first=guest_ends <= host_ends, lost=1 - host_keeps,
                    stuck=guest.unmovable is not None, wait_s=queue.wait_s(left_s), before=queue.before(left_s),
                )  # fmt: skip
                held_up = behind - (left_s > host_s) / queue.gpus
                gain = own + queue.behind(left_s) * speed - held_up * (1 - host_keeps)
                gains[number, row] = np.where(possible, gain, -np.inf)
        return gains

    def _afford(self, keeps: _Array, for_s: _Array) -> Any:
        """Which hosts accept to keep so much of their speeds for so long, of those that can be told to, and whose ends
        are known."""
        return self.can_be_told & affordable(self.slow_downs, self.patience_s, keeps, for_s)

    def _kept(self, guest: Job, share: float) -> tuple[_Array, _Array]:
        """What the guest keeps beside each host by this share of the turns, 0 where it cannot be, since by equal turns
        it is more than one of them accepts; and what the host does, 1 there."""
        known, hosts_known, measured = self._known(guest)
        own = np.array([guest.duty.get(t, 1.0) for t in self.type_names])[self.type_codes]
        believed = self.snapshot.turns & (np.minimum(own, self.duties) < 1) & ~measured & (known > 0)
        if believed.any():
            believed &= self.users == guest.user
        equal = by_duty(own, self.duties, EQUAL)
        kept, host_keeps = np.where(believed, equal[0], known), np.where(believed, equal[1], hosts_known)
        accepted = (kept * guest.slow_down >= 1 - ROUNDING) & (host_keeps * self.slow_downs >= 1 - ROUNDING)
        if share != EQUAL:
            by_turns, reckoned = kept_by((known, hosts_known), share), by_duty(own, self.duties, share)
            kept, host_keeps = (np.where(believed, reckoned[n], by_turns[n]) for n in (0, 1))
        return np.where(accepted, kept, 0.0), np.where(accepted, host_keeps, 1.0)

    def _known(self, guest: Job) -> tuple[_Array, _Array, Any]:
        """What pairings say of such a guest beside each host, 0 and 1 where nothing; and whether that was measured."""
        like = likeness(guest)
        if like not in self._pairs:
            others = [(likeness(host), gpu_type) for host, gpu_type in zip(self.hosts, self.types, strict=True)]
            pairs = [self.snapshot.pairings.get((like, other, gpu_type)) for other, gpu_type in others]
            kept = np.array([p[0] if p else 0.0 for p in pairs]), np.array([p[1] if p else 1.0 for p in pairs])
            measured = np.array([pair_measured(self.snapshot, like, other, gpu_type) for other, gpu_type in others])
            self._pairs[like] = (*kept, measured)
        return self._pairs[like]

    def _delays_s(self, guest: Job) -> _Array:
        """What it costs the guest to get to each host."""
        away_s = guest.restart_cost_s if guest.running or guest.done_steps > 0 else 0.0
        delays = np.full(len(self.places), away_s)
        for column, host in enumerate(self.hosts if guest.running else ()):
            if guest.placement == self.places[column]:
                same = same_gpu(self.snapshot, self.plan, guest, host.job_id)
                delays[column] = 0.0 if same else away_s
        return delays


@dataclass(frozen=True)
class Queue:
    """What waits, in ascending order of what is left of each; and how long the first GPU is not free."""

    left_s: _Array
    ahead_s: _Array
    free_s: float
    gpus: int

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan) -> Queue:
        """Of a plan that leaves jobs waiting behind others."""
        left_s = np.sort(np.array([to_go_s(snapshot.job[j]) for j in plan.waits]))
        gpus = max(1, sum(n for there in snapshot.capacity().values() for n in there.values()))
        free_s = min(to_go_s(snapshot.job[j]) for j in plan.placements)
        return cls(left_s, np.concatenate([[0.0], np.cumsum(left_s)]), free_s, gpus)

    def behind(self, left_s: Any) -> Any:
        """How many have more to do, for each GPU."""
        return (len(self.left_s) - np.searchsorted(self.left_s, left_s, side="right")) / self.gpus

    def before(self, left_s: Any) -> Any:
        """How many have less to do, for each GPU."""
        return np.searchsorted(self.left_s, left_s, side="left") / self.gpus

    def wait_s(self, left_s: Any) -> Any:
        """How long one with so much to do would wait."""
        return self.ahead_s[np.searchsorted(self.left_s, left_s, side="left")] / self.gpus + self.free_s


def own_gain(
    weight: Any,
    left_s: Any,
    speed: Any,
    together_s: Any,
    *,
    first: Any,
    lost: Any,
    stuck: Any,
    wait_s: Any,
    before: Any,
) -> Any:
    """By how much a guest's own end comes nearer in a second together, by weight: ``w_g own`` of a pair.

    left_s: what it has to do. speed: of its fastest, while it is a guest, for ``together_s``. first: whether it ends
    before all others there, who lose ``lost`` of their speed at most. stuck: it cannot be moved any more. wait_s: how
    long it would else wait. before: how many, for each GPU, have less to do; they wait for a stuck one that goes on.
    """
    alone = np.where(
        stuck,
        weight * (wait_s / together_s - (1 - speed)) - before * (left_s / together_s - speed),
        weight * (speed - lost),
    )
    return np.where(first, weight * (speed * (1 + wait_s / left_s) - 1), alone)


def _admits(snapshot: Snapshot, job: Job, where: Placement) -> bool:
    if job.running and job.placement == where:
        return job.rate(where) > 0
    there = (n for n in where.nodes if n in snapshot.node and snapshot.node[n].available)
    open_ = {*where.nodes} == {*there} & open_nodes(snapshot, job)
    return open_ and job.form.refusal(where) is None and job.rate(where) > 0


def to_go_s(job: Job) -> float:
    """What is left of a job, in seconds on its fastest GPU type."""
    rate = job.best_rate()
    return job.steps_to_go(rate, UNKNOWN_RUNTIME_S) / rate if rate > 0 else UNKNOWN_RUNTIME_S

"""Third and later jobs on one GPU, by turns: who of those that still wait joins a host and its guests.

What that is worth is the gain of a pair (:mod:`slurm_hadar.policies.toolkit.shared_gpus.matching`) with the losses of
all who are there; our definition::

    gain = w_g own + n_g / G kept_g - sum over i there of (w_i + n_i / G) (k_i - k_i')
    own  = kept_g (1 + D / T) - 1            if the guest ends before the last of them
           kept_g - max over i (k_i - k_i')  else, if it can be moved; otherwise as of a pair

with k_i and k_i' what each keeps without the guest and with it
(:mod:`slurm_hadar.policies.toolkit.shared_gpus.company`), and all else as there. All have one user, and of one at most
the duty is not known. Nobody comes whom one of those there does not accept, or who would need more memory than there
is, where that is known; nor where one has more than equal turns.

Greedy: of all guests and GPUs the largest gain first, at most one guest for each GPU in a sweep; then the queue, which
is shorter now, is looked at anew, and the GPUs to which somebody came. A sweep is O(guests x GPUs) of array arithmetic,
and there are as many as jobs come to one GPU at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from slurm_hadar.model import Job, Plan, Snapshot
from slurm_hadar.policies.toolkit.shared_gpus.company import (
    ROUNDING,
    all_accept,
    duties_of,
    kept_by_each,
    level,
    likeness,
    may_be_several,
    may_share,
    same_gpu,
)
from slurm_hadar.policies.toolkit.shared_gpus.matching import Queue, Reach, able_guests, own_gain, to_go_s

__all__ = ["Crowded", "more_guests"]

_Array = np.ndarray[Any, np.dtype[np.float64]]


class Crowded(NamedTuple):
    """A further guest's host, and what its coming gains."""

    host: str
    gain: float


@dataclass
class _Gpu:
    """A host with its guests, in the plan; ``room`` is for how many parts more there is some, None = not counted."""

    column: int
    gpu_type: str
    there: list[Job]
    room: int | None


def more_guests(snapshot: Snapshot, plan: Plan, unequal: frozenset[str]) -> dict[str, Crowded]:
    """Further guests for hosts that have one by the plan, but for the hosts ``unequal``."""
    hosts = [h for h in dict.fromkeys(plan.guests.values()) if h not in unequal]
    guests = able_guests(snapshot, plan) if hosts and any(job.duty for job in snapshot.jobs) else []
    if not guests or not hosts:
        return {}
    return _Crowding(snapshot, plan, guests, hosts).found()


class _Crowding:
    def __init__(self, snapshot: Snapshot, plan: Plan, guests: Sequence[Job], hosts: Sequence[str]) -> None:
        self._snapshot, self._plan = snapshot, plan
        self._reach = Reach(snapshot, [plan.placements[h] for h in hosts])
        there: dict[str, list[Job]] = {h: [snapshot.job[h]] for h in hosts}
        for guest, host in plan.guests.items():
            if host in there:
                there[host].append(snapshot.job[guest])
        types = [next(iter(plan.placements[h].by_type)) for h in hosts]
        each = enumerate(zip(hosts, types, strict=True))
        gpus = [_Gpu(n, t, there[h], _room(there[h])) for n, (h, t) in each]
        self._gpus = [g for g in gpus if all(map(may_share, g.there)) and may_be_several(g.there, g.gpu_type)]
        self._waiting = _Waiting(guests, self._reach)

    def found(self) -> dict[str, Crowded]:
        """Who comes where."""
        found: dict[str, Crowded] = {}
        gpus = self._gpus
        while gpus:
            waits = {job_id: wait for job_id, wait in self._plan.waits.items() if job_id not in found}
            queue = Queue.of(self._snapshot, replace(self._plan, waits=waits))
            came = self._sweep(gpus, queue)
            found.update(came)
            hosts = {one.host for one in came.values()}
            gpus = [gpu for gpu in gpus if gpu.there[0].job_id in hosts]
        return found

    def _sweep(self, gpus: Sequence[_Gpu], queue: Queue) -> dict[str, Crowded]:
        """The largest gain first, each GPU and each guest once."""
        ahead = self._waiting.standing(queue)
        gains = [self._gains(gpu, ahead, queue) for gpu in gpus]
        best = np.array([row.max() for row in gains])
        came: dict[str, Crowded] = {}
        while (column := int(best.argmax())) >= 0 and best[column] > ROUNDING:
            gpu, row = gpus[column], gains[column]
            number = int(row.argmax())
            guest = self._waiting.jobs[number]
            if row[number] <= ROUNDING or not all_accept(self._snapshot, [*gpu.there, guest], gpu.gpu_type):
                row[number] = -np.inf  # another one has had it, or what was measured speaks against it
                best[column] = row.max()
                continue
            came[guest.job_id] = Crowded(gpu.there[0].job_id, float(row[number]))
            gpu.there.append(guest)
            gpu.room = None if gpu.room is None else gpu.room - guest.parts
            self._waiting.left[number] = False
            best[column] = -np.inf
            for other, others in enumerate(gains):
                gained, others[number] = others[number], -np.inf
                if gained > -np.inf and gained >= best[other] > -np.inf:
                    best[other] = others.max()
        return came

    def _gains(self, gpu: _Gpu, ahead: _Standing, queue: Queue) -> _Array:
        """By guest; minus infinity where it cannot be."""
        waiting = self._waiting
        duties, slow_downs = np.array(duties_of(gpu.there, gpu.gpu_type)), np.array([j.slow_down for j in gpu.there])
        wanted = waiting.duty(gpu.gpu_type, gpu.there[0].user)
        gets, leaves = _shares(duties, wanted)
        kept, lost = gets / wanted, np.zeros(len(wanted))
        known = all(j.duty.get(gpu.gpu_type, 1.0) < 1 for j in gpu.there)
        possible = waiting.left & (waiting.users == gpu.there[0].user) & (known | (wanted < 1))
        possible &= (kept * waiting.slow_down >= 1 - ROUNDING) & (leaves >= np.max(duties / slow_downs) - ROUNDING)
        possible &= waiting.fit(gpu, self._snapshot)
        speed = kept * waiting.relative[:, gpu.column]
        possible &= speed > 0
        if not possible.any():
            return np.full(len(wanted), -np.inf)
        before = kept_by_each(self._snapshot, gpu.there, gpu.gpu_type) or [1.0] * len(gpu.there)
        losses, last_s = [], np.zeros(len(wanted))
        for job, duty, keeps in zip(gpu.there, duties, before, strict=True):
            keeps_then = np.minimum(keeps, np.minimum(duty, leaves) / duty)
            left_s = to_go_s(job)
            held_up = job.weight + queue.behind(left_s) - (waiting.left_s > left_s) / queue.gpus
            losses.append(keeps - keeps_then)
            lost += held_up * losses[-1]
            last_s = np.maximum(last_s, left_s / np.maximum(keeps_then, ROUNDING))
        speed = np.where(possible, speed, 1.0)
        ends = waiting.left_s / speed
        together_s = np.maximum(self._snapshot.round_s, np.minimum(ends, last_s))
        speed = speed * (1 - np.minimum(1.0, self._delays_s(gpu) / together_s))
        own = own_gain(
            waiting.weight, waiting.left_s, speed, together_s, first=ends <= last_s, lost=np.max(losses, axis=0),
            stuck=waiting.stuck, wait_s=ahead.wait_s, before=ahead.before,
        )  # fmt: skip
        return np.where(possible, own + ahead.behind * speed - lost, -np.inf)

    def _delays_s(self, gpu: _Gpu) -> _Array:
        """What it costs guests to get there: nothing who is there."""
        host = gpu.there[0]
        delays_s = self._waiting.away_s
        mates = self._waiting.on_gpu.get(host.host or host.job_id, ())
        here = [n for n in mates if same_gpu(self._snapshot, self._plan, self._waiting.jobs[n], host.job_id)]
        if here:
            delays_s = delays_s.copy()
            delays_s[here] = 0.0
        return delays_s


@dataclass(frozen=True)
class _Standing:
    """How long each would wait, and how many, for each GPU, have less to do, and more."""

    wait_s: _Array
    before: _Array
    behind: _Array


class _Waiting:
    """Those who wait, as arrays; ``left`` are those who still do."""

    def __init__(self, jobs: Sequence[Job], reach: Reach) -> None:
        self.jobs = jobs
        self.left = np.ones(len(jobs), bool)
        self.left_s = np.array([to_go_s(j) for j in jobs])
        self.weight = np.array([j.weight for j in jobs])
        self.slow_down = np.array([j.slow_down for j in jobs])
        self.stuck = np.array([j.unmovable is not None for j in jobs], bool)
        self.users = np.array([j.user for j in jobs])
        self.parts = np.array([j.parts for j in jobs])
        self.away_s = np.array([j.restart_cost_s if j.running or j.done_steps > 0 else 0.0 for j in jobs])
        self.relative = np.array([reach.relative(j) for j in jobs])
        self.on_gpu: dict[str, list[int]] = {}
        for number, job in enumerate(jobs):
            if job.running:
                self.on_gpu.setdefault(job.host or job.job_id, []).append(number)
        self._takes = np.array([j.takes or (0, 0) for j in jobs])
        self._names = np.array([likeness(j) for j in jobs])
        self._duties: dict[str, _Array] = {}

    def standing(self, queue: Queue) -> _Standing:
        return _Standing(queue.wait_s(self.left_s), queue.before(self.left_s), queue.behind(self.left_s))

    def duty(self, gpu_type: str, user: str) -> _Array:
        """Their duties; those of other users are not believed, who are not let in either."""
        if gpu_type not in self._duties:
            self._duties[gpu_type] = np.array([j.duty.get(gpu_type, 1.0) for j in self.jobs])
        return np.where(self.users == user, self._duties[gpu_type], 1.0)

    def fit(self, gpu: _Gpu, snapshot: Snapshot) -> Any:
        """Who has room there: parts of the GPU, and memory where it is known."""
        room = np.ones(len(self.jobs), bool) if gpu.room is None else self.parts <= gpu.room
        known = [job.takes for job in gpu.there if job.takes is not None]
        most = snapshot.gpu_bytes.get(gpu.gpu_type)
        if most is None:
            return room
        persistent, ephemeral = sum(p for p, _ in known), max((e for _, e in known), default=0)
        unknown = self._takes.sum(axis=1) == 0
        needed = persistent + self._takes[:, 0] + np.maximum(ephemeral, self._takes[:, 1])
        return room & (unknown | (needed <= most))


def _shares(duties: _Array, wanted: _Array) -> tuple[_Array, _Array]:
    """What of a GPU's time each of the guests with these duties ``wanted`` gets beside jobs with ``duties``, and the
    most that one of those gets then: the levels of :func:`slurm_hadar.policies.toolkit.shared_gpus.company.level` for
    all guests at once."""
    sated = np.sort(duties)
    sums = np.concatenate([[0.0], np.cumsum(sated)])
    at = np.concatenate([[0.0], sums[1:] + (len(sated) - 1 - np.arange(len(sated))) * sated])
    most = level([*duties, 1.0])
    gets = np.minimum(wanted, most)
    return gets, np.where(wanted >= most, most, np.interp(1.0 - wanted, at, np.concatenate([[0.0], sated])))


def _room(there: Sequence[Job]) -> int | None:
    """Parts of the GPU that are left when all who are to come there have come; None where they are not counted."""
    stay = [job for job in there if job.running and job.room is not None and job.placement]
    host = there[0]
    here = [j for j in stay if (j.host or j.job_id) == (host.host or host.job_id)]
    if not here:
        return None
    return (here[0].room or 0) - sum(job.parts for job in there if job not in here)

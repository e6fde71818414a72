"""The virtual cluster where several jobs may run on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurm_hadar.config import GuardSection
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.model import Kept, Pairing, Placement
from slurm_hadar.policies.toolkit.shared_gpus.company import by_duty, keeps
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL, kept_by
from slurm_hadar.simulator.virtual.cluster import Observation, Scenario, Timing, VirtualCluster
from slurm_hadar.simulator.virtual.jobs import VirtualJob
from slurm_hadar.throughput.table import workload

__all__ = ["SharedCluster"]


class SharedCluster(VirtualCluster):
    """Jobs that run beside others make their steps at what they keep of their speeds, from when the next of them comes
    to the GPU to when one of them leaves it. Of guests whose host leaves the first is the host of the others.

    Parameters
    ----------
    pairings: what pairs truly keep, which policies know, too (:class:`slurm_hadar.model.Snapshot`). turns: they take
    turns, in the shares that a plan says, and then more than two may: what each keeps goes by all their duties, where
    one is told.

    ``pairs`` counts how often a job became another's guest, ``shared_s`` the seconds of GPUs with two jobs or more,
    ``crowded_s`` those with more than two.
    """

    def __init__(
        self,
        scenario: Scenario,
        timing: Timing,
        guard: GuardSection,
        usage_half_life_s: float,
        pairings: dict[Pairing, Kept],
        turns: bool = False,
    ) -> None:
        self._pairings, self._turns = pairings, turns
        self._guests: dict[str, list[VirtualJob]] = {}  # by the host's id, who has been there longest first
        self._since: dict[str, float] = {}  # two are on the host's GPU
        self._crowded: dict[str, float] = {}  # and three
        self.pairs = 0
        self.shared_s = self.crowded_s = 0.0
        self._wanted_of: dict[str, Change] = {}
        super().__init__(scenario, timing, guard, usage_half_life_s)

    def observe(self, acting_only: bool) -> Observation:
        seen = super().observe(acting_only)
        return seen.with_snapshot(replace(seen.snapshot, pairings=self._pairings, turns=self._turns))

    def carry_out(self, number: int, seen: Observation, changes: Sequence[Change]) -> Outcome:
        self._wanted_of = {c.job_id: c for c in changes if c.new}
        swaps = [c for c in changes if c.kind is ChangeKind.STAY and self._active[c.job_id].host != c.host]
        for change in swaps:
            self._part(self._active[change.job_id])
        hosts_first = sorted(changes, key=lambda c: c.host is not None)
        outcome = super().carry_out(number, seen, hosts_first)
        for change in swaps:
            self._join(self._active[change.job_id], change)
        for change in changes:
            self._share(change)
        return replace(outcome, changes=list(changes))

    def _start_job(self, job: VirtualJob, placement: Placement, delay_s: float) -> None:
        super()._start_job(job, placement, delay_s)
        self._join(job, self._wanted_of.get(job.job_id))

    def _leave(self, job: VirtualJob, now: float) -> None:
        self._part(job, now)
        guests = self._guests.pop(job.job_id, [])
        if guests:
            self._end_company(job.job_id, now)
        super()._leave(job, now)
        if guests:
            self._pass_on(guests, now)

    # Company

    def _join(self, guest: VirtualJob, change: Change | None) -> None:
        """The job becomes the guest of a running one, from now on, if the change says so."""
        if change is None or change.host is None or guest.host == change.host:
            return
        self._part(guest)
        self._count(guest, -1)
        if self._now > guest.owned:
            self._note(guest, self._now)
        guest.host, guest.turns = change.host, change.turns
        self._guests.setdefault(change.host, []).append(guest)
        self._begin_company(change.host, self._now)
        self._slow(change.host, self._now)
        self.pairs += 1

    def _share(self, change: Change) -> None:
        """Who is a guest already may have another share of the turns from now on."""
        guest = self._running.get(change.job_id)
        if guest is not None and guest.host is not None and guest.host == change.host and guest.turns != change.turns:
            guest.turns = change.turns
            self._slow(change.host, self._now)

    def _slow(self, host_id: str, now: float) -> None:
        """All on the host's GPU make steps at what they keep from now on."""
        host, guests = self._running[host_id], self._guests.get(host_id, [])
        there = [*guests, host]
        kept: Sequence[float]
        if not guests:
            kept = [1.0]
        elif len(guests) == 1:
            kept = self._kept(guests[0], host)
        else:
            kept = keeps([job.trace.duty for job in there])
        self._charge(there, now)
        for job, share in zip(there, kept, strict=True):
            job.slow(now, share)

    def _charge(self, there: Sequence[VirtualJob], now: float) -> None:
        """From ``now`` on each of a host's guests and the host has its part of the GPU: its turns, or an equal one."""
        equal = [1.0 / len(there)] * len(there)
        parts = [there[0].turns, 1.0 - there[0].turns] if len(there) == 2 else equal
        for job, part in zip(there, parts, strict=True):
            self._book(job, now)
            job.charged = part

    def _kept(self, guest: VirtualJob, host: VirtualJob) -> Kept:
        """What a pair keeps."""
        duties = guest.trace.duty, host.trace.duty
        if self._turns and min(duties) < 1:
            found = by_duty(*duties, guest.turns)
            return float(found[0]), float(found[1])
        of = [workload(j.trace.model, j.trace.batch) for j in (guest, host)]
        return kept_by(self._pairings[of[0], of[1], next(iter(guest.by_type))], guest.turns)

    def _part(self, guest: VirtualJob, now: float | None = None) -> None:
        """The job is nobody's guest any more; those whose company it was have more of their speeds."""
        now = self._now if now is None else now
        if guest.host is None:
            return
        host, others = guest.host, self._guests[guest.host]
        others.remove(guest)
        self._end_company(host, now)
        if others:
            self._begin_company(host, now)
        else:
            del self._guests[host]
        self._slow(host, now)
        self._own(guest, now)
        self._charge([guest], now)
        guest.slow(now, 1.0)

    def _pass_on(self, guests: list[VirtualJob], now: float) -> None:
        """The GPU of a host that has left is the first guest's."""
        host, *others = guests
        self._own(host, now)
        for guest in others:
            guest.host = host.job_id
        if others:
            self._guests[host.job_id] = others
            self._begin_company(host.job_id, now)
        self._slow(host.job_id, now)

    def _own(self, guest: VirtualJob, now: float) -> None:
        guest.host, guest.turns, guest.owned = None, EQUAL, now
        self._count(guest, 1)

    def _begin_company(self, host: str, now: float) -> None:
        self._since.setdefault(host, now)
        if len(self._guests[host]) > 1:
            self._crowded.setdefault(host, now)

    def _end_company(self, host: str, now: float) -> None:
        self.shared_s += now - self._since.pop(host)
        self.crowded_s += now - self._crowded.pop(host, now)

    def _count(self, job: VirtualJob, sign: int) -> None:
        """GPUs count as busy once, however many are on them."""
        for gpu_type, count in job.by_type.items():
            self.busy[gpu_type] += sign * count

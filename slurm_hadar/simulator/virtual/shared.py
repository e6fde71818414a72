"""The virtual cluster where two jobs may run on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurm_hadar.config import GuardSection
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.model import Kept, Pairing, Placement
from slurm_hadar.policies.toolkit.turn_shares import EQUAL, kept_by
from slurm_hadar.simulator.virtual.cluster import Observation, Scenario, Timing, VirtualCluster
from slurm_hadar.simulator.virtual.jobs import VirtualJob
from slurm_hadar.throughput.table import workload

__all__ = ["SharedCluster"]


class SharedCluster(VirtualCluster):
    """Jobs that run beside another make their steps at what the pair keeps of its speeds, from when the second of them
    holds the GPU to when one of them leaves it. A guest whose host leaves has the GPU for itself.

    Parameters
    ----------
    pairings: what pairs truly keep, which policies know, too (:class:`slurm_hadar.model.Snapshot`). turns: they take
    turns, in the shares that a plan says.

    ``pairs`` counts how often a job became another's guest, ``shared_s`` the seconds of GPUs with two jobs.
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
        self._guest_of: dict[str, VirtualJob] = {}  # by the host's id
        self._joined: dict[str, float] = {}
        self.pairs = 0
        self.shared_s = 0.0
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
        guest = self._guest_of.pop(job.job_id, None)
        super()._leave(job, now)
        if guest is not None:
            self._own(guest, now)

    # Company

    def _join(self, guest: VirtualJob, change: Change | None) -> None:
        """The job becomes the guest of a running one, from now on, if the change says so."""
        if change is None or change.host is None:
            return
        self._count(guest, -1)
        if self._now > guest.owned:
            self._note(guest, self._now)
        guest.host, self._guest_of[change.host] = change.host, guest
        self._slow(guest, change.turns)
        self._joined[guest.job_id] = self._now
        self.pairs += 1

    def _share(self, change: Change) -> None:
        """Who is a guest already may have another share of the turns from now on."""
        guest = self._running.get(change.job_id)
        if guest is not None and guest.host is not None and guest.host == change.host and guest.turns != change.turns:
            self._slow(guest, change.turns)

    def _slow(self, guest: VirtualJob, turns: float) -> None:
        """Guest and host make steps at what they keep by such a share of the turns."""
        assert guest.host is not None
        host, gpu_type = self._running[guest.host], next(iter(guest.by_type))
        of = [workload(j.trace.model, j.trace.batch) for j in (guest, host)]
        kept = kept_by(self._pairings[of[0], of[1], gpu_type], turns)
        guest.turns = turns
        guest.slow(self._now, kept[0])
        host.slow(self._now, kept[1])

    def _part(self, guest: VirtualJob, now: float | None = None) -> None:
        """The job is nobody's guest any more; its host has its speed back."""
        now = self._now if now is None else now
        if guest.host is None:
            return
        self._running[guest.host].slow(now, 1.0)
        del self._guest_of[guest.host]
        self._own(guest, now)

    def _own(self, guest: VirtualJob, now: float) -> None:
        self.shared_s += now - self._joined.pop(guest.job_id)
        guest.host, guest.turns = None, EQUAL
        guest.owned = now
        guest.slow(now, 1.0)
        self._count(guest, 1)

    def _count(self, job: VirtualJob, sign: int) -> None:
        """GPUs count as busy once, however many are on them."""
        for gpu_type, count in job.by_type.items():
            self.busy[gpu_type] += sign * count

"""What keeps Slurm from starting a job although GPUs are free, with the reason that it then shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import Bounds, Licence, Limit, Reservation, SlurmJob

__all__ = ["Limits", "gpus_of", "holds_gpus"]


@dataclass
class Limits:
    """``qos_gpus``: most GPUs of a user in a QOS; ``account_gpus``: of all users in an account; ``licences``: how many
    of each there are; ``throttles``: most tasks of an array at once, by array job; ``reservations`` by name."""

    qos_gpus: dict[str, int] = field(default_factory=dict)
    account_gpus: dict[str, int] = field(default_factory=dict)
    licences: dict[str, int] = field(default_factory=dict)
    throttles: dict[str, int] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)

    def reason(self, job: SlurmJob, jobs: Iterable[SlurmJob], now: float) -> str | None:
        """Why Slurm does not even look for nodes; None if it does."""
        others = [j for j in jobs if holds_gpus(j)]
        return self._by_gpus(job, others) or self._by_licence(job, others) or self._by_reservation(job, now)

    def throttled(self, job: SlurmJob, jobs: Iterable[SlurmJob]) -> bool:
        """Whether as many tasks of its array run as may; Slurm says so even of one whose start time is to come."""
        if job.array_id not in self.throttles:
            return False
        return sum(j.array_id == job.array_id for j in jobs if holds_gpus(j)) >= self.throttles[job.array_id]

    def _by_gpus(self, job: SlurmJob, others: list[SlurmJob]) -> str | None:
        if job.qos in self.qos_gpus:
            used = sum(gpus_of(j) for j in others if (j.user, j.qos) == (job.user, job.qos))
            if used + gpus_of(job) > self.qos_gpus[job.qos]:
                return "QOSMaxGRESPerUser"
        if job.account in self.account_gpus:
            used = sum(gpus_of(j) for j in others if j.account == job.account)
            if used + gpus_of(job) > self.account_gpus[job.account]:
                return "AssocGrpGRES"
        return None

    def _by_licence(self, job: SlurmJob, others: list[SlurmJob]) -> str | None:
        used: Counter[str] = sum((_licences(j) for j in others), Counter())
        short = [n for n, count in _licences(job).items() if used[n] + count > self.licences.get(n, 0)]
        return "Licenses" if short else None

    def _by_reservation(self, job: SlurmJob, now: float) -> str | None:
        if not job.reservation:
            return None
        reservation = self.reservations.get(job.reservation)
        if reservation is None:
            return "ReservationDeleted"
        return "Reservation" if reservation.start > now else None

    def bounds(self, jobs: Iterable[SlurmJob]) -> Bounds:
        """What ``scontrol show assoc``, ``licenses`` and ``reservations`` would tell."""
        every = list(jobs)
        others = [j for j in every if holds_gpus(j)]
        used: Counter[str] = sum((_licences(j) for j in others), Counter())
        limits = [
            Limit(("account", name), "gres/gpu", most, sum(gpus_of(j) for j in others if j.account == name))
            for name, most in self.account_gpus.items()
        ]
        for qos, uid in sorted({(j.qos, j.uid) for j in every if j.qos in self.qos_gpus and j.uid is not None}):
            held = sum(gpus_of(j) for j in others if (j.uid, j.qos) == (uid, qos))
            limits.append(Limit(("qos-user", qos, str(uid)), "gres/gpu", self.qos_gpus[qos], held))
        licences = {n: Licence(n, total, max(0, total - used[n])) for n, total in self.licences.items()}
        return Bounds(tuple(limits), licences, tuple(self.reservations.values()))

    def admits(self, job: SlurmJob, node: str, now: float) -> bool:
        """Whether reservations leave the node to the job: its own has it, or none begins before its time limit ends."""
        if job.reservation in self.reservations:
            return node in self.reservations[job.reservation].nodes
        until = now + (math.inf if job.time_limit_s is None else job.time_limit_s)
        return not any(node in r.nodes and r.start < until and now < r.end for r in self.reservations.values())


def holds_gpus(job: SlurmJob) -> bool:
    """Whether GPUs are taken by it: a suspended job keeps them."""
    return job.state in (JobState.RUNNING, JobState.SUSPENDED)


def gpus_of(job: SlurmJob) -> int:
    """How many GPUs the job asks for in all."""
    count = job.gpus[0].count if job.gpus else 0
    return count * max(1, job.num_nodes) if job.gpus and job.gpus[0].per == "node" else count


def _licences(job: SlurmJob) -> Counter[str]:
    pairs = (part.partition(":") for part in job.licenses.split(",") if part)
    return Counter({name: int(count) if count.isdecimal() else 1 for name, _, count in pairs})

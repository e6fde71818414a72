"""Hands out the GPUs of a round, one job after the other: what all policies that go by an order of jobs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurm_hadar.model import Job, Mix, Placement, Plan, Tier, Wait
from slurm_hadar.policies.toolkit.arena import Arena, Gang, find_gang
from slurm_hadar.policies.toolkit.waits import Obstacles

__all__ = ["Dealer"]


class Dealer:
    """The free GPUs of a round, and who has been given which.

    Running jobs that must not move have theirs from the start. A running job that is dealt the GPU type it runs on
    keeps its GPUs if nobody has them yet; jobs that are placed anew take GPUs that no running job holds as long as
    there are such.

    Attributes
    ----------
    free: free GPUs per slot of ``arena``.
    room: the same, summed per GPU type.
    placements: what has been given so far.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.free = arena.free.copy()
        self.room: dict[str, int] = dict.fromkeys(arena.types, 0)
        self.placements: dict[str, Placement] = dict(arena.kept)
        for slot, count in enumerate(self.free):
            self.room[arena.type_of[slot]] += count
        self._gangs = {j.job_id: arena.gang(j.placement) for j in arena.movers if j.running}
        self._held = [0] * len(self.free)
        self._hold(self._gangs.values())
        self._nodes: dict[tuple, dict[str, int]] = {}

    def rates(self, job: Job) -> dict[str, float]:
        """Steps/s of the whole gang on each GPU type where it would find a place if no running job that may move were
        there: on one node if it fits on one, else slowed down by being spread."""
        by_type = self.arena.reach(job).by_type
        key = (job.partition, job.form, tuple(by_type))
        if key not in self._nodes:
            places = {t: find_gang(job.form, [(s,) for s in slots], self.arena.free) for t, slots in by_type.items()}
            self._nodes[key] = {t: len(gang) for t, gang in places.items() if gang}
        speeds = job.speeds
        return {t: speeds[t].on(nodes) for t, nodes in self._nodes[key].items()}

    def keep(self, job: Job) -> bool:
        """Leave a running job where it is, if nobody was given one of its GPUs."""
        gang = self._gangs.get(job.job_id)
        if gang is None or any(self.free[slot] < count for slot, count in gang):
            return False
        self._give(job, job.placement, gang)
        return True

    def place(self, job: Job, gpu_type: str) -> bool:
        """Give the job a gang of one type: the one it has, else the place that disturbs least."""
        if self.room[gpu_type] < job.form.workers:
            return False
        if job.running and all(t == gpu_type for _, t, _ in job.placement.items()) and self.keep(job):
            return True
        slots = self.arena.reach(job).by_type.get(gpu_type, ())
        return self.give(job, find_gang(job.form, [(s,) for s in slots], self.free, self._held))

    def place_mixed(self, job: Job) -> bool:
        """Give the job what it has, else a gang of any types if its form allows them to be mixed."""
        if self.keep(job):
            return True
        if job.form.mix is Mix.NEVER or sum(self.room.values()) < job.form.workers:
            return False
        return self.give(job, find_gang(job.form, self.arena.reach(job).nodes, self.free, self._held))

    def give(self, job: Job, gang: Gang | None) -> bool:
        """Give the job these GPUs; False if there is no gang to give."""
        if gang is None:
            return False
        self._give(job, self.arena.placement(gang), gang)
        return True

    def settle(self, jobs: Sequence[Job], gpu_type: str) -> None:
        """Deal one type anew to jobs that were placed on it, if so more of them stay where they run.

        Dealt in order of priority, a gang may have taken the GPUs of jobs that then had to move next door. The largest
        gangs now come first, as they are the hardest to place, and among equals those who can stay. Unless all find a
        place in this way, everything is left as it was.
        """
        before = {job.job_id: self.placements[job.job_id] for job in jobs}
        stayed = sum(job.running and before[job.job_id] == job.placement for job in jobs)
        could = sum(job.running and job.placement.by_type.keys() == {gpu_type} for job in jobs)
        if stayed == could:
            return
        free, room, held = self.free.copy(), self.room.copy(), self._held.copy()
        for job in jobs:
            for slot, count in self.arena.gang(self.placements.pop(job.job_id)):
                self.free[slot] += count
                self.room[gpu_type] += count
        # those who were dealt nothing lose their GPUs anyway, so nobody need spare them
        self._hold(self._gangs[job.job_id] for job in jobs if job.running)
        order = sorted(jobs, key=lambda j: (-j.form.workers, not j.running or gpu_type not in j.placement.by_type))
        placed = all(self.place(job, gpu_type) for job in order)
        if not placed or sum(self.placements[j.job_id] == j.placement for j in jobs) <= stayed:
            self.placements.update(before)
            self.free, self.room, self._held = free, room, held

    def plan(self, policy: str, why: Callable[[Job], Wait], **fields: object) -> Plan:
        """The plan, once all have been dealt to: running jobs whose GPUs nobody took stay, and the others wait.

        ``why`` says it of a job that nothing but the policy keeps from running.
        """
        for job in self.arena.movers:
            if job.job_id not in self.placements:
                self.keep(job)
        obstacles = Obstacles(self.arena)
        waits = {job_id: Wait(Tier.TRANSIENT, what) for job_id, what in self.arena.odd.items()}
        for job in self.arena.movers:
            if job.job_id not in self.placements:
                waits[job.job_id] = obstacles.of(job) or why(job)
        return Plan(policy, self.placements, waits, **fields)  # type: ignore[arg-type]

    def _hold(self, gangs: Iterable[Gang]) -> None:
        """Note what running jobs hold; a preference only, so GPUs that are no longer free are left out."""
        held = [0] * len(self.free)
        for gang in gangs:
            for slot, count in gang:
                held[slot] = min(held[slot] + count, self.free[slot])
        self._held = held

    def _give(self, job: Job, placement: Placement, gang: Gang) -> None:
        self.placements[job.job_id] = placement
        for slot, count in self._gangs.get(job.job_id, ()):
            self._held[slot] = max(0, self._held[slot] - count)
        for slot, count in gang:
            self.free[slot] -= count
            self.room[self.arena.type_of[slot]] -= count
            self._held[slot] = min(self._held[slot], self.free[slot])

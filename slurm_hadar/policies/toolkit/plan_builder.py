"""Builds the plan of a round, one job after the other: what all policies that go by an order of jobs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_hadar.model import Form, Job, Mix, Placement, Plan, Tier, Wait
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import Gang, find_on_type
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.waits import Obstacles

__all__ = ["PlanBuilder"]


class PlanBuilder:
    """A plan under construction: what is free, and who has been given what.

    Running jobs that must not move have theirs from the start. A running job that is given the GPU type it runs on
    keeps its GPUs if nobody has them yet; jobs that are placed anew take GPUs that no running job holds as long as
    there are such.

    Attributes
    ----------
    ledger: what is free on which slot of ``arena``.
    placements: what has been given so far.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.ledger = Ledger(arena)
        self.placements: dict[str, Placement] = dict(arena.kept)
        self._gangs = {j.job_id: arena.gang(j.placement) for j in arena.movers if j.running}
        for gang in self._gangs.values():
            self.ledger.hold(gang)
        self.ledger.trim_held(range(len(arena.slots)))
        self._nodes: dict[tuple[str, Form, tuple[str, ...]], dict[str, int]] = {}

    def rates(self, job: Job) -> dict[str, float]:
        """Steps/s of the whole gang on each GPU type where it would find a place if no running job that may move were
        there: on one node if it fits on one, else slowed down by being spread."""
        by_type = self.arena.reach(job).by_type
        key = (job.partition, job.form, tuple(by_type))
        if key not in self._nodes:
            places = {t: find_on_type(job.form, slots, self.arena.free) for t, slots in by_type.items()}
            self._nodes[key] = {t: len(gang) for t, gang in places.items() if gang}
        speeds = job.speeds
        return {t: speeds[t].on(nodes) for t, nodes in self._nodes[key].items()}

    def keep(self, job: Job) -> bool:
        """Leave a running job where it is, if nobody was given one of its GPUs."""
        gang = self._gangs.get(job.job_id)
        if gang is None or not self.ledger.is_free(gang):
            return False
        self._give(job, job.placement, gang)
        return True

    def place(self, job: Job, gpu_type: str) -> bool:
        """Give the job a gang of one type: the one it has, else the place that disturbs least."""
        if self.ledger.by_type[gpu_type] < job.form.workers:
            return False
        if job.running and all(t == gpu_type for _, t, _ in job.placement.items()) and self.keep(job):
            return True
        return self.give(job, self.ledger.find(job.form, self.arena.reach(job).by_type.get(gpu_type, ())))

    def let_go(self, job: Job) -> None:
        """The job does not want the GPUs that it runs on."""
        gang = self._gangs.pop(job.job_id, ())
        self.ledger.let_go(gang)
        self.ledger.trim_held(slot for slot, _ in gang)

    def place_mixed(self, job: Job) -> bool:
        """Give the job what it has, else a gang of any types if its form allows them to be mixed."""
        if self.keep(job):
            return True
        if job.form.mix is Mix.NEVER or sum(self.ledger.by_type.values()) < job.form.workers:
            return False
        return self.give(job, self.ledger.find_mixed(job.form, self.arena.reach(job).nodes))

    def give(self, job: Job, gang: Gang | None) -> bool:
        """Give the job these GPUs; False if there is no gang to give."""
        if gang is None:
            return False
        self._give(job, self.arena.placement(gang), gang)
        return True

    def repack(self, jobs: Sequence[Job], gpu_type: str) -> None:
        """Place jobs anew that were placed on one type, if so more of them stay where they run.

        Placed in order of priority, a gang may have taken the GPUs of jobs that then had to move next door. The largest
        gangs now come first, as they are the hardest to place, and among equals those who can stay. Unless all find a
        place in this way, everything is left as it was.
        """
        before = {job.job_id: self.placements[job.job_id] for job in jobs}
        stayed = sum(job.running and before[job.job_id] == job.placement for job in jobs)
        could = sum(job.running and job.placement.by_type.keys() == {gpu_type} for job in jobs)
        if stayed == could:
            return
        ledger, self.ledger = self.ledger, self._without(jobs)
        order = sorted(jobs, key=lambda j: (-j.form.workers, not j.running or gpu_type not in j.placement.by_type))
        placed = all(self.place(job, gpu_type) for job in order)
        if not placed or sum(self.placements[j.job_id] == j.placement for j in jobs) <= stayed:
            self.placements.update(before)
            self.ledger = ledger

    def _without(self, jobs: Sequence[Job]) -> Ledger:
        """The ledger as if these jobs had been given nothing yet."""
        ledger = self.ledger.copy()
        for job in jobs:
            ledger.put_back(self.arena.gang(self.placements.pop(job.job_id)))
        # those who were given nothing lose their GPUs anyway, so nobody need spare them
        ledger.held = [0] * len(ledger.free)
        for job in jobs:
            ledger.hold(self._gangs.get(job.job_id, ()))
        ledger.trim_held(range(len(ledger.free)))
        return ledger

    def plan(self, policy: str, why: Callable[[Job], Wait], **fields: object) -> Plan:
        """The plan, once all have had their turn: running jobs whose GPUs nobody took stay, and the others wait.

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

    def _give(self, job: Job, placement: Placement, gang: Gang) -> None:
        self.placements[job.job_id] = placement
        own = self._gangs.get(job.job_id, ())
        self.ledger.let_go(own)
        self.ledger.take(gang)
        self.ledger.trim_held(slot for slot, _ in (*own, *gang))

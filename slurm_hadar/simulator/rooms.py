"""Where stock Slurm puts a job that nobody steers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from slurm_hadar.model import EMPTY, Job, Node, Placement

__all__ = ["Rooms"]


class _Place(NamedTuple):
    """A node with room; ``free`` are its GPUs of all types that nobody has."""

    node: str
    gpu_type: str
    free: int


class Rooms:
    """The free GPUs of all nodes that are up, and Slurm's choice among them.

    The choice is that of ``select/cons_tres`` with equal weights (its ``_eval_nodes``; seen on Slurm 22.05): nodes with
    room that are neighbours by name form a run; of the runs the one with least free, in it the node with least free, at
    a tie the first. Slurm counts free CPUs; here it is GPUs, as if jobs took CPUs in proportion.

    Parameters
    ----------
    nodes: all of them. held: the placements of the jobs that run.
    """

    def __init__(self, nodes: Iterable[Node], held: Iterable[Placement]) -> None:
        self._free = {n.name: dict(n.gpus) if n.available else {} for n in sorted(nodes, key=lambda n: n.name)}
        for placement in held:
            self.take(placement)

    def take(self, placement: Placement) -> None:
        """These GPUs are not free any more."""
        for node, gpu_type, count in placement.items():
            if gpu_type in self._free[node]:
                self._free[node][gpu_type] -= count

    def choose(self, job: Job) -> Placement:
        """Slurm's place for the job as its owner submitted it: of the size asked for, on the fewest nodes, as many GPUs
        on each; EMPTY if there is none.

        Slurm would also put it where it cannot run for lack of memory, or a gang on nodes of unlike types; here it
        waits for a round then.
        """
        count = job.form.min_nodes
        each, rest = divmod(job.form.workers, count)
        if rest:
            return EMPTY
        for run in sorted(self._runs(job, each), key=lambda r: sum(place.free for place in r)):
            best = sorted(run, key=lambda place: place.free) if count == 1 else run
            for gpu_type in dict.fromkeys(place.gpu_type for place in best):
                alike = [place.node for place in best if place.gpu_type == gpu_type]
                if len(alike) >= count:
                    return Placement.of({node: {gpu_type: each} for node in alike[:count]})
        return EMPTY

    def _runs(self, job: Job, each: int) -> list[list[_Place]]:
        """Runs of neighbouring nodes with room for so many of the job's workers."""
        places = (self._place(node, job, each) for node in self._free)
        return [[p for p in run if p] for fitting, run in groupby(places, key=bool) if fitting]

    def _place(self, node: str, job: Job, each: int) -> _Place | None:
        if not job.form.admits_node(node):
            return None
        free = self._free[node]
        usable = (t for t, n in free.items() if n >= each and (s := job.speeds.get(t)) and s.steps_per_s > 0)
        gpu_type = next(usable, None)
        return None if gpu_type is None else _Place(node, gpu_type, sum(free.values()))

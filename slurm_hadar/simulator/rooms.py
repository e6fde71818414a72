"""Where stock Slurm puts a job that nobody steers."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.model import EMPTY, Job, Node, Placement

__all__ = ["Rooms"]


class Rooms:
    """The free GPUs of all nodes that are up, in the order in which Slurm fills them: by name (seen with Slurm 22.05,
    ``select/cons_tres``, equal weights).

    Parameters
    ----------
    nodes: all of them. held: the placements of the jobs that run.
    """

    def __init__(self, nodes: Iterable[Node], held: Iterable[Placement]) -> None:
        self._free = {n.name: dict(n.gpus) for n in sorted(nodes, key=lambda n: n.name) if n.available}
        for placement in held:
            self.take(placement)

    def take(self, placement: Placement) -> None:
        """These GPUs are not free any more."""
        for node, gpu_type, count in placement.items():
            if node in self._free:
                self._free[node][gpu_type] -= count

    def first_fit(self, job: Job) -> Placement:
        """The first nodes with room for the job as its owner submitted it: of the size asked for, on the fewest nodes,
        as many GPUs on each; EMPTY if there are none.

        Slurm would also put it where it cannot run for lack of memory, or a gang on nodes of unlike types; here it
        waits for a round then.
        """
        count = job.form.min_nodes
        each, rest = divmod(job.form.workers, count)
        if rest:
            return EMPTY
        fitting: dict[str, list[str]] = {}
        for node, free in self._free.items():
            for gpu_type, room in free.items():
                speed = job.speeds.get(gpu_type)
                if room < each or speed is None or speed.steps_per_s <= 0 or not job.form.admits_node(node):
                    continue
                chosen = fitting.setdefault(gpu_type, [])
                chosen.append(node)
                if len(chosen) == count:
                    return Placement.of({name: {gpu_type: each} for name in chosen})
        return EMPTY

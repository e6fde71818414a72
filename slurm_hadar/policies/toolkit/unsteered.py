"""Where stock Slurm puts a job that nobody steers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from slurm_hadar.model import EMPTY, Job, Mix, Node, Placement
from slurm_hadar.names import by_number
from slurm_hadar.policies.toolkit.arena import node_counts

__all__ = ["Room", "Rooms", "slurms_choice"]


class Room(NamedTuple):
    """A node with room for a job's share: the GPU type that it would have there, all ``free`` GPUs of the node, and the
    node's position among all nodes."""

    node: str
    gpu_type: str
    free: int
    position: int


def slurms_choice(rooms: Sequence[Room], count: int, alike: bool) -> list[Room]:
    """``count`` nodes out of ``rooms`` (in order of position); empty if there are too few. ``alike``: of one GPU type.

    The choice is that of ``select/cons_tres`` with equal weights (its ``_eval_nodes``; seen on Slurm 22.05): nodes with
    room that are neighbours by name form a run; of the runs that are long enough the one with least free, in it the
    node with least free, at a tie the first; where none is long enough, the longest and so on. Slurm counts free CPUs;
    here it is GPUs, as if jobs took CPUs in proportion. It would put a gang on nodes of unlike types too; one that must
    be ``alike`` gets the best of one type then.
    """
    chosen = _longest_first(_runs(rooms), count)
    if not alike or len({room.gpu_type for room in chosen}) < 2:
        return chosen
    for gpu_type in dict.fromkeys(room.gpu_type for room in rooms):
        chosen = _longest_first(_runs([room for room in rooms if room.gpu_type == gpu_type]), count)
        if chosen:
            return chosen
    return []


def _runs(rooms: Sequence[Room]) -> list[list[Room]]:
    runs = [[room] for room in rooms[:1]]
    for before, room in pairwise(rooms):
        if room.position == before.position + 1:
            runs[-1].append(room)
        else:
            runs.append([room])
    return runs


def _longest_first(runs: list[list[Room]], count: int) -> list[Room]:
    if sum(map(len, runs)) < count:
        return []
    chosen: list[Room] = []
    while (left := count - len(chosen)) > 0:
        enough = [run for run in runs if len(run) >= left]
        run = min(enough, key=_free) if enough else max(runs, key=len)
        runs.remove(run)
        chosen += [min(run, key=lambda room: room.free)] if left == 1 else run[:left]
    return chosen


def _free(run: list[Room]) -> int:
    return sum(room.free for room in run)


class Rooms:
    """The free GPUs of all nodes that are up, and Slurm's choice among them.

    Parameters
    ----------
    nodes: all of them. held: the placements of the jobs that run.
    """

    def __init__(self, nodes: Iterable[Node], held: Iterable[Placement]) -> None:
        self._free = {
            n.name: dict(n.gpus) if n.available else {} for n in sorted(nodes, key=lambda n: by_number(n.name))
        }
        for placement in held:
            self.take(placement)

    def take(self, placement: Placement) -> None:
        """These GPUs are not free any more."""
        for node, gpu_type, count in placement.items():
            if gpu_type in self._free[node]:
                self._free[node][gpu_type] -= count

    def choose(self, job: Job) -> Placement:
        """Slurm's place for the job as its owner submitted it: of the size asked for, on the fewest nodes, as many GPUs
        on each; EMPTY if there is none. Slurm would also put it where it cannot run for lack of memory; here it waits
        for a round then."""
        for count in node_counts(job.form):
            each, rest = divmod(job.form.workers, count)
            rooms = [] if rest else [r for i, node in enumerate(self._free) if (r := self._room(i, node, job, each))]
            chosen = slurms_choice(rooms, count, job.form.mix is Mix.NEVER)
            if chosen:
                return Placement.of({room.node: {room.gpu_type: each} for room in chosen})
        return EMPTY

    def _room(self, position: int, node: str, job: Job, each: int) -> Room | None:
        if not job.form.admits_node(node):
            return None
        free, speeds, form = self._free[node], job.speeds, job.form
        usable = (
            t
            for t, n in free.items()
            if n >= each and form.admits_type(t) and (s := speeds.get(t)) and s.steps_per_s > 0
        )
        gpu_type = next(usable, None)
        return None if gpu_type is None else Room(node, gpu_type, sum(free.values()), position)

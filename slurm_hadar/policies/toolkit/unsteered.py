"""Where stock Slurm puts a job that nobody steers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from slurm_hadar.model import EMPTY, Form, Job, Mix, Node, Placement
from slurm_hadar.names import by_number
from slurm_hadar.policies.toolkit.gangs import node_counts
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["NodeOption", "gang_by_slurm", "in_slurms_order", "place_by_slurm", "placement_on"]


class NodeOption(NamedTuple):
    """A node that could take a job's share: the GPU type that it would have there, all ``free`` GPUs of the node, and
    the node's position among all nodes."""

    node: str
    gpu_type: str
    free: int
    position: int


def _choose(options: Sequence[NodeOption], count: int, alike: bool) -> list[NodeOption]:
    """``count`` nodes out of ``options`` (in order of position); empty if too few. ``alike``: of one GPU type.

    The choice is that of ``select/cons_tres`` with equal weights (its ``_eval_nodes``; seen on Slurm 22.05): nodes with
    room that are neighbours by name form a run; of the runs that are long enough the one with least free, in it the
    node with least free, at a tie the first; where none is long enough, the longest and so on. Slurm counts free CPUs;
    here it is GPUs, as if jobs took CPUs in proportion. It would put a gang on nodes of unlike types too; one that must
    be ``alike`` gets the best of one type then.
    """
    chosen = _longest_first(_runs(options), count)
    if not alike or len({o.gpu_type for o in chosen}) < 2:
        return chosen
    for gpu_type in dict.fromkeys(o.gpu_type for o in options):
        chosen = _longest_first(_runs([o for o in options if o.gpu_type == gpu_type]), count)
        if chosen:
            return chosen
    return []


def _runs(options: Sequence[NodeOption]) -> list[list[NodeOption]]:
    runs = [[option] for option in options[:1]]
    for before, option in pairwise(options):
        if option.position == before.position + 1:
            runs[-1].append(option)
        else:
            runs.append([option])
    return runs


def _longest_first(runs: list[list[NodeOption]], count: int) -> list[NodeOption]:
    if sum(map(len, runs)) < count:
        return []
    chosen: list[NodeOption] = []
    while (left := count - len(chosen)) > 0:
        enough = [run for run in runs if len(run) >= left]
        run = min(enough, key=_free) if enough else max(runs, key=len)
        runs.remove(run)
        chosen += [min(run, key=lambda option: option.free)] if left == 1 else run[:left]
    return chosen


def _free(run: list[NodeOption]) -> int:
    return sum(option.free for option in run)


def gang_by_slurm(form: Form, options: Callable[[int], Sequence[NodeOption]]) -> list[NodeOption]:
    """Slurm's choice for a gang: the fewest nodes, as many GPUs on each; empty if there is none.

    ``options(each)``: the nodes that could take so many of its workers, in order of position.
    """
    for count in node_counts(form):
        each, rest = divmod(form.workers, count)
        chosen = [] if rest else _choose(options(each), count, form.mix is Mix.NEVER)
        if chosen:
            return chosen
    return []


def placement_on(chosen: Sequence[NodeOption], form: Form) -> Placement:
    """The gang shared out equally over the nodes chosen."""
    return Placement.of({o.node: {o.gpu_type: form.workers // len(chosen)} for o in chosen}) if chosen else EMPTY


def in_slurms_order(nodes: Iterable[Node]) -> dict[str, int]:
    """Each node's position. Nodes that are down count too: those beside them are no neighbours."""
    return {name: i for i, name in enumerate(sorted((n.name for n in nodes), key=by_number))}


def place_by_slurm(ledger: Ledger, job: Job) -> Placement:
    """Slurm's place for the job as its owner submitted it, of the size asked for; EMPTY if there is none.

    Slurm would also put it where it cannot run for lack of memory; here it waits for a round then.
    """
    arena, position = ledger.arena, in_slurms_order(ledger.arena.snapshot.nodes)

    def options(each: int) -> list[NodeOption]:
        found = []
        for slots in arena.reach(job).nodes:
            slot = next((s for s in slots if ledger.free[s] >= each), None)
            if slot is not None:
                node, gpu_type = arena.slots[slot]
                free = sum(ledger.free[s] for s in arena.slots_of[node])
                found.append(NodeOption(node, gpu_type, free, position[node]))
        return sorted(found, key=lambda option: option.position)

    return placement_on(gang_by_slurm(job.form, options), job.form)

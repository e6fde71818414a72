"""Elastic gangs: the sizes that ``gpus=2-8`` in a comment comes to on this cluster."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from slurm_hadar.comment import MOST_SIZES

__all__ = ["NodeGroups", "enough", "gang_sizes", "has_room", "node_groups"]

#: For each group of nodes that one gang may use together, ``(GPUs per node, how many such nodes)``, largest first.
NodeGroups = tuple[tuple[tuple[int, int], ...], ...]


def node_groups(groups: Iterable[Iterable[int]]) -> NodeGroups:
    """From the GPUs of each node, by group, in compact form."""
    found = []
    for counts in groups:
        tally: dict[int, int] = {}
        for n in counts:
            tally[n] = tally.get(n, 0) + 1
        found.append(tuple(sorted(tally.items(), reverse=True)))
    return tuple(sorted(found))


@functools.lru_cache(maxsize=4096)
def gang_sizes(
    wanted: Sequence[int], asked: int, min_nodes: int, max_nodes: int, batch: int | None, groups: NodeGroups
) -> tuple[int, ...]:
    """The sizes, ascending, at most :data:`MOST_SIZES`, the one asked for always among them.

    A size counts if so many GPUs, equally many on each of ``min_nodes`` to ``max_nodes`` nodes, exist at all, and if
    the workers can share the batch of a step equally (``batch`` per worker at the size asked for; None: nobody knows).
    Where more sizes than that are left, doublings of the smallest, the largest and the one asked for are kept; of these
    the ones nearest to it.
    """
    most = max((sum(gpus * count for gpus, count in group) for group in groups), default=0)
    if isinstance(wanted, range):  # its end is what a user has typed
        wanted = range(wanted.start, min(wanted.stop, most + 1))
    good = [
        n for n in wanted if (batch is None or batch * asked % n == 0) and has_room(n, min_nodes, max_nodes, groups)
    ]
    if len({*good, asked}) > MOST_SIZES:
        doublings = {good[0] << i for i in range(good[-1].bit_length())}
        good = [n for n in good if n in doublings or n == good[-1]]
    nearest = sorted({*good} - {asked}, key=lambda n: abs(math.log2(n / asked)))
    return tuple(sorted([asked, *nearest[: MOST_SIZES - 1]]))


def enough(sizes: Sequence[int], wanted: int) -> int:
    """Of ascending ``sizes`` the smallest with so many workers; the largest where none has."""
    return next((size for size in sizes if size >= wanted), sizes[-1])


def has_room(size: int, min_nodes: int, max_nodes: int, groups: NodeGroups) -> bool:
    """Whether so many GPUs exist at all, equally many on each of so many nodes of one group."""
    for group in groups:
        for each in range(1, group[0][0] + 1 if group else 1):  # a node has few GPUs, whatever users ask for
            nodes, rest = divmod(size, each)
            if rest or not min_nodes <= nodes <= max_nodes:
                continue
            if sum(count for gpus, count in group if gpus >= each) >= nodes:
                return True
    return False

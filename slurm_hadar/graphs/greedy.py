"""Heavy-Edge: bundles that exchange much are put on one server, server by server, the largest first.

After A-SRPT (arXiv 2501.05563), whose abstract names a mapping of job graphs to GPUs that keeps traffic inside servers;
the steps are our definition. Replicas of a stage are interchangeable and in the ring they stand server by server, so a
partial placement is a count per stage, and one step costs O(stages) instead of O(vertices).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_hadar.graphs.graph import JobGraph

__all__ = [
    "Held",
    "FreeServers",
    "fits",
    "grow",
    "heavy_edge",
    "pack",
    "pick_servers",
    "pipe_by_pipe",
    "stage_by_stage",
]

#: Replicas of each stage per server: what :data:`slurm_hadar.graphs.alpha.Counts` is read from.
Held = dict[int, list[int]]
#: Servers to fill, in this order, with their free GPUs.
FreeServers = Sequence[tuple[int, int]]

_Chooser = Callable[[list[int], list[int], list[int]], int]


def pick_servers(graph: JobGraph, servers: FreeServers) -> list[tuple[int, int]] | None:
    """The shortest run of ``servers`` that the job fits into, the last server replaced by the smallest that will do.

    Equally small ones: the first in ``servers``. None where it does not fit at all.
    """
    size = _fewest(graph, servers)
    if size is None:
        return None
    chosen = list(servers[:size])
    rest = sorted(range(size - 1, len(servers)), key=lambda i: (servers[i][1], i))
    usable = (i for i in rest if fits(graph, _all(graph), [free for _, free in (*chosen[:-1], servers[i])]))
    chosen[-1] = servers[next(usable)]
    return chosen


def _fewest(graph: JobGraph, servers: FreeServers) -> int | None:
    low, high = 1, len(servers)
    free = [f for _, f in servers]
    if not fits(graph, _all(graph), free):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(graph, _all(graph), free[:middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _all(graph: JobGraph) -> list[int]:
    return [s.replicas for s in graph.stages]


def fits(graph: JobGraph, left: Sequence[int], free: Sequence[int]) -> bool:
    """Whether ``left`` replicas of each stage can be placed on servers with these free GPUs, bundles in one piece.

    Exact where each width divides the next larger one; otherwise it may refuse a tight fit, or promise one too many.
    """
    need = 0
    for width in graph.widths:
        need += sum(n * width for n, s in zip(left, graph.stages, strict=True) if s.width == width)
        if need > sum(f - f % width for f in free):
            return False
    return True


def heavy_edge(graph: JobGraph, servers: FreeServers) -> Held | None:
    """Fill ``servers`` one after the other: from the heaviest edge, always the bundle that exchanges most with those
    already there. None where bundles of unlike widths do not fit this way."""
    return grow(graph, servers, lambda left, held, able: _heaviest(graph, left, held, able))


def stage_by_stage(
    graph: JobGraph, servers: FreeServers, order: Sequence[int] = (), *, whole: bool = False
) -> Held | None:
    """Whole stages one after the other, in this order (default: of the pipeline): the best where gradients are heavy
    and activations light. With ``whole``, GPUs may stay free here if that keeps a stage in one piece."""
    place = {s: i for i, s in enumerate(order or range(len(graph.stages)))}
    return grow(graph, servers, lambda _left, _held, able: min(able, key=place.__getitem__), whole=whole)


def pipe_by_pipe(graph: JobGraph, servers: FreeServers) -> Held | None:
    """Whole pipelines one after the other: the best where activations are heavy and gradients light."""
    size = [s.replicas for s in graph.stages]
    return grow(graph, servers, lambda _left, held, able: min(able, key=lambda s: ((held[s] + 1) / size[s], s)))


def pack(graph: JobGraph, servers: FreeServers) -> Held | None:
    """The widest bundles first: fits whenever :func:`fits` is exact and says so."""
    return grow(graph, servers, lambda _left, _held, able: max(able, key=lambda s: (graph.stages[s].width, -s)))


def grow(graph: JobGraph, servers: FreeServers, choose: _Chooser, *, whole: bool = False) -> Held | None:
    """Fill one server after the other with the stage that ``choose(left, held here, able)`` names.

    ``able``: stages with a replica left that fits here and leaves a place for all others; with ``whole`` none that
    would be broken although everything left has a place later. None if some are left over.
    """
    left, placed = _all(graph), {}
    later = _free_later(graph, servers)
    for (server, free), after in zip(servers, later, strict=True):
        held = [0] * len(left)
        while able := _able(graph, left, free, after):
            if whole and _leaves_room(graph, left, 0, 0, after):
                able = [s for s in able if held[s] or left[s] * graph.stages[s].width <= free]
                if not able:
                    break
            stage = choose(left, held, able)
            held[stage] += 1
            left[stage] -= 1
            free -= graph.stages[stage].width
        if any(held):
            placed[server] = held
        if not any(left):
            return placed
    return None


def _free_later(graph: JobGraph, servers: FreeServers) -> list[dict[int, int]]:
    """Per server: for each width, the GPUs usable for such bundles on the servers after it."""
    later = [dict.fromkeys(graph.widths, 0)]
    for _, free in reversed(servers[1:]):
        later.append({w: n + free - free % w for w, n in later[-1].items()})
    return later[::-1]


def _able(graph: JobGraph, left: list[int], free: int, after: dict[int, int]) -> list[int]:
    able = [s for s, n in enumerate(left) if n and graph.stages[s].width <= free]
    if len(graph.widths) == 1:
        return able
    good = {width: _leaves_room(graph, left, width, free, after) for width in {graph.stages[s].width for s in able}}
    return [s for s in able if good[graph.stages[s].width]]


def _leaves_room(graph: JobGraph, left: list[int], width: int, free: int, after: dict[int, int]) -> bool:
    """Whether all others still fit once a bundle of ``width`` (0: none) is placed here: the test of :func:`fits`."""
    need, rest = 0, free - width
    for other in graph.widths:
        need += sum(n * other for n, s in zip(left, graph.stages, strict=True) if s.width == other)
        need -= other if other == width else 0
        if need > after[other] + rest - rest % other:
            return False
    return True


def _heaviest(graph: JobGraph, left: list[int], held: list[int], able: list[int]) -> int:
    if not any(held):
        return _seed(graph, left, able)
    return max(able, key=lambda s: (_pull(graph, held, s), _weight(graph, s), -s))


def _seed(graph: JobGraph, left: list[int], able: list[int]) -> int:
    """An end of the heaviest edge among the bundles left, the heavier of the two; without edges, the heaviest
    bundle."""

    def best_edge(s: int) -> float:
        ring = graph.links[s] * (2.0 if graph.stages[s].replicas == 2 else 1.0) if left[s] > 1 else 0.0
        before = graph.pairs[s - 1] if s and left[s - 1] else 0.0
        after = graph.pairs[s] if s + 1 < len(left) and left[s + 1] else 0.0
        return max(ring, before, after)

    return max(able, key=lambda s: (best_edge(s), _weight(graph, s), -s))


def _weight(graph: JobGraph, s: int) -> float:
    """Bytes on all edges of one bundle."""
    stages = graph.stages
    before = graph.pairs[s - 1] * stages[s - 1].replicas if s else 0.0
    after = graph.pairs[s] * stages[s + 1].replicas if s + 1 < len(stages) else 0.0
    return 2.0 * graph.links[s] + before + after


def _pull(graph: JobGraph, held: list[int], s: int) -> float:
    """Bytes between one more replica of stage s and the bundles already here."""
    ring = 0.0
    if held[s]:
        closes = held[s] + 1 == graph.stages[s].replicas
        ring = graph.links[s] * (2.0 if closes else 1.0)
    before = graph.pairs[s - 1] * held[s - 1] if s else 0.0
    after = graph.pairs[s] * held[s + 1] if s + 1 < len(held) else 0.0
    return ring + before + after

"""``torchrun ... -m slurm_hadar.runtime.bandwidth``: how fast workers exchange, as a ``[network]`` section to paste.

With NCCL on GPUs, with gloo without them. Measured are, over messages of one size, the median of

* inside a node: a ring all-reduce of all of its workers, and two of them sending to each other in turn;
* between nodes: the same with one worker of each node, among the nodes of each GPU type and among all.

The rate of a ring all-reduce of h bytes among k workers in t seconds is ``2 (k - 1) / k * h / t``: what each link of
the ring carries, which is what job graphs calculate with. So these rates are printed as the section's values, and the
others beside them. Nodes are measured at the same time, pairs of nodes one after the other. Of nodes of the same type
the slowest counts.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figures", "Worker", "main", "section"]

_WARM_UP = 2
_CALL_S = 10.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: its rank, its node, and the GPU type of that by its name in Slurm ("" = not known)."""

    rank: int
    node: str
    gpu_type: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes/s for one GPU type ("" = all together), None where there was nothing to measure: ring all-reduce and
    point to point, inside a node and between nodes."""

    gpu_type: str = ""
    ring_inside: float | None = None
    pair_inside: float | None = None
    ring_outside: float | None = None
    pair_outside: float | None = None


def main(argv: list[str] | None = None) -> None:
    """Measure bytes/s between the workers of this torchrun, and print a [network] section."""
    parser = argparse.ArgumentParser(prog="slurm_hadar.runtime.bandwidth", description=main.__doc__)
    parser.add_argument("--mebibytes", type=_positive, default=256, help="of one message (256)")
    parser.add_argument("--repeat", type=_positive, default=10, help="measurements of each kind (10)")
    given = parser.parse_args(argv)
    mebibytes, repeat = given.mebibytes, given.repeat
    if "RANK" not in os.environ:
        parser.error("start it by torchrun, as sbatch_templates/bandwidth.sbatch does")
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        bench = _Bench(dist, torch.zeros(mebibytes << 18, dtype=torch.float32, device=device), repeat)
        figures = bench.run()
        dist.barrier(group=bench.control)
    finally:
        dist.destroy_process_group()
    if bench.rank == 0:  # last: PyTorch's warnings at the end belong before what is to be pasted
        how = f"{'NCCL' if cuda else 'gloo'}, {mebibytes} MiB, median of {repeat}"
        print(section(figures, bench.workers, how), flush=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 16384:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 16384")
    return int(text)


class _Bench:
    """All measurements, in the same order on all workers: making a group and timing are collective."""

    def __init__(self, dist: Any, message: Any, repeat: int) -> None:
        self._dist, self._message, self._repeat = dist, message, repeat
        self._bytes = message.numel() * message.element_size()
        self.control = dist.new_group(backend="gloo")
        self.rank = dist.get_rank()
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, _this_worker(self.rank), group=self.control)
        self.workers: list[Worker] = sorted(found, key=lambda w: w.rank)

    def run(self) -> list[Figures]:
        nodes = _by(self.workers, lambda w: w.node)
        rings = dict(zip(nodes, self._rings([[w.rank for w in of] for of in nodes.values()]), strict=True))
        pairs = dict(zip(nodes, self._pairs([[w.rank for w in of][:2] for of in nodes.values()]), strict=True))
        leaders = [of[0] for of in nodes.values()]
        types = _by(leaders, lambda w: w.gpu_type)
        figures = []
        for gpu_type, of in types.items():
            ring, pair = self._between([w.rank for w in of])
            figures.append(
                Figures(gpu_type, _least(rings[w.node] for w in of), _least(pairs[w.node] for w in of), ring, pair)
            )
        if len(types) > 1:
            ring, pair = self._between([w.rank for w in leaders])
            figures.append(Figures("", None, None, ring, pair))
        return figures

    def _between(self, ranks: Sequence[int]) -> tuple[float | None, float | None]:
        """Ring and slowest pair among single workers of several nodes."""
        (ring,) = self._rings([ranks])
        return ring, _least(self._pairs([[ranks[0], other]])[0] for other in ranks[1:])

    def _rings(self, groups: Sequence[Sequence[int]]) -> list[float | None]:
        """Bytes/s on each link of a ring all-reduce, for groups without common members that go at the same time."""

        def reduce(group: Any, _ranks: Sequence[int]) -> None:
            self._dist.all_reduce(self._message, group=group)

        return [
            None if seconds is None else 2.0 * (len(ranks) - 1) / len(ranks) * self._bytes / seconds
            for ranks, seconds in zip(groups, self._timed(groups, reduce), strict=True)
        ]

    def _pairs(self, groups: Sequence[Sequence[int]]) -> list[float | None]:
        """Bytes/s of a message there and back between the two workers of each group."""

        def exchange(group: Any, ranks: Sequence[int]) -> None:
            one, other = ranks
            if self.rank == one:
                self._dist.send(self._message, other, group=group)
                self._dist.recv(self._message, other, group=group)
            else:
                self._dist.recv(self._message, one, group=group)
                self._dist.send(self._message, one, group=group)

        return [None if seconds is None else 2.0 * self._bytes / seconds for seconds in self._timed(groups, exchange)]

    def _timed(self, groups: Sequence[Sequence[int]], act: Callable[[Any, Sequence[int]], None]) -> list[float | None]:
        """Median seconds of ``act`` in each group, by the slowest of its members; None for a group of one."""
        mine: tuple[int, float] | None = None
        made = [self._dist.new_group(list(ranks)) if len(ranks) > 1 else None for ranks in groups]
        for index, (group, ranks) in enumerate(zip(made, groups, strict=True)):
            if group is not None and self.rank in ranks:
                seconds = [self._once(group, ranks, act) for _ in range(_WARM_UP + self._repeat)]
                mine = (index, statistics.median(seconds[_WARM_UP:]))
                self._dist.destroy_process_group(group)
        found: list[Any] = [None] * self._dist.get_world_size()
        self._dist.all_gather_object(found, mine, group=self.control)
        slowest: list[float | None] = [None] * len(groups)
        for item in filter(None, found):
            slowest[item[0]] = max(item[1], slowest[item[0]] or 0.0)
        return slowest

    def _once(self, group: Any, ranks: Sequence[int], act: Callable[[Any, Sequence[int]], None]) -> float:
        self._message.zero_()
        self._synchronize()
        self._dist.barrier(group=group)
        self._synchronize()
        began = time.perf_counter()
        act(group, ranks)
        self._synchronize()
        return time.perf_counter() - began

    def _synchronize(self) -> None:
        if self._message.is_cuda:
            import torch

            torch.cuda.synchronize()


def _by(workers: Iterable[Worker], key: Callable[[Worker], str]) -> dict[str, list[Worker]]:
    found: dict[str, list[Worker]] = {}
    for worker in workers:
        found.setdefault(key(worker), []).append(worker)
    return found


def _least(rates: Iterable[float | None]) -> float | None:
    return min((r for r in rates if r is not None), default=None)


def _this_worker(rank: int) -> Worker:
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return Worker(rank, node, _gpu_type(node))


def _gpu_type(node: str) -> str:
    """By Slurm's name, which the scheduler knows it by; "" where Slurm is not there or names several or none."""
    try:
        shown = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node],
            capture_output=True,
            text=True,
            timeout=_CALL_S,
            stdin=subprocess.DEVNULL,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    gres = re.search(r"\bGres=(\S+)", shown)
    types = set(re.findall(r"gpu:([^:(,]+):\d+", gres[1] if gres else ""))
    return types.pop() if len(types) == 1 else ""


def section(figures: Sequence[Figures], workers: Sequence[Worker], how: str) -> str:
    """The measurements as a ``[network]`` section of the configuration, in TOML."""
    nodes = len({w.node for w in workers})
    lines = [f"# ring all-reduce by {how}; {len(workers)} workers on {nodes} node{'s' if nodes > 1 else ''}"]
    for one in sorted(figures, key=lambda f: f.gpu_type):
        name = f'[network.types."{one.gpu_type}"]' if one.gpu_type else "[network]"
        values = [
            f"{key} = {_bytes(ring)}" + ("" if pair is None else f"  # point to point {_bytes(pair)}")
            for key, ring, pair in (
                ("inside_bytes_s", one.ring_inside, one.pair_inside),
                ("outside_bytes_s", one.ring_outside, one.pair_outside),
            )
            if ring is not None
        ]
        if values:
            lines += [name, *values]
    if len(lines) == 1:
        lines.append("# nothing to measure: ask for two GPUs of a node, or for two nodes")
    return "\n".join(lines)


def _bytes(rate: float) -> str:
    return f"{rate / 1e9:.3g}e9" if rate >= 1e8 else f"{rate:.3g}"


if __name__ == "__main__":
    main()

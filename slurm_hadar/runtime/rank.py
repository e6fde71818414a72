"""``torchrun ... -m slurm_hadar.runtime.rank train.py``: a worker gets the rank that its job's graph gives it.

torchrun numbers the workers node by node. Where ``hadar-srun`` has worked out which rank belongs on which node
(``HADAR_RANKS``), this sets ``RANK`` before the script reads it: the i-th worker of a node has the i-th of its ranks.
The workers' store is with torchrun's own process on the first node, so that any worker may be rank 0. Without
``HADAR_RANKS`` the script runs as if this were not there. Standard library only.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

from slurm_hadar.joblog import say

__all__ = ["RANKS", "read_ranks", "take_rank", "write_ranks"]

RANKS = "HADAR_RANKS"


def write_ranks(order: Iterable[tuple[str, Iterable[int]]]) -> str:
    """``n1:0-1,4-5;n2:2-3,6-7`` for the ranks of each node."""
    return ";".join(f"{node}:{_ranges(sorted(ranks))}" for node, ranks in order)


def _ranges(ranks: list[int]) -> str:
    pieces: list[list[int]] = []
    for rank in ranks:
        if pieces and pieces[-1][1] == rank - 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in pieces)


def read_ranks(text: str) -> dict[str, list[int]]:
    """What :func:`write_ranks` wrote; ranks ascend. Raises ValueError."""
    found = {}
    for part in text.split(";"):
        node, colon, ranges = part.partition(":")
        if not node or not colon:
            raise ValueError(f"{part[:60]!r} is not node:ranks")
        ranks: list[int] = []
        for piece in ranges.split(","):
            low, _, high = piece.partition("-")
            ranks += range(int(low), int(high or low) + 1)
        found[node] = ranks
    return found


def take_rank(environ: MutableMapping[str, str]) -> str | None:
    """Put the graph's rank in ``RANK``; returns why that cannot be done, if it cannot, and what then holds.

    Raises ValueError if some workers would have it and others not: the gang would never meet.
    """
    text = environ.get(RANKS)
    if not text or "RANK" not in environ:
        return None
    ranks = read_ranks(text)
    total, workers = sum(map(len, ranks.values())), _number(environ, "WORLD_SIZE")
    if workers != total:  # all workers see that
        return f"{workers} workers where the graph has {total}; ranks stay as torchrun numbers them"
    node, local = environ.get("SLURMD_NODENAME", ""), _number(environ, "LOCAL_RANK")
    here = ranks.get(node, [])
    if _number(environ, "LOCAL_WORLD_SIZE") != len(here):
        raise ValueError(
            f"{environ.get('LOCAL_WORLD_SIZE')} workers on node {node or '?'} where the job has {len(here)} GPUs; "
            "start torchrun with --nproc-per-node=$SLURM_GPUS_ON_NODE"
        )
    environ["RANK"] = str(here[local])
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else -1


def main(argv: list[str] | None = None) -> None:
    """Take the rank, then be the script (or, after ``-m``, the module) with its arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    module = arguments[:1] == ["-m"]
    arguments = arguments[module:]
    if not arguments:
        sys.exit(
            "hadar: slurm_hadar.runtime.rank: needs the script to run, such as -m slurm_hadar.runtime.rank train.py"
        )
    try:
        trouble = take_rank(os.environ)
    except ValueError as error:
        sys.exit(f"hadar: {error}")
    if trouble and os.environ.get("RANK") == "0":
        say(trouble)
    sys.argv[:] = arguments
    if module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # as Python itself does for a script
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()

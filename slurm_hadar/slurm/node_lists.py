"""Slurm's lists of nodes, such as ``v100-[1-4,7]``, as names, and back."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.slurm.tres import (
    text_or_empty,
)

__all__ = ["expand", "fold"]

_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_LONG_LIST = 1000
_MOST_NODES = 100_000  # more than any cluster; a range with a wrong digit must not fill the memory


@functools.lru_cache(maxsize=4096)
def expand(text: str) -> tuple[str, ...]:
    """Node names in a Slurm node list, sorted as Slurm sorts them; empty for none."""
    if text_or_empty(text) == "":
        return ()
    try:
        # each range first, since the set spells them out; then their combinations, of which it only knows the number
        if any(int(last) - int(first) > _MOST_NODES for first, last in _RANGE.findall(text)):
            raise NodeSetException(f"more than {_MOST_NODES} nodes")
        found = NodeSet(text, resolver=RESOLVER_NOGROUP)  # whose groups would run a site's programs
        if len(found) > _MOST_NODES:
            raise NodeSetException(f"{len(found)} nodes")
        return tuple(found)
    except (NodeSetException, ValueError, AssertionError) as error:  # of ClusterShell, for numbers beyond reason
        raise SlurmParseError(f"Slurm shows a node list this version does not understand: {text!r} ({error})") from None


def fold(nodes: Sequence[str]) -> str:
    """The names as one comma list; in brackets only where it is long, since a plain list is easier read."""
    plain = ",".join(nodes)
    return plain if len(plain) <= _LONG_LIST else str(NodeSet.fromlist(nodes, resolver=RESOLVER_NOGROUP))

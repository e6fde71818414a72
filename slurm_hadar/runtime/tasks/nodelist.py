"""Slurm's compact node lists, spelled out: ``v100-[1-2,4],p100-1``. Standard library only, for use on compute nodes."""

from __future__ import annotations

import itertools
import math
import re

__all__ = ["expand"]

_TOKEN = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_MOST_NODES = 100_000  # more than any cluster; a range with a wrong digit must not fill the memory


def expand(text: str) -> list[str]:
    """The node names of a Slurm node list in its own order; zero-padding is kept, ``a[1-2]b[0-1]`` works.

    Raises ValueError for what is not a node list.
    """
    if re.sub(_TOKEN, "", text).strip(",") or text.count("[") != text.count("]"):
        raise ValueError(f"not a Slurm node list: {text!r}")
    return [name for token in _TOKEN.findall(text) for name in _expand_one(token)]


def _expand_one(token: str) -> list[str]:
    parts = [_numbers(m[1]) if m[1] is not None else [m[2]] for m in _PART.finditer(token)]
    if math.prod(len(part) for part in parts) > _MOST_NODES:
        raise ValueError(f"not a Slurm node list, since it has more than {_MOST_NODES} names: {token!r}")
    return ["".join(pieces) for pieces in itertools.product(*parts)]


def _numbers(ranges: str) -> list[str]:
    found = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if not match:
            raise ValueError(f"not a range in a Slurm node list: {item!r}")
        low, high = match[1], match[2] or match[1]
        if int(high) - int(low) > _MOST_NODES:
            raise ValueError(f"a range of more than {_MOST_NODES} nodes: {item!r}")
        found += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return found

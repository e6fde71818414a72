"""The order of names that end in, or hold, numbers."""

from __future__ import annotations

import re

__all__ = ["by_number"]


def by_number(name: str) -> tuple[tuple[int, str], ...]:
    """To sort names of nodes, and jobs, as people count and as Slurm orders its nodes: a2 before a10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))

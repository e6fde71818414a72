"""The job's log, as its owner reads it: what this side has to say goes there line by line, with our name in front."""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(line: str) -> None:
    """Write one line to stderr at once, lest it be lost with the process."""
    print(f"hadar: {line}", file=sys.stderr, flush=True)

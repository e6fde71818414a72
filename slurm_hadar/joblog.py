"""A job's log, as its owner reads it: what we have to say goes there line by line, with our name in front."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(line: str) -> None:
    """Write one line to stderr at once, lest it be lost with the process. Where the disk is full, or nobody reads any
    more, the line is lost, and nothing else: what was to be done is done without a word."""
    # ValueError: it has been closed; RuntimeError: a signal's handler, in the midst of another line
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if sys.stderr is not None:  # else print() would write to stdout
            print(f"{_behind_a_bar()}hadar: {line}", file=sys.stderr, flush=True)


def _behind_a_bar() -> str:
    """What ends the line of a progress bar, behind which ours would stand, out of sight and of a search."""
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return "\n" if getattr(bars, "_instances", None) else ""

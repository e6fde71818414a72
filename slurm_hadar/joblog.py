"""A job's log, as its owner reads it: what we have to say goes there line by line, with our name in front."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

__all__ = ["say"]


def say(line: str) -> None:
    """Write one line to stderr at once, lest it be lost with the process. Where the disk is full, or nobody reads any
    more, the line is lost, and nothing else: what was to be done is done without a word."""
    # ValueError: it has been closed; RuntimeError: a signal's handler, in the midst of another line
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if sys.stderr is not None:  # else print() would write to stdout
            _write(sys.stderr, f"{_behind_a_bar()}hadar: {line}\n")


def _write(stream: TextIO, text: str) -> None:
    """Past Python's own buffer: with what stays there and cannot be written, a process ends with status 120. Through
    the stream where a script has put something of its own in its place."""
    if stream is sys.__stderr__ and "write" not in vars(stream):
        stream.flush()
        os.write(stream.fileno(), text.encode(stream.encoding or "utf-8", "backslashreplace"))
    else:
        print(text, end="", file=stream, flush=True)


def _behind_a_bar() -> str:
    """What ends the line of a progress bar, behind which ours would stand, out of sight and of a search."""
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return "\n" if getattr(bars, "_instances", None) else ""

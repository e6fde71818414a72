"""A shared file system may show some workers later than others what was written on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from slurm_hadar.errors import CheckpointError

__all__ = ["when_visible"]

VISIBLE_WITHIN_S = 30.0
_AGAIN_S = 0.2

_Content = TypeVar("_Content")


def when_visible(path: Path, read: Callable[[], _Content]) -> _Content:
    """What ``read`` returns, tried until this worker sees all of ``path``, which rank 0 has read already.

    Raises CheckpointError if that takes too long.
    """
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    while True:
        try:
            return read()
        except CheckpointError as error:
            if time.monotonic() > deadline:
                raise CheckpointError(f"{path}, read by rank 0, cannot be read here: {error}") from error
            time.sleep(_AGAIN_S)

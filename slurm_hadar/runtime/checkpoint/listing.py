"""A directory of checkpoints as its names show it, whoever writes there: which there are, and copies of them.

The names are those that :mod:`slurm_hadar.runtime.checkpoint.store` gives. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.runtime.checkpoint.trained import NOTE

__all__ = ["ASIDE", "CLAIM", "DRAFT", "Checkpoint", "copy_checkpoints", "listed", "newest_step", "replaces_one"]

CLAIM = "claim"
ASIDE, DRAFT = ".old-", ".tmp-"
_NAME = re.compile(r"gen-(\d{1,9})-step-(\d{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint directory by its name; its content has not been looked at."""

    generation: int
    step: int
    path: Path

    @property
    def name(self) -> str:
        """That of its directory, such as ``gen-0-step-100``."""
        return self.path.name


def listed(directory: Path) -> list[Checkpoint]:
    """By name alone, best first: highest generation, then highest step."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in directory.iterdir():
            if match := _NAME.fullmatch(path.name):
                found.append(Checkpoint(int(match[1]), int(match[2]), path))
    return sorted(found, reverse=True)


def newest_step(directory: Path) -> int | None:
    """Step of the checkpoint that a restart would try first, judged by names alone; None if there is none."""
    found = listed(directory)
    return found[0].step if found else None


def copy_checkpoints(source: Path, target: Path) -> None:
    """All that are finished, for another job, while the one that writes them may run: without what belongs to that
    run. Raises OSError, also where one of them is dropped meanwhile."""
    shutil.copytree(source, target, ignore=_of_the_run, copy_function=_link)


def replaces_one(directory: Path) -> bool:
    """Whether a checkpoint there, or below, is just being replaced, and so has another name."""
    return any(directory.rglob(f"{ASIDE}*"))


def _of_the_run(_folder: str, names: list[str]) -> list[str]:
    passing = (DRAFT, ASIDE, f".{CLAIM}-", f".{NOTE}-")
    return [name for name in names if name in (CLAIM, NOTE) or name.startswith(passing)]


def _link(source: str, target: str) -> None:
    """What a checkpoint consists of is never written again, so that a second name does for a copy, however large it is;
    but not on every file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

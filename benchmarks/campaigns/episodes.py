"""Episode after episode, each with a seed of its own, and what did not hold in them."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

__all__ = ["play_all", "scratch", "verdict", "violations"]


class Episode(Protocol):
    """What came of one. ``problems``: what did not hold; ``kept``: where what is left of it was kept then."""

    seed: int
    problems: list[str]
    kept: str


_E = TypeVar("_E", bound=Episode)


def play_all(
    play: Callable[[int, int], _E],
    told: Callable[[_E], str],
    summary: Callable[[list[_E]], dict[str, Any]],
    *,
    seed: int,
    minutes: float,
    episodes: int | None,
    report: Path | None,
) -> list[_E]:
    """Play so many ``episodes``, or until ``minutes`` are over; the report is written after each. ``play`` is given the
    number of the episode, from 1, and its seed."""
    began = time.monotonic()
    played: list[_E] = []
    while len(played) < episodes if episodes else time.monotonic() - began < 60 * minutes:
        played.append(play(len(played) + 1, seed + len(played)))
        click.echo(told(played[-1]))
        if report is not None:
            report.write_text(json.dumps(summary(played), indent=1) + "\n")
    return played


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A folder for an episode, into which its other users may look; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def violations(episode: Episode, target: str) -> list[str]:
    """Lines; ``target`` of make plays the episode again."""
    lines = [f"  VIOLATION {p}" for p in episode.problems]
    return [*lines, f"  again: make {target} SEED={episode.seed}; kept in {episode.kept}"] if lines else []


def verdict(summary: dict[str, Any]) -> str:
    """The last line of a campaign."""
    where = f", in the episodes of seeds {', '.join(map(str, summary['violated_seeds']))}"
    return f"violations: {summary['violations']}{where if summary['violations'] else ''}"

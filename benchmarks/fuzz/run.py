"""Feeding one parser."""

from __future__ import annotations

import logging
import random
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks.fuzz.mutate import mutate
from benchmarks.fuzz.targets import Target

__all__ = ["Result", "TooSlow", "alone", "fuzz", "limit_memory", "timed", "where_of"]

LONGEST_S = 5.0  # of CPU
_STUCK_S = 60.0  # by the clock, where a busy machine does not count as slow
MOST_BYTES = 4 << 30
EXAMPLES = 5


class TooSlow(BaseException):
    """A case took more CPU than LONGEST_S, or waited; no Exception, lest a parser swallow it."""


@dataclass
class Result:
    """What came of one parser. ``examples`` are (input, what it did), one for each place that crashed."""

    name: str
    cases: int = 0
    refused: int = 0
    crashes: int = 0
    examples: list[tuple[bytes, str]] = field(default_factory=list)


def fuzz(
    target: Target, rng: random.Random, folder: Path, *, cases: int | None = None, until: float = float("inf")
) -> Result:
    """So many cases, or as many as there are until the monotonic time ``until``. The samples themselves come first,
    and must be understood."""
    logging.disable(logging.WARNING)
    result = Result(target.name)
    places: set[str] = set()
    where = folder / target.name.replace(" ", "-").replace(",", "")
    where.mkdir(parents=True, exist_ok=True)
    try:
        for data in _inputs(target, rng):
            if result.cases == cases or time.monotonic() > until:
                return result
            result.cases += 1
            try:
                with timed():
                    target.run(data, where)
            except target.allowed as error:
                result.refused += 1
                fault = _not_one_line(error)
            except (Exception, TooSlow) as error:
                fault = where_of(error)
            else:
                fault = None
            if fault is not None:
                result.crashes += 1
                if fault not in places and len(places) < EXAMPLES:
                    places.add(fault)
                    result.examples.append((data, fault))
    finally:
        logging.disable(logging.NOTSET)
    return result


def _inputs(target: Target, rng: random.Random) -> Iterator[bytes]:
    yield from target.samples
    pool = list(target.samples)
    while True:
        data = mutate(rng.choice(pool), target.samples, rng)
        yield data
        if rng.random() < 0.02 and len(pool) < 200 and len(data) < 20_000:
            pool.append(data)


def _not_one_line(error: Exception) -> str | None:
    """What a user gets to see must be one line."""
    text = str(error)
    if not text.strip():
        return f"{type(error).__name__} without a word"
    return f"{type(error).__name__} of several lines: {text[:100]!r}" if "\n" in text else None


def where_of(error: BaseException) -> str:
    """What went wrong and in which line of ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/benchmarks/" not in f.filename]
    ours = [f for f in frames if "slurm_hadar" in f.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:150]!r}"


@contextmanager
def timed() -> Iterator[None]:
    """Raise TooSlow from whatever takes more CPU time than LONGEST_S, or waits for something that does not come."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"took longer than {LONGEST_S:g} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, LONGEST_S), signal.SIGALRM: (signal.ITIMER_REAL, _STUCK_S)}
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def limit_memory() -> None:
    """So that a list of ten billion nodes fails instead of taking the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def alone(data: bytes) -> str:
    """The input in a line, cut short."""
    return repr(data if len(data) < 100 else data[:100] + b"...")

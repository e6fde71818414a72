"""Where the copies of a forked job meet, as hadar-srun tells each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_hadar.runtime.forks.member import PeriodLength

__all__ = ["ForkPlace", "fork_place"]


@dataclass(frozen=True, slots=True)
class ForkPlace:
    """Where the copies meet, which of them this process is, how often it was restarted, and the length of a period."""

    directory: Path
    copy: int
    restart: int
    period: PeriodLength

    def below(self, name: str | None) -> ForkPlace:
        """That of one of several trainings in a job."""
        return replace(self, directory=self.directory / (name or ""))


def fork_place(environ: Mapping[str, str], restart: int) -> ForkPlace | None:
    """From what ``hadar-srun`` exports in a task of a forked job's array; None anywhere else.

    Raises ValueError if the variables make no sense.
    """
    directory, copy = environ.get("HADAR_FORK_DIR"), environ.get("HADAR_FORK_COPY", "")
    if not directory:
        return None
    if not re.fullmatch(r"\d{1,9}", copy):
        raise ValueError(f"HADAR_FORK_COPY={copy!r} must be this copy's number; hadar-srun sets it")
    return ForkPlace(Path(directory), int(copy), restart, _period(environ.get("HADAR_PERIOD", "")))


def _period(text: str) -> PeriodLength:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s?)", text)
    if text and not match:
        raise ValueError(f"HADAR_PERIOD={text!r} must be steps such as 500 or seconds such as 30s")
    if match is None:
        return PeriodLength()
    return PeriodLength(seconds=float(match[1])) if match[2] else PeriodLength(steps=int(float(match[1])))

"""A file of trial groups: CSV with a header, documented in docs/tuning.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LONGEST_S, positive, reading, rows, within
from slurm_hadar.tuning.trials import Trial

__all__ = ["OPTIONAL", "REQUIRED", "read_groups"]

REQUIRED = ("group", "trial", "budget_s")
OPTIONAL = ("alpha", "beta")


def read_groups(path: Path) -> tuple[tuple[Trial, ...], ...]:
    """The groups of a file, in the order in which they first appear; each begins when the one before is over.

    Raises TraceError naming file, line and field.
    """
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    groups: dict[str, dict[str, Trial]] = {}
    for where, row in rows(text.splitlines(), str(path), REQUIRED, OPTIONAL):
        trial = _trial(row, where)
        group = groups.setdefault(row["group"], {})
        if trial.trial_id in group:
            raise TraceError(f"{where}: trial {trial.trial_id!r} stands in group {row['group']!r} twice")
        group[trial.trial_id] = trial
    if not groups:
        raise TraceError(f"{path}: has no trials, only a header; add a line for each trial")
    return tuple(tuple(group.values()) for group in groups.values())


def _trial(row: Mapping[str, str], where: str) -> Trial:
    if not row["trial"]:
        raise TraceError(f"{where}: trial is empty")
    budget_s = positive(row["budget_s"], where, "budget_s", LONGEST_S)
    alpha, beta = (within(row.get(name) or "1", where, name, 1, 100) for name in OPTIONAL)
    return Trial(row["trial"], budget_s, alpha, beta)

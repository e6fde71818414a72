"""Reading the configuration again: what changes at once, and what only a restart can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_hadar.config import Config, keeping

__all__ = ["Reload", "compare"]

#: Sections and settings that are bound when the controller starts: connections, sockets, locks and what jobs were told.
NEEDS_RESTART = (
    "slurm.backend", "slurm.timeout_s", "slurm.retries", "controller.state_dir", "controller.users", "channel",
    "network", "metrics.listen",
)  # fmt: skip


@dataclass(frozen=True)
class Reload:
    """What a configuration that was read again comes to. ``config`` is what is in force from now on; ``changed`` has
    old and new value of each setting that now differs; ``waiting`` the same of those that need a restart, for which
    ``config`` has the old value."""

    config: Config
    changed: dict[str, tuple[Any, Any]]
    waiting: dict[str, tuple[Any, Any]]

    def words(self) -> str:
        """One line for log and status."""
        parts = [f"{key}: {old!r} -> {new!r}" for key, (old, new) in self.changed.items()]
        text = "configuration read again: " + (", ".join(parts) or "nothing has changed")
        return text + (f"; needs a restart: {', '.join(self.waiting)}" if self.waiting else "")


def compare(old: Config, new: Config) -> Reload:
    """``new`` as far as it can be had without a restart of what runs by ``old``."""
    before, after = old.flat(), new.flat()
    keys = [k for k in (*after, *(k for k in before if k not in after)) if before.get(k) != after.get(k)]
    keys = [k for k in keys if {} not in (before.get(k), after.get(k))]  # the entries of a table are told
    changed: dict[str, tuple[Any, Any]] = {}
    waiting: dict[str, tuple[Any, Any]] = {}
    for key in keys:
        bound = any(key == fixed or key.startswith(f"{fixed}.") for fixed in NEEDS_RESTART)
        (waiting if bound else changed)[key] = (before.get(key), after.get(key))
    return Reload(keeping(new, old, NEEDS_RESTART), changed, waiting)

"""What is remembered of a family of trials from one study to the next: overheads, the cost of a resize, memory.

A family is one objective: a function of a file. One JSON file for each user.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.home import user_folder

__all__ = ["Profile", "Profiles"]

_KEPT = 25
#: Before anything is known: both tried, since to learn that they do not pay costs little.
_ALPHA, _BETA, _RESIZE_S = 1.3, 1.1, 5.0


@dataclass
class Profile:
    """Samples, newest last. ``packed``: the most trials on a GPU that fitted into its memory; None: no limit seen."""

    alphas: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    resizes_s: list[float] = field(default_factory=list)
    packed: int | None = None

    @property
    def alpha(self) -> float:
        """By how much each further trial on the same GPU slows one: the median of what was seen."""
        return max(1.0, statistics.median(self.alphas)) if self.alphas else _ALPHA

    @property
    def beta(self) -> float:
        """By how much each further GPU slows one against perfect scaling: the median of what was seen."""
        return max(1.0, statistics.median(self.betas)) if self.betas else _BETA

    @property
    def resize_s(self) -> float:
        """What a resize costs (Fluid's eps): the median, from the wish to the first step after it."""
        return statistics.median(self.resizes_s) if self.resizes_s else _RESIZE_S

    def saw_packed(self, alone: float, beside: float, trials: int) -> None:
        """A trial made so many steps per second alone on a GPU, and as one of ``trials`` on it."""
        if alone > 0 and beside > 0 and trials > 1:
            self._add(self.alphas, (alone / beside) ** (1 / (trials - 1)))

    def saw_wide(self, alone: float, wide: float, gpus: int) -> None:
        """A trial made so many steps per second on one GPU, and on ``gpus``."""
        if alone > 0 and wide > 0 and gpus > 1:
            self._add(self.betas, (gpus * alone / wide) ** (1 / (gpus - 1)))

    def saw_resize(self, seconds: float) -> None:
        """From the end of a trial on its old GPUs to its going on on the new ones."""
        self._add(self.resizes_s, seconds)

    def did_not_fit(self, trials: int) -> None:
        """So many on a GPU ran out of its memory."""
        self.packed = max(1, min(trials, self.packed or trials) - 1)

    @staticmethod
    def _add(samples: list[float], value: float) -> None:
        if 0 < value <= 1e6:
            samples.append(value)
            del samples[:-_KEPT]


class Profiles:
    """The file. What cannot be read counts as nothing known: it saves time, and nothing depends on it."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or user_folder("XDG_STATE_HOME", ".local/state") / "slurm_hadar" / "tuning.json"

    def of(self, family: str) -> Profile:
        """What is known of a family of trials; nothing of one that was never tried."""
        return _profile(self._read().get(family))

    def keep(self, family: str, profile: Profile) -> None:
        """Beside what others have written meanwhile."""
        everything = self._read()
        everything[family] = {
            "alphas": profile.alphas,
            "betas": profile.betas,
            "resizes_s": profile.resizes_s,
            "packed": profile.packed,
            "updated": time.time(),
        }
        new = self.file.with_name(f".{self.file.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
            new.replace(self.file)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _profile(said: Any) -> Profile:
    if not isinstance(said, Mapping):
        return Profile()
    alphas, betas, resizes_s = (_samples(said.get(name)) for name in ("alphas", "betas", "resizes_s"))
    packed = said.get("packed")
    return Profile(alphas, betas, resizes_s, packed if isinstance(packed, int) and packed > 0 else None)


def _samples(said: Any) -> list[float]:
    if not isinstance(said, Sequence):
        return []
    return [float(v) for v in said if isinstance(v, int | float) and 0 < v <= 1e6][-_KEPT:]

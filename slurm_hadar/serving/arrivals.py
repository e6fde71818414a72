"""When requests come: drawn, by a short text such as ``poisson:rate=50,seconds=60``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import options, positive, whole

__all__ = ["ARRIVAL_KEYS", "Arrivals", "is_drawn"]

ARRIVAL_KEYS = ("rate", "seconds", "seed", "factor", "share", "length")
_KINDS = ("poisson", "bursts")
_MOST = 10_000_000


def is_drawn(text: str) -> bool:
    """Whether it says how to draw a trace, and is no file's name."""
    return text.partition(":")[0] in _KINDS and ":" in text


@dataclass(frozen=True)
class Arrivals:
    """A Poisson process of ``rate`` per second; with bursts, one whose rate is ``factor`` times that for a ``share`` of
    the time, in bursts of ``length_s`` on average, and lower between them, so that the mean stays."""

    rate: float
    length_s: float
    seed: int = 0
    factor: float = 1.0
    share: float = 0.0
    burst_s: float = 1.0

    @classmethod
    def read(cls, text: str, values: dict[str, str], rate: float | None = None) -> Arrivals:
        """From ``KIND:key=value,...``, whose values were read by :func:`slurm_hadar.fields.options`. ``rate``: where
        the text has none. Raises TraceError."""
        kind = text.partition(":")[0]
        if "rate" in values:
            rate = positive(values["rate"], text, "rate")
        if rate is None:
            raise TraceError(f"{text}: rate is missing: how many requests come in a second")
        lasts_s = positive(values.get("seconds", "60"), text, "seconds")
        if rate * lasts_s > _MOST:
            raise TraceError(f"{text}: that is more than {_MOST:,} requests; lower rate or seconds")
        seed = whole(values.get("seed", "0"), text, "seed", least=0)
        if kind == "poisson":
            extra = next((key for key in ("factor", "share", "length") if key in values), None)
            if extra is not None:
                raise TraceError(f"{text}: {extra} goes with bursts: only")
            return cls(rate, lasts_s, seed)
        factor = positive(values.get("factor", "4"), text, "factor")
        share = positive(values.get("share", "0.1"), text, "share")
        if factor < 1 or share >= 1 or factor * share > 1:
            raise TraceError(f"{text}: factor must be at least 1, share under 1, and both multiplied at most 1")
        return cls(rate, lasts_s, seed, factor, share, positive(values.get("length", "1"), text, "length"))

    @staticmethod
    def values(text: str, more: tuple[str, ...] = ()) -> dict[str, str]:
        """The text's keys and values. ``more`` are further keys that the caller knows. Raises TraceError."""
        keys = (*ARRIVAL_KEYS, *more)
        return options(text, text.partition(":")[0] + ":", keys, ", ".join(f"{key}=" for key in keys))

    def times(self) -> Iterator[float]:
        """Seconds from 0 on, ascending."""
        dice = random.Random(f"arrivals {self.seed}")
        calm = (1.0 - self.factor * self.share) / (1.0 - self.share)
        bursting, now_s = False, 0.0
        while now_s < self.length_s:
            if self.share:
                mean_s = self.burst_s if bursting else self.burst_s * (1.0 - self.share) / self.share
                end_s = min(now_s + dice.expovariate(1.0 / mean_s), self.length_s)
            else:
                end_s = self.length_s
            rate = self.rate * ((self.factor if bursting else calm) if self.share else 1.0)
            while rate > 0.0:
                now_s += dice.expovariate(rate)
                if now_s >= end_s:
                    break
                yield now_s
            now_s, bursting = end_s, not bursting

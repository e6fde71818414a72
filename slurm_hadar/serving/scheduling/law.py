"""How much longer a batch takes than its longest request alone would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_hadar.errors import ConfigError

__all__ = ["BatchLaw"]

MOST = 1024


@dataclass(frozen=True, slots=True)
class BatchLaw:
    """A batch of k takes ``factors[k]`` times as long as its longest request alone; ``factors[0]`` is not used.

    [Our reconstruction of Orloj (docs/serving.md): L_B = f(k) max l.]
    """

    factors: tuple[float, ...]

    @classmethod
    def linear(cls, g: float, largest: int) -> BatchLaw:
        """f(k) = g + (1 - g) k: with g = 1 a batch takes as long as its longest request, with 0 it saves nothing."""
        if not 0.0 <= g <= 1.0:
            raise ConfigError(f"the batch law's g is from 0 to 1, not {g:g}")
        return cls((0.0, *(g + (1.0 - g) * k for k in range(1, _checked(largest) + 1))))

    @classmethod
    def measured(cls, seconds: Mapping[int, float], largest: int) -> BatchLaw:
        """From measured times of batches of some sizes, that of 1 among them; linear between. Never falls with size."""
        sizes = sorted(seconds)
        times = np.maximum.accumulate([seconds[k] / seconds[1] for k in sizes])
        wanted = np.arange(1, _checked(largest) + 1)
        found = np.interp(wanted, sizes, times)
        slope = (times[-1] - times[0]) / max(sizes[-1] - sizes[0], 1)
        found = found + np.maximum(wanted - sizes[-1], 0) * slope
        return cls((0.0, *found.tolist()))

    @property
    def largest(self) -> int:
        """The largest batch."""
        return len(self.factors) - 1

    def sizes(self) -> tuple[int, ...]:
        """1, 2, 4 ... and the largest: the sizes that are looked at."""
        return tuple(
            sorted({*(1 << n for n in range(self.largest.bit_length()) if 1 << n <= self.largest), self.largest})
        )


def _checked(largest: int) -> int:
    if not 1 <= largest <= MOST:
        raise ConfigError(f"the largest batch is from 1 to {MOST}, not {largest}")
    return largest

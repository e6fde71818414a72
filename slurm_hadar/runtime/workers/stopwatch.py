"""How fast a worker is by itself: the time of its own work, from one meeting with the others to the next."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any

from slurm_hadar.runtime.emulation import Pace

__all__ = ["Stopwatch"]

WARM_UP = 2  # rounds after a new share that do not count: memory is allocated, kernels are chosen
FEWEST, MOST = 3, 16  # rounds that a rate is the median of


class _Processor:
    """Stamps are times on this machine's clock."""

    @staticmethod
    def stamp() -> float:
        return time.perf_counter()

    @staticmethod
    def between(begin: float, end: float) -> float:
        return end - begin


class _Gpu:
    """Stamps are events in the GPU's queue, since the Python code runs ahead of the work that it orders."""

    @staticmethod
    def stamp() -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def between(begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000.0


class Stopwatch:
    """Runs while this worker works, stands while it waits for others.

    A round ends with a meeting: the worker's last gradient is ready to be averaged. With gradient accumulation it is
    several turns of the loop. What follows the meeting (the optimizer's step, loading) belongs to the next round.

    Parameters
    ----------
    gpu: the model is on a GPU. pace: of the private cluster, for which waiting is no work either.
    """

    def __init__(self, gpu: bool, pace: Pace | None) -> None:
        self._clock: Any = _Gpu() if gpu else _Processor()
        self._pace = pace
        self._began: Any = None
        self._spans: list[tuple[Any, Any]] = []
        self._samples = self._turns = 0
        self._met = False
        self.turns_per_round = 1
        self.reset()

    def reset(self) -> None:
        """Forget all rounds; the next few do not count."""
        self._rounds: deque[tuple[int, list[tuple[Any, Any]]]] = deque(maxlen=MOST)
        self._unwanted = WARM_UP

    def run(self) -> None:
        """From here on it is work."""
        if self._began is None:
            self._began = self._clock.stamp()
            if self._pace is not None:
                self._pace.resume()

    def halt(self) -> None:
        """From here on it is waiting."""
        if self._began is not None:
            self._spans.append((self._began, self._clock.stamp()))
            self._began = None
            if self._pace is not None:
                self._pace.pause()

    def meet(self) -> None:
        """This worker's gradient is ready; :meth:`run` follows when the others' has been added."""
        self.halt()
        self._met = True

    @property
    def within_round(self) -> bool:
        """Whether gradients were computed that have not been averaged."""
        return self._turns > 0

    def turn(self, samples: int) -> None:
        """A turn of the loop is over, in which this worker had ``samples``."""
        self._samples += samples
        self._turns += 1
        if self._met:
            if self._unwanted:
                self._unwanted -= 1
            else:
                self._rounds.append((self._samples, self._spans))
            self.turns_per_round = self._turns
            self._samples, self._turns, self._met, self._spans = 0, 0, False, []
        self.run()

    def take_rate(self) -> float | None:
        """Samples per second of own work, the median of the rounds since the last call; None if there were too few."""
        rounds = [(n, sum(self._clock.between(*span) for span in spans)) for n, spans in self._rounds]
        self._rounds.clear()
        rates = [n / seconds for n, seconds in rounds if seconds > 0]
        return statistics.median(rates) if len(rates) >= FEWEST else None

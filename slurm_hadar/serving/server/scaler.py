"""Beside the server: a process that works out, now and then, how many workers there should be."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

from slurm_hadar.dependent import die_with_parent
from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.simulation.scaling import Bounds, Scaling, scaling_of
from slurm_hadar.serving.trace import TracedRequest

__all__ = ["EACH_S", "SEEN_S", "Scaler"]

EACH_S = 10.0  # between two looks
SEEN_S = 60.0  # what counts as of late
_MOST = 2000  # requests that are played again


class Scaler:
    """Remembers who came of late, and looks every ten seconds. The looking takes up to seconds of CPU, in a process of
    its own and behind all others.

    Parameters
    ----------
    setups: what is known now of each model; its profile is not used.
    known: distribution of run times by model and application.
    tell: given what was found; in the event loop that :meth:`run` runs in.
    """

    def __init__(
        self,
        policy: Name,
        bounds: Bounds,
        setups: Callable[[], Mapping[str, Setup]],
        known: Callable[[str, str], Distribution],
        tell: Callable[[Scaling], None],
    ) -> None:
        self._policy, self._bounds, self._setups, self._known, self._tell = policy, bounds, setups, known, tell
        self._seen: deque[tuple[float, float, str, str]] = deque(maxlen=_MOST)
        self._dice = random.Random("scaling")
        self._executor: ProcessPoolExecutor | None = None

    def arrived(self, now_s: float, deadline_s: float, model: str, application: str) -> None:
        """Whoever asks counts, and who is refused for a full queue not less. ``deadline_s``: from now on."""
        self._seen.append((now_s, deadline_s, model, application))

    async def run(self, clock: Callable[[], float], workers: Callable[[], int]) -> None:
        """Until it is cancelled. ``workers``: how many there are to be now."""
        while True:
            await asyncio.sleep(EACH_S)
            setups = self._setups()
            if not setups:
                continue
            seen = self._of_late(clock())
            profiled = self._profiled(setups, seen)
            try:
                found = await asyncio.get_running_loop().run_in_executor(
                    self._pool(), scaling_of, seen, self._policy, profiled, workers(), self._bounds
                )
            except (BrokenExecutor, OSError):  # killed, or no room for it: the next look has a new one
                self.close()
                continue
            self._tell(found)

    def close(self) -> None:
        """Without waiting for what is being worked out."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _pool(self) -> ProcessPoolExecutor:
        if self._executor is None:
            spawn = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(1, spawn, _begin)
        return self._executor

    def _of_late(self, now_s: float) -> list[TracedRequest]:
        while self._seen and self._seen[0][0] < now_s - SEEN_S:
            self._seen.popleft()
        known = {kind: self._known(*kind) for kind in {(model, application) for *_, model, application in self._seen}}
        found = []
        for at_s, deadline_s, model, application in self._seen:
            of = known[model, application]
            exec_s = self._dice.choices(of.times_s, of.weights)[0]
            found.append(TracedRequest(at_s, application, exec_s, at_s + deadline_s, model))
        return found

    def _profiled(self, setups: Mapping[str, Setup], seen: Sequence[TracedRequest]) -> dict[str, Setup]:
        """With run times as they are now, not as they were at the start."""
        applications = {(r.model, r.application) for r in seen}
        return {
            model: Setup(setup.law, setup.slo_s, {a: self._known(m, a).times_s for m, a in applications if m == model})
            for model, setup in setups.items()
        }


def _begin() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # told to all of a job; the server ends this process when it is done
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    os.nice(19)

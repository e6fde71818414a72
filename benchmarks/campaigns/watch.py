"""Looks at the queue once a second while a campaign goes on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from benchmarks.campaigns.daemon import Daemon
from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import ClusterState

__all__ = ["LOOK_EVERY_S", "Lookout"]

LOOK_EVERY_S = 1.0


class Lookout(ABC):
    """A thread between start and stop, which also keeps the controller up. ``problems`` is what must never be seen,
    ``misses`` are looks that Slurm did not answer."""

    def __init__(self, daemon: Daemon, backend: Backend) -> None:
        self.problems: list[str] = []
        self.looks = 0
        self.misses = 0
        self._daemon = daemon
        self._backend = backend
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60.0)

    @abstractmethod
    def look(self) -> None:
        """Read the queue once, and note what does not hold."""

    def read(self) -> ClusterState | None:
        """The queue and the nodes; None where Slurm does not answer."""
        try:
            state = self._backend.read()
        except SlurmError:
            self.misses += 1
            return None
        self.looks += 1
        for node in state.nodes:
            for gpu, used in node.used:
                if used > dict(node.gpus).get(gpu, 0):
                    self.complain(f"node {node.name} has more {gpu} in use ({used}) than it has")
        return state

    def complain(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._daemon.keep_up()
            self.look()

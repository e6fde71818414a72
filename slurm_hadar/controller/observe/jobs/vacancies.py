"""GPUs that fall free between two rounds, while jobs wait for some, bring the next one forward."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import SlurmNode

__all__ = ["Vacancies"]

log = logging.getLogger(__name__)


class Vacancies:
    """Asks Slurm how many GPUs of each node are in use: a job under ``hadar-srun`` says itself that it ends, but a
    plain script, a stranger's, or one that is killed does not. Asked only while a job that is steered waits, since
    nobody else has a use for the answer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._used: dict[str, int] = {}
        self._wanted = self._came = False

    def begin(self, nodes: Iterable[SlurmNode]) -> None:
        """A round has seen ``nodes``."""
        self._used = {node.name: node.gpus_held for node in nodes}
        self._wanted = self._came = False

    def settle(self, started: Mapping[str, int], stopped: Collection[str]) -> None:
        """The round leaves jobs waiting. It has started jobs on so many GPUs of the nodes ``started``, which may have
        ended since. What is in use on the nodes ``stopped``, where it has stopped some, is what is in use now."""
        self._wanted = True
        for node, count in started.items():
            self._used[node] = self._used.get(node, 0) + count
        for node in stopped:
            self._used.pop(node, None)
        self._came = bool(stopped) and self._look()

    def come(self) -> bool:
        """Whether some node has fewer GPUs in use than before. Where Slurm does not answer none has, and it is not
        asked again before the next round."""
        return self._came or (self._wanted and self._look())

    def _look(self) -> bool:
        try:
            now = self._backend.gpus_in_use()
        except SlurmError as error:
            log.debug("GPUs that fall free are noticed by the next round only: %s", error)
            self._wanted = False
            return False
        before, self._used = self._used, now
        return any(now.get(node, count) < count for node, count in before.items())

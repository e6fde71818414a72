"""Which backend to use: pyslurm where it matches the site's Slurm, the command line everywhere else."""

from __future__ import annotations

import logging

from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.backend.pyslurm import PyslurmBackend, probe

__all__ = ["choose"]

log = logging.getLogger(__name__)


def choose(backend: str, timeout_s: float = 30.0, retries: int = 2) -> Backend:
    """The backend named ``cli`` or ``pyslurm``, or with ``auto`` the best that works here, said in the log.

    ``pyslurm`` fails loudly: raises SlurmError with the reason why pyslurm cannot be used.
    """
    if backend == "cli":
        return CliBackend(timeout_s, retries)
    problem = probe()
    if problem is None:
        log.info("Slurm is read through pyslurm")
        return PyslurmBackend(timeout_s, retries)
    if backend == "pyslurm":
        raise SlurmError(f"slurm.backend = pyslurm, but {problem}")
    log.info("Slurm is read through its commands: %s", problem)
    return CliBackend(timeout_s, retries)

"""Backends of all kinds, on private clusters."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.backend.pyslurm import PyslurmBackend, probe

BACKENDS: dict[str, type[CliBackend]] = {"cli": CliBackend, "pyslurm": PyslurmBackend}
HERE = [name for name in BACKENDS if name == "cli" or importlib.util.find_spec("pyslurm")]


@pytest.fixture(params=HERE)
def make(request: pytest.FixtureRequest, slurm_cluster: PrivateCluster) -> Iterator[Callable[..., Backend]]:
    """Makes the backend under test for a cluster or an environment; skipped where its library cannot be used."""
    if request.param == "pyslurm" and (problem := problem_of(slurm_cluster)):
        pytest.skip(problem)
    made: list[Backend] = []

    def new(env: dict[str, str], timeout_s: float = 30.0, retries: int = 2) -> Backend:
        made.append(BACKENDS[request.param](timeout_s, retries, env))
        return made[-1]

    yield new
    for one in made:
        one.close()


@functools.cache
def problem_of(cluster: PrivateCluster) -> str | None:
    """Why pyslurm cannot be used."""
    return probe(cluster.env)


@pytest.fixture
def backend(make: Callable[..., Backend], slurm_cluster: PrivateCluster) -> Backend:
    """The backend under test on the shared cluster."""
    return make(slurm_cluster.env)

"""Histories to learn from."""

from __future__ import annotations

import random

import pytest

from slurm_hadar.predict.evaluate import Training, evaluate
from slurm_hadar.predict.features import samples
from slurm_hadar.predict.forest import grow
from slurm_hadar.predict.history import HistoryJob

HOUR_S = 3600.0


def drawn(count: int, seed: int = 0) -> list[HistoryJob]:
    """Jobs of a dozen scripts of four users, each with a middle run time of its own."""
    rng = random.Random(seed)
    middles = [rng.lognormvariate(8, 1.2) for _ in range(12)]
    jobs = []
    for i in range(count):
        script = min(11, int(rng.expovariate(0.3)))
        submit = i * 600.0
        run_s = middles[script] * rng.lognormvariate(0, 0.3)
        rate = (1.0, 20.0)[script % 2]
        jobs.append(
            HistoryJob(
                f"j{i}",
                submit,
                f"user{script % 4}",
                f"script{script}",
                1 + script % 3,
                "",
                f"model{script % 2}",
                None,
                steps_per_s=rate,
                start=submit,
                end=submit + run_s,
                steps=run_s * rate,
            )
        )
    return jobs


@pytest.fixture(scope="session")
def history() -> list[HistoryJob]:
    return drawn(400)


@pytest.fixture(scope="session")
def training(history: list[HistoryJob]) -> Training:
    """A forest, accepted or not: on jobs as plain as these it has little to find that the mean has not."""
    return Training("forest", grow(samples(history), 30), evaluate(history, 30), None)

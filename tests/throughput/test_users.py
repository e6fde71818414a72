"""Speeds between users: what one user's jobs report moves nobody else's."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.throughput.estimator import SHARED_FACTOR, Estimator
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

TYPES = ["v100", "p100", "k80"]


@pytest.fixture
def store() -> ThroughputStore:
    return ThroughputStore(sqlite3.connect(":memory:"))


def rates(store: ThroughputStore | None, user: str, model: str = "resnet18", batch: int = 64) -> dict[str, float]:
    found = Estimator(reference(), store).speeds(model, batch, 1, TYPES, user=user)
    return {t: s.steps_per_s for t, s in found.items()}


def test_two_users_change_nothing_for_a_third(store: ThroughputStore) -> None:
    """Whatever they measured, of this batch size or another."""
    before = rates(None, "victim")
    for user in ("mallory", "mandy"):
        store.record("resnet18:64", "k80", 1, 1e5, 0.0, user=user)
        store.record("resnet18:64", "v100", 1, 1e-5, 0.0, user=user)
        store.record("resnet18:32", "k80", 1, 1e5, 0.0, user=user)

    assert rates(store, "victim") == before
    assert rates(store, "mallory")["k80"] == 1e5


def test_ones_own_measurement_goes_first(store: ThroughputStore) -> None:
    """Before the median of any number of others."""
    for number in range(9):
        store.record("resnet18:64", "v100", 1, 50.0, 0.0, user=f"user{number}")
    store.record("resnet18:64", "v100", 1, 7.0, 0.0, user="ann")
    speeds = Estimator(reference(), store).speeds("resnet18", 64, 1, TYPES, user="ann")

    assert speeds["v100"].steps_per_s == 7.0 and speeds["v100"].source.startswith("measured here 1 time")
    others = Estimator(reference(), store).speeds("resnet18", 64, 1, TYPES, user="zoe")
    assert others["v100"].steps_per_s == 50.0 and others["v100"].source.startswith("median of 10 users")


_BAD = st.floats(1e-9, 1e6)


@given(slow=_BAD, fast=_BAD, own=st.none() | st.floats(0.01, 1e4), model=st.sampled_from(["resnet18", "mine", "lm"]))
def test_any_number_of_others_stays_within_the_hardware(
    slow: float, fast: float, own: float | None, model: str
) -> None:
    """Three users who agree shift no ratio of two types by more than the factor from what it would be else."""
    store = ThroughputStore(sqlite3.connect(":memory:"))
    for number in range(3):
        store.record(f"{model}:64", "v100", 1, slow, 0.0, user=f"user{number}")
        store.record(f"{model}:64", "k80", 1, fast, 0.0, user=f"user{number}")
        store.record(f"{model}:32", "k80", 1, fast, 0.0, user=f"user{number}")
    alone = ThroughputStore(sqlite3.connect(":memory:"))
    for one in (store, alone):
        if own is not None:
            one.record(f"{model}:64", "v100", 1, own, 0.0, user="victim")
    if own is None:
        alone.record(f"{model}:64", "v100", 1, slow, 0.0, user="victim")
    honest, got = rates(alone, "victim", model), rates(store, "victim", model)

    limit = SHARED_FACTOR * 1.1  # a ratio by data sheets is not quite the inverse of its inverse
    assert 1 / limit <= (got["k80"] / got["v100"]) / (honest["k80"] / honest["v100"]) <= limit
    if own is not None:
        assert got["v100"] == pytest.approx(own)

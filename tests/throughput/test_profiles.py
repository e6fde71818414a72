"""Speeds of jobs on GPUs that they share."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import StoreError
from slurm_hadar.model import LEAST_DUTY
from slurm_hadar.throughput.profiles import Needs, ProfileStore, joined


@pytest.fixture
def store() -> ProfileStore:
    return ProfileStore(sqlite3.connect(":memory:"))


def test_a_pair_is_known_once_both_were_measured_together_and_alone(store: ProfileStore) -> None:
    for workload, beside, rate in (("a", "", 10.0), ("b", "", 4.0), ("a", "b", 6.0)):
        store.record(workload, beside, "v100", "alice", rate, 1.0)
    assert store.mean_pairings() == {}

    store.record("b", "a", "v100", "alice", 5.0, 1.0)

    assert store.pairings() == {"alice": {("a", "b", "v100"): (0.6, 1.0), ("b", "a", "v100"): (1.0, 0.6)}}
    for workload, beside, rate in (("a", "", 10.0), ("b", "", 4.0), ("a", "b", 10.0), ("b", "a", 2.0)):
        store.record(workload, beside, "v100", "bob", rate, 1.0)
    assert store.pairings()["bob"]["a", "b", "v100"] == (1.0, 0.5)
    assert store.mean_pairings()["a", "b", "v100"] == (0.8, 0.75)


def test_users_and_gpu_types_are_told_apart(store: ProfileStore) -> None:
    """And a new measurement counts half, as with speeds of whole GPUs."""
    store.record("a", "", "v100", "alice", 10.0, 1.0)
    store.record("a", "", "v100", "alice", 20.0, 2.0)
    store.record("a", "", "v100", "bob", 1.0, 1.0)
    store.record("a", "", "k80", "alice", 2.0, 1.0)
    store.record("a", "b", "k80", "alice", 1.0, 1.0)

    told = {(p.gpu_type, p.user, p.beside): (p.steps_per_s, p.samples, p.keeps) for p in store.everything()}
    assert told == {
        ("k80", "alice", ""): (2.0, 1, 1.0),
        ("k80", "alice", "b"): (1.0, 1, 0.5),
        ("v100", "alice", ""): (15.0, 2, 1.0),
        ("v100", "bob", ""): (1.0, 1, 1.0),
    }


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "a", "b"]), st.floats(allow_nan=True))))
def test_whatever_is_reported_shares_are_shares(told: list[tuple[str, str, float]]) -> None:
    store = ProfileStore(sqlite3.connect(":memory:"))
    for workload, beside, rate in told:
        store.record(workload, beside, "v100", "alice", rate, 1.0)

    assert all(0 < share <= 1 for kept in store.mean_pairings().values() for share in kept)


def test_a_database_that_cannot_be_written_is_told(store: ProfileStore) -> None:
    connection = sqlite3.connect(":memory:")
    broken = ProfileStore(connection)
    connection.execute("DROP TABLE sharing_profile")

    with pytest.raises(StoreError, match="profiles of jobs that share GPUs"):
        broken.record("a", "", "v100", "alice", 1.0, 1.0)
    assert store.everything() == []


def test_memory_grows_at_once_and_shrinks_by_and_by(store: ProfileStore) -> None:
    """What nobody has measured takes nothing away from what somebody has."""
    for at, persistent, ephemeral in ((1.0, None, None), (2.0, 100, 1000), (3.0, 400, 500)):
        store.record_needs(Needs("a", "v100", "alice", persistent, ephemeral, 0.2, at))
    store.record_needs(Needs("a", "v100", "alice", None, None, 0.2, 4.0))

    (needs,) = store.needs()
    assert needs.persistent_bytes == 400 and needs.ephemeral_bytes is not None and 500 < needs.ephemeral_bytes < 1000
    assert (needs.iter_s, needs.updated_at) == (0.2, 4.0)


def test_duties_are_averages_of_each_users_own_jobs(store: ProfileStore) -> None:
    """Never none at all; of whom nobody has told one, nothing."""
    told = [
        ("a", "ann", 0.2),
        ("a", "ann", 0.2),
        ("a", "ann", None),
        ("b", "ann", 0.0),
        ("a", "bob", 1.0),
        ("c", "ann", None),
    ]
    for workload, user, duty in told:
        store.record_needs(Needs(workload, "v100", user, None, None, 0.02, 1.0, duty))

    assert store.duties() == {
        ("ann", "a"): {"v100": pytest.approx(0.2)},
        ("ann", "b"): {"v100": LEAST_DUTY},
        ("bob", "a"): {"v100": 1.0},
    }
    store.record_needs(Needs("a", "v100", "ann", None, None, 0.02, 1.0, 0.4))
    assert 0.2 < store.duties()["ann", "a"]["v100"] < 0.4


def test_a_database_of_which_no_duty_is_known_yet_is_gone_on_with() -> None:
    connection = sqlite3.connect(":memory:")
    ProfileStore(connection).record_needs(Needs("a", "v100", "ann", 10, None, 0.02, 1.0))
    connection.execute("ALTER TABLE sharing_needs DROP COLUMN duty")

    assert ProfileStore(connection).needs() == [Needs("a", "v100", "ann", 10, None, 0.02, 1.0)]


def test_a_company_is_the_same_in_any_order(store: ProfileStore) -> None:
    store.record("a", "", "v100", "ann", 10.0, 1.0)
    store.record("a", joined(["c", "b", "b"]), "v100", "ann", 5.0, 1.0)

    assert joined("cbb") == joined("bbc") != joined("bc")
    assert store.companies() == {"ann": {("a", ("b", "b", "c"), "v100"): 0.5}}

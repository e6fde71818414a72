"""The store of measured speeds."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import StoreError
from slurm_hadar.messages import FASTEST_STEPS_PER_S, SLOWEST_STEPS_PER_S
from slurm_hadar.throughput.measurements import workload_key
from slurm_hadar.throughput.store import ThroughputStore

rates = st.floats(SLOWEST_STEPS_PER_S, FASTEST_STEPS_PER_S)


def memory(**options: Any) -> Any:
    return ThroughputStore(sqlite3.connect(":memory:"), **options)


@given(st.lists(rates, min_size=1, max_size=20), st.floats(0.05, 1.0))
def test_exponential_average(measured: Any, alpha: Any) -> None:
    """Each measurement enters with weight alpha, the first one alone; the average stays within what was measured."""
    store = memory(alpha=alpha)
    expected = measured[0]
    for at, rate in enumerate(measured):
        expected = rate if at == 0 else alpha * rate + (1 - alpha) * expected
        result = store.record("lm:20", "v100", 2, rate, float(at))
    assert result.steps_per_s == pytest.approx(expected)
    assert min(measured) * (1 - 1e-9) <= result.steps_per_s <= max(measured) * (1 + 1e-9)
    assert (result.samples, result.updated_at) == (len(measured), len(measured) - 1)


def test_pairs_are_kept_apart() -> None:
    """Type, gang size, spread and workload each make a pair of their own."""
    store = memory()
    store.record("a", "v100", 1, 1.0, 0.0)
    store.record("a", "v100", 2, 2.0, 0.0)
    store.record("a", "v100", 2, 3.0, 0.0, spread=True)
    store.record("a", "k80", 1, 4.0, 0.0)
    store.record("b", "v100", 1, 5.0, 0.0)

    assert [m.steps_per_s for m in store.of("a")] == [4.0, 1.0, 2.0, 3.0]
    assert store.get("a", "v100", 2, spread=True).steps_per_s == 3.0
    assert store.get("a", "p100", 1) is None
    assert store.workloads() == ["a", "b"]


def test_measurements_survive_reopening(tmp_path: Path) -> None:
    """What was written by one process is there for the next."""
    path = tmp_path / "speeds.sqlite"
    first = ThroughputStore.open(path)
    first.record("a", "v100", 1, 2.5, 7.0)
    first.close()

    again = ThroughputStore.open(path)
    assert again.get("a", "v100", 1).steps_per_s == 2.5
    again.close()


def test_two_writers_share_one_file(tmp_path: Path) -> None:
    """Two open stores on one file see each other's measurements."""
    path = tmp_path / "speeds.sqlite"
    one, two = ThroughputStore.open(path), ThroughputStore.open(path)
    one.record("a", "v100", 1, 1.0, 0.0)
    assert two.record("a", "v100", 1, 2.0, 1.0).steps_per_s == pytest.approx(1.5)
    assert one.get("a", "v100", 1).samples == 2
    one.close()
    two.close()


def test_shares_a_connection_with_other_tables() -> None:
    """The tables live beside those of the connection's owner."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE journal (line TEXT)")
    ThroughputStore(connection).record("a", "v100", 1, 1.0, 0.0)
    assert connection.execute("SELECT count(*) FROM journal").fetchone() == (0,)


def test_damaged_file_is_a_store_error(tmp_path: Path) -> None:
    """A file that is no database is refused with its name, and left as it is."""
    path = tmp_path / "speeds.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match=r"speeds\.sqlite"):
        ThroughputStore.open(path)
    assert path.read_bytes().startswith(b"this is not")


def test_file_damaged_later_is_a_store_error(tmp_path: Path) -> None:
    """Damage that appears while the store is open is reported as such, not as a foreign exception."""
    store = ThroughputStore.open(tmp_path / "speeds.sqlite")
    with sqlite3.connect(tmp_path / "speeds.sqlite") as other:
        other.execute("DROP TABLE throughput_measurement")
    with pytest.raises(StoreError, match="cannot be read"):
        store.of("a")
    store.close()


@pytest.mark.parametrize("rate", [0.0, 5e-324, -1.0, 1e12, float("nan"), float("inf")])
def test_impossible_rates_are_refused(rate: Any) -> None:
    """Rates that no training can have never enter the average."""
    store = memory()
    with pytest.raises(StoreError, match="no rate"):
        store.record("a", "v100", 1, rate, 0.0)
    assert store.of("a") == []


@pytest.mark.parametrize("rate", [0.0, 5e-324, 1e300, "fast"])
def test_impossible_rates_in_the_file_are_forgotten(
    tmp_path: Path, rate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What an older version or a damaged file left is neither read nor averaged with; the others stay."""
    path = tmp_path / "speeds.sqlite"
    store = ThroughputStore.open(path)
    for workload in ("a", "b"):
        store.record(workload, "v100", 1, 2.0, 0.0)
        store.record_estimate(workload, "k80", 1, 1.0, "published", 0.0)
    with sqlite3.connect(path) as other:
        for table in ("measurement", "estimate"):
            other.execute(f"UPDATE throughput_{table} SET steps_per_s = ? WHERE workload = 'a'", (rate,))
    assert store.of("a") == []
    store.close()

    again = ThroughputStore.open(path)
    assert "forgotten" in caplog.text
    assert again.record("a", "v100", 1, 3.0, 1.0).steps_per_s == 3.0
    again.record("a", "k80", 1, 3.0, 1.0)
    assert [m.steps_per_s for m in again.of("b")] == [2.0] and again.errors() == []
    again.close()


def test_errors_compare_estimates_with_the_truth() -> None:
    """The last estimate made before the first measurement is judged by it; later ones do not count."""
    store = memory()
    store.record_estimate("a", "v100", 1, 10.0, "data sheet", 0.0)
    store.record_estimate("a", "v100", 1, 15.0, "published", 1.0)
    store.record_estimate("a", "k80", 1, 3.0, "published", 1.0)
    assert store.errors() == []

    store.record("a", "v100", 1, 20.0, 2.0)
    store.record_estimate("a", "v100", 1, 20.0, "measured", 3.0)

    (error,) = store.errors()
    assert (error.source, error.estimated, error.measured) == ("published", 15.0, 20.0)
    assert error.relative == pytest.approx(-0.25)


def test_workload_key() -> None:
    """A job is filed under its model, or under its user and name if it names none."""
    assert workload_key("resnet18", 64, "ann", "x") == "resnet18:64"
    assert workload_key("", None, "ann", "train") == "ann/train"


def test_each_user_has_an_average_of_their_own() -> None:
    """What others measured is neither averaged in nor shown to two of them."""
    store = memory()
    store.record("a", "v100", 1, 1.0, 0.0, user="ann")
    store.record("a", "v100", 1, 100.0, 0.0, user="bob")

    assert store.get("a", "v100", 1, user="ann").steps_per_s == 1.0
    assert store.get("a", "v100", 1, user="cem") is None and store.get("a", "v100", 1) is None


@given(st.lists(rates, min_size=3, max_size=9), st.integers(0, 8))
def test_others_get_the_median_of_three_users(measured: Any, of_one: Any) -> None:
    """One user, however many jobs they have, moves it no further than to what another measured."""
    store = memory()
    for number, rate in enumerate(measured):
        store.record("a", "v100", 1, rate, 0.0, user=f"user{number}")
    for _ in range(of_one):
        store.record("a", "v100", 1, FASTEST_STEPS_PER_S, 0.0, user="user0")
    shared = store.get("a", "v100", 1, user="zoe")

    assert (shared.users, shared.user, shared.shared) == (len(measured), "", True)
    assert min(measured[1:]) <= shared.steps_per_s <= max(measured[1:])
    assert store.get("a", "v100", 1, user="user1").steps_per_s == pytest.approx(measured[1])
    assert [m.users for m in store.everything()] == [1] * len(measured) + [len(measured)]


def test_many_names_of_one_user_are_put_together_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jobs that name no model are filed under their own names, of which there may be tens of thousands."""
    copied = []

    class Counted(frozenset[str]):
        def __or__(self, other: Any) -> Any:
            copied.append(len(self))
            return Counted(frozenset.__or__(self, other))

    monkeypatch.setattr("slurm_hadar.throughput.store.frozenset", Counted, raising=False)
    store = ThroughputStore.open(tmp_path / "speeds.sqlite")
    for number in range(100):
        store.record(f"ann/run-{number}", "v100", 1, 1.0, 0.0, user="ann")

    assert store.models_of("ann") == {f"ann/run-{number}" for number in range(100)}
    assert sum(copied) <= 100
    store.close()


def test_a_store_notices_what_others_write(tmp_path: Path) -> None:
    """What was read once is read again after a change, by this one or by another process."""
    one, two = (ThroughputStore.open(tmp_path / "speeds.sqlite") for _ in range(2))
    assert one.of("a") == [] and one.workloads() == [] and not one.models_of("ann")
    two.record("a:1 g", "v100", 1, 1.0, 0.0, user="ann")
    assert one.workloads() == ["a:1 g"] and one.models_of("ann") == {"a"} and len(one.of("a:1 g", "ann")) == 1
    one.close()
    two.close()


def test_estimates_are_judged_for_their_user() -> None:
    """An estimate for nobody in particular is judged by each user's measurement, unless there was one for that user."""
    store = memory()
    store.record_estimate("a", "v100", 1, 10.0, "published", 0.0)
    store.record_estimate("a", "v100", 1, 30.0, "carried over", 0.0, user="bob")
    for user in ("ann", "bob"):
        store.record("a", "v100", 1, 20.0, 2.0, user=user)
    store.record_estimate("a", "v100", 1, 99.0, "too late", 3.0)
    store.record_estimate("a", "v100", 1, 99.0, "too late", 3.0, user="bob")

    assert [(e.user, e.estimated) for e in store.errors()] == [("ann", 10.0), ("bob", 30.0)]

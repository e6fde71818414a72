"""Estimates of speeds that were never measured."""

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Basis, GpuType
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.inference import BATCH_EXPONENT, DOUBLING, SPREAD
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import read_table, reference

TYPES = ["v100", "p100", "k80", "a100", "unheard-of"]
workloads = st.tuples(
    st.sampled_from([*reference().models, "ResNet-18", "resnet34", "gpt", ""]),
    st.one_of(st.none(), st.sampled_from([1, 5, 20, 64, 100, 4096])),
    st.integers(1, 16),
)


def store() -> Any:
    return ThroughputStore(sqlite3.connect(":memory:"))


@given(workloads)
def test_every_type_gets_a_usable_speed(workload: Any) -> None:
    """Whatever is asked, each type gets a positive rate, a spread factor in (0, 1] and words about its source."""
    model, batch, workers = workload
    for speed in Estimator(reference(), store()).speeds(model, batch, workers, TYPES).values():
        assert 0 < speed.steps_per_s < float("inf")
        assert 0 < speed.spread <= 1
        assert speed.source and (speed.error is None or speed.error > 0)


def test_published_figures_are_exact() -> None:
    """A pair of the table gets the table's rate and the table's spread factor."""
    speed = Estimator(reference()).speeds("resnet18", 64, 4, ["v100"])["v100"]
    assert speed.steps_per_s == reference().steps_per_s("resnet18", 64, "v100", 4)
    spread = reference().steps_per_s("resnet18", 64, "v100", 4, spread=True)
    assert speed.spread == pytest.approx(spread / speed.steps_per_s)
    assert "published" in speed.source


def test_spread_above_one_is_clamped() -> None:
    """A published rate that is higher on several nodes than on one is an artefact."""
    assert Estimator(reference()).speeds("resnet18", 64, 2, ["k80"])["k80"].spread <= 1.0
    assert Estimator(reference()).speeds("resnet18", 64, 1, ["k80"])["k80"].spread == 1.0


def test_model_names_are_read_generously() -> None:
    """``ResNet-18`` is ``resnet18``; ``resnet34`` borrows from its family and expects a larger error."""
    estimator = Estimator(reference())
    assert estimator.speeds("ResNet-18", 64, 1, TYPES) == estimator.speeds("resnet18", 64, 1, TYPES)
    kin = estimator.speeds("resnet34", 64, 1, ["v100"])["v100"]
    assert "family" in kin.source
    assert kin.error > estimator.speeds("resnet18", 64, 1, ["v100"])["v100"].error


def test_measured_beats_published() -> None:
    """A measurement of exactly this pair is taken as it is."""
    known = store()
    known.record("resnet18:64", "v100", 1, 123.0, 0.0)
    speed = Estimator(reference(), known).speeds("resnet18", 64, 1, ["v100"])["v100"]
    assert speed.steps_per_s == 123.0
    assert "measured here 1 time" in speed.source


def test_how_a_speed_is_known() -> None:
    """Measured means by this user, on this type and gang; whatever is carried over is estimated, and so is what others
    have measured; data sheets alone are nothing."""
    known = store()
    known.record("resnet18:64", "v100", 1, 123.0, 0.0, user="ann")
    estimator = Estimator(reference(), known)

    def basis(workers: int, gpu_type: str, user: str = "ann", model: str = "resnet18") -> Basis:
        return estimator.speeds(model, 64, workers, [gpu_type], user=user)[gpu_type].basis

    assert basis(1, "v100") is Basis.MEASURED
    assert {basis(1, "k80"), basis(2, "v100"), basis(1, "v100", "bob")} == {Basis.ESTIMATED}
    assert basis(1, "v100", model="of_nobody") is Basis.UNKNOWN


def test_measured_absolute_with_published_ratio() -> None:
    """Measured on one type, another follows by the published ratio of the two for that model."""
    known = store()
    known.record("resnet18:64", "v100", 1, 100.0, 0.0)
    speed = Estimator(reference(), known).speeds("resnet18", 64, 1, ["k80"])["k80"]
    table = reference()
    ratio = table.steps_per_s("resnet18", 64, "k80") / table.steps_per_s("resnet18", 64, "v100")
    assert speed.steps_per_s == pytest.approx(100.0 * ratio)


def test_data_sheet_mix_for_an_unknown_model() -> None:
    """Measured on one type, another follows by arithmetic rate and bandwidth where no ratio was published."""
    known = store()
    known.record("mine", "old", 1, 100.0, 0.0)
    gpus = {"old": GpuType("old", 10.0, 100.0), "new": GpuType("new", 40.0, 200.0)}
    speed = Estimator(reference(), known, gpus).speeds("mine", None, 1, ["new"])["new"]
    assert speed.steps_per_s == pytest.approx(100.0 / (0.7 * 10 / 40 + 0.3 * 100 / 200))


def test_other_gang_size() -> None:
    """Measured with one GPU, a gang of four is two doublings away."""
    known = store()
    known.record("ann/train", "v100", 1, 100.0, 0.0)
    speed = Estimator(reference(), known).speeds("", None, 4, ["v100"], key="ann/train")["v100"]
    assert speed.steps_per_s == pytest.approx(100.0 * DOUBLING**2)
    assert speed.spread == SPREAD


def test_other_batch_size() -> None:
    """Measured with another batch size, the published ratio of the two batch sizes carries it over."""
    known = store()
    known.record("resnet18:64", "v100", 1, 100.0, 0.0)
    speed = Estimator(reference(), known).speeds("resnet18", 128, 1, ["v100"])["v100"]
    table = reference()
    ratio = table.steps_per_s("resnet18", 128, "v100") / table.steps_per_s("resnet18", 64, "v100")
    assert speed.steps_per_s == pytest.approx(100.0 * ratio)


def test_measured_spread() -> None:
    """Measured on one node and on several, the factor is their ratio."""
    known = store()
    known.record("mine", "v100", 4, 10.0, 0.0)
    known.record("mine", "v100", 4, 6.0, 0.0, spread=True)
    assert Estimator(reference(), known).speeds("mine", None, 4, ["v100"])["v100"].spread == pytest.approx(0.6)


def test_measured_only_over_several_nodes() -> None:
    """The one-node rate follows from the rate over several nodes by the spread factor."""
    known = store()
    known.record("mine", "v100", 4, 8.0, 0.0, spread=True)
    speed = Estimator(reference(), known).speeds("mine", None, 4, ["v100"])["v100"]
    assert speed.steps_per_s == pytest.approx(8.0 / SPREAD)
    assert speed.steps_per_s * speed.spread == pytest.approx(8.0)


def test_nothing_known_compares_types_only() -> None:
    """Without any knowledge of the job, types are ranked by their data sheets and no error is claimed."""
    speeds = Estimator(reference()).speeds("", None, 1, ["h100", "v100", "p100", "k80"])
    rates = [s.steps_per_s for s in speeds.values()]
    assert rates == sorted(rates, reverse=True)
    assert all(s.error is None for s in speeds.values())


@given(st.floats(1e-3, 1e4), st.floats(0.01, 100.0), st.sampled_from(["resnet18", "gpt"]), st.integers(1, 8))
def test_estimates_scale_with_the_measurement(rate: Any, factor: Any, model: Any, workers: Any) -> None:
    """A job measured twice as fast is estimated twice as fast on every type."""
    estimates = []
    for measured in (rate, rate * factor):
        known = store()
        known.record(f"{model}:64", "v100", workers, measured, 0.0)
        estimates.append(Estimator(reference(), known).speeds(model, 64, workers, ["v100", "k80", "a100"]))
    for gpu_type, speed in estimates[0].items():
        assert estimates[1][gpu_type].steps_per_s == pytest.approx(speed.steps_per_s * factor)


def test_errors_of_estimates_can_be_reported() -> None:
    """Estimates noted before the truth was known are compared with it afterwards."""
    known = store()
    estimator = Estimator(reference(), known)
    estimator.record_estimates("resnet18:64", 1, estimator.speeds("resnet18", 64, 1, ["v100", "k80"]), 0.0)
    known.record("resnet18:64", "v100", 1, 10.0, 1.0)
    (error,) = known.errors()
    assert error.gpu_type == "v100" and "published" in error.source


def test_empty_table() -> None:
    """With no published figures at all the data sheets still serve."""
    empty = read_table(["model,batch,gpus,gpu_type,placement,steps_per_s,source"])
    assert Estimator(empty).speeds("resnet18", 64, 2, ["v100"])["v100"].steps_per_s > 0


LAW = DOUBLING * 2.0**BATCH_EXPONENT


@pytest.mark.parametrize(("model", "batch"), [("resnet18", 64), ("resnet18", None), ("unknown", 32), ("", None)])
def test_other_sizes_of_an_elastic_gang_follow_one_law(model: str, batch: int | None) -> None:
    """Nothing measured: the published figure of the size asked for, times a constant per doubling at the same batch."""
    estimator = Estimator(reference(), store())
    rates = {n: estimator.speeds(model, batch, n, ["v100"], elastic_from=4)["v100"].steps_per_s for n in (2, 4, 8)}

    assert rates[8] / rates[4] == pytest.approx(LAW) and rates[4] / rates[2] == pytest.approx(LAW)
    if batch == 64:
        assert rates[4] == reference().steps_per_s("resnet18", 64, "v100", 4)


@pytest.mark.parametrize(
    ("model", "batch", "key", "filed"),
    [
        ("resnet18", 64, None, "resnet18:32"),
        ("resnet18", None, None, "resnet18"),
        ("", None, "ann/train", "ann/train"),
        ("", 64, "ann/train", "ann/train"),
    ],
)
def test_a_measured_size_of_an_elastic_gang_speaks_for_the_others(
    model: str, batch: Any, key: str | None, filed: str
) -> None:
    """Measured with 8 where 4 were asked for: exact there, and by the law everywhere else."""
    known = store()
    known.record(filed, "v100", 8, 10.0, 1.0)
    estimator = Estimator(reference(), known)

    def rate(workers: int) -> float:
        own = key or ("resnet18" if batch is None else f"resnet18:{batch * 4 // workers}")
        return estimator.speeds(model, batch, workers, ["v100"], key=own, elastic_from=4)["v100"].steps_per_s

    assert (rate(8), rate(4), rate(2)) == pytest.approx((10.0, 10.0 / LAW, 10.0 / LAW**2))

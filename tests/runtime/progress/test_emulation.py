"""Pacing to the emulated speed: only in the private cluster, by the worker's own GPU type, without drift."""

import json
import time
from pathlib import Path

import pytest

from slurm_hadar.runtime import emulation

CLUSTER = {
    "version": 1,
    "cluster": "here",
    "nodes": {"v100-1": {"v100": 4}, "k80-1": {"k80": 4}, "p100-1": {"p100": 4}, "both-1": {"v100": 2, "k80": 2}},
    "speeds": {
        "resnet18:64": {
            "v100": {"1": {"one_node": 20.0}, "2": {"one_node": 18.0, "spread": 12.0}},
            "k80": {"1": {"one_node": 4.0}, "4": {"one_node": 3.0}},
        },
        "a3c": {"v100": {"1": {"one_node": 7.0}}},
    },
    "default": {"v100": 1.0, "k80": 0.25, "p100": 0.5},
    "fastest_steps_per_s": 40.0,
}


@pytest.fixture
def inside(tmp_path: Path) -> dict[str, str]:
    (tmp_path / emulation.CLUSTER_FILE).write_text(json.dumps(CLUSTER))
    conf = str(tmp_path / "slurm.conf")
    return {"SLURM_CONF": conf, "SLURM_CLUSTER_NAME": "here", "SLURMD_NODENAME": "v100-1"}


def test_only_inside_the_private_cluster(inside: dict[str, str], tmp_path: Path) -> None:
    """All three marks must fit; with any of them wrong nothing is ever slowed down."""
    assert emulation.find_cluster(inside) == CLUSTER
    for name, wrong in [("SLURM_CONF", "/etc/slurm.conf"), ("SLURM_CLUSTER_NAME", "x"), ("SLURMD_NODENAME", "x")]:
        assert emulation.find_cluster({**inside, name: wrong}) is None
        assert emulation.find_cluster({k: v for k, v in inside.items() if k != name}) is None
    (tmp_path / emulation.CLUSTER_FILE).write_text("{")
    assert emulation.find_cluster(inside) is None


@pytest.mark.parametrize(
    ("node", "workers", "spread", "model", "batch", "rate"),
    [
        ("v100-1", 1, False, "resnet18", 64, 20.0),
        ("v100-1", 2, False, "resnet18", 64, 18.0),
        ("v100-1", 2, True, "resnet18", 64, 12.0),
        ("v100-1", 3, False, "resnet18", 64, 18.0),  # 3 is not listed: as 2
        ("k80-1", 2, True, "resnet18", 64, 4.0),  # whatever the other node is
        ("k80-1", 8, False, "resnet18", 64, 3.0),
        ("both-1", 1, False, "resnet18", 64, 4.0),  # which of its GPUs is a worker's own is not known
        ("v100-1", 1, False, "a3c", None, 7.0),
        ("v100-1", 1, False, "a3c", 4, 7.0),
        ("k80-1", 1, False, "unheard-of", 1, 10.0),
        ("p100-1", 2, False, "resnet18", 64, 20.0),  # the workload has no figure for the type
        ("v100-1", 1, False, None, None, 40.0),
    ],
)
def test_rates(node: str, workers: int, spread: bool, model: str | None, batch: int | None, rate: float) -> None:
    """The rate of a worker by type, number of workers and spread; unknown workloads by the default."""
    assert emulation.emulated_steps_per_s(CLUSTER, node, workers, spread, model, batch) == pytest.approx(rate)


def test_a_gang_that_shares_its_batch_is_faster_by_the_exponent() -> None:
    """Half the batch per worker: the listed rate of the gang, times 2 to the power of the exponent."""
    cluster = {**CLUSTER, "batch_exponent": 0.5}

    def rate(batch: int | None, worker_batch: int) -> float:
        return emulation.emulated_steps_per_s(cluster, "v100-1", 2, False, "resnet18", batch, worker_batch)

    assert rate(64, 16) == pytest.approx(36.0)
    assert rate(64, 64) == pytest.approx(18.0)
    assert rate(None, 16) == pytest.approx(40.0)


def test_waiting_for_others_and_the_share_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that a worker waits is not taken for its own; a larger share takes longer, by the exponent; a restart in a
    wait forgets what was waited before."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    pace = emulation.Pace(10.0, exponent=0.5)
    pace.pause()
    now[0] += 5.0
    pace.resume()
    pace.wait()
    assert now[0] == pytest.approx(105.1)
    pace.wait(4.0)
    assert now[0] == pytest.approx(105.3)
    pace.pause()
    now[0] += 7.0
    pace.restart()
    now[0] += 1.0
    pace.resume()
    pace.wait()
    assert now[0] == pytest.approx(113.4)


def test_a_pace_is_kept_without_drift_and_without_catching_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late sleeps do not add up; a long stall is not caught up but for one step."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def oversleep(seconds: float) -> None:
        now[0] += seconds + 0.003

    monkeypatch.setattr(time, "sleep", oversleep)
    pace = emulation.Pace(10.0)
    for _ in range(100):
        now[0] += 0.02  # the step's own work
        pace.wait()
    assert now[0] - 100.0 == pytest.approx(10.0, abs=0.01)
    now[0] += 5.0
    stalled = now[0]
    for _ in range(10):
        pace.wait()
    assert 0.75 <= now[0] - stalled <= 1.01


def test_a_broken_description_does_not_stop_a_training(
    inside: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not understood is said in one line, and the steps run unpaced."""
    (tmp_path / emulation.CLUSTER_FILE).write_text(json.dumps({**CLUSTER, "speeds": None}))
    for name, value in inside.items():
        monkeypatch.setenv(name, value)
    assert emulation.pace_here(1, "resnet18", 64) is None
    assert capsys.readouterr().err.count("\n") == 1

"""Throughput tables of ours and of Gavel's, and what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.throughputs import Rates, load_table
from slurm_hadar.simulator.traces.model import TraceJob
from slurm_hadar.throughput.table import reference

GAVEL = {
    "v100": {
        "('ResNet-18 (batch size 64)', 1)": {"null": 20.0},
        "('ResNet-18 (batch size 64)', 2)": {"null": 30.0, "('A3C', 2)": [0, 0]},
        "('A3C', 1)": {"null": 7.0},
    },
    "v100_unconsolidated": {"('ResNet-18 (batch size 64)', 2)": {"null": 24.0}},
    "k80": {"('ResNet-18 (batch size 64)', 1)": {"null": 2.0}, "('ResNet-18 (batch size 64)', 2)": {"null": 0.0}},
}


def table_file(folder: Path, content: object) -> Path:
    path = folder / "rates.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def speeds(rates: Rates, model: str, batch: int | None, workers: int) -> dict[str, Any]:
    job = TraceJob("j", 0.0, model, batch, workers, 1.0)
    return {t: (s.steps_per_s, s.spread) for t, s in rates.of(job, workers).items()}


def test_gavels_table(tmp_path: Path) -> None:
    """Rates are those of the whole job; a rate of 0 means that the job cannot run there."""
    table = load_table(table_file(tmp_path, GAVEL))
    rates, summed = Rates(table, ("v100", "k80")), Rates(table, ("v100", "k80"), summed=True)

    assert speeds(rates, "resnet18", 64, 1) == {"v100": (20.0, 1.0), "k80": (2.0, 1.0)}
    assert speeds(rates, "resnet18", 64, 2) == {"v100": (15.0, 0.8)}
    assert speeds(summed, "resnet18", 64, 2) == {"v100": (30.0, 0.8)}
    assert rates.guessed == set()


def test_what_the_table_lacks_is_estimated_and_told(tmp_path: Path) -> None:
    rates = Rates(load_table(table_file(tmp_path, GAVEL)), ("v100", "a100"))

    found = speeds(rates, "resnet18", 64, 1)

    assert found["v100"] == (20.0, 1.0) and found["a100"][0] > 20.0
    assert rates.guessed == {"resnet18:64 on 1 a100"}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", "rates.json:1: is not valid JSON"),
        ({"v100": 3}, "rates.json: v100 must be an object of job types"),
        ({"v100": {"A3C": {"null": 1}}}, "rates.json: v100: key 'A3C' must read"),
        ({"v100": {"('A3C', 1)": {}}}, "'null' (the rate without co-location) must be a number"),
        ({"v100": {"('A3C', 1)": {"null": -1}}}, "must be a number of at least 0"),
        ({"v100": {"('A3C', 1)": {"null": 0}}}, "has no rates above 0"),
        ({"v100": {"('A3C', 0)": {"null": 1}}}, "rates.json: v100: key \"('A3C', 0)\": a job has from 1 to"),
        ({"v100": {f"('A3C', {'9' * 5000})": {"null": 1}}}, "rates.json: v100: key \"('A3C', 999"),
        ({"v100": {f"('A3C (batch size {'9' * 5000})', 1)": {"null": 1}}}, "v100: key: 'A3C (batch size 999"),
        ({"v100": {"('A3C (batch size 0)', 1)": {"null": 1}}}, "the batch size must be from 1 to"),
        ({"v100": {"('A3C', 1)": {"null": 10**400}}}, "rates.json: v100: ('A3C', 1): 'null' (the rate"),
        ({"_unconsolidated": {"('A3C', 1)": {"null": 1}}}, "rates.json: '_unconsolidated' names no GPU type"),
        ("model,batch\n", "rates.json:1: header must be"),
        ("# nothing\n", "has no rows"),
    ],
)
def test_bad_tables(tmp_path: Path, content: object, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_table(table_file(tmp_path, content))

    assert error in str(caught.value)


def test_our_own_table_and_a_missing_one(tmp_path: Path) -> None:
    rows = "model,batch,gpus,gpu_type,placement,steps_per_s,source\nmine,8,1,h100,one_node,50,me\n"

    assert speeds(Rates(load_table(table_file(tmp_path, rows)), ("h100",)), "mine", 8, 1) == {"h100": (50.0, 1.0)}
    assert load_table(None) is reference()
    with pytest.raises(TraceError, match="throughput table nowhere does not exist"):
        load_table(Path("nowhere"))

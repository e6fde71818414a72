"""Policies that go by sizes take a prediction for a statement where nobody states the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import Job, Node
from slurm_hadar.policies import get

ONE = (Node("a", {"v100": 1}),)
BY_SIZE = [
    ("hadar", {}), ("hadar", {"prices": "round"}), ("hadar", {"objective": "ttd"}), ("hadar", {"frontier": 1.0}),
    ("srtf", {}), ("allox", {}), ("gavel_ftf", {}), ("gavel_ttd", {}), ("asrpt", {}),
]  # fmt: skip


def hidden(job: Job) -> Job:
    """The same job, whose steps are predicted as they are and not stated."""
    return replace(job, total_steps=None, predicted_steps=job.total_steps, outlives=1.0)


@pytest.mark.parametrize(("name", "params"), BY_SIZE)
def test_a_true_prediction_is_as_good_as_a_statement(
    job: Any, running: Any, snapshot: Any, name: str, params: dict[str, Any]
) -> None:
    """The same plan, whether steps are stated or rightly predicted, and not that of unknown sizes."""
    jobs = [job("1", steps=1e6), job("2", steps=1e4), job("3", steps=1e5), running("4", {"a": {"v100": 1}}, steps=5e5)]
    stated = get(name, **params).allocate(snapshot(jobs, ONE))
    predicted = get(name, **params).allocate(snapshot([hidden(j) for j in jobs], ONE))
    assert predicted.placements == stated.placements


@pytest.mark.parametrize(("name", "params"), [("hadar", {}), ("hadar", {"prices": "round"}), ("srtf", {})])
def test_the_job_expected_to_be_short_goes_first(job: Any, snapshot: Any, name: str, params: dict[str, Any]) -> None:
    """One whose steps nobody knows counts as ``unknown_runtime_s``."""
    long, short = hidden(job("1", steps=1e6)), hidden(job("2", steps=100.0))
    assert set(get(name, **params).allocate(snapshot([long, short], ONE)).placements) == {"2"}
    unknown = replace(short, job_id="0", predicted_steps=None)
    assert set(get(name, **params).allocate(snapshot([unknown, short], ONE)).placements) == {"2"}

"""Geometry of the pictures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.web.drawing import blocks, gantt, small_curve


def test_a_job_is_one_block_and_free_gpus_are_many() -> None:
    """As wide as it has GPUs on the node."""
    assert blocks(["7", "7", "8", "other", None, None]) == [("7", 2), ("8", 1), ("other", 1), (None, 1), (None, 1)]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=80))
def test_a_trend_covers_its_time_once(values: list[float]) -> None:
    """Every moment has one spot with the value of a sample, and the curve stays inside."""
    points = [{"time": 10.0 * i, "value": v} for i, v in enumerate(values)]
    trend = {"since": 0.0, "until": 10.0 * (len(values) - 1), "points": points}
    drawn = small_curve(trend, lambda point: point["value"], 5.0)

    assert [spot["value"] for spot in drawn["spots"]] == values
    assert sum(spot["width"] for spot in drawn["spots"]) == pytest.approx(100.0, abs=0.1 * len(values))
    heights = [float(point.split(",")[1]) for point in drawn["line"].split()]
    assert all(0 <= y <= drawn["height"] for y in heights)
    assert heights.index(min(heights)) in [i for i, y in enumerate(heights) if y <= heights[values.index(max(values))]]


def test_no_small_curve_what_was_not_recorded() -> None:
    """Rounds of an older version do not know how many GPUs were in use."""
    trend = {"since": 0.0, "until": 9.0, "points": [{"time": 1.0, "use": {}}, {"time": 2.0, "use": {"k80": [1, 2]}}]}

    assert small_curve(trend, lambda point: point["use"].get("k80", [None])[0], 2.0) is None


@pytest.mark.parametrize(("began", "label"), [(0.0, "1234567"), (97.0, "")])
def test_an_id_is_whole_or_missing(began: float, label: str) -> None:
    """A bar that is too short for the id has none: part of it would be another job's."""
    run = {"job_id": "1234567", "began": began, "ended": None, "node": "n1", "gpu_type": "k80", "count": 1,
           "steered": True, "user": "ann", "colour": 3}  # fmt: skip
    content = {"since": 0.0, "until": 100.0, "lanes": [{"node": "n1", "gpu_type": "k80", "gpus": 2}], "runs": [run]}
    (bar,) = gantt(content)["bars"]

    assert bar["label"] == label and "job 1234567 of ann: 1 x k80 of n1" in bar["words"]

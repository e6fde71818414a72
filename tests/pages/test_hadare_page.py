"""The page of HadarE's results says what its runs gave, and those reached what it says they did."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from benchmarks.hadare import page  # noqa: E402

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return json.loads((RESULTS / "hadare.json").read_text())


def test_the_page_is_current(data: dict[str, Any], tmp_path: Path) -> None:
    """docs/results/hadare.md is what hadare.json gives; refresh it with `python -m benchmarks.hadare page`."""
    page.publish(data, tmp_path)
    assert (tmp_path / "hadare.md").read_text() == (RESULTS / "hadare.md").read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"hadare.md", "hadare_gantt.png", "hadare_curves.png"}


def test_every_job_of_every_mix_made_its_steps(data: dict[str, Any]) -> None:
    """The same steps under every policy, each on nodes that the cluster has."""
    for mix in data["mixes"]:
        assert len(mix["jct_s"]) == len(mix["results"]) == mix["jobs"]
        assert {s["job"] for s in mix["stints"]} == set(mix["jct_s"])
    steps = {(m["jobs"], name): r["steps"] for m in data["mixes"] for name, r in m["results"].items()}
    assert all(r["steps"] == steps[m["jobs"], name] for m in data["mixes"] for name, r in m["results"].items())

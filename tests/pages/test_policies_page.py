"""The page of measured results says what the runs behind it gave, and can be made anew from them."""

import io
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from benchmarks import policies, policies_page
from benchmarks.peers import HOUR, read_peers
from slurm_hadar.pages.trade_off import merged, trade_off
from slurm_hadar.simulator.outcome import bounds

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "simulator" / "data" / "gavel"
CLUSTER = "v100:1x8,p100:1x8,k80:1x8"


@pytest.fixture(scope="module")
def results() -> Any:
    return policies.read_results(ROOT / "docs" / "results" / "policies.json")


def test_the_page_is_current(results: Any, tmp_path: Path) -> None:
    """docs/results/policies.md is what policies.json gives; refresh it with --section none."""
    policies_page.write(results, tmp_path)
    assert (tmp_path / "policies.md").read_text() == (ROOT / "docs" / "results" / "policies.md").read_text()
    assert matplotlib.image.imread(tmp_path / "frontier.png").shape[0] > 500


def test_nothing_beats_the_bounds(results: Any) -> None:
    """No run of ours is faster than what no policy can beat."""
    for section in ("static", "poisson"):
        bound_of = {b["trace"]: b for b in results[section]["bounds"]}
        for run in results[section]["runs"]:
            bound = bound_of[run["trace"]]
            assert bound["floor_s"] <= bound["avg_jct_s"] * (1 + 1e-9)
            assert run["avg_jct_s"] >= bound["avg_jct_s"]
            assert run["ttd_s"] >= bound["ttd_s"] * (1 - 1e-6)


def test_a_verdict_tells_by_how_much() -> None:
    assert policies_page.verdict(1.5, 1.5) == "reached"
    assert policies_page.verdict(1.2, 1.5) == "missed by 20.0%"
    assert policies_page.seed_verdicts(1.5, [1.6, 1.2], 1.5) == "reached; seed 1 missed by 20.0%"


@pytest.mark.thorough
def test_a_case_is_run_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's figures lie above the bounds and the floor of the same case."""
    monkeypatch.setattr(bounds, "MOST_VARIABLES", 7000)  # a coarser bound, in a tenth of the time
    case = policies.Case("static_60_multi_seed0", "srtf", {}, CLUSTER, "gavel")
    run = policies.run_case(case, DATA, DATA / "throughputs.csv")
    bound = policies.bounds_case(case, DATA, DATA / "throughputs.csv")
    assert run["policy"] == "srtf" and run["trace"] == case.trace
    assert HOUR < bound["floor_s"] <= bound["avg_jct_s"] <= run["avg_jct_s"]
    assert bound["ttd_s"] <= run["ttd_s"]


def test_the_picture_names_points_that_coincide_once() -> None:
    """Points on one another share a label, others do not; both kinds of data are drawn."""
    points = [("a", 100.0, 200.0), ("b", 101.0, 201.0), ("c", 150.0, 200.0)]
    assert [label for label, _, _ in merged(points, "\n")] == ["a\nb", "c"]
    peers = [(label, p.avg_jct_s, p.ttd_s) for (_, label), p in read_peers(DATA)[1].items()]
    least = {"avg_jct_s": min(p[1] for p in peers) / 2, "ttd_s": min(p[2] for p in peers) / 2}
    png = trade_off({"one": (peers[:2], peers, least)}, "curve")
    assert matplotlib.image.imread(io.BytesIO(png)).shape[2] == 4


def test_every_peer_figure_names_its_run() -> None:
    """The kept figures of Gavel's simulator cover every trace that the page compares with."""
    settings, runs = read_peers(policies_page.DATA)
    for trace in policies.STATIC + policies.POISSON:
        assert f"{trace}.trace" in settings
        assert (f"{trace}.trace", "max_min_fairness_perf") in runs
    assert settings[f"{policies.POISSON[0]}.trace"].cluster == "v100:1x36,p100:1x36,k80:1x36"

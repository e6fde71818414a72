"""The map of regimes: its design, its draws, what is kept of its runs, and what is made of them."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from click.testing import CliRunner

from benchmarks.regimes import beyond, page, page_beyond, play
from benchmarks.regimes.__main__ import main
from benchmarks.regimes.cells import AXES, Cell, chosen, covering
from benchmarks.regimes.draw import MEDIAN_S, draw
from benchmarks.regimes.verdict import Map, geometric
from slurm_hadar.simulator.run import bounds_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TIMED = ("decide_p50_ms", "decide_max_ms")
SMALL = "12-equal-once-0.5%-all-rigid-stated-10min-known"


def pairs(cells: list[Cell]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for cell in cells:
        found.update(itertools.combinations(zip(AXES, cell.values, strict=True), 2))
    return found


@pytest.mark.parametrize(("kind", "times"), [({}, 3), ({"full": True}, 9)])
def test_every_pair_of_values_stands_in_some_cells(kind: Any, times: int) -> None:
    """And the map has few cells for that: three times the product of the two largest axes is the least."""
    cells = chosen(**kind)

    counts = pairs(cells)
    for (one, ones), (other, others) in itertools.combinations(AXES.items(), 2):
        for values in itertools.product(ones, others):
            assert counts[(one, values[0]), (other, values[1])] >= times
    assert len(cells) == len(set(cells)) <= times * 12 * 1.3


def test_the_quick_map_is_small_and_covers_what_it_has() -> None:
    cells = chosen(quick=True)

    assert {cell["gpus"] for cell in cells} == {"12"} and len(cells) < 20
    assert len(pairs(cells)) == len(pairs(covering({**AXES, "gpus": ("12",)}, 2)))


def test_the_design_is_the_same_every_time() -> None:
    assert covering(AXES, 2) == covering(AXES, 2)
    assert all(Cell.named(cell.name) == cell for cell in chosen())


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cell_is_what_its_name_says(seed: int) -> None:
    cell = Cell.named("12-unequal-0.9-5%-half-elastic-predicted-2h-wrong")

    scene = draw(cell, seed)

    jobs, (median_s, _) = scene.trace.jobs, MEDIAN_S["2h"]
    assert len(jobs) == 80 and max(scene.alone_s.values()) <= 60 * median_s
    assert 0.3 < sum(job.movable for job in jobs) / len(jobs) < 0.7
    costs = [job.restart_s for job in jobs if job.restart_s is not None]
    assert all(0.025 * median_s <= cost <= 0.1 * median_s for cost in costs)
    assert all(job.start_s == cost / 2 for job, cost in zip(jobs, costs, strict=True))
    assert {job.sizes for job in jobs} == {(1, 2, 4), (2, 4), ()}
    assert (scene.options.predictor, scene.options.speed_error) == ("noisy:3", 0.3)


@pytest.mark.thorough
def test_the_load_is_what_fills_the_cluster() -> None:
    """At load 1 all would be done when the last job has arrived, if the gangs' work could be divided at will: no later
    than the bound on the total time, which knows more."""
    cells = [Cell.named(f"60-unequal-{load}-5%-all-rigid-stated-10min-known") for load in ("0.6", "1.2", "once")]
    slow, fast, once = (draw(cell, 0) for cell in cells)
    last = [max(job.arrival_s for job in scene.trace.jobs) for scene in (slow, fast)]

    assert last[0] == pytest.approx(2 * last[1]) and {job.arrival_s for job in once.trace.jobs} == {0.0}
    bound = bounds_of(once.trace, once.options, jct=False)["ttd_s"]
    assert 1.2 * last[1] <= bound * 1.001
    assert [job.steps for job in slow.trace.jobs] == [job.steps for job in once.trace.jobs]


def test_gavels_rounds_are_long_against_restarts() -> None:
    scene = draw(Cell.named("12-equal-0.6-20%-all-rigid-stated-10min-known"), 0)

    assert scene.options_of("gavel_las").round_s == 10 * 0.2 * 600 and scene.options_of("srtf").round_s == 60
    assert scene.fingerprint("gavel_las") != scene.fingerprint("srtf") == scene.fingerprint("fifo")


def run(results: Path, *more: str) -> str:
    words = ["--cells", SMALL, "--seeds", "1", "--jobs", "1", "--results", str(results), *more]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.mark.thorough
def test_a_cell_has_other_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.regimes.__main__.chosen", lambda **_: [Cell.named(SMALL)])
    results = tmp_path / "regimes.jsonl"
    run(results, "--policies", "fifo", "--judge", "fifo", "--first", "3")
    assert {json.loads(line)["seed"] for line in results.read_text().splitlines()} == {3}


@pytest.mark.thorough
def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is not run again, half a line of a killed run is no result, and other code is run anew."""
    monkeypatch.setattr("benchmarks.regimes.__main__.chosen", lambda **_: [Cell.named(SMALL)])
    results = tmp_path / "regimes.jsonl"
    first = run(results, "--policies", "fifo,srtf", "--judge", "srtf")
    lines = results.read_text().splitlines()
    # of three runs, one is lost; the bound, which takes longest, is kept
    results.write_text(f"{lines[0]}\n{lines[2]}\n{lines[1][:40]}")

    again = run(results, "--policies", "fifo,srtf", "--judge", "srtf")
    assert again.splitlines()[-5:] == first.splitlines()[-5:]
    assert results.read_text().splitlines()[:2] == [lines[0], lines[2]]
    book = play.Book(results)
    task = play.Task(SMALL, 0, "srtf", play.code_of("srtf"))
    assert not book.wants(task, 60.0) and book.wants(replace(task, code="other"), 60.0)
    before, after = json.loads(lines[1]), book.get(task)
    assert after is not None and {k for k in after if after[k] != before[k]} <= {"cpu_s", *TIMED}


def test_a_run_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """And made again only with more time."""
    task = play.Task(SMALL, 0, "fifo", "x")
    row = play.play(task, 0.0)
    book = play.Book(tmp_path / "book")
    book.add(row)

    assert row["too_slow_s"] == 0.0 and "avg_jct_s" not in row
    assert not book.wants(task, 0.0) and book.wants(task, 1.0)


def test_code_is_that_of_the_policy_and_what_it_imports() -> None:
    """A name after @ stands for it."""
    assert play.code_of("hadar") == play.code_of("hadar:frontier=0") != play.code_of("srtf")
    assert play.code_of("hadar@before") == "before"


def row(cell: Cell, policy: str, seed: int, jct_s: float, **more: Any) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("p95_jct_s", "ttd_s", "restarts_per_job", "worst_stretch", "decide_p50_ms", "decide_max_ms"), jct_s
    )
    return {"cell": cell.name, "policy": policy, "seed": seed, "avg_jct_s": jct_s, "unfinished": 0, **figures, **more}


def test_who_is_best_and_by_how_much() -> None:
    """Means over the seeds; a policy with undone jobs, or without one of the seeds, is not judged."""
    one, other = chosen()[:2]
    found = Map(
        [
            *(row(one, "ours", seed, 10.0) for seed in (0, 1)),
            *(row(one, "good", seed, jct_s) for seed, jct_s in ((0, 6.0), (1, 10.0))),
            *(row(one, "undone", seed, 1.0, unfinished=seed) for seed in (0, 1)),
            row(one, "once", 0, 1.0),
            row(other, "ours", 0, 10.0),
            row(other, "good", 0, 20.0),
        ]
    )

    duels = found.duels("ours", "avg_jct_s")
    assert [(d.cell, d.rival, d.ratio) for d in duels] == [(one, "good", 0.8), (other, "good", 2.0)]
    assert geometric(d.ratio for d in duels) == pytest.approx(math.sqrt(1.6))
    assert found.unjudged("undone") == [one, other] and found.absent("undone") == [other]
    assert "worst cell 0.800" in page.summary(found, "ours") and found.fewest_and_most_seeds == (1, 2)


@pytest.mark.parametrize("number", range(0, 120, 7))
def test_a_regime_beyond_the_map_is_what_it_says(number: int) -> None:
    of, scene = beyond.regime(number), beyond.draw(number)

    jobs, largest = scene.trace.jobs, max(of.nodes) * of.per_node
    assert scene.fingerprint("hadar") == beyond.draw(number).fingerprint("hadar")
    assert of.gpus <= 96 and len(jobs) == of.jobs and all(max(job.sizes or (job.workers,)) <= largest for job in jobs)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    assert any(job.arrival_s > 0 for job in jobs) is (of.load is not None)
    assert any(job.sizes for job in jobs) <= of.elastic and any(job.movable for job in jobs) is (of.unmovable < 1)
    assert beyond.number_of(Cell.named(beyond.cell(number).name)) == number
    assert f"{of.gpus} GPUs" in of.words() and f"{of.jobs} jobs" in of.words()


def test_the_page_beyond_the_map_is_current(tmp_path: Path) -> None:
    judged, found, remark = page.read(RESULTS / "beyond.json")
    page_beyond.write(found, judged, tmp_path, remark)

    for name in ("beyond.md", "beyond.json"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()


def test_the_page_is_current(tmp_path: Path) -> None:
    """docs/results/regimes.md is what regimes.json gives."""
    judged, found, remark = page.read(RESULTS / "regimes.json")
    page.write(found, judged, tmp_path, remark)

    for name in ("regimes.md", "regimes.json"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()
    assert matplotlib.image.imread(tmp_path / "regimes.png").shape[0] > 500

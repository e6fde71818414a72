"""How a tuning run stands, on terminals of all sizes."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from slurm_hadar.cli.systems.tune_table import Screenful, best_line, standing_line, standing_table, study_line
from slurm_hadar.tuning.session import Result


def standing(run: int, wait: int) -> dict[str, Any]:
    """Trials by their numbers: those that wait lie between those that run."""
    rows = [
        {
            "trial": n, "state": "waits" if n % 2 and n < 2 * wait else "runs", "width": "1", "gpus": [f"slot:{n}"],
            "step": n, "value": None, "left_s": None,
        }
        for n in range(2 * max(run, wait))
    ]  # fmt: skip
    rows = [r for r in rows if r["state"] == "waits"][:wait] + [r for r in rows if r["state"] == "runs"][:run]
    counts = {"waits": wait, "runs": run, "at its rung": 3, "ended": 5}
    return {
        "trials": 81, "counts": counts, "rows": rows, "gpus": 8, "gpus_busy": 8, "best": None, "group_left_s": None,
        "metric": "loss",
    }  # fmt: skip


def drawn(what: Any, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, legacy_windows=False)
    return ["".join(s.text for s in line).rstrip() for line in console.render_lines(what)]


def test_all_that_run_are_shown_and_those_that_wait_are_counted() -> None:
    lines = drawn(standing_table(standing(run=50, wait=60)), width=200)
    assert len(lines) == 2 + 50 and all("runs" in line for line in lines[2:])
    assert lines[0].startswith("5 of 81 trials are over, 50 run on 8 of 8 GPUs, 60 wait for GPUs, 3 at their rung")


def test_what_does_not_fit_onto_the_terminal_is_counted() -> None:
    lines = drawn(Screenful(standing(run=50, wait=60)), width=200)
    assert len(lines) == 23 and lines[-1] == f" ... and {50 - 20} more"
    assert sum("runs" in line for line in lines) == 20


@pytest.mark.parametrize("height", [1, 2, 3, 5, 24])
@pytest.mark.parametrize("width", [1, 10, 40, 80])
@pytest.mark.parametrize("run", [0, 1, 60])
def test_a_screenful_is_lower_than_the_terminal(run: int, width: int, height: int) -> None:
    assert len(drawn(Screenful(standing(run, 9)), width, height)) <= max(1, height - 1)


def test_nothing_of_it_stays_behind() -> None:
    """rich draws the last frame in full, and goes up only so far as the terminal is high to take it away."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, legacy_windows=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for run in (60, 3, 60):
            live.update(Screenful(standing(run, 20)), refresh=True)
    taken_away = re.findall(r"(?:\x1b\[1A\x1b\[2K)+", out.getvalue())
    assert taken_away and max(map(len, taken_away)) // len("\x1b[1A\x1b[2K") < 24


def test_each_best_is_called_what_it_is() -> None:
    stands = standing(8, 73) | {"best": {"trial": 4, "value": 0.0326727}}
    assert "best loss ever reported 0.0326727 (trial 4)" in standing_line(stands)
    complete, reported = (Result(3, 0.299139, {}, ended) for ended in (True, False))
    assert best_line(complete, "loss", tuned=True) == "best: trial 3, loss 0.299139, of those that are complete"
    assert best_line(complete, None, tuned=False) == "best: trial 3, value 0.299139"
    assert best_line(reported, "loss", tuned=True).endswith("by its last report (no trial is complete)")


def test_optunas_states_are_not_taken_for_what_runs() -> None:
    counts = {"running": 55, "waiting": 5, "pruned": 21}
    assert study_line("s", counts, tuned=True) == "study s: 60 not over, 21 pruned"
    assert study_line("s", {"waiting": 60, "pruned": 21}, tuned=False) == "study s: 60 waiting, 21 pruned"
    assert study_line("s", {}, tuned=True) == "study s: no trials"

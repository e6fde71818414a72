"""``hadar tune`` as it is typed."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_hadar.cli.systems import tune
from slurm_hadar.tuning import view

KEYS = {"policy", "makespan_s", "gpu_use", "resizes", "lower_bound_s"}
TRIALS = "group,trial,budget_s\nr1,a,4\nr1,b,4\nr1,c,12\nr1,d,30\nr2,d,10\n"


@pytest.fixture
def simulate(typed: Any, tmp_path: Path) -> Any:
    """Run ``hadar tune simulate`` on a file with this text; returns (exit code, stdout, stderr)."""

    def run(text: str, *options: str) -> Any:
        file = tmp_path / "trials.csv"
        file.write_text(text)
        return partial(typed, "tune", "simulate", "--trials", str(file))(*options)

    return run


@pytest.mark.parametrize(
    ("policy", "makespan_s"), [("static", 12 + 2.5), ("one_each", 30 + 10.0), ("packed", 30 + 10.0)]
)
def test_groups_are_played_one_after_the_other(simulate: Any, policy: str, makespan_s: float) -> None:
    code, out, _ = simulate(TRIALS, "--gpus", "g:5", "--policy", policy, "--json", "-")
    result = json.loads(out)
    assert code == 0 and result.keys() == KEYS
    assert result["makespan_s"] == pytest.approx(makespan_s) and result["resizes"] == 0


def test_what_a_person_sees(simulate: Any) -> None:
    code, out, _ = simulate(TRIALS, "--gpus", "v100:2,k80:3", "--policy", "fluid", "--speed", "k80=0.25")
    assert code == 0
    assert "total time" in out and "k80 0.25 times as fast as the fastest" in out


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("group,trial,budget_s\n", (), "has no trials"),
        ("group,trial\na,b\n", (), "budget_s"),
        ("group,trial,budget_s\na,b,-1\n", (), "trials.csv:2: budget_s must be above 0"),
        ("group,trial,budget_s\na,b,1\na,b,2\n", (), "stands in group 'a' twice"),
        ("group,trial,budget_s,alpha\na,b,1,0.5\n", (), "alpha must be from 1"),
        (TRIALS, ("--gpus", "v100"), "must read TYPE:COUNT"),
        (TRIALS, ("--gpus", "v100:2,v100:1"), "named twice"),
        (TRIALS, ("--speed", "k80=fast"), "must read TYPE=X"),
        (TRIALS, ("--speed", "a100=2"), "of which there are no GPUs"),
    ],
)
def test_bad_input_is_one_line(simulate: Any, text: str, options: tuple[str, ...], said: str) -> None:
    code, _, err = simulate(text, "--gpus", "v100:2", "--policy", "fluid", *options)
    assert code == 1 and said in err and len(err.splitlines()) == 1


def test_who_makes_no_progress_at_a_width_is_named(simulate: Any) -> None:
    options = ("--policy", "static", "--form", "paper", "--widest", "1024")
    code, out, err = simulate("group,trial,budget_s,beta\n0,a,10,100\n", "--gpus", "v100:1024", *options)
    assert (code, out, err) == (1, "", "hadar: trial a makes no progress at its width with beta 100\n")


def test_a_terminal_that_draws_nothing_gets_lines(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that lives needs one that can move its cursor: elsewhere rich writes nothing at all."""
    counts = {"ended": 0, "runs": 1, "waits": 0, "at its rung": 0}
    stands = {"counts": counts, "best": None, "trials": 2, "gpus_busy": 1, "gpus": 1, "group_left_s": None}
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(tune, "_LINE_S", 0.0)
    monkeypatch.setattr(view, "snapshot", lambda *_: stands)
    with tune._watching(2, "value") as look:  # noqa: SLF001 a search that takes as long as a line needs, is long
        look(SimpleNamespace(record=SimpleNamespace(status=lambda **_: None)))

    assert capsys.readouterr().err == "hadar: 0 of 2 trials are over, 1 run on 1 of 1 GPUs\n"

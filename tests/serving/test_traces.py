"""Traces of requests: read, drawn and refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.main import hadar
from slurm_hadar.errors import TraceError
from slurm_hadar.serving.trace import drawn, read_trace, with_slo, write_trace

HEAD = "arrival_s,application,exec_s,deadline_s\n"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trace = with_slo(drawn("bursts:rate=40,seconds=5,seed=3"), "100ms")
    file = tmp_path / "trace.csv"
    file.write_text(write_trace(trace))

    assert read_trace(str(file)) == trace


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-1,a,1,2", "arrival_s must be from 0"),
        ("0,a,0,2", "exec_s must be above 0"),
        ("0,,1,2", "application is empty"),
        ("0,a,nan,2", "must be a number"),
        ("0,a,1", "3 fields"),
        ("0,a,1,-2", "must not be below 0"),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + line + "\n")

    with pytest.raises(TraceError, match=told) as raised:
        read_trace(str(file))
    assert f"{file}:2" in str(raised.value)


def test_deadlines_that_can_only_be_spans_are_taken_as_such_and_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "0,a,1,2\n5,a,1,2\n7,b,1,3\n9,b,1,\n")
    told: list[str] = []

    trace = read_trace(str(file), told.append)

    assert [r.deadline_s for r in trace[:3]] == [2, 7, 10] and math.isnan(trace[3].deadline_s)
    assert len(told) == 1 and "counted from each request's arrival" in told[0]


def test_spans_that_seldom_lie_before_are_spans_too(tmp_path: Path) -> None:
    """Of a short trace with long deadlines."""
    file = tmp_path / "trace.csv"
    told: list[str] = []
    lines = [f"{n / 100},{'ab'[n % 2]},0.01,{(1.5, 1.8)[n % 2]}" for n in range(200)]
    file.write_text(HEAD + "\n".join(lines) + "\n")
    trace = read_trace(str(file), told.append)

    assert len(told) == 1 and trace[-1].deadline_s == pytest.approx(1.99 + 1.8)


def test_epoch_seconds_change_nothing(tmp_path: Path) -> None:
    """Requests of round times on a clock that began in 1970: as numbers those are 2e-7 s apart."""
    found = []
    for origin_s in (0, 1_764_000_000):
        file = tmp_path / f"{origin_s}.csv"
        lines = (f"{origin_s + n / 50:.2f},a,0.05,{origin_s + n / 50 + 0.1:.2f}\n" for n in range(200))
        file.write_text(HEAD + "".join(lines))
        assert read_trace(str(file))[-1].deadline_s == 4.08
        made = CliRunner().invoke(
            hadar, ["serve", "simulate", "--trace", str(file), "--scheduler", "edf", "--json", "-"]
        )
        found.append(json.loads(made.stdout)["finish_rate"])
    assert found[0] == found[1] and 0 < found[0] < 1


@pytest.mark.parametrize(
    ("lines", "deadlines"),
    [
        ("5,a,1,2", [7]),
        ("0,a,1,2 1,a,1,2 4,a,1,2", [2, 3, 6]),  # one is early
        ("10,a,1,2 11,a,1,3 12,a,1,4", [12, 14, 16]),  # all are, and they rise as the arrivals do
        ("1764000000,a,1,2 1764000005,a,1,9", [2, 14]),
        ("0,a,1,2 5,a,1,2 7,b,1,", [2, 7]),  # half of those that there are
    ],
)
def test_deadlines_of_which_one_cannot_be_a_time_are_spans(tmp_path: Path, lines: str, deadlines: list[float]) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "\n".join(lines.split()) + "\n")
    told: list[str] = []

    trace = read_trace(str(file), told.append)

    assert [r.deadline_s for r in trace if not math.isnan(r.deadline_s)] == deadlines
    assert len(told) == 1 and f"since that of {file}:" in told[0]


@pytest.mark.parametrize("lines", ["0,a,1,2 1,a,1,2 4,a,1,4", "5,a,1,5", "0,a,1,20 1,a,1,20 4,a,1,20"])
def test_deadlines_none_of_which_is_early_are_times(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "\n".join(lines.split()) + "\n")
    told: list[str] = []

    trace = read_trace(str(file), told.append)

    assert [r.deadline_s for r in trace] == [float(line.split(",")[3]) for line in lines.split()] and not told


def test_few_deadlines_before_their_arrivals_are_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "0,a,1,2\n5,a,1,2\n7,b,1,9\n9,b,1,12\n")

    with pytest.raises(TraceError, match=r"trace\.csv:3: deadline_s lies before arrival_s, .* correct it, or add"):
        read_trace(str(file))


def test_no_time_at_all_is_no_span(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "0,a,1,0\n5,a,1,2\n")

    with pytest.raises(
        TraceError, match=r"trace\.csv:2: deadline_s must be above 0.* that of .*trace\.csv:3 lies before"
    ):
        read_trace(str(file))


def test_the_command_says_what_it_assumed(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "0,a,0.1,0.5\n5,a,0.1,0.5\n7,a,0.1,0.5\n")

    result = CliRunner().invoke(hadar, ["serve", "simulate", "--trace", str(file), "--scheduler", "edf", "--json", "-"])

    assert json.loads(result.stdout)["finish_rate"] == 1.0
    assert result.stderr.startswith("assumed: deadline_s is counted")


@pytest.mark.parametrize(
    "text",
    [
        "poisson:rate=0", "poisson:seconds=5", "poisson:rate=1e9", "poisson:rate=5,factor=2", "bursts:rate=5,factor=20",
        "poisson:rate=5,load=1", "poisson:rate=5,apps=a", "poisson:rate=5,spread=-1", "poisson:rate=5,colour=red",
    ],
)  # fmt: skip
def test_impossible_draws(text: str) -> None:
    with pytest.raises(TraceError):
        drawn(text)


def test_rates_and_shares_are_those_asked_for() -> None:
    for text in ("poisson:load=0.7,seconds=2000,seed=1", "bursts:load=0.7,seconds=2000,seed=1"):
        trace = drawn(text)
        assert len(trace) / 2000 == pytest.approx(25, rel=0.1)
        assert sum(r.application == "long" for r in trace) / len(trace) == pytest.approx(0.2, abs=0.02)
        assert sum(r.exec_s for r in trace) / 2000 == pytest.approx(0.7, rel=0.1)


def test_deadlines_need_a_source(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "0,a,0.01,0.5\n1,a,0.01,\n")
    with pytest.raises(TraceError, match=r"trace\.csv:3: has no deadline_s: add it, or give --slo"):
        read_trace(str(file), timed=True)
    with pytest.raises(TraceError, match="drawn requests have no deadlines: give --slo"):
        read_trace("poisson:rate=5,seconds=9", timed=True)


def test_the_command_says_it_in_json(tmp_path: Path) -> None:
    """The keys are a contract."""
    file = tmp_path / "t.csv"
    file.write_text(HEAD + "0,a,0.01,0.02\n0,a,0.01,0.5\n0,b,0.1,0.005\n")

    done = CliRunner().invoke(
        hadar, ["serve", "simulate", "--trace", str(file), "--scheduler", "orloj", "--batch-law", "0.6", "--json", "-"]
    )

    told = json.loads(done.output)
    assert told.keys() == {
        "scheduler", "requests", "finish_rate", "by_application", "rejected", "mean_batch", "decide_us_p99",
    }  # fmt: skip
    assert (told["scheduler"], told["requests"], told["rejected"]) == ("orloj", 3, 1)
    assert told["finish_rate"] == pytest.approx(2 / 3)
    assert told["by_application"]["a"]["finish_rate"] == 1.0


def test_drawn_and_simulated(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    drawing = ["serve", "trace", "poisson:load=0.5,seconds=5,seed=4", "--slo", "2xP99", "--out", str(file)]
    assert CliRunner().invoke(hadar, drawing).exit_code == 0

    done = CliRunner().invoke(hadar, ["serve", "simulate", "--trace", str(file), "--scheduler", "edf"])

    assert done.exit_code == 0
    assert "finish rate" in done.output

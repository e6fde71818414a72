"""``hadar share`` as it is typed."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slurm_hadar.cli import common
from slurm_hadar.cli.systems import serve
from slurm_hadar.sharing.turns import Policy

KEYS = {
    "policy", "jobs", "makespan_s", "avg_jct_s", "p95_jct_s", "avg_queueing_s", "peak_bytes", "lanes_max", "switches",
    "violations",
}  # fmt: skip
TRACE = """job_id,arrival_s,iterations,iter_s,persistent_bytes,ephemeral_bytes,class
a,0,10,1,10,50,gold
b,2.5,2,1,10,50,lead
"""


@pytest.fixture
def share(typed: Any) -> Any:
    """Run the command; returns (exit code, stdout, stderr)."""
    return partial(typed, "share")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return str(path)


@pytest.mark.parametrize("policy", list(Policy))
def test_json_on_stdout_is_all_there_is(share: Any, trace: str, policy: Policy) -> None:
    code, out, err = share("simulate", "--trace", trace, "--policy", str(policy), "--memory", "1000", "--json", "-")

    summary = json.loads(out)
    assert (code, err) == (0, "") and summary.keys() >= KEYS
    assert (summary["policy"], summary["jobs"], summary["violations"]) == (policy, 2, 0)


def test_a_table_for_people_and_files_for_programs(share: Any, trace: str, tmp_path: Path) -> None:
    code, out, _ = share(
        "simulate", "--trace", trace, "--policy", "pack", "--memory", "1000", "--parallel-gain", "1.5",
        "--json", str(tmp_path / "r.json"), "--jobs-csv", str(tmp_path / "j.csv"),
    )  # fmt: skip

    rows = list(csv.DictReader((tmp_path / "j.csv").open()))
    assert code == 0 and "average JCT" in out and "12.0 % of 1 KB" in out
    assert "assumed: jobs beside each other do 1.5 times what one alone does" in out
    assert json.loads((tmp_path / "r.json").read_text())["lanes_max"] == 2
    assert list(rows[0]) == ["job_id", "arrival_s", "first_start_s", "completion_s", "jct_s"]
    assert [r["job_id"] for r in rows] == ["a", "b"]


def test_classes_and_their_shares(share: Any, trace: str) -> None:
    """The class with nearly all of the time ends as if it were alone."""
    common = ("simulate", "--trace", trace, "--policy", "priority", "--memory", "1000", "--json", "-")

    even = json.loads(share(*common)[1])
    lead = json.loads(share(*common, "--share", "lead=1000")[1])

    assert lead["avg_jct_s"] < even["avg_jct_s"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--policy", "fair", "--memory", "59"), 1, "job 'a' needs 60 bytes by itself, and the GPU has 59: give --mem"),
        (("--policy", "fair", "--memory", "0"), 2, "Invalid value for '--memory'"),
        (("--policy", "fair", "--memory", "16X"), 2, "'16X' is no size in bytes: 16000000000, 16G (powers of 1000) or"),
        (("--policy", "fair", "--memory", "nan"), 2, "Invalid value for '--memory': 'nan' is no size in bytes"),
        (("--policy", "fair", "--memory", "-5"), 2, "Invalid value for '--memory': '-5' is no size in bytes"),
        (("--policy", "fair", "--memory", "9999999T"), 2, "Invalid value for '--memory': '9999999T' is more than any"),
        (("--policy", "pack", "--memory", "99", "--parallel-gain", "nan"), 2, "'--parallel-gain': nan is not a finite"),
        (("--policy", "best", "--memory", "99"), 2, "Invalid value for '--policy': 'best' is not one of 'fifo'"),
        (("--policy", "fair", "--memory", "99", "--share", "gold=2"), 2, "--share goes with --policy priority"),
        (("--policy", "priority", "--memory", "99", "--share", "gold=0"), 1, "must read CLASS=WEIGHT, a whole number"),
        (("--policy", "priority", "--memory", "99", "--share", "tin=1"), 1, "no job of the trace is of this class"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    share: Any, trace: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    ended, out, err = share("simulate", "--trace", trace, *arguments)

    assert (ended, out) == (code, "") and says in err and "Traceback" not in err
    assert code == 2 or err.count("\n") == 1


def test_a_drawn_trace_can_be_simulated(share: Any, tmp_path: Path) -> None:
    path = tmp_path / "drawn.csv"
    assert share("trace", "--jobs", "20", "--seed", "3", "--out", str(path)) == (0, "", "")

    assert share("trace", "--jobs", "20", "--seed", "3")[1] == path.read_text()
    code, out, _ = share("simulate", "--trace", str(path), "--policy", "srtf", "--memory", "16G")
    assert code == 0 and "20 jobs" in out


@pytest.mark.parametrize("width", [40, 50, 60, 80, 200])
def test_jobs_can_be_told_apart_however_narrow_the_terminal_is(
    share: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    rows = [
        {"label": f"job {n} a-training-with-a-long-name", "pid": 12345, "lane": 0, "state": "keeps", "turns": 123456,
         "used_s": 9999.0, "share": 0.5, "duty": 0.99, "persistent_bytes": 10**10, "ephemeral_bytes": 10**10}
        for n in (17, 22)
    ]  # fmt: skip
    told = {"policy": "fair", "memory_bytes": None, "reserved_bytes": 0, "lanes": [], "sessions": rows}
    monkeypatch.setattr("slurm_hadar.cli.systems.share.status_of", lambda _: told)
    monkeypatch.setattr("slurm_hadar.cli.systems.share.console", lambda: Console(width=width))
    code, out, _ = share("status", "--socket", "/s")

    assert code == 0 and "memory is not counted" in out
    for row in rows:
        assert (row["label"] if width > 40 else row["label"][:6]) in out and "…" not in out
    assert out.count("keeps") == 2 and ("10 GB + 10 GB" in out) == (width == 200)


def test_a_dash_prints_and_writes_no_file(
    share: Any, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ("simulate", "--trace", trace, "--policy", "fair", "--memory", "1000")
    code, out, err = share(*common, "--jobs-csv", "-", "--json", "r.json")
    assert (code, err) == (0, "") and [row["job_id"] for row in csv.DictReader(out.splitlines())] == ["a", "b"]
    assert json.loads(Path("r.json").read_text())["jobs"] == 2
    code, out, err = share(*common, "--jobs-csv", "-", "--json", "-")
    assert (code, out) == (2, "") and "--json - and --jobs-csv - would print into each other" in err
    assert share("trace", "--jobs", "3", "--out", "-") == share("trace", "--jobs", "3")
    assert not Path("-").exists()


def test_a_reader_who_has_seen_enough_is_no_failure(trace: str) -> None:
    """Also where rich prints: 1 would say that the command has failed."""
    words = ["share", "simulate", "--trace", trace, "--policy", "fair", "--memory", "16G"]
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "slurm_hadar.cli.main", *words]
    with os.fdopen(writing) as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (141, "")


def test_a_narrow_terminal_drops_columns_and_cuts_none() -> None:
    """In 60 columns the finish rate of an application read 100.…"""
    told = {"model": "static", "application": "image", "requests": 123456, "finish_rate": 1.0, "late": 0, "refused": 0,
            "abandoned": 0, "latency_p50_ms": 3.21, "latency_p99_ms": 14.82}  # fmt: skip
    shown = []
    for width in (60, 200):
        out = io.StringIO()
        table = common.fitting_table([serve._facts(told)], serve._TITLES, serve._DROPPED, width)  # noqa: SLF001
        Console(width=width, file=out).print(table)
        shown.append(out.getvalue())
    narrow, wide = shown

    assert "100.0%" in narrow and "static" in narrow and "…" not in narrow and len(narrow.splitlines()) == 2
    assert "gone" not in narrow and all(word in wide for word in (*serve._TITLES, "3.2 ms"))  # noqa: SLF001

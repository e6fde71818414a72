"""hadar bench, compare and report, as they are typed."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path

import pytest

from slurm_hadar.cli.main import main
from slurm_hadar.controller.journal import Journal
from tests.simulator.test_replay import HEAD as ACCOUNT_HEAD
from tests.simulator.test_replay import ROWS

HEADER = "job_id,arrival_s,model,batch,gpus,steps"
TRACE = f"{HEADER}\na,0,resnet18,64,1,20000\nb,60,lm,20,2,30000\nc,90,resnet18,64,1,9000\n"


def hadar(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "three.csv"
    path.write_text(TRACE)
    return path


@pytest.mark.thorough
def test_compare_then_report(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Page, document and pictures are there; the report of the document is the same page; a single result has one."""
    out = tmp_path / "deep" / "out"
    assert (
        hadar(
            "compare",
            "--trace",
            trace,
            "--cluster",
            "v100:1x2,k80:1x2",
            "--policies",
            "fifo,hadar",
            "--out",
            out,
            "-j",
            1,
        )
        == 0
    )
    said = capsys.readouterr()
    assert "AVG JCT" in said.out and "hadar" in said.out and f"written: {out / 'compare.html'}" in said.out
    names = {p.name for p in out.iterdir()}
    assert names == {"compare.html", "compare.json", "overview.png", "jct_cdf.png", "utilisation.png", "gantt.png"}

    again = tmp_path / "again.html"
    assert hadar("report", out / "compare.json", "--out", again) == 0
    assert again.read_text() == (out / "compare.html").read_text()

    single = tmp_path / "one.json"
    assert hadar("simulate", "--trace", trace, "--cluster", "v100:1x2", "--policy", "fifo", "--json", single) == 0
    assert hadar("report", single, "--out", again) == 0
    assert "Policy fifo" in again.read_text()


def test_compare_as_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints what compare.json has; a policy that fails gives exit code 1 and one line beside the others."""
    code = hadar(
        "compare",
        "--trace",
        trace,
        "--cluster",
        "v100:1x2",
        "--policies",
        "none,fifo",
        "--out",
        tmp_path / "o",
        "-j",
        1,
        "--json",
    )
    said = capsys.readouterr()

    assert code == 1 and said.err.startswith("hadar: none failed: ") and said.err.count("\n") == 1
    assert json.loads(said.out) == json.loads((tmp_path / "o" / "compare.json").read_text())


@pytest.mark.thorough
def test_compare_says_what_was_left_undone(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the table, and in a line for each policy, of all jobs that are measured."""
    trace.write_text(f"{TRACE}wide,0,resnet18,64,9,10\n")
    arguments = ("--cluster", "v100:1x2", "--policies", "fifo,srtf", "--out", tmp_path / "o", "-j", 1, "--no-bounds")
    assert hadar("compare", "--trace", trace, *arguments) == 0
    said = capsys.readouterr()

    lines = said.err.splitlines()
    assert [line.partition(" undone: job wide: needs 9 GPUs")[0] for line in lines] == [
        "hadar: fifo left 1 of 4 jobs",
        "hadar: srtf left 1 of 4 jobs",
    ]
    table = said.out.splitlines()
    assert table[0].split()[1:3] == ["NOT", "DONE"] and table[1].split()[1:4] == ["1", "of", "4"]
    assert "4 jobs of three.csv" in (tmp_path / "o" / "compare.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("compare", "--trace", "x.csv", "--policies", "nobody", "--out", "o"), 1, "no policy is called 'nobody'"),
        (("compare", "--trace", "x.csv", "--policies", "fifo", "--out", "o"), 1, "x.csv does not exist"),
        (("compare", "--policies", "fifo", "--out", "o"), 2, "Missing option '--trace'"),
        (("report", "--out", "o.html"), 2, "either a RESULT file or --journal"),
        (("report", "x.json", "--journal", "--out", "o.html"), 2, "either a RESULT file or --journal"),
        (("report", "x.json", "--out", "o.html"), 1, "x.json does not exist"),
        (("report", "bad.json", "--out", "o.html"), 1, "bad.json cannot be read"),
        (("report", "deep.json", "--out", "o.html"), 1, "deep.json cannot be read"),
        (("report", "other.json", "--out", "o.html"), 1, "other.json is neither"),
        (("report", "odd.json", "--out", "o.html"), 1, "odd.json is damaged, or of another version"),
        (("report", "none.json", "--out", "o.html"), 1, "none.json is damaged, or of another version"),
        (("report", "--journal", "--replay", "drawn.json", "--out", "o.html"), 1, "drawn.json is not of hadar replay"),
        (("report", "--journal", "--out", "o.html", "--set", "controller.state_dir=here"), 1, "no journal at"),
        (("bench", "--policy", "nobody"), 1, "no policy is called 'nobody'"),
        (("bench", "--set", "x"), 1, "must read key=value"),
        (("bench", "--jobs", "0"), 2, "--jobs"),
        (("bench", "--jobs", "3", "--gpus", "1", "--nodes", "2"), 1, "at least one GPU per node"),
    ],
)
def test_refusals(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrong usage is 2, anything else 1; the reason is on stderr, without a traceback, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    Path("deep.json").write_text("[" * 200_000)
    Path("other.json").write_text("{}")
    of_ours = {"kind": "slurm_hadar comparison", "version": 1, "policies": []}
    Path("none.json").write_text(json.dumps(of_ours))
    Path("odd.json").write_text(json.dumps({**of_ours, "policies": [{"label": 3, "avg_jct_s": "long"}]}))
    Path("drawn.json").write_text(json.dumps({**of_ours, "policies": [{"label": "fifo"}]}))

    assert hadar(*arguments) == code
    said = capsys.readouterr()
    assert words in said.err and "Traceback" not in said.err and said.out == ""
    assert not Path("o.html").exists() and not Path("o").exists()


def test_report_of_the_journal(tmp_path: Path) -> None:
    """A page of an installation's journal."""
    Journal(tmp_path / "journal.db").close()
    out = tmp_path / "j.html"
    assert hadar("report", "--journal", "--days", 2, "--out", out, "--set", f"controller.state_dir={tmp_path}") == 0
    assert "What the controller did" in out.read_text()


def test_bench_of_one_size(capsys: pytest.CaptureFixture[str]) -> None:
    """The keys of the contract, with what was asked for."""
    assert hadar("bench", "--policy", "fifo", "--jobs", 12, "--gpus", 8, "--nodes", 2, "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)

    assert {k: result[k] for k in ("policy", "jobs", "gpus", "nodes")} == {
        "policy": "fifo",
        "jobs": 12,
        "gpus": 8,
        "nodes": 2,
    }
    assert all(result[k] > 0 for k in ("decide_cpu_s", "decide_wall_s", "peak_memory_bytes"))


def test_bench_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --jobs: one line a size, and the exponent."""
    monkeypatch.setattr("slurm_hadar.cli.studies.bench.SWEEP", (8, 16))
    file = tmp_path / "b.json"
    assert hadar("bench", "--policy", "fifo", "--json", file) == 0
    content = json.loads(file.read_text())

    assert [r["jobs"] for r in content["results"]] == [8, 16]
    assert f"to the power of {content['exponent']:.2f}" in capsys.readouterr().out


SACCT = "\n".join([ACCOUNT_HEAD, *ROWS]) + "\n"


def test_replay_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What happened stands first, then the policies; every assumption is said; page and pictures are written."""
    file, out = tmp_path / "acct.txt", tmp_path / "out"
    file.write_text(SACCT)
    assert hadar("replay", "--sacct", file, "--policies", "fifo", "--out", out, "-j", 1) == 0
    said = capsys.readouterr().out

    lines = said.splitlines()
    assert lines[1].startswith("what happened") and lines[2].startswith("fifo")
    assumed = [line for line in lines if line.startswith("assumed: ")]
    assert any("ever held at once" in line for line in assumed) and any("name no model" in line for line in assumed)
    page = html.unescape((out / "replay.html").read_text())
    assert "what happened" in page and all(line.removeprefix("assumed: ")[:40] in page for line in assumed)
    assert {p.name for p in out.iterdir()} >= {"replay.json", "gantt.png", "overview.png"}
    assert hadar("report", out / "replay.json", "--out", tmp_path / "again.html") == 0
    assert (tmp_path / "again.html").read_text() == (out / "replay.html").read_text()


def test_replay_says_what_was_left_undone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What happened is then of the jobs that the policies did."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SACCT.encode())))
    assert hadar("replay", "--sacct", "-", "--cluster", "v100:1x2,k80:2x1", "--policies", "fifo", "--no-bounds") == 0
    said = capsys.readouterr()

    assert said.err.startswith("hadar: fifo left 1 of 4 jobs undone: job 1: ") and said.err.count("\n") == 1
    rows = {line.split("  ")[0]: line for line in said.out.splitlines()}
    assert " -  " in rows["what happened"] and " 1 of 4  " in rows["fifo"]
    assert "assumed: 1 jobs that no policy did are left out of what happened, too" in said.out


def test_replay_of_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """- reads a pipe; a cluster that is given is taken, and no assumption about it made."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SACCT.encode())))
    assert hadar("replay", "--sacct", "-", "--cluster", "v100:2x4,k80:2x1", "--policies", "fifo", "--json") == 0
    content = json.loads(capsys.readouterr().out)

    assert content["cluster"] == "v100:2x4,k80:2x1" and content["policies"][0]["label"] == "what happened"
    assert not any("ever held at once" in line for line in content["assumptions"])
    assert all(p["lower_bound_ttd_s"] == content["bounds"]["ttd_s"] for p in content["policies"])


@pytest.mark.parametrize("given", ["replay --sacct", "replay --sacct -", "simulate --trace"])
def test_names_of_jobs_in_another_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """Slurm takes what users type as bytes; one such name is no reason to refuse a site's accounting."""
    (head, row, *rows), file = [ACCOUNT_HEAD, *ROWS], tmp_path / "acct.txt"
    named = f"{head}|JobName\n{row}|caf\u00e9\n" + "".join(f"{other}|x\n" for other in rows)
    file.write_bytes(named.encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes()), "utf-8"))
    words = given.split()
    policy = "--policies" if words[0] == "replay" else "--policy"

    assert hadar(*words, *([] if words[-1] == "-" else [file]), policy, "fifo", "--no-bounds") == 0
    assert capsys.readouterr().err == ""


def test_replay_asks_sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file sacct is run, for everybody's jobs since then; its failure is one line."""
    sacct = tmp_path / "sacct"
    sacct.write_text(f"#!/bin/sh\nprintf '%s ' \"$@\" > {tmp_path}/asked\ncat <<'END'\n{SACCT}END\n")
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert hadar("replay", "--since", "12h", "--cluster", "v100:1x4,k80:2x1", "--policies", "fifo") == 0
    asked = (tmp_path / "asked").read_text()
    assert "--starttime=now-12hours" in asked and "--allusers" in asked and "--duplicates" in asked

    sacct.write_text("#!/bin/sh\necho 'sacct: error: Slurm accounting storage is disabled' >&2\nexit 1\n")
    capsys.readouterr()
    assert hadar("replay", "--since", "2026-10-01", "--policies", "fifo") == 1
    assert "accounting storage is disabled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--sacct", "gone.txt"), 1, "accounting gone.txt does not exist"),
        (("--sacct", "bad.txt"), 1, "bad.txt:1: field JobID is missing"),
        (("--since", "yesterday"), 2, "must be a span such as 30d"),
        (("--policies", "nobody"), 1, "no policy is called 'nobody'"),
    ],
)
def test_replay_refusals(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line each."""
    monkeypatch.chdir(tmp_path)
    Path("bad.txt").write_text("nothing|of|sacct\n")

    assert hadar("replay", *arguments) == code
    assert words in capsys.readouterr().err

"""``hadar predict`` as it is typed."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import click
import pytest

from slurm_hadar.cli.main import main
from slurm_hadar.cli.studies.replay import since_epoch
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.state_dir import JOURNAL
from slurm_hadar.errors import SlurmError
from slurm_hadar.predict.attempts import Attempts
from slurm_hadar.predict.store import VersionStore
from slurm_hadar.testing.fake_slurm import FakeSlurm
from tests.predict.conftest import drawn

HEAD = "JobID|JobName|User|State|Submit|Start|End|ElapsedRaw|AllocTRES|Comment\n"


@pytest.fixture
def hadar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command with a state directory of its own; returns (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["predict", *map(str, arguments), "--set", f"controller.state_dir={tmp_path / 'state'}"])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


@pytest.fixture(scope="module")
def sacct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The accounting of 200 jobs on V100s."""
    rows = []
    for job in drawn(200):
        times = [dt.datetime.fromtimestamp(t, dt.UTC).isoformat()[:19] for t in (job.submit, job.start, job.end)]
        rows.append(
            f"{job.job_id}|{job.group}|{job.user}|COMPLETED|{'|'.join(times)}|{job.end - job.submit:.0f}|"
            f"gres/gpu:v100={job.gpus}|hadar:model=resnet18,batch=64\n"
        )
    path = tmp_path_factory.mktemp("sacct") / "sacct.txt"
    path.write_text(HEAD + "".join(rows))
    return path


def test_types_of_nodes_of_a_trace_of_accounts(hadar: Any, sacct: Path, tmp_path: Path) -> None:
    """As of accounts that are read as such."""
    head, *rows = sacct.read_text().replace("gpu:v100=", "gpu=").splitlines()
    untyped = tmp_path / "untyped.txt"
    untyped.write_text("\n".join([f"{head}|NodeList", *(f"{row}|gpu01" for row in rows), ""]))

    code, _, err = hadar("--evaluate", "--trace", untyped)
    assert code == 1 and "name the types with --node-types" in err
    assert hadar("--evaluate", "--trace", untyped, "--node-types", "gpu01=v100")[0] == 0


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm({"v100-1": ("v100", 4), "k80-1": ("k80", 4)})
    monkeypatch.setattr("slurm_hadar.cli.studies.predict.choose", lambda *_: fake)
    return fake


def test_a_table_for_people(hadar: Any, sacct: Path) -> None:
    code, out, err = hadar("--evaluate", "--sacct", sacct)

    lines = out.splitlines()
    assert (code, err) == (0, "") and lines[0].endswith("asked about the 40 submitted last")
    assert lines[1].split() == ["PREDICTOR", "R2", "(LOG)", "MAPE", "RANK", "CORR", "OVER", "UNDER"]
    assert [line[:12].strip() for line in lines[2:7]] == [
        "forest",
        "group median",
        "group mean",
        "user mean",
        "global mean",
    ]
    assert "never seen before" in out and "assumed: a job's work is the time it ran" in out


def test_a_document_for_programs(hadar: Any) -> None:
    code, out, _ = hadar("--evaluate", "--trace", "recurring:jobs=400", "--seed", 2, "--json")

    found = json.loads(out)
    assert code == 0 and found["source"].endswith("seed=2") and found["tested"] == 80
    assert found["scores"][0].keys() == {"name", "r2_log", "mape", "rank", "over", "under"}
    assert found.keys() >= {"trained", "unseen", "inside", "refused", "assumptions", "split"}


def test_train_then_ask(hadar: Any, sacct: Path, slurm: FakeSlurm) -> None:
    """A job of a known script, and one of an unknown user; slower types take longer."""
    code, out, _ = hadar("--train", "--sacct", sacct)
    assert code == 0
    assert out.splitlines()[-1] == "stored as version 0001, which goes by the forest, learned from 193 jobs"
    known = slurm.submit(gpus=1, comment="hadar:model=resnet18,batch=64,steps=9000", user="user0", name="script0")
    other = slurm.submit(gpus=1, comment="", user="eve", name="new")

    code, out, _ = hadar(known)
    assert code == 0 and out.startswith("job 1 of user0, script0:\n  steps ")
    assert "says 9000 steps, which is what counts" in out and "(user0/script0) ended" in out
    assert "predictor    version 0001 of" in out
    found = json.loads(hadar(known, "--json")[1])
    assert found["seen"] > 5 and found["steps"]["low"] < found["steps"]["expected"] < found["steps"]["high"]
    assert found["run_s"]["v100"]["expected"] < found["run_s"]["k80"]["expected"]
    code, out, _ = hadar(other)
    assert code == 0 and "has never ended before; predicted by a forest" in out and "steps" not in out


def test_a_refused_forest_leaves_the_group_mean(
    hadar: Any, sacct: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said in the training and beside every answer."""
    monkeypatch.setattr("slurm_hadar.predict.evaluate.refusal", lambda _report: "it is bad")

    code, out, _ = hadar("--train", "--sacct", sacct)
    assert code == 0 and out.splitlines()[-2:] == [
        "no forest: it is bad",
        "stored as version 0001, which goes by the group mean, learned from 200 jobs",
    ]
    known = slurm.submit(gpus=1, comment="hadar:model=resnet18,batch=64", user="user0", name="script0")
    code, out, _ = hadar(known)
    assert code == 0 and "predicted by mean of its group" in out and "no forest    it is bad" in out
    assert "four in five" not in out


def test_what_the_last_training_came_to(hadar: Any, sacct: Path, tmp_path: Path) -> None:
    """Kept beside the versions, for the controller; one at a time."""
    attempts = Attempts(tmp_path / "state" / "predictor")
    assert attempts.last() is None and hadar("--train", "--sacct", sacct, "--set", "predict.min_jobs=500")[0] == 1
    failed = attempts.last()
    assert not failed.stored and failed.ended >= failed.began
    assert failed.detail == f"200 jobs ended well in {sacct}; predict.min_jobs asks for 500"
    with attempts.alone():
        assert attempts.going_on()
        assert "another training goes on; try again when it is over" in hadar("--train", "--sacct", sacct)[2]
    assert not attempts.going_on() and attempts.last() == failed
    assert hadar("--train", "--sacct", sacct, "--set", "predict.predictor=group_median")[0] == 0
    assert (attempts.last().version, attempts.last().predictor) == ("0001", "group median")


def test_trainings_are_listed(hadar: Any, tmp_path: Path) -> None:
    """As the controller has noted them."""
    assert "no journal at" in hadar("--trainings")[2]
    (tmp_path / "state").mkdir()
    journal = Journal(tmp_path / "state" / JOURNAL)
    assert "no training is over yet" in hadar("--trainings")[1]
    assert journal.add_training(1000.0, 1030.0, "0001", "forest", "")
    assert journal.add_training(2000.0, None, "", "", "it was ended from outside")
    assert not journal.add_training(2000.0, 2009.0, "", "", "told twice")
    journal.close()
    code, out, _ = hadar("--trainings")
    title, *rows = [line.split() for line in out.splitlines()]
    assert code == 0 and title == ["BEGAN", "TOOK", "VERSION", "GOES", "BY", "WHY"]
    assert [row[2:] for row in rows] == [  # after date and time
        ["-", "-", "-", "it", "was", "ended", "from", "outside"],
        ["30", "s", "0001", "forest", "-"],
    ]
    assert [e["version"] for e in json.loads(hadar("--trainings", "--json")[1])] == ["", "0001"]


def test_the_journal_stands_in_where_slurm_keeps_no_accounts(
    hadar: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only there: accounts that are kept and cannot be read are an error."""
    now = time.time()
    (tmp_path / "state").mkdir()
    journal = Journal(tmp_path / "state" / JOURNAL)
    journal.save_jobs(
        JobRecord(
            str(i),
            now - 900,
            arrival=now - 900,
            workers=1,
            user="ann",
            name="train",
            ran_s={"v100": 100.0},
            final="COMPLETED",
            ended=now - 60 + i,
        )
        for i in range(5)
    )
    journal.close()

    def without(*_: object) -> str:
        raise SlurmError("sacct failed: Slurm accounting storage is disabled")

    monkeypatch.setattr("slurm_hadar.cli.studies.predict.accounting_text", without)
    code, out, _ = hadar("--train", "--set", "predict.min_jobs=5")
    assert code == 0 and "note: Slurm keeps no accounts (AccountingStorageType)" in out
    assert "no forest: 4 jobs ended well and had others" in out or "no forest: " in out
    assert out.splitlines()[-1] == "stored as version 0001, which goes by the group mean, learned from 5 jobs"
    stored = VersionStore(tmp_path / "state" / "predictor").load()
    assert {job.alone_s for job in stored.history} == {100.0}
    code, _, err = hadar("--train", "--set", "predict.source=sacct")
    assert code == 1 and "accounting storage is disabled" in err


@pytest.mark.usefixtures("slurm")
def test_faults_are_one_line(hadar: Any, sacct: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("".join(sacct.read_text().splitlines(keepends=True)[:20]))
    empty = tmp_path / "empty.txt"
    empty.write_text(HEAD + "1|a|ann|COMPLETED|100|100|200|100|cpu=1|\n")

    for arguments, code, words in (
        ((), 2, "say one of: JOB, --evaluate, --train"),
        (("1", "--train"), 2, "say one of"),
        (("1", "--trace", "x"), 2, "JOB is predicted by the stored version"),
        (("--evaluate", "--trace", "x", "--sacct", "y"), 2, "exclude each other"),
        (("1",), 1, "holds no predictor yet; train anew with hadar predict --train"),
        (("--evaluate", "--sacct", few), 1, "at least 40 are needed to learn from"),
        (("--train", "--sacct", few), 1, "19 jobs ended well in"),
        (("--evaluate", "--sacct", empty), 1, "has no jobs to learn from: 1 jobs are left out: they had no GPU"),
        (("--evaluate", "--sacct", tmp_path / "none"), 1, "does not exist"),
        (("--evaluate", "--trace", "recurring:x=1"), 1, "'x=1' is not one of jobs=N"),
    ):
        got, _, err = hadar(*arguments)
        assert got == code and words in err, arguments
        assert code == 2 or err.count("\n") == 1
    assert hadar("--train", "--sacct", sacct)[0] == 0
    assert hadar("77")[2] == "hadar: job 77 is not in the queue; is the id right (array tasks: 123_4)?\n"


def test_since_when() -> None:
    """Spans and local dates, as sacct takes them."""
    assert since_epoch("90d", 1e9) == 1e9 - 90 * 86400 and since_epoch("12h", 1e9) == 1e9 - 12 * 3600
    moment = dt.datetime.fromtimestamp(since_epoch("2026-10-01T06:30", 0.0)).astimezone()
    assert (moment.day, moment.hour, moment.minute) == (1, 6, 30)
    with pytest.raises(click.BadParameter, match="must be a span such as 30d"):
        since_epoch("lately", 0.0)
    for no_day in ("2026-13-45", "0000-01-01"):
        with pytest.raises(click.BadParameter):
            since_epoch(no_day, 0.0)

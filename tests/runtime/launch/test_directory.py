"""Whose a directory is that stands under the job's id, once Slurm has restarted the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar import messages
from slurm_hadar.runtime.launch import directory, own
from slurm_hadar.runtime.launch.directory import note_owner, set_aside_left_over
from slurm_hadar.runtime.launch.slurmctld import JobFacts

FIRST, NOW = "2026-11-20T10:00:00", "2026-11-21T11:00:00"
OURS = "hadar:model=lm,batch=5"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of job 77, whose directory somebody has left a checkpoint in: a job 77 that was submitted first at FIRST."""
    room = tmp_path / ".hadar" / "77"
    environ = {"SLURM_CLUSTER_NAME": "one", "HADAR_JOB_ID": "77", "HADAR_JOB_DIR": str(room)}
    note_owner(environ, FIRST)
    (room / "checkpoint").touch()
    return environ


def is_kept(environ: dict[str, str], comment: str = OURS) -> bool:
    set_aside_left_over(environ, JobFacts(1, NOW, 1, False, Path(), comment))
    kept = (Path(environ["HADAR_JOB_DIR"]) / "checkpoint").exists()
    assert kept or list(Path(environ["HADAR_JOB_DIR"]).parent.glob("77.before-*/checkpoint")), "it is lost"
    return kept


def accounts(monkeypatch: pytest.MonkeyPatch, *runs: tuple[str, str]) -> None:
    monkeypatch.setattr(directory, "accounted_runs", lambda _job: list(runs))


def test_that_of_another_cluster(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_kept({**environ, "SLURM_CLUSTER_NAME": "two"})
    assert "was an earlier job's with the same id; moved to 77.before-" in capsys.readouterr().err


def test_what_the_comment_says_needs_no_accounts(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, (NOW, "RUNNING"))
    key = messages.token_fingerprint(own.token(Path(environ["HADAR_JOB_DIR"])))

    assert is_kept(environ, f"{OURS},key={key}")
    assert not is_kept(environ, f"{OURS},key={key[::-1]}")


RUNS, BACK, OVER = (NOW, "RUNNING"), "REQUEUED", "COMPLETED"


@pytest.mark.parametrize(
    "runs",
    [
        [(FIRST, BACK)],
        [(FIRST, BACK), RUNS],
        [("2020-01-01T00:00:00", OVER), (FIRST, BACK), RUNS],
        [(FIRST, "FAILED"), RUNS],  # requeued by its owner
        [(FIRST, BACK), ("2026-11-20T12:00:00", "NODE_FAIL"), RUNS],  # slurmctld has lost count
    ],
    ids=["late", "own", "after another's", "failed", "lost count"],
)
def test_what_the_accounts_have_is_its_own(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, runs: list[tuple[str, str]]
) -> None:
    accounts(monkeypatch, *runs)

    assert is_kept(environ)


@pytest.mark.parametrize(
    "runs",
    [
        [("2026-11-21T10:30:00", BACK), RUNS],  # those of a cluster that was set up anew
        [(FIRST, OVER), ("2026-11-21T10:30:00", BACK), RUNS],
        [(FIRST, BACK), ("2026-11-20T12:00:00", OVER), ("2026-11-21T10:30:00", "NODE_FAIL"), RUNS],
    ],
    ids=["forgotten", "over", "over after a restart"],
)
def test_what_the_accounts_have_is_an_earlier_jobs(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, runs: list[tuple[str, str]]
) -> None:
    accounts(monkeypatch, *runs)

    assert not is_kept(environ)


def test_where_nothing_tells(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is said, and the way out."""
    accounts(monkeypatch)

    assert is_kept(environ)
    said = capsys.readouterr().err
    assert FIRST in said and "cancel this one and submit it anew" in said


def test_a_mark_that_was_left_empty(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, RUNS)
    (Path(environ["HADAR_JOB_DIR"]) / "owner").write_text("")

    assert is_kept(environ)


def test_a_directory_that_the_user_has_named_is_one_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Set in a shell's profile it is named for all: they would delete each other's checkpoints."""
    room = tmp_path / "room"

    def place(job: str, cluster: str = "one") -> Path:
        environ = {"SLURM_CLUSTER_NAME": cluster, "HADAR_JOB_ID": job, "HADAR_JOB_DIR": str(room)}
        environ["HADAR_JOB_DIR"] = str(directory.apart(environ))
        note_owner(environ, NOW)
        return Path(environ["HADAR_JOB_DIR"])

    assert place("77") == place("77") == room
    assert place("78") == room / "78"
    assert f"{room} has the files of job 77: those of this job go to {room}/78" in capsys.readouterr().err
    assert place("78") == place("78") == room / "78"
    assert place("77", "two") == room / "77"

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
    environ["SLURM_CONF"] = str(tmp_path / "slurm.conf")
    note_owner(environ, FIRST)
    (room / "checkpoint").touch()
    return environ


def is_kept(environ: dict[str, str], comment: str = OURS) -> bool:
    set_aside_left_over(environ, JobFacts(1, NOW, Path(), comment))
    kept = (Path(environ["HADAR_JOB_DIR"]) / "checkpoint").exists()
    assert kept or list(Path(environ["HADAR_JOB_DIR"]).parent.glob("77.before-*/checkpoint")), "it is lost"
    return kept


def accounts(monkeypatch: pytest.MonkeyPatch, *submitted: str) -> None:
    monkeypatch.setattr(directory, "accounted_submissions", lambda _job: list(submitted))


def test_that_of_another_cluster(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_kept({**environ, "SLURM_CLUSTER_NAME": "two"})
    assert "was an earlier job's with the same id; moved to 77.before-" in capsys.readouterr().err


def test_what_the_comment_says_needs_no_accounts(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, NOW)
    key = messages.token_fingerprint(own.token(Path(environ["HADAR_JOB_DIR"])))

    assert is_kept(environ, f"{OURS},key={key}")
    assert not is_kept(environ, f"{OURS},key={key[::-1]}")


def test_what_the_accounts_say(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of its own first run, with those of an earlier job's or not; a cluster that was set up anew has
    forgotten the earlier job."""
    for known in ([FIRST], [FIRST, NOW], ["2020-01-01T00:00:00", FIRST, NOW]):
        accounts(monkeypatch, *known)
        assert is_kept(environ), known
    accounts(monkeypatch, "2026-11-21T10:30:00", NOW)
    assert not is_kept(environ)


@pytest.mark.parametrize("controlled", [True, False])
def test_where_nothing_tells(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], controlled: bool
) -> None:
    """With a controller its own runs would have named their token: that is said, and the way out."""
    accounts(monkeypatch)
    if controlled:
        path = Path(environ["SLURM_CONF"]).parent / messages.CHANNEL_FILE
        path.write_text(messages.ChannelInfo(address="tcp://127.0.0.1:1", public_key="a" * 40).to_json())

    assert is_kept(environ)
    said = capsys.readouterr().err
    assert (FIRST in said and "cancel this one and submit it anew" in said) is controlled


def test_a_mark_that_was_left_empty(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    accounts(monkeypatch, NOW)
    (Path(environ["HADAR_JOB_DIR"]) / "owner").write_text("")

    assert is_kept(environ)

"""A job's directory among other users: what they prepared is never taken for the job's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_hadar import messages
from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.checkpoint.place import store_here
from slurm_hadar.runtime.launch import own
from tests.runtime.other_users import OTHER, give, needs_root


def test_everything_is_made_for_its_owner_alone(in_job: Path) -> None:
    """All levels 0700, the token 0600, whatever the umask."""
    before = os.umask(0)
    try:
        store = store_here(None, "a", 2)
        assert store is not None
        store.claim()
        store.begin(1).discard()
    finally:
        os.umask(before)

    home = in_job / ".hadar"
    for level in (home, home / "77", home / "77" / "checkpoints", home / "77" / "checkpoints" / "a"):
        assert level.stat().st_mode & 0o777 == 0o700
    assert (home / "77" / messages.TOKEN_FILE).stat().st_mode & 0o777 == 0o600


@needs_root
def test_two_users_share_a_directory_of_submission(in_job: Path) -> None:
    """Who comes second has a directory beside the first one's, again after a restart, and when the first is gone."""
    (in_job / ".hadar").mkdir(mode=0o700)
    give(in_job / ".hadar")

    found, why = own.place(in_job, "77")
    assert found == in_job / f".hadar-{os.geteuid()}" / "77"
    assert why is not None and why.startswith(f"{in_job}/.hadar belongs to user nobody: this job's files go to {found}")
    own.make(found)

    assert own.place(in_job, "77")[0] == found
    (in_job / ".hadar").rmdir()
    assert own.place(in_job, "77") == (found, None)
    assert own.place(in_job, "78") == (found.with_name("78"), None)


@needs_root
@pytest.mark.parametrize("level", [".hadar", ".hadar/77", ".hadar/77/checkpoints"])
def test_what_another_user_has_prepared_is_not_used(in_job: Path, level: str) -> None:
    """At any level: refused, or passed by with a line, never taken, never written into."""
    trap = in_job / ".hadar" / "77" / "checkpoints" / "gen-9-step-9"
    trap.mkdir(parents=True)
    give(*(p for p in [in_job / level, *(in_job / level).rglob("*")]))

    if level.endswith("checkpoints"):
        with pytest.raises(CheckpointError, match="checkpoints belongs to user nobody"):
            store_here(None, None, 2).claim()
        return
    store = store_here(None, None, 2)
    assert store is not None and store.directory == in_job / f".hadar-{os.geteuid()}" / "77" / "checkpoints"
    store.claim()
    assert list(store.good()) == []


@pytest.mark.parametrize("level", [".hadar", ".hadar/77"])
def test_no_link_is_followed(in_job: Path, tmp_path: Path, level: str) -> None:
    """Not even one of the user's own: whoever may write the directory of submission may exchange it."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "77" / "checkpoints").mkdir(parents=True)
    (in_job / level).parent.mkdir(exist_ok=True)
    (in_job / level).symlink_to(elsewhere)

    found, why = own.place(in_job, "77")

    assert found == in_job / f".hadar-{os.geteuid()}" / "77"
    assert why is not None and "is a link or a file" in why


@needs_root
def test_both_names_taken(in_job: Path) -> None:
    """Then the job has no place here, and is told what to do."""
    for name in messages.job_homes(os.geteuid()):
        (in_job / name).mkdir()
        give(in_job / name)
    with pytest.raises(CheckpointError, match="set HADAR_JOB_DIR to a directory of your own"):
        store_here(None, None, 2)


@pytest.mark.parametrize("mode", [0o777, 0o2775])
def test_a_directory_that_others_may_write_is_closed_to_them(in_job: Path, mode: int) -> None:
    """Such as an earlier version has made under a generous umask."""
    (in_job / ".hadar").mkdir()
    (in_job / ".hadar").chmod(mode)
    if mode == 0o2775 and os.geteuid() == 0:
        os.chown(in_job / ".hadar", 0, OTHER)
    own.make(in_job / ".hadar" / "77")
    assert (in_job / ".hadar").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("how", ["mode", "text", "link", "directory", "pipe"])
def test_a_token_that_is_not_the_jobs(in_job: Path, how: str) -> None:
    """One clear line; nothing hangs and nothing is replaced."""
    path = in_job / ".hadar" / "77" / messages.TOKEN_FILE
    own.make(path.parent)
    if how in ("mode", "text"):
        path.write_text(("0" * 64 if how == "mode" else "mine") + "\n")
        path.chmod(0o640 if how == "mode" else 0o600)
    elif how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"77/token (is not this job's token|cannot be read)"):
        own.token(path.parent)


def test_a_token_that_others_may_read_can_be_kept(in_job: Path) -> None:
    """Without it the checkpoints are of no use: who shares the directory with a group is told how to go on."""
    directory = in_job / ".hadar" / "77"
    first = own.token(directory)
    (directory / messages.TOKEN_FILE).chmod(0o660)

    with pytest.raises(CheckpointError, match=f"chmod 600 {directory / messages.TOKEN_FILE}$"):
        own.token(directory)
    (directory / messages.TOKEN_FILE).chmod(0o600)
    assert own.token(directory) == first


def test_that_of_another_clusters_job_is_left_alone(in_job: Path) -> None:
    """It may be running there: two clusters with one file system count their jobs alike."""
    usual = in_job / ".hadar" / "77"
    usual.mkdir(parents=True)
    (usual / "owner").write_text("one 77 2026-11-20T10:00:00\n")

    assert own.place(in_job, "77", "one") == (usual, None)
    assert own.place(in_job, "77") == (usual, None)
    found, why = own.place(in_job, "77", "two")
    assert found == in_job / f".hadar-{os.geteuid()}" / "77"
    assert why is not None and "is that of job 77 of cluster one" in why

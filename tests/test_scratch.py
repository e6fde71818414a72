"""Temporary directories of processes that are killed: the next one removes them, and those of nobody else."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_hadar import scratch
from slurm_hadar.errors import ConfigError

MAKE = "import sys; from slurm_hadar import scratch; print(scratch.make('hadar-7-'), flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_what_a_killed_process_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        (theirs / "1.map").touch()
        mine = scratch.make("hadar-8-")
        assert theirs.parent == mine.parent == tmp_path and theirs.stat().st_mode & 0o77 == 0
        unlocked, file = tmp_path / "hadar-unlocked", tmp_path / "hadar-file"
        unlocked.mkdir()  # of an older version, or another program's
        file.touch()
        (tmp_path / "hadar-link").symlink_to(theirs)
        scratch.remove_abandoned("hadar-")
        assert (theirs / "1.map").exists() and mine.exists()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        scratch.remove_abandoned("hadar-9")
        assert theirs.exists()
        scratch.remove_abandoned("hadar-")
    assert not theirs.exists()
    assert sorted(tmp_path.iterdir()) == sorted([mine, unlocked, file, tmp_path / "hadar-link"])


def test_what_several_share_is_there_until_the_last_of_them_is_gone(tmp_path: Path) -> None:
    shared = tmp_path / "own" / "hadar-shared"
    shared.parent.mkdir()
    join = f"import sys, pathlib; from slurm_hadar import scratch; scratch.join(pathlib.Path({str(shared)!r}))"
    command = [sys.executable, "-c", f"{join}; print(flush=True); sys.stdin.read()"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline()
    for process in processes:
        scratch.remove_abandoned(f"{tmp_path}/own/hadar-")
        assert shared.stat().st_mode & 0o77 == 0
        process.kill()
        process.communicate()
    scratch.remove_abandoned("hadar-")
    assert shared.exists()
    scratch.remove_abandoned(f"{tmp_path}/own/hadar-")
    assert not shared.exists()


def test_who_joins_a_folder_that_is_just_removed_has_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "hadar-shared"
    lock = fcntl.flock

    def removed(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        scratch.remove_abandoned("hadar-")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed)
    scratch.join(shared)
    scratch.remove_abandoned("hadar-")
    assert shared.exists()


def test_no_room_is_told_and_no_folder_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    scratch.remove_abandoned("hadar-")
    with pytest.raises(OSError, match="none"):
        scratch.make("hadar-")


def test_a_folder_for_sockets_has_a_path_that_they_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(ConfigError, match=f"{long}/hadar-.* is too long for a socket's path: set TMPDIR"):
        scratch.make_for_sockets("hadar-", ["gpu"])
    assert not list(long.iterdir())

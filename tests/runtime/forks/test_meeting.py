"""The place where copies meet: files that are damaged, and a disk that takes none."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.forks.meeting import Commit, Heartbeat, MeetingDirectory
from slurm_hadar.runtime.forks.member import Member, PeriodLength


class One:
    """One copy: steps are 100, in periods of 10; its weights are a word."""

    def __init__(self, directory: Path, copy: int, restart: int = 0) -> None:
        self.meeting = MeetingDirectory(directory, copy)
        self.member = Member(
            self.meeting, restart, PeriodLength(steps=10), lambda _offers, _base, path: _write(path, "")
        )
        self.alive: Heartbeat | None = None

    def begin(self) -> Commit:
        return self.member.begin(100, None, 0, lambda path: _write(path, ""))

    def offers(self, commit: Commit) -> bool:
        return self.member.offer(commit, commit.shares[self.meeting.copy], 1.0, True, None, _write)

    def next(self, commit: Commit, offered: bool) -> Commit | None:
        """With a sign of life, as every copy gives one."""
        self.alive = Heartbeat(self.meeting)
        try:
            return self.member.next(commit, offered)
        finally:
            self.alive.stop()


def _write(path: Path, header: str) -> None:
    """A file of safetensors without any, as offers are read."""
    text = json.dumps({"__metadata__": {"hadar": header}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def test_a_copy_that_can_give_no_sign_of_life_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: the others then judge by the job tracker's word."""
    one = One(tmp_path, 0)

    def full(_path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "touch", full)
    Heartbeat(one.meeting).stop()
    assert not list((tmp_path / "alive").iterdir())


def test_a_process_that_a_copy_has_forked_takes_no_sign_of_life_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end; the copy would pass for dead until its next one, and its steps might be done anew."""
    monkeypatch.setattr("slurm_hadar.runtime.forks.meeting.HEARTBEAT_S", 3600.0)
    alive = Heartbeat(One(tmp_path, 0).meeting)
    if (child := os.fork()) == 0:
        try:
            alive.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "alive" / "0").exists()
    alive.stop()
    assert not (tmp_path / "alive" / "0").exists()


@pytest.mark.parametrize("left", [0, 40])
def test_a_commit_that_is_cut_is_made_anew(tmp_path: Path, left: int) -> None:
    """Its name is given once; that of one which nobody can read is given again."""
    one = One(tmp_path, 0)
    first = one.begin()
    assert one.offers(first)
    second = one.next(first, offered=True)
    path = tmp_path / f"commit-{second.number:06d}.json"
    path.write_bytes(path.read_bytes()[:left])
    again = One(tmp_path, 0, restart=1)

    assert again.begin() == first and again.offers(first), "its steps are done anew"
    made = again.next(first, offered=True)

    assert (made.number, made.step) == (second.number, second.step) and again.meeting.check(made) is None
    assert path.with_suffix(".damaged").exists()


def test_one_that_is_sound_is_not_replaced(tmp_path: Path) -> None:
    one = One(tmp_path, 0)
    first = one.begin()

    assert not one.meeting.publish(first)
    assert MeetingDirectory(tmp_path, 1).newest() == first


def test_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], waiting: Callable[..., object]
) -> None:
    """No mark can be left: that is said, the copy lives, and goes on when there is room."""
    commit, other = One(tmp_path, 0).begin(), One(tmp_path, 1)
    full, tried = threading.Event(), []
    full.set()

    def until_there_is_room(mark: Callable[[int], None]) -> Callable[[int], None]:
        def marked(number: int) -> None:
            tried.append(mark.__name__)
            if full.is_set():
                raise CheckpointError("the disk is full")
            mark(number)

        return marked

    publish = other.meeting.publish
    monkeypatch.setattr(other.meeting, "publish", lambda commit: not full.is_set() and publish(commit))
    monkeypatch.setattr(other.meeting, "join", until_there_is_room(other.meeting.join))
    monkeypatch.setattr(other.meeting, "close", until_there_is_room(other.meeting.close))
    other.member.close(commit)
    following: list[Commit] = []
    thread = threading.Thread(target=lambda: following.append(other.next(commit, offered=False)))
    thread.start()
    waiting(lambda: tried.count("join") >= 2)
    assert not following
    full.clear()
    thread.join(timeout=300)

    assert [f.number for f in following] == [1] and 1 in following[0].shares
    assert "the disk is full" in capsys.readouterr().err

"""The place where copies meet: files that are damaged, and a disk that takes none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.forks.meeting import Commit, Heartbeat, MeetingDirectory
from slurm_hadar.runtime.forks.member import Member, PeriodLength


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[MeetingDirectory]:
    directory = MeetingDirectory(tmp_path / "fork", 0)
    alive = Heartbeat(directory)
    yield directory
    alive.stop()


@pytest.fixture
def member(meeting: MeetingDirectory) -> Member:
    """Copies of 100 steps in periods of 10, whose weights are a word."""
    return Member(meeting, 0, PeriodLength(steps=10), lambda _offers, _base, path: write(path))


def write(path: Path, _header: str = "") -> None:
    path.write_bytes(b"weights")


def begin(member: Member) -> Commit:
    return member.begin(100, None, 0, write)


def offer(member: Member, commit: Commit) -> bool:
    return member.offer(commit, commit.shares[0], 1.0, True, None, lambda path, _header: write(path))


@pytest.mark.parametrize("left", [0, 40])
def test_a_commit_that_is_cut_is_made_anew(member: Member, meeting: MeetingDirectory, left: int) -> None:
    """Its name is given once; that of one which nobody can read is given again."""
    following = member.next(begin(member), offered=False)
    path = meeting.directory / f"commit-{following.number:06d}.json"
    path.write_bytes(path.read_bytes()[:left])
    again = MeetingDirectory(meeting.directory, 0)
    restarted = Member(again, 1, PeriodLength(steps=10), lambda _offers, _base, path: write(path))

    commit = begin(restarted)
    assert commit.number == following.number - 1
    made = restarted.next(commit, offered=False)

    assert made.number == following.number and again.check(made) is None
    assert path.with_suffix(".damaged").exists()


def test_one_that_is_sound_is_not_replaced(member: Member, meeting: MeetingDirectory) -> None:
    first = begin(member)

    assert not meeting.publish(first)
    assert MeetingDirectory(meeting.directory, 1).newest() == first


def test_a_full_disk_is_waited_for(
    member: Member, meeting: MeetingDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    waiting: Callable[..., object],
) -> None:  # fmt: skip
    """No mark can be left: that is said, the copy lives, and goes on when there is room."""
    commit, full, tried = begin(member), threading.Event(), []
    full.set()

    def until_there_is_room(mark: Callable[[int], None]) -> Callable[[int], None]:
        def marked(number: int) -> None:
            tried.append(mark.__name__)
            if full.is_set():
                raise CheckpointError("the disk is full")
            mark(number)

        return marked

    monkeypatch.setattr(meeting, "join", until_there_is_room(meeting.join))
    monkeypatch.setattr(meeting, "close", until_there_is_room(meeting.close))
    member.close(commit)
    following: list[Commit] = []
    thread = threading.Thread(target=lambda: following.append(member.next(commit, offered=False)))
    thread.start()
    waiting(lambda: tried.count("join") >= 2)
    assert not following
    full.clear()
    thread.join(timeout=30)

    assert [f.number for f in following] == [1] and 0 in following[0].shares
    assert "the disk is full" in capsys.readouterr().err

"""Programs that are told of moves."""

from __future__ import annotations

import errno
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import HooksSection
from slurm_hadar.procstat import stat_of
from slurm_hadar.service import hooks
from slurm_hadar.service.hooks import HookRunner


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def make(body: str) -> str:
        path = tmp_path / "hook.sh"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_it_runs_with_its_variables_and_words(script: Callable[[str], str], tmp_path: Path) -> None:
    """The command is split as a shell does, and started without one."""
    runner = HookRunner(HooksSection(moved=f"{script('echo $HADAR_JOB_ID $1 > out')} 'two words;'"))

    runner.run({"HADAR_JOB_ID": "7"})
    runner.close(10)

    assert (tmp_path / "out").read_text() == "7 two words;\n"
    assert runner.outcomes == {"ok": 1}


def test_failures_are_logged_with_what_was_said(script: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    runner = HookRunner(HooksSection(moved=script("echo no mail today >&2; exit 3")))

    with caplog.at_level(logging.WARNING):
        runner.run({"HADAR_JOB_ID": "7"})
        runner.close(10)

    assert "for job 7: ended with 3: no mail today" in caplog.text and runner.outcomes == {"failed": 1}


def test_without_room_for_what_is_said_later_runs_are_made(
    script: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    poll: Callable[..., Any],
) -> None:
    """With a full /tmp a run fails; it takes no place of those that come when there is room again."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    runner = HookRunner(HooksSection(moved=script("true"), at_once=1))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(tempfile, "TemporaryFile", full)
        runner.run({"HADAR_JOB_ID": "7"})
        poll(lambda: runner.outcomes["failed"] == 1)
    runner.run({"HADAR_JOB_ID": "8"})
    runner.close(10)

    assert runner.outcomes == {"failed": 1, "ok": 1}
    assert "for job 7: cannot be run: No space left on device" in caplog.text


def test_a_program_of_another_user_does_not_keep_us_from_ending(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sudo runs may not be killed by us."""

    def refused(pid: int, number: int) -> None:
        killpg(pid, number)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    killpg = os.killpg
    monkeypatch.setattr(os, "killpg", refused)
    runner = HookRunner(HooksSection(moved=script("sleep 600"), timeout_s=0.2))

    runner.run({"HADAR_JOB_ID": "7"})
    runner.close(10)

    assert runner.outcomes == {"timeout": 1}


def test_a_program_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    runner = HookRunner(HooksSection(moved="/nonexistent/hook"))

    with caplog.at_level(logging.WARNING):
        runner.run({"HADAR_JOB_ID": "7"})
        runner.close(10)

    assert "/nonexistent/hook for job 7: cannot be run: No such file" in caplog.text


def test_a_program_that_hangs_is_ended_with_its_children(
    script: Callable[[str], str], tmp_path: Path, poll: Callable[..., Any]
) -> None:
    """All of its process group goes; nothing is left behind."""
    runner = HookRunner(HooksSection(moved=script("sleep 1000 & echo $! > child; wait"), timeout_s=0.5))

    runner.run({"HADAR_JOB_ID": "7"})
    runner.close(20)

    assert runner.outcomes == {"timeout": 1}
    child = int((tmp_path / "child").read_text())
    poll(lambda: not _alive(child), 10)


def test_what_a_program_leaves_running_holds_up_nothing(script: Callable[[str], str], tmp_path: Path) -> None:
    """A child in the background that keeps stdout open is the program's own affair."""
    runner = HookRunner(HooksSection(moved=script("sleep 1000 & echo $! > child"), timeout_s=600))

    runner.run({"HADAR_JOB_ID": "7"})
    runner.close(20)

    assert runner.outcomes == {"ok": 1}
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_so_many_at_once(script: Callable[[str], str], tmp_path: Path, poll: Callable[..., Any]) -> None:
    """Others wait their turn; the caller never does."""
    runner = HookRunner(
        HooksSection(moved=script("touch began.$HADAR_JOB_ID; until [ -e go ]; do sleep 0.05; done"), at_once=2)
    )

    for n in range(5):
        runner.run({"HADAR_JOB_ID": str(n)})
    poll(lambda: len(list(tmp_path.glob("began.*"))) == 2)
    (tmp_path / "go").touch()
    runner.close(20)

    assert runner.outcomes == {"ok": 5}


def test_too_many_waiting_are_dropped(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hook that cannot keep up costs mails, not memory."""
    monkeypatch.setattr(hooks, "MOST_WAITING", 3)
    runner = HookRunner(HooksSection(moved=script("until [ -e go ]; do sleep 0.05; done"), at_once=1))

    for n in range(10):
        runner.run({"HADAR_JOB_ID": str(n)})
    (tmp_path / "go").touch()
    runner.close(20)

    assert runner.outcomes["dropped"] >= 6 and runner.outcomes["ok"] + runner.outcomes["dropped"] == 10


def test_the_end_of_the_controller_does_not_wait_for_ever(
    script: Callable[[str], str], tmp_path: Path, poll: Callable[..., Any]
) -> None:
    """Those that run are ended, those that wait not begun."""
    runner = HookRunner(HooksSection(moved=script("echo $$ > pid; exec sleep 1000"), at_once=1))
    runner.run({"HADAR_JOB_ID": "1"})
    runner.run({"HADAR_JOB_ID": "2"})
    pid = int(poll(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))

    runner.close(0.2)

    poll(lambda: not _alive(pid), 10)
    runner.run({"HADAR_JOB_ID": "3"})
    assert runner.outcomes["dropped"] == 1


def test_no_command_no_run() -> None:
    runner = HookRunner(HooksSection())
    runner.run({"HADAR_JOB_ID": "1"})
    runner.close(0)

    assert not runner.outcomes


def _alive(pid: int) -> bool:
    try:
        return stat_of(pid).state != "Z"
    except OSError:
        return False

"""The reporter's connection: whom it reports to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import messages
from slurm_hadar.runtime import connection
from slurm_hadar.runtime.connection import Connection
from tests.runtime.conftest import Listener


def _said(kind: str) -> bytes:
    return messages.encode(messages.Report(kind, "77", 0, 1, "ab" * 32, 1.0, "n1"))


def test_jobs_report_to_whom_the_channel_file_names_though_the_other_still_answers(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: Callable[..., object]
) -> None:
    """Another host's controller has taken over, and the one before stands by and listens on."""
    monkeypatch.setenv("HADAR_CHANNEL", str(listener.channel))
    monkeypatch.setattr(connection, "RETRY_S", 0.1)
    made: Any = Connection(tmp_path / "spool")

    def turn() -> bool:
        made.orders("77")
        made.keep_up(lambda: _said("hello"))
        return bool(made.live)

    (tmp_path / "other").mkdir()
    other = Listener(tmp_path / "other")
    try:
        waiting(turn, "a welcome")
        waiting(lambda: turn() and listener.of_kind("hello"), "a hello")
        listener.channel.write_text("not now")  # what cannot be read changes nothing
        waiting(lambda: turn(), "still there")
        listener.channel.write_text(other.channel.read_text())
        waiting(lambda: turn() and other.of_kind("hello"), "a hello to the other one")
        waiting(turn, "its welcome")
        made.send(_said("report"))
        waiting(lambda: other.of_kind("report"), "a report to the other one")
        assert not listener.of_kind("report")
    finally:
        made._socket.close(linger=0)  # noqa: SLF001 to close all would wait for the listeners, too
        other.close()

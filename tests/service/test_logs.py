"""The log, for people, journald and log collectors."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from slurm_hadar.config import LogSection
from slurm_hadar.service.logs import LogFormatter, configure, to_journald


def record(message: str, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    return logging.getLogger("slurm_hadar.controller.loop").makeRecord(
        "slurm_hadar.controller.loop", level, "f", 1, message, (), None, extra=extra
    )


def test_json_lines() -> None:
    """One object per line: time, level, message, and round, event and job where they are known."""
    formatter = LogFormatter(LogSection(format="json"))

    first = json.loads(formatter.format(record("hello\nworld")))
    assert (first["level"], first["message"]) == ("info", "hello\nworld")
    assert first["time"].endswith("Z") and "T" in first["time"] and "round" not in first
    formatter.round = 7
    text = formatter.format(record("job 3: refused", logging.WARNING, job_id="3", event="write"))
    assert "\n" not in text
    second = json.loads(text)
    assert (second["round"], second["job_id"], second["event"], second["level"]) == (7, "3", "write", "warning")
    third = json.loads(formatter.format(record("round", event="round", figures={"jobs": 4, "time": 1.0})))
    assert third["jobs"] == 4 and isinstance(third["time"], str)


def test_text_lines_have_the_time_unless_journald_adds_it() -> None:
    """Under systemd a line begins with its level, as journald reads it, and has no time of its own."""
    plain = LogFormatter(LogSection()).format(record("hello"))
    assert plain.endswith(" INFO hello") and plain[:2] == "20"

    assert LogFormatter(LogSection(), journald=True).format(record("hello", logging.ERROR)) == "<3>ERROR hello"
    failed = record("hello")
    failed.exc_info = (ValueError, ValueError("a"), None)
    assert LogFormatter(LogSection(), journald=True).format(failed) == "<6>INFO hello\n<6>ValueError: a"
    assert LogFormatter(LogSection(format="json"), journald=True).format(record("a")).startswith('<6>{"')


@pytest.mark.parametrize("journald", [False, True])
def test_a_users_name_for_a_directory_forges_no_line(journald: bool) -> None:
    line = LogFormatter(LogSection(), journald).format(record("in /tmp/a\n<2>CRITICAL all is lost\x1b[2J"))

    assert line.endswith("INFO in /tmp/a?<2>CRITICAL all is lost?[2J") and "\n" not in line


def test_journald_is_known_by_the_stream(tmp_path: Path) -> None:
    """$JOURNAL_STREAM names the stream's device and inode; a redirected one is not the journal."""
    with (tmp_path / "log").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert to_journald(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not to_journald(stream, {"JOURNAL_STREAM": "1:2"})
        assert not to_journald(stream, {})
    assert not to_journald(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """log.level, and --quiet above it."""
    out = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", out)
    try:
        for section, quiet, shown in (
            (LogSection(), False, ["INFO i", "WARNING w"]),
            (LogSection(), True, ["WARNING w"]),
            (LogSection(level="error"), False, []),
            (LogSection(level="debug"), False, ["DEBUG d", "INFO i", "WARNING w"]),
        ):
            out.seek(0)
            out.truncate()
            configure(section, quiet)
            for level, word in ((logging.DEBUG, "d"), (logging.INFO, "i"), (logging.WARNING, "w")):
                logging.getLogger("slurm_hadar.x").log(level, word)
            assert [line.split(" ", 2)[2] for line in out.getvalue().splitlines()] == shown
    finally:
        root.handlers[:], root.level = before[0], before[1]

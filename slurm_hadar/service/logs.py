"""How the log looks: lines for people, or one JSON object per line for log collectors; on stderr.

Under systemd each line begins with its level as journald reads it (``<4>``), and text lines have no time of their own,
since journald adds one. What users name themselves, such as directories, forges no other line and tells no terminal
what to do.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from slurm_hadar.config import LogSection
from slurm_hadar.controller.words import plain

__all__ = ["LogFormatter", "configure", "to_journald"]

# syslog's levels, see sd-daemon(3)
_PRIORITY = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}
# what log.info(..., extra={...}) may add to a line in JSON
_EXTRA = ("event", "job_id")


class LogFormatter(logging.Formatter):
    """Formats a record by the section ``[log]``. ``round`` is the number of the round at work, None between rounds;
    JSON lines name it. ``journald``: see :func:`to_journald`."""

    def __init__(self, section: LogSection, journald: bool = False) -> None:
        super().__init__()
        self._json = section.format == "json"
        self._journald = journald
        self.round: int | None = None

    def format(self, record: logging.LogRecord) -> str:
        text = self._object(record) if self._json else self._line(record)
        if not self._journald:
            return text
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in text.split("\n"))

    def _line(self, record: logging.LogRecord) -> str:
        when = "" if self._journald else f"{self.formatTime(record)} "
        text = f"{when}{record.levelname} {plain(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text

    def _object(self, record: logging.LogRecord) -> str:
        when = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        content: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self.round is not None:
            content["round"] = self.round
        content |= {name: record.__dict__[name] for name in _EXTRA if name in record.__dict__}
        if isinstance(figures := record.__dict__.get("figures"), Mapping):
            content = {**figures, **content}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def to_journald(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``stream`` goes to the journal: systemd names its device and inode in $JOURNAL_STREAM."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(section: LogSection, quiet: bool = False) -> LogFormatter:
    """Log to stderr by ``section``, instead of whatever was set up before; ``quiet`` leaves out all below warnings."""
    formatter = LogFormatter(section, to_journald(sys.stderr))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    level = logging.getLevelNamesMapping()[section.level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING) if quiet else level, handlers=[handler], force=True)
    return formatter

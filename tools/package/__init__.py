"""What an administrator installs: man pages, shell completion, the Debian package. See ``python -m tools.package``."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class PackageError(Exception):
    """A package cannot be built here; the message says why, and what to do."""


def source_time() -> int:
    """The time (epoch seconds) that all that is built carries, so that the same source gives the same files:
    ``$SOURCE_DATE_EPOCH``, or that of the last commit; in a tree without git it is now."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    if shutil.which("git") is not None:
        words = ["git", "log", "-1", "--format=%ct"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return int(done.stdout)
    return int(time.time())

"""Files of another user, for tests that look what becomes of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
OTHER = 65534


def give(*paths: Path) -> None:
    """Make them another user's."""
    for path in paths:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)

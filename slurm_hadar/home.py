"""The user's own folders, by the XDG variables or below the home folder."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_folder"]


def user_folder(variable: str, below_home: str) -> Path:
    """Where neither HOME nor an entry in the user database names a home folder, as in a container under a foreign
    number, it is one that cannot be made."""
    try:
        return Path(os.environ.get(variable) or Path.home() / below_home)
    except RuntimeError:
        return Path("/nonexistent") / below_home

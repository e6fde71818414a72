"""A user's own folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller.state_dir import state_dir
from slurm_hadar.errors import StoreError
from slurm_hadar.home import user_folder


def test_a_folder_is_that_of_the_variable_or_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/home/a/.local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/state")


def test_a_user_without_home_and_entry_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number of its own."""
    for variable in ("HOME", "XDG_STATE_HOME", "STATE_DIRECTORY", "SLURM_CONF"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", _unknown)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(Path, "mkdir", _refused)

    with pytest.raises(StoreError, match=r"/nonexistent/.* cannot be made: .*; set controller.state_dir"):
        state_dir(load(None, {}))


def _unknown(_uid: int) -> Any:
    raise KeyError


def _refused(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")

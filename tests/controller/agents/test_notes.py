"""The seal on the controller's notes, and its key."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.comment import read, with_asked
from slurm_hadar.controller.agents.notes import KEY_FILE, asked_mac, load_key
from slurm_hadar.errors import StoreError

SHAPE = (4, 2, 2, 8)


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """32 bytes, the same at every start, and no leftovers."""
    key = load_key(tmp_path)

    assert len(key) == 32 and load_key(tmp_path) == key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def _open_to_all(path: Path) -> None:
    path.write_text("0" * 64 + "\n")
    path.chmod(0o640)


def _of_another(path: Path) -> None:
    _open_to_all(path)
    path.chmod(0o600)
    os.chown(path, 65534, -1)


def _link(path: Path) -> None:
    path.with_name("elsewhere").write_text("0" * 64 + "\n")
    path.symlink_to("elsewhere")


def _text(path: Path) -> None:
    path.touch(0o600)
    path.write_text("my key")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_open_to_all, "nobody else may read"),
        pytest.param(
            _of_another, "nobody else may read", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs chown")
        ),
        (_link, "cannot be used"),
        (Path.mkdir, "cannot be used"),
        (os.mkfifo, "nobody else may read"),
        (_text, "holds no key"),
    ],
)
def test_a_key_that_others_may_have_is_refused(tmp_path: Path, prepare: Callable[[Path], None], said: str) -> None:
    """One line that names the file; the key is not silently replaced."""
    prepare(tmp_path / KEY_FILE)

    with pytest.raises(StoreError, match=said) as caught:
        load_key(tmp_path)
    assert str(tmp_path / KEY_FILE) in str(caught.value)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """One line as well."""
    with pytest.raises(StoreError, match="cannot be used: No such file"):
        load_key(tmp_path / "none")


def test_a_full_disk_leaves_no_part_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the controller is started again and again."""

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        load_key(tmp_path)

    assert not list(tmp_path.iterdir())


WORDS = st.text("abc123_-.", min_size=1, max_size=6)
NUMBERS = st.integers(1, 99)
SAID = st.tuples(WORDS, WORDS, WORDS, st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS))


@given(SAID, SAID, st.binary(min_size=32, max_size=32))
def test_a_seal_fits_nothing_else(one: tuple[Any, ...], other: tuple[Any, ...], key: bytes) -> None:
    """Another cluster, job, user or shape, or another key, has another seal."""
    assert (asked_mac(key, *one) == asked_mac(key, *other)) is (one == other)
    assert asked_mac(key, *one) != asked_mac(bytes(32) if any(key) else b"1" * 32, *one)


def test_the_comment_carries_it() -> None:
    """A seal is what the comment's grammar takes."""
    mac = asked_mac(bytes(32), "cluster", "12_3", "ann", SHAPE)
    noted = with_asked("hadar:", SHAPE, mac)

    assert noted is not None
    assert read(noted)[0].asked_mac == mac

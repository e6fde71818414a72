"""Lines of a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.wire import LONGEST, Lines


@given(lines=st.lists(st.sampled_from([b"", b"a", b"want", b"x" * LONGEST])), cuts=st.lists(st.integers(1, 5000)))
def test_lines_are_those_that_were_said_however_they_come(lines: list[bytes], cuts: list[int]) -> None:
    said, heard, there = b"".join(line + b"\n" for line in lines), [], Lines()
    assert there.feed(b"") == []
    for cut in cuts:
        heard += there.feed(said[:cut])
        said = said[cut:]
    assert heard + there.feed(said) == lines


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_is_none(end: bytes) -> None:
    with pytest.raises(ChannelError, match="longer than"):
        Lines().feed(b"x" * (LONGEST + 1) + end)

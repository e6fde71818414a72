"""Slurm's compact node lists, on a node."""

from __future__ import annotations

import pytest

from slurm_hadar.runtime.tasks import nodelist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("v100-[1-2,4],p100-1", ["v100-1", "v100-2", "v100-4", "p100-1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a[1-2]b[0,3]", ["a1b0", "a1b3", "a2b0", "a2b3"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    """Slurm's compact form is spelled out, zero-padding kept."""
    assert nodelist.expand(text) == names


@pytest.mark.parametrize("text", ["a[1", "a]1[", "a[x-y]", "a[1-2]]"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    """A cut or garbled list is an error, not a guess."""
    with pytest.raises(ValueError, match="Slurm node list"):
        nodelist.expand(text)

"""The first line of hadar explain, where the controller has not seen the job yet."""

from __future__ import annotations

import pytest

from slurm_hadar.cli.explain import _explanation


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"state": "pending"}, "waits for its first round"),
        ({"state": "running"}, "runs; no round has looked at it yet"),
        (
            {"state": "pending", "pinned": "no hadar: comment", "reason": "Priority"},
            "is left to Slurm: no hadar: comment",
        ),
    ],
)
def test_before_the_first_round(slurm: dict[str, str], words: str) -> None:
    assert words in _explanation("7", None, None, None, None, slurm)[0]

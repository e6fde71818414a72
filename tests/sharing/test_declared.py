"""What a job declares, and what is said of what it cannot mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.sharing.declared import demand_of, memory_of, policy_of, seconds_of
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.member import Member
from slurm_hadar.sharing.sizes import MOST_BYTES
from slurm_hadar.sharing.turns import Policy


def test_what_is_declared_and_what_is_not() -> None:
    told = {"HADAR_SHARE_PERSISTENT": "1K", "HADAR_SHARE_EPHEMERAL": "2K", "HADAR_SHARE_MEMORY": "9K",
            "HADAR_SHARE_SECONDS": "1.5", "HADAR_SHARE_POLICY": "rr"}  # fmt: skip
    assert (demand_of(told), memory_of(told), policy_of(told)) == (Demand(1000, 2000), 9000, Policy.RR)
    assert seconds_of(told, "HADAR_SHARE_SECONDS") == 1.5
    for none in ({}, dict.fromkeys(told, "")):
        assert (demand_of(none), memory_of(none), policy_of(none)) == (Demand(0, 0), MOST_BYTES, Policy.FAIR)
        assert seconds_of(none, "HADAR_SHARE_SECONDS") is None


@pytest.mark.parametrize(
    ("read", "name", "text"),
    [
        (demand_of, "HADAR_SHARE_PERSISTENT", "abc"),
        (demand_of, "HADAR_SHARE_EPHEMERAL", "-1"),
        (memory_of, "HADAR_SHARE_MEMORY", "nan"),
        (policy_of, "HADAR_SHARE_POLICY", "best"),
        *(
            (partial(seconds_of, name=name), name, text)
            for name in ("HADAR_SHARE_SECONDS", "HADAR_SHARE_KILL_AFTER")
            for text in ("nan", "-1", "inf", "long")
        ),
    ],
)
def test_an_error_names_the_variable(read: Callable[[Mapping[str, str]], Any], name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}.*'{text}'"):
        read({name: text})


def test_a_job_that_declares_what_cannot_be_ends_with_a_line_that_names_it() -> None:
    with pytest.raises(SystemExit, match=r"^hadar: HADAR_SHARE_SECONDS must be a number of seconds"):
        Member({"HADAR_SHARE": "/nowhere", "HADAR_SHARE_SECONDS": "nan"}).join()

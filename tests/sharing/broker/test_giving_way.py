"""What is left to a session that gives way to the others."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.arbiter.lane import EQUAL
from slurm_hadar.sharing.broker.messages import Message, Notice, Progress
from slurm_hadar.sharing.turns import Policy
from tests.sharing.broker.conftest import MS, arbiter_of, ten_turns


def test_who_gives_way_has_only_what_nobody_else_wants_until_the_time_is_over() -> None:
    """And then equal turns again: what it gave up is not made up for."""
    arbiter = arbiter_of(Policy.FAIR, "a", "b")
    arbiter.give_way("a", 0.0, 100 * MS, 0)
    arbiter.want("b", 0)
    arbiter.want("a", 0)
    assert arbiter.deadline_ns() == 100 * MS
    assert ten_turns(arbiter, 0) == ["b"] * 10
    view = arbiter.view("a", 10 * MS)
    assert view is not None and view.gives_way == 0.0

    assert arbiter.done("b", 11 * MS) == []  # it is waited for, for a moment
    assert arbiter.look(14 * MS) == [Notice("a", Message.TURN)]  # and then no longer
    arbiter.want("b", 15 * MS)
    assert arbiter.done("a", 16 * MS) == [Notice("b", Message.TURN)]
    arbiter.want("a", 16 * MS)
    assert sorted(ten_turns(arbiter, 100 * MS)[1:]) == ["a"] * 5 + ["b"] * 4
    view = arbiter.view("a", 110 * MS)
    assert view is not None and view.gives_way is None


@pytest.mark.parametrize(
    ("policy", "share", "turns"),
    [(Policy.FAIR, 0.4, 40), (Policy.FAIR, 0.25, 25), (Policy.FAIR, 0.125, 12), (Policy.RR, 0.25, 25)],
)
def test_who_gives_way_in_part_has_that_share_of_the_turns(policy: Policy, share: float, turns: int) -> None:
    arbiter = arbiter_of(policy, "a", "b")
    arbiter.give_way("a", share, 10**12, 0)
    for name in "ab":
        arbiter.want(name, 0)

    had = [name for n in range(10) for name in ten_turns(arbiter, 10 * n * MS)]
    assert had.count("a") == pytest.approx(turns, abs=2)


def test_a_share_too_small_to_be_one_is_none_and_costs_nothing_afterwards() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b")
    arbiter.give_way("a", 5e-324, 10**12, 0)
    arbiter.want("a", 0)
    assert arbiter.look(3 * MS) == [Notice("a", Message.TURN)]
    assert arbiter.done("a", 4 * MS) == []
    arbiter.give_way("a", EQUAL, 0, 4 * MS)
    for name in "ab":
        arbiter.want(name, 10 * MS)
    assert sorted(ten_turns(arbiter, 10 * MS)) == ["a"] * 5 + ["b"] * 5


def test_giving_way_can_be_taken_back_and_ends_with_its_session() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b")
    arbiter.give_way("a", 0.0, 10**12, 0)
    arbiter.give_way("a", EQUAL, 0, 0)
    for name in "ab":
        arbiter.want(name, 0)
    assert sorted(ten_turns(arbiter, 0)) == ["a"] * 5 + ["b"] * 5
    arbiter.give_way("b", 0.0, 10**12, 0)
    arbiter.leave("b", 0)
    assert arbiter.deadline_ns() is None
    with pytest.raises(ChannelError, match="not been admitted"):
        arbiter.give_way("b", 0.0, 10**12, 0)


def test_who_gives_way_hands_over_at_once_however_dear_that_is() -> None:
    arbiter = arbiter_of(Policy.FAIR, "a", "b", grace_ns=0)
    arbiter.want("a", 0, Progress(switch_ns=10 * MS))
    arbiter.give_way("a", 0.25, 10**12, MS)
    assert arbiter.want("b", 2 * MS) == [Notice("a", Message.RECALL)]

"""Lengths that nobody knows: what is expected of them, and when the first of several ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Form, Node, Snapshot
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes, ends_s
from tests.policies.conftest import NOW, make_job, make_running


def test_what_is_expected_of_unknown_lengths() -> None:
    """First what is assumed; then what those were that ended, with those that have not; the old live longer."""
    young = Lifetimes(3600.0)
    assert young.left_s(0.0) == 3600.0 and young.left_s(7200.0) == 7200.0
    taught = Lifetimes(3600.0, [100.0] * 99)
    assert taught.left_s(0.0) == pytest.approx((3600 + 9900) / 100)
    assert taught.left_s(100.0) == pytest.approx(135.0) and taught.left_s(5000.0) == 5000.0
    assert Lifetimes(3600.0, [100.0] * 99, {"1": 9900.0}).left_s(0.0) == pytest.approx(234.0)


def test_lifetimes_are_learned_from_who_is_gone() -> None:
    """By the steps made over the best speed, or by the clock; of stated lengths nothing is remembered."""
    jobs = [
        make_job("1", steps=None, done_steps=500.0),
        make_job("2", 2, steps=None, attained_s=60.0),
        make_job("3", steps=1000.0, done_steps=10.0),
    ]
    before = Lifetimes.of(jobs, {}, 3600.0)
    assert before.lives_s == {"1": 50.0, "2": 30.0}
    after = Lifetimes.of([jobs[1]], before.memory(), 3600.0)
    assert list(after.ended_s) == [50.0] and after.lives_s == {"2": 30.0}
    assert after.steps_to_go(make_job("4", steps=None), 10.0) == pytest.approx(10.0 * (3600 + 50 + 30) / 2)


@given(st.lists(st.floats(1, 1e6), max_size=30), st.floats(0, 1e6))
def test_something_always_remains(ended: list[float], age_s: float) -> None:
    assert 1.0 <= Lifetimes(3600.0, ended).left_s(age_s) < float("inf")


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=30).map(sorted))
def test_one_ends_after_the_other(left: list[float]) -> None:
    """The first long before any is expected to; of jobs alike the whole work stays as it is."""
    found = ends_s(left)
    assert found == sorted(found) and found[0] == pytest.approx(left[0] / len(left))
    alike = ends_s([left[0]] * len(left))
    assert sum(alike) == pytest.approx(len(left) * left[0])


def test_the_first_of_four_ends_after_a_quarter() -> None:
    assert ends_s([1200.0] * 4) == pytest.approx([300.0, 700.0, 1300.0, 2500.0])


@pytest.mark.parametrize("count", [1, 8])
def test_who_cannot_be_moved_waits_for_the_first_of_many(count: int) -> None:
    """A slow GPU is free, on which it takes half as long again. Of eight that run on fast ones some soon ends, although
    each is expected to go on for as long as the job takes; of one that is not to be expected."""
    fast = [Node(f"a{n}", {"v100": 1}) for n in range(count)]
    unknown: dict[str, Any] = {"steps": None, "unmovable": "saves nothing", "p100": None, "arrival": NOW - 100}
    there = [make_running(str(n + 1), {node.name: {"v100": 1}}, **unknown) for n, node in enumerate(fast)]
    waits = make_job("9", k80=10.0 / 1.5, **unknown)
    plan = get("hadar").allocate(Snapshot(NOW, (*fast, Node("c", {"k80": 1})), (*there, waits)))
    assert plan.placement("9").by_type == ({} if count == 8 else {"k80": 1})


def test_who_may_have_fewer_gpus_starts_with_those() -> None:
    """An elastic job does not wait for a chance end."""
    fast = [Node(f"a{n}", {"v100": 1}) for n in range(8)]
    unknown: dict[str, Any] = {"steps": None, "unmovable": "saves nothing", "p100": None, "arrival": NOW - 100}
    there = [make_running(str(n + 1), {node.name: {"v100": 1}}, **unknown) for n, node in enumerate(fast)]
    waits = make_job("9", k80=10.0 / 1.5, form=Form(1, max_nodes=2, sizes=(1, 2)), **unknown)
    plan = get("hadar").allocate(Snapshot(NOW, (*fast, Node("c", {"k80": 1})), (*there, waits)))
    assert plan.placement("9").by_type == {"k80": 1}

"""How many workers there should be."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from multiprocessing import util
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import ConfigError
from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.server.scaler import Scaler
from slurm_hadar.serving.simulation.scaling import Bounds, Scaling, Wish, scaling_of, wanted_workers
from slurm_hadar.serving.trace import TracedRequest

BOUNDS = Bounds(1, 4, 0.9)


@pytest.mark.parametrize(
    ("rates", "now", "wanted"),
    [
        ((0.5, 0.92, 0.99, 1.0), 1, 2),  # the fewest that reach the goal
        ((0.92, 0.99, 1.0, 1.0), 2, 2),  # one would only just do: it stays
        ((0.96, 0.99, 1.0, 1.0), 2, 1),  # one would do well
        ((0.96, 0.99, 1.0, 1.0), 4, 1),
        ((0.5, 0.6, 0.602, 0.603), 1, 2),  # what cannot be reached is not paid for
        ((0.1, 0.2, 0.3, 0.4), 2, 4),
    ],
)
def test_as_many_as_reach_the_goal(rates: tuple[float, ...], now: int, wanted: int) -> None:
    assert wanted_workers(lambda n: rates[n - 1], now, BOUNDS).wanted == wanted


def test_what_came_of_late_is_played_again() -> None:
    """Two requests of 50 ms in each 60 ms: one worker is too few, two do, however many there are now."""
    seen = [TracedRequest(0.03 * n, "a", 0.05, 0.03 * n + 0.07, "m") for n in range(100)]
    setups = {"m": Setup(BatchLaw.linear(0.0, 1), 0.07, {"a": [0.05] * 20})}

    for now in (1, 2, 4):
        found = scaling_of(seen, Name.ORLOJ, setups, now, BOUNDS)
        assert found.wanted == 2
        assert found.expected[1] < 0.7
        assert found.expected[2] == 1.0


def test_nobody_needs_no_more_than_the_least() -> None:
    assert scaling_of([], Name.ORLOJ, {}, 3, BOUNDS).wanted == 1


def test_bounds_are_read() -> None:
    assert Bounds.read("2", 0.9) == Bounds(2, 2, 0.9)
    assert Bounds.read("1-4", 0.9) == BOUNDS
    for text in ("", "a", "0", "4-1", "1-", "1-300", "-3"):
        with pytest.raises(ConfigError, match="--workers"):
            Bounds.read(text, 0.9)


def test_no_more_workers_than_gpus() -> None:
    """Where nobody says how many GPUs there are, as many as may be; never fewer than must be."""
    assert [Bounds(2, 4).here(gpus) for gpus in (0, 1, 2, 3, 4, 8)] == [4, 2, 2, 3, 4, 4]


def _look(wish: Wish, rates: dict[int, float], now_s: float) -> int:
    wish.look(Scaling(max(rates), rates), now_s)
    return wish.wanted


def test_more_is_wanted_when_the_want_has_cost_as_much_as_a_restart() -> None:
    """Half of all requests are lost for want of a second worker, and a restart costs 12 s: 5 s after 10 s, and so on. A
    load that has gone meanwhile is forgotten."""
    lacks, does = {1: 0.5, 2: 1.0}, {1: 0.97}
    wish = Wish(1, 12.0, 60.0, 0.0)
    assert [_look(wish, lacks, t) for t in (10.0, 20.0, 30.0)] == [1, 1, 2]
    assert [_look(wish, lacks, t) for t in (40.0,)] == [2]
    assert _look(wish, does, 50.0) == 1
    assert [_look(wish, lacks, t) for t in (60.0, 70.0, 80.0)] == [1, 1, 2]


def test_fewer_are_wanted_when_none_more_were_for_a_minute() -> None:
    """What it was started with counts as wanted then."""
    wish = Wish(3, 12.0, 60.0, 0.0)
    assert [_look(wish, {1: 1.0}, t) for t in (10.0, 40.0, 60.0)] == [3, 3, 3]
    assert _look(wish, {1: 0.9, 2: 1.0}, 61.0) == 2
    assert [_look(wish, {1: 1.0}, t) for t in (90.0, 121.0)] == [2, 2]
    assert _look(wish, {1: 1.0}, 122.0) == 1


@given(
    st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(1, 4), st.floats(0.0, 1.0)), max_size=40),
    st.integers(1, 4),
    st.floats(0.0, 100.0),
)
def test_nothing_is_wanted_that_no_look_has(looks: list[tuple[float, int, float]], have: int, restart_s: float) -> None:
    """And what is wanted above what there is has been wanted now."""
    wish, now_s = Wish(have, restart_s, 60.0, 0.0), 0.0
    for past_s, wanted, rate in looks:
        now_s += past_s
        rates = {n: rate if n < wanted else 1.0 for n in range(1, max(wanted, have) + 1)}
        wish.look(Scaling(wanted, rates), now_s)
        assert wish.wanted in {have, *(w for _, w, _ in looks)}
        assert wish.wanted <= have or wanted > have


def test_no_room_for_the_process_that_looks_ends_no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a model's own processes have come to a limit for a moment; else the number of workers would stay."""
    spawn, tries, found = util.spawnv_passfds, list[int](), list[Scaling]()

    def full(*words: Any) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return int(spawn(*words))

    async def looked() -> None:
        looking = asyncio.create_task(looks.run(time.monotonic, lambda: 1))
        while not found and not looking.done():
            await asyncio.sleep(0.01)
        assert not looking.done(), looking
        looking.cancel()

    monkeypatch.setattr(util, "spawnv_passfds", full)
    monkeypatch.setattr("slurm_hadar.serving.server.scaler.EACH_S", 0.01)
    setup = Setup(BatchLaw.linear(0.6, 16), 1.0, {"a": [0.1]})
    looks = Scaler(Name.ORLOJ, BOUNDS, lambda: {"m": setup}, lambda *_: Distribution([0.1]), found.append)
    try:
        asyncio.run(asyncio.wait_for(looked(), 120))
    finally:
        looks.close()
    assert len(tries) > 1

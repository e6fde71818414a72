"""Workers of unlike speed, and of some models only: who runs where."""

from __future__ import annotations

import pytest

from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.scheduling.request import Refusal, Worker
from slurm_hadar.serving.simulation.run import ServeOptions, simulate
from slurm_hadar.serving.trace import TracedRequest
from tests.serving.scheduling.two import LAW, TWO, request


def test_the_faster_worker_gets_what_is_urgent() -> None:
    """On the slower one it would be late."""
    scheduled = scheduler(Name.ORLOJ, {"": Setup(LAW, 1.0, TWO)})
    scheduled.arrive(request(1, "long", 0.15), 0.0)
    slow, fast = Worker("slow", 0.5), Worker("fast", 1.0)

    assert scheduled.choose(0.0, [slow]) is None
    assert scheduled.choose(0.0, [slow, fast]).worker is fast


def test_who_is_too_late_for_a_slow_worker_is_not_in_its_way() -> None:
    """Though the faster one can still serve them, and they come first by their score."""
    scheduled = scheduler(Name.ORLOJ, {"": Setup(BatchLaw.linear(0.5, 1), 1.0, TWO)})
    slow, fast = Worker("slow", 0.5), Worker("fast", 1.0)
    scheduled.equip([slow, fast])
    for number in range(3):
        scheduled.arrive(request(number, "long", 0.15), 0.0)
    scheduled.arrive(request(3, "long", 0.25), 0.0)

    assert [r.number for r in scheduled.choose(0.0, [slow]).requests] == [3]
    assert [r.number for r in scheduled.choose(0.0, [fast]).requests] == [0]


@pytest.mark.parametrize("name", [Name.ORLOJ, Name.EDF, Name.LARGEST])
def test_what_is_past_hope_goes_by_the_fastest_worker_there_is(name: Name) -> None:
    scheduled = scheduler(name, {"": Setup(LAW, 1.0, TWO)})
    first, faster = Worker("first"), Worker("faster", 4.0)
    scheduled.equip([first, faster])
    scheduled.arrive(request(1, "long", 0.05), 0.0)

    assert scheduled.expire(0.01) == []
    scheduled.equip([faster])
    assert scheduled.expire(0.01) == []
    scheduled.equip([])  # another one is to come
    assert scheduled.expire(0.01) == []
    scheduled.equip([first])
    assert [(r.request.number, r.why) for r in scheduled.expire(0.01)] == [(1, Refusal.HOPELESS)]


def test_a_slow_worker_beside_a_fast_one_is_never_idle_for_nothing() -> None:
    """More comes than both can serve, all of it alike: either has always something that it can still end in time."""
    span_s = 0.1 / (1.1 * 1.5)
    trace = tuple(TracedRequest(n * span_s, "a", 0.1, n * span_s + 0.8) for n in range(600))
    result = simulate(trace, Name.ORLOJ, ServeOptions(BatchLaw.linear(0.0, 1), (1.0, 0.5)))

    assert result.finish_rate > 0.99 / 1.1


@pytest.mark.parametrize("name", Name)
@pytest.mark.parametrize("speeds", [(1.0, 0.5), (0.5, 1.0), (0.1, 0.25, 1.0)])
def test_a_slow_worker_that_nobody_needs_costs_nothing(name: Name, speeds: tuple[float, ...]) -> None:
    """The fast one is idle whenever one comes, and alone in time."""
    trace = tuple(TracedRequest(float(n), "a", 0.1, n + 0.15) for n in range(100))

    assert simulate(trace, name, ServeOptions(BatchLaw.linear(0.6, 16), speeds)).finish_rate == 1.0


@pytest.mark.parametrize("name", [Name.NEXUS, Name.CLOCKWORK])
def test_what_a_slow_worker_cannot_do_is_left_to_a_fast_one(name: Name) -> None:
    """Which is busy now."""
    scheduled = scheduler(name, {"": Setup(LAW, 1.0, {"a": [0.1]})})
    slow, fast = Worker("slow", 0.5), Worker("fast", 1.0)
    scheduled.equip([slow, fast])
    scheduled.arrive(request(1, "a", 0.17), 0.0)

    assert scheduled.choose(0.0, [slow]) is None and scheduled.expire(0.01) == []
    assert scheduled.choose(0.01, [slow, fast]).worker is fast


def test_models_go_where_they_are_held() -> None:
    scheduled = scheduler(Name.ORLOJ, {"a": Setup(LAW, 1.0, TWO), "b": Setup(LAW, 1.0, TWO)})
    scheduled.arrive(request(1, "long", 1.0, "a"), 0.0)
    scheduled.arrive(request(2, "short", 1.0, "b"), 0.0)
    only_a = Worker("only a", 1.0, frozenset({"a"}))

    first = scheduled.choose(0.0, [only_a])
    assert (first.model, [r.number for r in first.requests]) == ("a", [1])
    assert scheduled.choose(0.0, [only_a]) is None
    assert [r.number for r in scheduled.choose(0.0, [Worker("any")]).requests] == [2]


def test_who_is_started_is_not_given_up_as_a_batch_for_a_slower_worker_was_looked_for() -> None:
    """One run alone has taken long: alone nobody would be in time, and two on the fast worker are."""
    scheduled = scheduler(Name.CLOCKWORK, {"": Setup(LAW, 1.0, TWO)})
    workers = [Worker("fast"), Worker("slow", 0.5)]
    scheduled.equip(workers)
    scheduled.policies[""].observe([request(0, "long", 1.0)], 10.0, 0.0)
    for number in (1, 2):
        scheduled.arrive(request(number, "long", 0.2), 0.0)

    batch = scheduled.choose(0.0, workers)

    assert batch is not None and [r.number for r in batch.requests] == [1, 2]
    assert scheduled.expire(0.0) == []

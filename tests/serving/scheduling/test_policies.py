"""What every policy keeps to, whatever comes; and how many it serves in time."""

from __future__ import annotations

import math
import random
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.scheduling.request import Refusal, Worker
from slurm_hadar.serving.simulation.run import ServeOptions, simulate
from slurm_hadar.serving.trace import TracedRequest, drawn, with_slo
from tests.serving.scheduling.two import LAW, TWO, request


@pytest.mark.parametrize("name", list(Name))
@given(seed=st.integers(0, 2**32))
def test_every_request_is_answered_or_given_up_once(name: Name, seed: int) -> None:
    """Whatever comes; and no batch is larger than allowed or holds a request twice."""
    dice, now_s, trace = random.Random(seed), 0.0, []
    for _ in range(dice.randint(1, 60)):
        now_s += dice.choice([0.0, dice.expovariate(50.0)])
        exec_s = dice.choice([0.01, 0.1, dice.lognormvariate(-4, 1)])
        trace.append(TracedRequest(now_s, dice.choice("abc"), exec_s, now_s + dice.uniform(0.0, 0.5)))
    speeds = tuple(dice.choice([1.0, 0.4]) for _ in range(dice.randint(1, 3)))

    result = simulate(trace, name, ServeOptions(LAW, speeds, profiled=dice.choice([0, 5])))

    ran = [number for batch in result.batches for number in batch.requests]
    assert len(set(ran)) == len(ran)
    assert all(1 <= len(batch.requests) <= LAW.largest for batch in result.batches)
    assert {n for n in range(len(trace)) if not math.isnan(result.ends_s[n])} == set(ran)
    for worker in {batch.worker for batch in result.batches}:
        spans = sorted((b.start_s, b.end_s) for b in result.batches if b.worker == worker)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))


@pytest.mark.parametrize("name", [Name.ORLOJ, Name.EDF, Name.LARGEST])
def test_deadlines_below_a_millisecond_are_met_though_nothing_is_known(name: Name) -> None:
    trace = [TracedRequest(n * 1e-3, "a", 1e-5, n * 1e-3 + 1e-4) for n in range(50)]
    assert simulate(trace, name, ServeOptions(LAW, profiled=0)).finish_rate == 1.0


@pytest.mark.parametrize("profiled", [0, 50])
@pytest.mark.parametrize("name", list(Name))
def test_requests_that_are_due_when_they_come_are_late(name: Name, profiled: int) -> None:
    trace = [TracedRequest(float(n), "a", 0.5, float(n)) for n in range(5)]
    assert simulate(trace, name, ServeOptions(LAW, profiled=profiled)).finish_rate == 0.0


def test_who_has_gone_is_not_run() -> None:
    scheduled = scheduler(Name.ORLOJ, {"": Setup(LAW, 1.0, TWO)})
    gone = request(1, "short", 1.0)
    scheduled.arrive(gone, 0.0)

    assert scheduled.withdraw(gone)
    assert not scheduled.withdraw(gone)
    assert scheduled.choose(0.0, [Worker("w")]) is None


@pytest.mark.parametrize("name", list(Name))
def test_where_too_much_comes_a_part_is_in_time(name: Name) -> None:
    """Under every scheduler, those that plan by averages too."""
    trace = with_slo(drawn("poisson:load=1.1,seconds=8,seed=903"), "3xP99")

    assert 0.1 < simulate(trace, name, ServeOptions(LAW)).finish_rate < 1.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "spec", ["poisson:load=0.7,seconds=60", "bursts:load=0.7,seconds=60", "poisson:load=1.1,seconds=60"]
)
@pytest.mark.parametrize("slo", ["1.2xP99", "3xP99"])
def test_two_applications(spec: str, slo: str) -> None:
    """Never below EDF, and far above those that average."""
    trace = with_slo(drawn(f"{spec},seed=901"), slo)
    rates = {name: simulate(trace, name, ServeOptions(LAW)).finish_rate for name in Name}

    assert rates[Name.ORLOJ] >= rates[Name.EDF]
    assert rates[Name.ORLOJ] > max(rates[n] for n in (Name.CLOCKWORK, Name.NEXUS, Name.CLIPPER))


@pytest.mark.thorough
@pytest.mark.parametrize("slo", ["2xP99", "5xP99"])
def test_a_static_model_loses_nothing(slo: str) -> None:
    """Within a point of the best of the others."""
    trace = with_slo(drawn("poisson:load=1.1,seconds=60,apps=all/20ms,spread=0.02,seed=902"), slo)
    rates = {name: simulate(trace, name, ServeOptions(LAW)).finish_rate for name in Name}

    assert rates[Name.ORLOJ] >= max(rates.values()) - 0.01


@given(st.integers(0, 2**16), st.sampled_from(tuple(Name)), st.sampled_from(((1.0,), (1.0, 0.25))), st.integers(0, 9))
def test_the_time_of_day_is_nothing_to_it(seed: int, name: Name, speeds: tuple[float, ...], profiled: int) -> None:
    """In eighths of a second, which a day's seconds do not round."""
    draw = random.Random(seed)
    at = sorted(draw.randrange(64) / 8 for _ in range(30))
    runs = [(draw.choice("ab"), draw.randint(1, 8) / 8, draw.randint(1, 40) / 8) for _ in at]

    def ends(day_s: float) -> list[float]:
        trace = [
            TracedRequest(at_s + day_s, app, exec_s, at_s + day_s + due_s)
            for at_s, (app, exec_s, due_s) in zip(at, runs, strict=True)
        ]
        result = simulate(trace, name, ServeOptions(BatchLaw.linear(0.5, 4), speeds, profiled))
        assert result.summary()["rejected"] + int((~np.isnan(result.ends_s)).sum()) == len(trace)
        return [round(end_s - day_s, 6) for end_s in np.nan_to_num(result.ends_s, nan=day_s - 1.0)]

    assert ends(0.0) == ends(86400.0)


def test_who_comes_again_runs_alone_and_first() -> None:
    two = scheduler(Name.ORLOJ, {model: Setup(LAW, 1.0, TWO) for model in ("a", "b")})
    workers = [Worker("slow", 0.5, frozenset("a")), Worker("fast", 1.0)]
    two.equip(workers)
    for number in range(3):
        two.arrive(request(number, "short", 5.0, "a"), 0.0)
    for number, model, deadline_s in ((3, "b", 5.0), (4, "a", 5.0), (5, "a", 1.0), (6, "b", 5.0), (7, "a", 0.05)):
        two.again(request(number, "long", deadline_s, model))

    assert two.queued == 8
    assert [(r.request.number, r.why) for r in two.expire(0.0)] == [(7, Refusal.HOPELESS)]
    assert two.next_expiry_s() == pytest.approx(0.9)
    first, slow = two.choose(0.0, workers), two.choose(0.0, workers[:1])
    assert (first.worker.name, [r.number for r in first.requests], first.expected_s) == (
        "fast",
        [3],
        pytest.approx(0.1),
    )
    assert (slow.worker.name, [r.number for r in slow.requests], slow.expected_s) == ("slow", [4], pytest.approx(0.2))
    assert two.withdraw(request(6, "long", 5.0, "b"))
    assert not two.withdraw(request(3, "long", 5.0, "b"))
    assert [(r.request.number, r.why) for r in two.expire(2.0)] == [(5, Refusal.TOO_LATE)]
    assert sorted(r.number for r in two.choose(2.0, workers).requests) == [0, 1, 2]
    assert two.queued == 0


@pytest.mark.parametrize("name", [Name.NEXUS, Name.CLOCKWORK])
def test_who_is_given_up_as_a_batch_is_looked_for_is_told_at_once(name: Name) -> None:
    """Also where nobody waits any more."""
    scheduled = scheduler(name, {"": Setup(LAW, 1.0, TWO)})
    scheduled.arrive(request(1, "long", 0.005), 0.0)

    assert scheduled.choose(0.0, [Worker("w")]) is None
    assert scheduled.next_expiry_s() <= 0.0
    assert [r.request.number for r in scheduled.expire(0.0)] == [1]
    assert scheduled.next_expiry_s() == math.inf


@pytest.mark.parametrize("name", list(Name))
def test_what_is_kept_of_those_who_have_been_served_long_before_they_are_due_is_bounded(name: Name) -> None:
    scheduled = scheduler(name, {"": Setup(LAW, 1.0, TWO)})
    for number in range(500):
        scheduled.arrive(request(number, "short", 86400.0), 0.0)
        assert scheduled.choose(0.0, [Worker("w")]) is not None

    kept = [len(of) for of in vars(scheduled.policies[""]).values() if isinstance(of, list | deque)]
    assert max(kept) < 200

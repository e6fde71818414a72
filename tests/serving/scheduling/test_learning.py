"""Run times that are not known, or change: they are found out, and that costs the others little."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import permutations

import pytest

from slurm_hadar.serving.scheduling import latencies
from slurm_hadar.serving.scheduling.latencies import Latencies
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.learning import Knowledge
from slurm_hadar.serving.scheduling.orloj import Orloj
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.scheduling.request import Worker
from slurm_hadar.serving.simulation.run import ServeOptions, play, setup_of, simulate
from slurm_hadar.serving.trace import TracedRequest, drawn, with_slo
from tests.serving.scheduling.two import LAW, request


def test_applications_of_which_nothing_is_known_are_learned_though_they_come_together() -> None:
    """A batch of several tells of none: were all their batches such, they would be taken to be short for ever."""
    dice, trace = random.Random(7), []
    for spike in range(60):
        for _ in range(12):
            due_s = 2.0 * spike + 1.0
            trace.append(TracedRequest(2.0 * spike, dice.choice("abcd"), dice.uniform(0.05, 0.2), due_s))

    unknown, known = (simulate(trace, Name.ORLOJ, ServeOptions(LAW, profiled=n)).finish_rate for n in (0, 50))

    assert unknown >= known - 0.05


@pytest.mark.parametrize("many", [30, 300])
def test_many_strange_applications_are_worked_out_in_few_goes(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each go takes as long as there are applications; with few of them what is learned counts at once."""
    goes: list[float] = []
    refresh = Orloj.refresh

    def counted(self: Orloj, now_s: float) -> None:
        goes.append(now_s)
        refresh(self, now_s)

    monkeypatch.setattr(Orloj, "refresh", counted)
    trace = [TracedRequest(0.0, f"a{n}", 0.01, 10.0) for n in range(many)]

    result = simulate(trace, Name.ORLOJ, ServeOptions(LAW, profiled=0))

    assert not any(math.isnan(end) for end in result.ends_s)
    assert len(goes) >= many if many < 32 else len(goes) < many / 3


@pytest.mark.parametrize("seed", range(5))
def test_few_known_runs_are_not_taken_for_all_there_are(seed: int) -> None:
    """Five runs are known of an application whose longest take ten times as long as they: it is learned at once, and
    few known runs do not promise that all of a large batch are as short."""
    dice = random.Random(seed)
    trace = [
        TracedRequest(0.32 * (n // 20), "a", 0.05 * dice.lognormvariate(-1.125, 1.5), 0.32 * (n // 20) + 0.5)
        for n in range(1500)
    ]
    trace[:5] = [replace(r, exec_s=0.02) for r in trace[:5]]

    orloj, edf = (
        simulate(trace, name, ServeOptions(LAW, (1.0,) * 4, profiled=5)).finish_rate for name in (Name.ORLOJ, Name.EDF)
    )

    assert orloj >= edf - 0.01


def test_an_application_that_became_faster_is_found_out() -> None:
    """What was known would have all of it given up for ever."""
    calm = [TracedRequest(n * 0.5, "a", 5.0 if n < 5 else 0.01, n * 0.5 + 1.0) for n in range(100)]

    result = simulate(calm, Name.ORLOJ, ServeOptions(LAW, profiled=5))

    assert result.on_time[60:].all()


@pytest.mark.parametrize("known", [0, 1, 50])
def test_what_is_shorter_than_all_that_is_known_is_found_out(known: int) -> None:
    """Though longer ones of the same application are served all the while."""
    long = [TracedRequest(n * 1.0, "a", 0.1, n + 0.3) for n in range(300)]
    short = [TracedRequest(n + 0.5, "a", 0.005, n + 0.55) for n in range(100, 300)]
    trace = tuple(sorted(long + short, key=lambda request: request.arrival_s))

    result = simulate(trace, Name.ORLOJ, ServeOptions(LAW, profiled=known))

    assert result.on_time.sum() >= len(trace) - 20 and result.on_time[-100:].all()


def test_a_model_that_became_slower_is_found_out() -> None:
    """One whose runs all take as long: as well as by the longest of the last runs."""
    dice, trace, now_s = random.Random(7), [], 0.0
    for n in range(1500):
        now_s += dice.expovariate(12.0)
        trace.append(TracedRequest(now_s, "a", 0.06 if n < 500 else 0.1, now_s + 0.7))
    rates = [simulate(tuple(trace), name, ServeOptions(BatchLaw.linear(0.3, 16))) for name in ("orloj", "clockwork")]

    assert rates[0].finish_rate >= rates[1].finish_rate - 0.01


def test_one_long_run_does_not_make_others_hopeless() -> None:
    """Of applications of which nothing else is known."""
    long = TracedRequest(0.0, "long", 5.0, 1.0)
    short = [TracedRequest(5.0 + n * 0.05, f"a{n % 6}", 0.01, 5.5 + n * 0.05) for n in range(400)]

    result = simulate((long, *short), Name.ORLOJ, ServeOptions(LAW, profiled=0))

    assert result.on_time.sum() > 380


def test_a_try_may_last_while_distributions_are_worked_out_anew() -> None:
    """Of an application of which nothing was known, and none waits."""
    found = scheduler(Name.ORLOJ, {"": Setup(LAW, 1.0, {"known": [5.0] * 20})})
    worker = Worker("w")
    found.arrive(request(1, "new", 1.0), 0.0)
    found.expire(0.0)
    batch = found.choose(0.0, [worker])
    assert batch is not None
    found.policies[""].refresh(0.0)
    found.ended(batch, 0.1, 0.1)

    assert found.policies[""].run_times("new").mean_s < 5.0 or found.policies[""].refresh_due(0.1)


def test_what_is_hopeless_again_and_again_is_tried_ever_more_rarely() -> None:
    trace = tuple(TracedRequest(n * 0.5, "a", 0.1, n * 0.5 + (0.3 if n % 2 else 0.05)) for n in range(40_000))

    result = simulate(trace, Name.ORLOJ, ServeOptions(LAW, profiled=50))

    tried = [end for end in result.ends_s[::2] if not math.isnan(end)]
    assert result.on_time[1::2].mean() > 0.999 and len(tried) < 60


def test_to_find_that_out_costs_the_others_little() -> None:
    """Each trial of the slow one takes 300 ms in which 25 others come."""
    trace = [TracedRequest(n * 0.012, "quick", 0.005, n * 0.012 + 0.1) for n in range(5000)]
    slow = [TracedRequest(n * 0.5, "slow", 0.3, n * 0.5 + 0.1) for n in range(120)]
    whole = sorted([*trace, *slow], key=lambda r: r.arrival_s)

    result = simulate(whole, Name.ORLOJ, ServeOptions(LAW))

    assert [r.application for r in whole].count("quick") - result.on_time.sum() < 60
    assert any(whole[n].application == "slow" for b in result.batches for n in b.requests)


def test_a_change_is_found_out_though_all_batches_hold_several_applications() -> None:
    """Five alike, of which more come than can be served, each thrice as long after a while."""
    spec = "poisson:load=1.5,seconds=60,spread=0.3,apps=a/10ms+b/10.1ms+c/10.2ms+d/10.3ms+e/10.4ms"
    begun = with_slo(drawn(spec), "300ms")
    trace = [replace(r, exec_s=3 * r.exec_s) if r.arrival_s >= 20 else r for r in begun]
    of_one = [replace(r, application="a") for r in trace]

    late = [r.arrival_s >= 40 for r in trace]
    several, one = (
        simulate(t, Name.ORLOJ, ServeOptions(BatchLaw.linear(0.9, 16))).on_time[late].mean() for t in (trace, of_one)
    )

    assert several > one - 0.15


def test_an_application_of_which_nothing_is_known_is_served_among_others_that_fill_their_batches() -> None:
    """As long as it has to run by itself, its batches are the thinnest."""
    apps = "+".join(f"{name}/10ms" for name in "abcde")
    trace = with_slo(drawn(f"poisson:load=6,seconds=20,spread=0.3,apps={apps}+new/10ms/0.1"), "300ms")
    law = BatchLaw.linear(0.9, 16)
    known = setup_of(trace, ServeOptions(law))
    profile = {name: runs for name, runs in known.profile.items() if name != "new"}

    result = play(trace, scheduler(Name.ORLOJ, {"": replace(known, profile=profile)}), (1.0,))

    assert result.summary()["by_application"]["new"]["finish_rate"] > 0.5


def test_what_is_kept_of_batches_of_many_applications_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latencies, "_KEPT", 3)
    monkeypatch.setattr(latencies, "_MOST", 10)
    names = [f"a{n}" for n in range(9)]
    found = Latencies(Knowledge({a: [0.01] for a in names}), LAW, names)
    sizes = []
    for first, second in permutations(names, 2):
        found.expected_s({first: 1, second: 1}, 2)
        sizes.append(max(len(of) for of in (getattr(found, name) for name in vars(found)) if isinstance(of, dict)))

    assert max(sizes) <= 10

"""What starting and stopping a job takes: costs, jobs that keep their places, speeds that are wrong at first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Speed
from slurm_hadar.policies import registry
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.setup import drawn
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.simulator.virtual.belief import Belief
from slurm_hadar.simulator.virtual.faults import Faults, Outage
from slurm_hadar.simulator.virtual.jobs import NO_CHECKPOINTS, restart_cost_s
from slurm_hadar.throughput.table import ReferenceTable, Row

Make = Callable[..., Any]
TWO_KINDS = SimOptions("v100:1x1,k80:1x1")
ON_V100, ON_K80 = {"v100-1": {"v100": 1}}, {"k80-1": {"k80": 1}}


def test_first_starts_have_costs_of_their_own(job: Make, trace: Make, scripted: Make) -> None:
    """A job's own figure goes before the option's; a restart costs what it did."""
    jobs = trace(job("a", v100=1, k80=1, steps=1000, restart_s=50.0, start_s=20.0), job("b", 5000.0, v100=1, steps=10))

    result = simulate(
        jobs,
        scripted({"a": ON_V100}, {"a": ON_K80}, {"a": ON_K80, "b": ON_V100}),
        replace(TWO_KINDS, start_s=7.0, restart_s=1.0),
    )

    # a: 340 steps in the first round, 660 more from 410 on
    assert [row.completion_s for row in result.jobs] == [1070.0, 5040.0 + 7.0 + 10.0]


def test_without_node_boundaries_starts_cost_nothing(job: Make, trace: Make) -> None:
    result = simulate(
        trace(job("a", v100=1, steps=100, start_s=20.0)), registry.get("fifo"), SimOptions("v100:1x1", "gavel")
    )

    assert result.jobs[0].completion_s == 100.0


def test_a_job_that_cannot_be_moved_says_so_before_it_starts(job: Make, trace: Make, scripted: Make) -> None:
    """Running it is fixed, and a plan that moves it breaks the contract of policies."""
    policy = scripted({}, {"a": ON_V100, "b": ON_K80})
    simulate(trace(job("a", v100=1, steps=500, movable=False), job("b", k80=1, steps=500)), policy, TWO_KINDS)

    shown = [{j.job_id: (j.unmovable, j.movable) for j in seen.jobs} for seen in policy.seen]
    assert shown[0] == {"a": (NO_CHECKPOINTS, True), "b": (None, True)}
    assert shown[2] == {"a": (NO_CHECKPOINTS, False), "b": (None, True)}


def test_who_saves_nothing_loses_everything_with_its_node(job: Make, trace: Make) -> None:
    """The one that can be moved goes on from its last periodic checkpoint."""
    faults = Faults((Outage("v100-1", 1000.0, 1100.0),), checkpoint_s=300.0)
    options = SimOptions("v100:1x2", faults=faults, restart_s=0.0)

    result = simulate(
        trace(job("a", v100=1, steps=1500), job("b", v100=1, steps=1500, movable=False)), registry.get("fifo"), options
    )

    assert [row.lost_steps for row in result.jobs] == [100.0, 1000.0]


def test_shares_are_drawn_by_job() -> None:
    """As many as are asked for, and more of them with a larger share."""
    ids = [str(n) for n in range(2000)]
    third, half = ({i for i in ids if drawn(share, 3, i)} for share in (1 / 3, 0.5))

    assert len(third) == pytest.approx(2000 / 3, rel=0.1) and third < half
    assert not any(drawn(0.0, 3, i) for i in ids) and all(drawn(1.0, 3, i) for i in ids)


@given(
    error=st.floats(0.01, 1.0),
    rates=st.dictionaries(st.sampled_from(("v100", "p100", "k80")), st.floats(0.01, 100.0), min_size=1),
    learned=st.lists(st.sampled_from(("v100", "p100", "k80"))),
)
def test_a_belief_is_true_of_what_was_measured_and_of_nothing_else(
    error: float, rates: dict[str, float], learned: list[str]
) -> None:
    """It is the same share off at every size."""
    truth = {n: {t: Speed(rate * n, 0.7) for t, rate in rates.items()} for n in (1, 4)}
    belief = Belief("7", truth, error, seed=1)
    belief.learn(learned)

    for gpu_type, rate in rates.items():
        one, four = belief.at(1)[gpu_type], belief.at(4)[gpu_type]
        assert four.steps_per_s == pytest.approx(4 * one.steps_per_s) and one.spread == 0.7
        assert (one.steps_per_s == rate) == (gpu_type in learned) == one.measured
        assert one.error == (0.0 if gpu_type in learned else error)


def test_the_errors_of_speeds_are_as_stated() -> None:
    off = [math.log(Belief(str(n), {1: {"v100": Speed(1.0)}}, 0.3, 0).at(1)["v100"].steps_per_s) for n in range(2000)]

    assert sum(off) / 2000 == pytest.approx(0.0, abs=0.03)
    assert math.sqrt(sum(x * x for x in off) / 2000) == pytest.approx(0.3, rel=0.05)


def test_a_speed_is_known_once_the_job_has_reported_it(job: Make, trace: Make, scripted: Make) -> None:
    """Its own first step after the restart counts as the report; until then it stays where it is. It runs at its true
    speed all the time, and what was measured is known for good."""
    policy = scripted({"a": ON_V100}, {"a": ON_V100}, {"a": ON_K80}, {"a": ON_K80}, {})
    jobs = trace(job("a", v100=2, k80=1, steps=2000, restart_s=100.0))
    options = replace(TWO_KINDS, round_s=60.0, start_s=70.0, report_s=10.0, speed_error=0.5)

    result = simulate(jobs, policy, replace(options, max_rounds=5))

    seen = [snapshot.jobs[0] for snapshot in policy.seen]
    right = [{t: s.measured for t, s in j.speeds.items()} for j in seen]
    assert right == [
        *[{"v100": False, "k80": False}] * 2,
        *[{"v100": True, "k80": False}] * 2,
        {"v100": True, "k80": True},
    ]
    assert seen[0].speeds["v100"].steps_per_s != 2.0 and seen[2].speeds["v100"].steps_per_s == 2.0
    assert [j.unmovable and "v100 is being measured" in j.unmovable for j in seen[:3]] == [None, True, None]
    assert seen[2].done_steps == (120 - 70) * 2 and seen[4].done_steps == 100 + (240 - 220) * 1
    assert seen[3].unmovable == "its speed on k80 is being measured"
    assert "a" in result.unfinished


def test_wrong_speeds_are_not_what_bounds_reckon_with(job: Make, trace: Make) -> None:
    jobs = trace(job("a", v100=2, k80=1), job("b", k80=1))

    assert bounds_of(jobs, replace(TWO_KINDS, speed_error=0.8)) == bounds_of(jobs, TWO_KINDS)


@pytest.mark.parametrize(
    "wrong", [{"unmovable": 1.5}, {"unmovable": -0.1}, {"speed_error": -1.0}, {"speed_error": math.inf}]
)
def test_shares_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must"):
        SimOptions(**wrong)


def elastic(**rest: Any) -> TraceJob:
    return TraceJob("a", 0.0, "net", 64, 1, 100.0, (1, 2, 4), **rest)


def table() -> ReferenceTable:
    """A batch of 64 in all, on one, two and four GPUs; the second does not fit on a k80."""
    return ReferenceTable(
        [
            Row("net", 64, 1, "v100", False, 10.0, "test"),
            Row("net", 64, 1, "k80", False, 1.0, "test"),
            Row("net", 32, 2, "v100", False, 19.0, "test"),
            Row("net", 32, 4, "k80", False, 3.0, "test"),
        ]
    )


def rates_at(job: TraceJob, workers: int, *, sizes_by_table: bool) -> dict[str, float]:
    found = Rates(table(), ("v100", "k80"), sizes_by_table=sizes_by_table).of(job, workers)
    return {t: round(s.steps_per_s, 3) for t, s in found.items()}


def test_elastic_speeds_are_the_tables_where_it_has_them() -> None:
    """Of the batch that each worker has then; what the table has on other types only cannot run there; the rest goes by
    the law."""
    assert rates_at(elastic(), 2, sizes_by_table=True) == {"v100": 19.0}
    assert rates_at(elastic(), 4, sizes_by_table=True) == rates_at(elastic(), 4, sizes_by_table=False)
    assert rates_at(elastic(), 2, sizes_by_table=False) == {"v100": 13.187, "k80": 1.319}


def test_elastic_speeds_are_the_traces_where_it_gives_them() -> None:
    """A type without one cannot be had at that size; sizes without any go by the law."""
    job = elastic(steps_per_s={"v100": 10.0, "k80": 1.0}, scaled={2: {"v100": 15.0}})

    assert rates_at(job, 2, sizes_by_table=True) == {"v100": 15.0}
    assert rates_at(job, 4, sizes_by_table=True) == {"v100": 17.389, "k80": 1.739}


def test_an_elastic_job_runs_at_the_traces_rate(job: Make, trace: Make, scripted: Make) -> None:
    jobs = trace(job("a", v100=1, steps=3000, sizes=(1, 2), scaled={2: {"v100": 3.0}}))

    result = simulate(jobs, scripted({"a": {"v100-1": {"v100": 2}}}), SimOptions("v100:1x2"))

    assert result.jobs[0].completion_s == 1000.0


def test_a_scheduler_inside_slurm_hears_no_reports(job: Make, trace: Make) -> None:
    """With event rounds it was asked for ever at the time of the first one."""
    jobs: Trace = trace(*(job(str(n), steps=1000, v100=1) for n in range(3)))
    plain, events = (simulate(jobs, registry.get("slurm"), SimOptions("v100:1x1", event_round_s=s)) for s in (0, 30))

    assert replace(events, decide_s=()) == replace(plain, decide_s=())


def test_restart_costs_by_family() -> None:
    """Sia's measurements, where a family is among them."""
    assert [restart_cost_s(m) for m in ("resnet18", "resnet50", "bertlarge", "lm", "")] == [30, 250, 120, 30, 30]

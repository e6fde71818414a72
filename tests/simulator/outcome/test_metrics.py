"""What a simulation is measured by: isolated times, fairness, busy GPUs."""

from __future__ import annotations

import pytest

from slurm_hadar.model import Form
from slurm_hadar.policies import registry
from slurm_hadar.simulator.outcome.metrics import busy_seconds, isolated_s
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.simulator.virtual.cluster import Interval
from slurm_hadar.simulator.virtual.jobs import Terms, VirtualJob
from slurm_hadar.throughput.table import reference


def virtual(workers: int, steps: float, **rates: float) -> VirtualJob:
    job = TraceJob("j", 0.0, "", None, workers, steps, steps_per_s=rates)
    return VirtualJob(job, Rates(reference(), ("v100", "k80")), Form(workers, 1, workers), Terms(), 0.0, 1.0)


@pytest.mark.parametrize(
    ("crowd", "expected_s"),
    [
        (1.0, 100 / 5.5),  # more than enough: half of the time on each type, since there are equally many
        (4.0, 100 / (0.5 * 10 + 0.5 * 1)),  # a share of 4 / (2 * 4) = 1/2 of each
        (16.0, 100 / (0.125 * 10 + 0.125 * 1)),
    ],
)
def test_the_isolated_time(crowd: float, expected_s: float) -> None:
    """A gang of two among 4 + 4 GPUs, at 10 and 1 steps/s, for 100 steps."""
    assert isolated_s(virtual(2, 100.0, v100=10.0, k80=1.0), crowd, {"v100": 4, "k80": 4}) == pytest.approx(expected_s)


def test_types_too_small_for_the_gang_give_no_share() -> None:
    job = virtual(4, 100.0, v100=10.0, k80=1.0)

    assert isolated_s(job, 1.0, {"v100": 2, "k80": 4}) == pytest.approx(100.0)
    assert isolated_s(job, 1.0, {"v100": 2, "k80": 2}) is None


def test_fairness_counts_those_who_were_there() -> None:
    """Two equal jobs on one GPU, one after the other: the first had company all along, the second half of the time."""
    jobs = tuple(TraceJob(n, 0.0, "", None, 1, 720.0, steps_per_s={"v100": 1.0}) for n in "ab")
    result = simulate(Trace("t", "csv", jobs), registry.get("fifo"), SimOptions("v100:1x1"))

    assert [(j.jct_s, j.isolated_s, j.rho) for j in result.jobs] == [(720, 1440, 0.5), (1440, 1080, 1440 / 1080)]


def test_busy_seconds_count_a_node_once() -> None:
    held = [
        Interval("a", "n", "v100", 2, 0, 10),
        Interval("b", "n", "v100", 1, 5, 20),
        Interval("c", "m", "k80", 1, 30, 31),
    ]

    assert busy_seconds(held) == ({"v100": 35, "k80": 1}, 21)

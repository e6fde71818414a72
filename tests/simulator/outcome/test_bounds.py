"""Bounds on what any schedule can reach."""

from __future__ import annotations

import pytest

from slurm_hadar.model import Form, Job, Mix, Node, Speed
from slurm_hadar.simulator.outcome.bounds import lower_bounds
from slurm_hadar.simulator.run import SimOptions, bounds_of
from slurm_hadar.simulator.traces.model import Trace, TraceJob


def one(job_id: str, steps: float, workers: int = 1, arrival: float = 0.0, mix: Mix = Mix.NEVER, **rates: float) -> Job:
    speeds = {t: Speed(r, 0.5) for t, r in rates.items()}
    form = Form(workers, 1, workers, mix=mix)
    return Job(job_id, form, arrival=arrival, total_steps=steps, speeds=speeds)


V100 = (Node("n", {"v100": 1}),)
BOTH = (Node("n", {"v100": 1}), Node("m", {"k80": 1}))


@pytest.mark.parametrize(
    ("jobs", "nodes", "ttd_s"),
    [
        ([one("a", 100, v100=2)], V100, 50),
        ([one("a", 100, v100=2), one("b", 100, v100=1)], V100, 150),
        ([one("a", 100, v100=2), one("b", 100, 1, 500.0, v100=1)], V100, 600),  # from arrival on
        ([one("a", 300, v100=2, k80=1)], BOTH, 150),  # one place at a time
        ([one("a", 300, v100=2, k80=1), one("b", 300, v100=2, k80=1)], BOTH, 200),
        ([one("a", 100, 2, v100=2)], (Node("n", {"v100": 2}),), 50),
        ([one("a", 100, 2, v100=2)], (Node("n", {"v100": 1}), Node("m", {"v100": 1})), 100),  # must spread
        ([one("a", 100, 2, mix=Mix.GATED, v100=2, k80=1)], (Node("n", {"v100": 1, "k80": 1}),), 200 / 3),
    ],
)
def test_bounds_on_the_total_time(jobs: list[Job], nodes: tuple[Node, ...], ttd_s: float) -> None:
    assert lower_bounds(jobs, nodes, jct=False) == {"ttd_s": pytest.approx(ttd_s, rel=1e-6)}


def test_bounds_on_the_average_completion_time() -> None:
    """Exact for one job; for equal jobs in a row, or on two types (seven in a row on the faster, three on the slower),
    below what can be reached, and near it."""
    alone = lower_bounds([one("a", 100, 1, 7.0, v100=2)], V100)["avg_jct_s"]
    row = lower_bounds([one(str(i), 100, v100=1) for i in range(20)], V100)["avg_jct_s"]
    both = lower_bounds([one(str(i), 100, v100=1, k80=0.5) for i in range(10)], BOTH)["avg_jct_s"]

    assert alone == pytest.approx(50, rel=1e-6)
    assert 0.98 * 1050 < row <= 1050 + 1e-6 and 0.93 * 400 < both <= 400


def test_a_job_that_changes_places_ends_no_earlier_than_it_has_run() -> None:
    """Two jobs, of which one can be on the fast GPU at a time: all orders of the two, and all moves, take 145 s in the
    mean or more; work on the slow one, ten times as long, counts with its time."""
    bound = lower_bounds([one(name, 100, v100=1, k80=0.1) for name in "ab"], BOTH)["avg_jct_s"]

    assert 120 <= bound <= 145


def test_bounds_count_measured_jobs_only() -> None:
    jobs = tuple(TraceJob(str(i), 10.0 * i, "", None, 1, 100.0, steps_per_s={"v100": 1.0}) for i in range(4))

    found = bounds_of(Trace("t", "csv", jobs), SimOptions("v100:1x1", measure=(1, 3)))

    assert found["ttd_s"] == pytest.approx(200, rel=1e-6) and lower_bounds([], V100) == {}

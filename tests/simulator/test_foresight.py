"""Jobs that do not state their steps: a policy sees what a predictor expects, and nothing else."""

import pytest

from slurm_hadar.errors import PredictionError, TraceError
from slurm_hadar.model import Fork, Plan
from slurm_hadar.policies import get
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces.model import Trace, TraceJob

CLUSTER = "v100:1x1"


def trace(*arrivals: float, steps: float = 600.0, **more) -> Trace:
    jobs = [
        TraceJob(str(i), at, "resnet18", 64, 1, steps * (i + 1), user="ada", group="nightly",
                 steps_per_s={"v100": 1.0}, **more)
        for i, at in enumerate(arrivals)
    ]  # fmt: skip
    return Trace("made up", "csv", tuple(jobs))


class Watching(Policy):
    """Fifo, with a note of what it was shown."""

    name = "watching"

    def __init__(self) -> None:
        self.shown: dict[str, list[tuple[float | None, float | None]]] = {}

    def allocate(self, snapshot) -> Plan:
        for job in snapshot.jobs:
            self.shown.setdefault(job.job_id, []).append((job.total_steps, job.predicted_steps))
        return get("fifo").allocate(snapshot)


def options(predictor: str | None, **more) -> SimOptions:
    return SimOptions(CLUSTER, round_s=60.0, predictor=predictor, **more)


def test_only_the_prediction_is_shown() -> None:
    """The first of a group is unknown; the second is expected to be as long as the first was."""
    policy = Watching()
    result = simulate(trace(0.0, 1000.0), policy, options("group_mean"))
    assert set(policy.shown["0"]) == {(None, None)}
    assert {total for total, _ in policy.shown["1"]} == {None}
    assert [predicted for _, predicted in policy.shown["1"]] == pytest.approx([600.0] * len(policy.shown["1"]))
    assert len(result.jobs) == 2


def test_the_oracle_knows_and_the_steps_are_made_all_the_same() -> None:
    """Predictions change what is shown, never what a job does."""
    policy = Watching()
    known = simulate(trace(0.0, 1000.0), policy, options("oracle"))
    assert set(policy.shown["1"]) == {(None, 1200.0)}
    stated = simulate(trace(0.0, 1000.0), Watching(), options(None))
    assert [j.completion_s for j in known.jobs] == [j.completion_s for j in stated.jobs]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PredictionError, match="predictor 'tarot'"):
        simulate(trace(0.0), Watching(), options("tarot"))
    with pytest.raises(TraceError, match="has forked jobs, whose steps are stated"):
        simulate(trace(0.0, fork=Fork.IDLE), get("hadare"), options("oracle"))

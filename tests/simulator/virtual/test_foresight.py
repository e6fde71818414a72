"""Jobs that do not state their steps: a policy sees what a predictor expects, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError, PredictionError, TraceError
from slurm_hadar.model import Fork, Plan
from slurm_hadar.policies import get
from slurm_hadar.policies.base import Policy
from slurm_hadar.predict.features import Past, samples
from slurm_hadar.predict.forest import grow
from slurm_hadar.predict.predictors import ForestPredictor
from slurm_hadar.simulator.history import history_of_jobs, submission_of
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import reference

CLUSTER = "v100:1x1"


def trace(*arrivals: float, steps: float = 600.0, **more: Any) -> Trace:
    jobs = [
        TraceJob(
            str(i),
            at,
            "resnet18",
            64,
            1,
            steps * (i + 1),
            user="ada",
            group="nightly",
            steps_per_s={"v100": 1.0},
            **more,
        )
        for i, at in enumerate(arrivals)
    ]
    return Trace("made up", "csv", tuple(jobs))


class Watching(Policy):
    """Fifo, with a note of what it was shown."""

    name = "watching"

    def __init__(self) -> None:
        self.shown: dict[str, list[tuple[float | None, float | None]]] = {}

    def allocate(self, snapshot: Any) -> Plan:
        for job in snapshot.jobs:
            self.shown.setdefault(job.job_id, []).append((job.total_steps, job.predicted_steps))
        return get("fifo").allocate(snapshot)


def options(predictor: str | None, **more: Any) -> SimOptions:
    return SimOptions(CLUSTER, round_s=60.0, predictor=predictor, **more)


def predicted(policy: Watching, job_id: str) -> list[float | None]:
    """What was shown of a job over time, each value once; its steps are never shown."""
    assert {total for total, _ in policy.shown[job_id]} == {None}
    return list(dict.fromkeys(value for _, value in policy.shown[job_id]))


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


def test_a_history_is_known_before_the_first_job() -> None:
    """Its ids may be those of the trace, and its clock may start at zero too: it then came whole weeks earlier."""
    policy = Watching()
    result = simulate(trace(0.0, 1000.0, steps=100.0), policy, options("group_mean", history=trace(0.0)))
    assert predicted(policy, "0") == [pytest.approx(600.0)]
    assert predicted(policy, "1") == [pytest.approx((600.0 + 100.0) / 2)]
    assert any("learned from 1 jobs of made up" in line for line in result.assumptions)


def test_a_job_of_the_history_teaches_from_its_end_on() -> None:
    """One that arrived before the first job and ends between the first and the second."""
    policy = Watching()
    simulate(trace(1000.0, 3000.0), policy, options("group_mean", history=trace(0.0, 900.0, steps=500.0)))
    assert predicted(policy, "0") == [pytest.approx(500.0)]
    assert predicted(policy, "1") == [pytest.approx((500.0 + 1000.0 + 600.0) / 3)]


def test_a_forest_starts_trained() -> None:
    """The first job is predicted by a forest grown of the history, which is what growing on its samples gives."""
    whole = read_trace("recurring:jobs=160,gpus=8,seed=1", reference())
    early, late = replace(whole, jobs=whole.jobs[:150]), replace(whole, jobs=whole.jobs[150:])
    policy = Watching()
    simulate(late, policy, SimOptions("v100:2x4", predictor="forest", history=early))

    rates = Rates(reference(), ("v100",))
    first = late.jobs[0]
    history, asked = history_of_jobs(early.jobs, rates, 1e9), submission_of(first, rates, 1e9)  # the virtual zero
    over = [j for j in history if j.end < asked.submit]
    known = [s for s in samples(history) if s.job.end < asked.submit]
    expected = ForestPredictor(grow(sorted(known, key=lambda s: s.job.end))).predict(asked, Past(over))
    assert policy.shown[first.job_id][0] == (None, pytest.approx(expected.steps))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="name the predictor that shall learn from it"):
        options(None, history=trace(0.0))
    with pytest.raises(PredictionError, match="predictor 'tarot'"):
        simulate(trace(0.0), Watching(), options("tarot"))
    with pytest.raises(TraceError, match="has forked jobs, whose steps are stated"):
        simulate(trace(0.0, fork=Fork.IDLE), get("hadare"), options("oracle"))

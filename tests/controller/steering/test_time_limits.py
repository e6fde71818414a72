"""Whether a job gets done within its time limit, and what its owner is told where it does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_hadar.cli.jobs.expectation import in_words
from slurm_hadar.comment import JobComment, read
from slurm_hadar.controller.answers.expectation import Answer, Interval, WhatIf
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.time_limits import Overtime, goes_on, grace_in_s, left_s, overtime
from slurm_hadar.model import EMPTY, Fork, Form, Job, JobState, Placement, Snapshot, Speed

NOW = 1000.0
SPEEDS = {"v100": Speed(10.0), "k80": Speed(1.0)}
RECORD = JobRecord("1", workers=1, nodes=1, tasks=1, cpus=1, resumable=True)
WAITS = Job("1", Form(1), total_steps=500.0, speeds=SPEEDS, time_limit_s=100.0, restart_cost_s=10.0)
RUNS = replace(
    WAITS, state=JobState.RUNNING, placement=Placement.of({"k80-1": {"k80": 1}}), started=NOW - 40.0, done_steps=40.0
)
ON = "requeue_on_timeout=yes"


def comment(text: str = "") -> JobComment:
    return read(f"hadar:{text}")[0]


@pytest.mark.parametrize(
    ("job", "said", "found"),
    [
        (WAITS, "", Overtime(100.0, {"k80": 510.0}, ("v100",), False)),
        (WAITS, ON, Overtime(100.0, {"k80": 510.0}, ("v100",), True)),
        (WAITS, "types=v100", None),
        (WAITS, "types=k80", Overtime(100.0, {"k80": 510.0}, (), False)),
        (replace(WAITS, time_limit_s=None), "", None),
        (replace(WAITS, time_limit_s=600.0), "", None),
        (replace(WAITS, total_steps=None), "", None),
        (replace(WAITS, pinned="pin=yes in its comment"), "", None),
        (RUNS, "", Overtime(60.0, {"k80": 460.0}, (), False)),
        (replace(RUNS, placement=Placement.of({"v100-1": {"v100": 1}})), "", None),
    ],
)
def test_where_a_job_is_not_done_in_time(job: Job, said: str, found: Overtime | None) -> None:
    """Of the types that its owner accepts; from now on and where it is, if it runs."""
    assert overtime(job, comment(said), RECORD, NOW) == found


@pytest.mark.parametrize(
    ("limit_s", "start_s", "grace_s"),
    [
        (86400, None, 120), (600, 30, 120), (160, None, 120), (120, None, 90), (120, 5, 90), (120, 40, 40),
        (120, 500, 30), (60, None, 45), (0, None, 0),
    ],
)  # fmt: skip
def test_a_run_trains_before_it_saves_for_its_limit(limit_s: float, start_s: float | None, grace_s: float) -> None:
    """However short the limit, and the more where its start takes a while: else it would begin again and again."""
    assert grace_in_s(limit_s, start_s, 120.0) == pytest.approx(grace_s)
    assert not grace_in_s(limit_s, start_s, 0.0)


@pytest.mark.parametrize(
    ("over", "runs", "words"),
    [
        (
            Overtime(100.0, {"k80": 510.0}, ("v100",), False),
            False,
            "it is started on v100 only; requeue_on_timeout=yes",
        ),
        (Overtime(100.0, {"k80": 510.0}, (), False), False, "Slurm ends it before it is done; requeue_on_timeout=yes"),
        (Overtime(60.0, {"k80": 460.0}, (), False), True, "60 s left, and it needs 7 min on k80: Slurm ends it before"),
        (Overtime(60.0, {"k80": 460.0}, (), True), True, "at its limit it saves, and goes on in another run"),
    ],
)
def test_what_explain_says(over: Overtime, runs: bool, words: str) -> None:
    """What comes of it, and how to mend it."""
    told = Answer("1", runs, None, None, EMPTY, NOW, (), (), over)

    (line,) = [one for one in in_words(told, NOW) if one.startswith("  time limit ")]

    assert words in line


def test_a_type_that_its_limit_shuts_out_is_not_one_that_its_owner_refuses() -> None:
    """What if it took that type: its time limit would have to let it."""
    cases = tuple(WhatIf(t, False, Interval(NOW, NOW), None, 1.0) for t in ("k80", "p100"))
    told = Answer("1", False, None, None, EMPTY, NOW, (), cases, Overtime(100.0, {"k80": 510.0}, ("v100",), False))

    k80, p100 = (next(w for w in in_words(told, NOW) if w.startswith(f"  on {t}")) for t in ("k80", "p100"))

    assert k80.endswith("if its time limit let it") and p100.endswith("if it accepted that type")


@pytest.mark.parametrize(("said", "on"), [(f"fork=auto,{ON}", True), ("fork=auto", False), (ON, False)])
def test_a_copy_of_a_forked_job_goes_on_at_its_limit_where_its_owner_says_so(said: str, on: bool) -> None:
    """Its steps are in consolidations: it need not be able to save."""
    copy = replace(RUNS, fork=Fork.AUTO)
    shown: Any = SimpleNamespace(time_limit_s=100.0, end=NOW + 60.0)

    assert goes_on(comment(said), JobRecord("1")) is on
    assert left_s(Snapshot(NOW, (), (copy,)), {"1": shown}, NOW) == {"1": 60.0}

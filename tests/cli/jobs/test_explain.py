"""The first line of hadar explain, where the controller has not seen the job yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_hadar.cli.common import as_in_the_queue
from slurm_hadar.cli.jobs.expectation import as_dict, in_words
from slurm_hadar.cli.jobs.explain import _explanation
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.expectation import Answer, Interval
from slurm_hadar.controller.answers.status import first_task
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.words import clock
from slurm_hadar.errors import HadarError, SlurmError
from slurm_hadar.model import EMPTY, JobState
from slurm_hadar.slurm.shown import Shown


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"state": "pending"}, "waits for its first round"),
        ({"state": "running"}, "runs; no round has looked at it yet"),
        (
            {"state": "pending", "pinned": "no hadar: comment", "reason": "Priority"},
            "is left to Slurm: no hadar: comment",
        ),
    ],
)
def test_before_the_first_round(slurm: dict[str, str], words: str) -> None:
    assert words in _explanation("7", None, None, None, None, slurm)[0]


def test_why_a_running_job_keeps_its_gpus() -> None:
    """An elastic job that could grow, say, and is too young for that."""
    slurm = {"state": "running", "stays": "is younger than guard.min_run_s = 300 s until 14:15:28"}
    told = _explanation("7", None, None, None, None, slurm)
    assert told[1].split(maxsplit=2) == ["stays", "put", slurm["stays"]]
    assert not any("stays put" in line for line in _explanation("7", None, None, None, None, {"state": "running"}))


def test_why_a_running_job_keeps_its_type() -> None:
    """GPU types for the same reason are told of together."""
    slurm = {
        "state": "running",
        "keeps_type": {"v100": "too doubtful", "a100": "not in its types=", "p100": "too doubtful"},
    }
    told = [line for line in _explanation("7", None, None, None, None, slurm) if "keeps type" in line]
    assert told == [
        "  keeps type   not moved to p100 or v100: too doubtful",
        "  keeps type   not moved to a100: not in its types=",
    ]


def test_what_happened_once_is_told_in_the_singular() -> None:
    """And a decision without a reason ends with its kind."""
    last = {"round": 3, "time": 0.0, "kind": "start", "why": ""}
    told = _explanation("7", JobRecord("7", moves=1), None, last, None, {"state": "running"})
    assert any(line.split(maxsplit=1) == ["moved", "1 time, 0.00 GPU-hours used so far"] for line in told)
    assert told[-1].endswith(": start")


def test_an_interval_is_told_in_one_unit() -> None:
    """Not from 119 s to 2 min; and what reads the same is told once."""
    intervals = Interval(119.0, 150.0), Interval(70.0, 440.0)
    answers = [Answer("7", True, None, interval, EMPTY, 1e6, (), ()) for interval in intervals]

    told = [in_words(one, 0.0)[0].partition(" (")[0].split(maxsplit=1)[1] for one in answers]
    assert told == ["in about 2 min", "in about 1 min to 7 min"]


def test_by_when_it_is_done_in_all_likelihood() -> None:
    """Beside the earliest and latest end; where it is not known there is no word of it."""
    known = Answer("7", True, None, Interval(1000.0, 9000.0), EMPTY, 1e6, (), (), end_80=7000.0)

    assert in_words(known, 0.0)[1].strip() == f"80 % to end by {clock(7000.0)}"
    assert as_dict(known)["end_80"] == 7000.0
    assert len(in_words(replace(known, end_80=None), 0.0)) == 1


@pytest.mark.parametrize(
    ("steps", "outrun", "told"),
    [(96.0, None, "stated in its comment"),
     (384.0, 768.0, "stated in its comment, which it has outrun: taken to be 768 steps now"),
     (0.0, 999.0, "stated in its comment, which it has outrun, by its time and speed: taken to be 999 steps now")],
)  # fmt: skip
def test_a_statement_that_is_outrun(steps: float, outrun: float | None, told: str) -> None:
    expected = Answer("7", True, None, None, EMPTY, 1e6, (), (), outrun_steps=outrun)
    record = JobRecord("7", steps=steps, total_steps=100.0)

    assert f"  size         {told}" in _explanation("7", record, None, None, expected, {})


def test_what_a_server_wants_is_told() -> None:
    """Of a job that is none there is no word of it."""
    one, server, other = (list(_explanation("7", JobRecord("7", wanted=n), None, None, None, {})) for n in (1, 3, 0))

    assert any("its server wants 1 GPU;" in line for line in one)
    assert any("its server wants 3 GPUs;" in line for line in server)
    assert not any("its server" in line for line in other)


def test_an_array_by_its_first_task_that_goes_on(tmp_path: Path) -> None:
    """As ``hadar submit`` names it; of one whose tasks are over it is said who knows more."""
    journal = Journal(tmp_path / "journal.db")
    ended = {"7_2": None, "7_10": None, "7_1": 9.0, "70_1": None, "9_1": 9.0}
    journal.save_jobs([JobRecord(job, ended=at) for job, at in ended.items()])

    assert [first_task(journal, job) for job in ("7", "7_1", "8")] == ["7_2", "7_1", "8"]
    with pytest.raises(HadarError, match="all tasks of job array 9 are over: hadar status 9 says"):
        first_task(journal, "9")


def test_a_task_by_slurms_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what a script has in SLURM_JOB_ID; where Slurm is away, or is not asked, it stays as it is."""
    asked = []

    def shown(_ask: object, job_id: str) -> Shown | None:
        asked.append(job_id)
        if job_id == "370":
            return Shown(JobState.RUNNING, "RUNNING", job_id="369_0")
        if job_id == "371":
            raise SlurmError("away")
        return None

    monkeypatch.setattr("slurm_hadar.slurm.shown.shown", shown)

    assert [as_in_the_queue(Config(), job) for job in ("370", "371", "372", "no id")] == [
        "369_0",
        "371",
        "372",
        "no id",
    ]
    assert asked == ["370", "371", "372"]

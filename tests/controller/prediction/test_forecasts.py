"""What the controller expects of jobs that do not say it: asked once per version, remembered, shown to policies."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.prediction import forecasts
from slurm_hadar.controller.prediction.forecasts import Forecast, Forecaster
from slurm_hadar.controller.prediction.past_jobs import history_of_journal
from slurm_hadar.controller.setup import steer
from slurm_hadar.messages import Report
from slurm_hadar.model import Job, JobState, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.predict.evaluate import Training
from slurm_hadar.predict.history import HistoryJob
from slurm_hadar.predict.predictors import GroupMean
from slurm_hadar.predict.store import VersionStore
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.table import reference

TYPES = ("k80", "v100")
MEAN = Training("group mean", None, None, None)


class Watching(Policy):
    """Lets all be as they are, and keeps what it was shown."""

    name = "watching"

    def __init__(self) -> None:
        self.seen: dict[str, Job] = {}

    def allocate(self, snapshot: Any) -> Plan:
        self.seen = dict(snapshot.job)
        jobs = snapshot.steerable_jobs
        waits = {j.job_id: Wait(Tier.POLICY, "told to wait") for j in jobs if not j.running}
        return Plan(self.name, {j.job_id: j.placement for j in jobs if j.running}, waits)


class Desk:
    """A controller over a Slurm in memory that asks a store of versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slurm = FakeSlurm({"v100-1": ("v100", 4), "k80-1": ("k80", 4)})
        self.store = VersionStore(folder / "predictor")
        self.journal = Journal(folder / "j.db")
        self.book = ReportBook()
        self.policy = Watching()
        self.start()

    def start(self, *settings: str) -> None:
        """A controller, as after a restart."""
        # the policy is asked once a round, so that what it saw last is what there is
        config = load(None, ["controller.mode=act", "controller.foresee_s=0", *settings])
        versions = self.folder / "predictor"
        forecaster = Forecaster(VersionStore(versions))
        self.controller = steer(self.policy, config, Parts(self.slurm, self.journal, self.book, forecaster=forecaster))

    def add(self, *run_s: float, name: str = "train", user: str = "alice") -> None:
        """A version that has seen one-GPU jobs of this name."""
        jobs = [
            HistoryJob(f"{name}{i}", i * 1e4, user, name, 1, start=i * 1e4, end=i * 1e4 + s, steps=s)
            for i, s in enumerate(run_s)
        ]
        self.store.add(MEAN, jobs, "test", TYPES, 1.0)

    def round(self) -> dict[str, Job]:
        self.controller.run_round()
        return self.policy.seen

    def report(self, job_id: str, **fields: float) -> None:
        """Let the job's agent say something."""
        seq = time.time_ns() // 1000
        self.slurm.vouch(job_id)
        self.book.ingest(Report("report", job_id, 0, seq, "a" * 64, time.time(), "v100-1", **fields))

    def forecast(self, job_id: str) -> Forecast | None:
        return Forecast.of(self.journal.job(job_id))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_only_who_says_nothing_is_predicted(desk: Desk) -> None:
    """Not those that state or report their steps, nor who must be left alone."""
    desk.add(400.0, 600.0)
    silent, stated, reports, pinned = (
        desk.slurm.submit(1, text, name="train")
        for text in ("hadar:", "hadar:steps=77", "hadar:ckpt=yes", "hadar:pin=yes")
    )
    desk.slurm.start(reports, "v100-1")
    desk.round()
    assert desk.forecast(reports) is not None
    desk.report(reports, steps=5, total_steps=900)
    seen = desk.round()

    job = seen[silent]
    assert job.total_steps is None and job.predicted_steps == pytest.approx(500.0 * job.best_rate())
    assert job.outlives > 1
    forecast = desk.forecast(silent)
    assert forecast is not None and job.predicted_range == pytest.approx(
        (forecast.low_s * job.best_rate(), forecast.high_s * job.best_rate())
    )
    assert seen[stated].predicted_steps is None and seen[stated].total_steps == 77
    assert seen[reports].predicted_steps is None and seen[reports].total_steps == 900
    assert seen[pinned].predicted_steps is None and desk.forecast(pinned) is None
    assert desk.journal.job(reports).reported and not desk.journal.job(stated).reported


def test_a_job_is_asked_about_on_the_clock_of_the_accounts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """In epoch seconds, wherever the host is: else its group would have ended hours before or after it did."""
    desk.add(100.0)
    job, asked = desk.slurm.submit(1, "hadar:", name="train"), list[float]()
    monkeypatch.setattr(GroupMean, "predict", lambda _self, submission, _past: asked.append(submission.submit))
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        desk.round()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert asked == [j.submit for j in desk.slurm.read_jobs() if j.job_id == job]


def test_asked_once_per_version(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a restart of the controller; a new version is asked anew, once."""
    asked = []
    ask = Forecaster._ask  # noqa: SLF001 counts what is really asked

    def counted(self: Forecaster, *rest: Any) -> Any:
        asked.append(rest[1].job_id)
        return ask(self, *rest)

    monkeypatch.setattr(Forecaster, "_ask", counted)
    desk.add(400.0)
    job = desk.slurm.submit(1, name="train")
    first = desk.round()[job].predicted_steps
    desk.round()
    desk.start()
    assert desk.round()[job].predicted_steps == first and asked == [job]
    desk.add(400.0, 800.0)
    assert desk.round()[job].predicted_steps == pytest.approx(first * 1.5)
    desk.round()
    assert asked == [job, job] and desk.forecast(job).version == "0002"
    told = [e["why"] for e in desk.journal.history(job) if e.get("event") == "forecast"]
    assert len(told) == 2 and all("alone on the fastest GPUs" in why for why in told)


def test_a_round_asks_no_more_than_it_has_time_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "MOST_QUESTIONS", 2)
    desk.add(400.0)
    for _ in range(5):
        desk.slurm.submit(1, name="train")
    known = [sum(j.predicted_steps is not None for j in desk.round().values()) for _ in range(4)]
    assert known == [2, 4, 5, 5]


def test_the_size_follows_the_measured_speed(desk: Desk) -> None:
    """Seconds are remembered, not steps: a job found to be ten times faster has ten times the steps, and as long to
    go."""
    desk.add(400.0)
    job = desk.slurm.submit(1, name="train")
    desk.slurm.start(job, "v100-1")
    before = desk.round()[job]
    speed = 10 * before.best_rate()
    desk.report(job, steps=1, steps_per_s=speed)
    desk.round()
    after = desk.round()[job]
    assert after.best_rate() == pytest.approx(speed, rel=0.01)
    assert after.predicted_steps / after.best_rate() == pytest.approx(400.0)


def test_a_silent_job_makes_progress_by_the_clock(desk: Desk) -> None:
    """Its script reports nothing: what it has done is the time it runs; and it may outlive what was expected."""
    desk.add(100.0)
    job = desk.slurm.submit(1, name="train")
    desk.slurm.start(job, "v100-1")
    desk.round()
    for ran_s, left_s in ((40.0, 60.0), (1000.0, 500.0)):
        since(desk, job, ran_s)
        seen = desk.round()[job]
        assert seen.done_steps / seen.best_rate() == pytest.approx(ran_s, abs=5)
        assert seen.expected_remaining_steps / seen.best_rate() == pytest.approx(left_s, abs=10)


def test_shown_to_people_only(desk: Desk) -> None:
    """predict.use = false: it is asked and remembered, and policies see nothing of it."""
    desk.add(400.0)
    desk.start("predict.use=false")
    job = desk.slurm.submit(1, name="train")
    assert desk.round()[job].predicted_steps is None
    assert desk.forecast(job).expected_s == pytest.approx(400.0)
    desk.start("predict.enabled=false")
    other = desk.slurm.submit(1, name="train")
    desk.round()
    assert desk.forecast(other) is None


def test_a_damaged_version_is_passed_over(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Said once; the version before answers, also after a restart, and what was remembered is kept."""
    desk.add(400.0)
    job = desk.slurm.submit(1, name="train")
    before = desk.round()[job].predicted_steps
    desk.add(9e5)
    (desk.folder / "predictor" / "0002.npz").write_bytes(b"x")
    desk.start()
    other = desk.slurm.submit(1, name="train")
    seen = desk.round()
    desk.round()
    assert (seen[job].predicted_steps, seen[other].predicted_steps) == (before, before)
    assert sum("0002.npz: is damaged" in message for message in caplog.messages) == 1
    (desk.folder / "predictor" / "0001.npz").write_bytes(b"x")
    desk.start()
    third = desk.slurm.submit(1, name="train")
    seen = desk.round()
    assert (seen[job].predicted_steps, seen[third].predicted_steps) == (before, None)
    (desk.folder / "predictor" / "current").write_text("../x")
    desk.round()
    assert sum("must name a version" in message for message in caplog.messages) == 1


def since(desk: Desk, job_id: str, seconds: float) -> None:
    """As if the job had been seen running for so long, so long ago."""
    (record,) = [r for r in desk.journal.load_jobs().values() if r.job_id == job_id]
    record.run_since = record.booked = time.time() - seconds
    record.untold_s = None
    desk.journal.save_jobs([record])
    desk.start()


def test_what_a_job_ran_is_remembered(desk: Desk) -> None:
    """Until its goodbye, or half of the time in which it may have ended; by GPU type, with the state it ended in."""
    jobs = [desk.slurm.submit(1, name="train", nodes=1) for _ in range(2)]
    desk.slurm.start(jobs[0], "k80-1")
    desk.slurm.start(jobs[1], "v100-1")
    desk.round()
    for job in jobs:
        since(desk, job, 100.0)
        desk.slurm.end(job)
    seq = time.time_ns() // 1000
    bye = Report("bye", jobs[1], 0, seq, "a" * 64, time.time(), "v100-1", exit_code=0)
    desk.slurm.vouch(jobs[1])
    desk.book.ingest(bye)
    desk.round()
    guessed, told = (desk.journal.job(job) for job in jobs)
    assert guessed.ran_s == {"k80": pytest.approx(50.0, abs=10)} and told.ran_s == {
        "v100": pytest.approx(100.0, abs=10)
    }
    assert (told.user, told.name, told.final, told.workers) == ("alice", "train", "COMPLETED", 1)
    assert told is not None
    past, _ = history_of_journal([told], Estimator(reference()), TYPES)
    assert past[0].teaches and past[0].alone_s == pytest.approx(100.0, abs=10)


def test_a_run_that_was_lost_is_no_work(desk: Desk) -> None:
    """A job that begins anew without a checkpoint has done nothing yet."""
    job = desk.slurm.submit(1, name="train")
    desk.slurm.start(job, "v100-1")
    desk.round()
    since(desk, job, 100.0)
    desk.round()
    assert desk.journal.job(job).ran_s == {"v100": pytest.approx(100.0, abs=10)}
    desk.slurm.jobs[job] = replace(desk.slurm.jobs[job], restarts=1, state=JobState.PENDING, nodes=())
    desk.round()
    assert desk.journal.job(job).ran_s == {}


def test_the_controller_needs_no_scikit_learn() -> None:
    """Asking a forest goes by plain arrays: what trains it is never imported here."""
    code = (
        "import sys; import slurm_hadar.cli.admin.run, slurm_hadar.controller.prediction.forecasts; "
        "sys.exit(any(name.split('.')[0] in ('sklearn', 'pandas') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

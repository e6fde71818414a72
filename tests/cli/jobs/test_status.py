"""``hadar status``: a job at a glance, whoever still knows it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.jobs import status as command
from slurm_hadar.config import Config, load
from slurm_hadar.controller.answers.status import Status, status_of, tail
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.controller.journal import Event, JobRecord, Journal, RoundRecord, Run
from slurm_hadar.controller.journal.records import DashboardChanges
from slurm_hadar.controller.state_dir import JOURNAL
from slurm_hadar.errors import HadarError, SlurmError, SlurmUnavailable
from slurm_hadar.model import Placement
from slurm_hadar.slurm.shown import shown
from slurm_hadar.testing.fake_slurm import FakeSlurm

NODES = {"v100-1": ("v100", 4), "k80-1": ("k80", 4)}
HELD = Placement.of({"v100-1": {"v100": 2}})


class Asked(FakeSlurm):
    """A Slurm in memory that also answers scontrol and sacct."""

    def __init__(self, work_dir: Path) -> None:
        super().__init__(NODES)
        self.work_dir = work_dir
        self.sacct = ""
        self.code = "0:0"

    def ask(self, *words: str) -> str:
        if words[0] == "sacct":
            return (
                "|".join(("JobID", "User", "State", "Submit", "Start", "End", "AllocTRES", "JobName"))
                + "\n"
                + self.sacct
            )
        job = self.jobs.get(words[-1])
        if job is None:
            raise SlurmError("scontrol failed: slurm_load_jobs error: Invalid job id specified")
        return (
            f"JobId=1 JobName=x\n   JobState={job.state_text} Reason=None\n   Requeue=1 ExitCode={self.code}\n"
            f"   Comment=x\n   WorkDir={self.work_dir}\n   StdOut={self.work_dir}/slurm-{job.job_id}.out\n   Power=\n"
        )


@pytest.fixture
def slurm(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(None, [f"controller.state_dir={str(tmp_path)!r}", "controller.mode=act", "predict.enabled=false"])


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    found = Journal(tmp_path / JOURNAL)
    found.add_round(RoundRecord(time.time(), "act", "hadar"))
    return found


@pytest.fixture
def see(slurm: Asked, config: Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the command prints, and its JSON."""

    def run(job: str) -> tuple[str, dict[str, Any]]:
        monkeypatch.setattr(command, "CliBackend", lambda *_given: slurm)
        path = config.controller.state_dir / "c.toml"
        path.write_text(f'[controller]\nstate_dir = "{config.controller.state_dir}"\nmode = "act"\n')
        said = CliRunner().invoke(command.status, [job, "--config", str(path)], catch_exceptions=False)
        as_json = CliRunner().invoke(command.status, [job, "--json", "--config", str(path)], catch_exceptions=False)
        assert said.exit_code == as_json.exit_code == 0
        return said.output, json.loads(as_json.stdout)

    return run


def record(job_id: str, **fields: Any) -> JobRecord:
    now = time.time()
    return JobRecord(job_id, submit=now - 900, arrival=now - 900, workers=2, user="alice", name="train", **fields)


def test_a_running_job(slurm: Asked, journal: Journal, see: Any, tmp_path: Path) -> None:
    """Where and since when, progress, speed, checkpoint, moves, its last lines, and what to type next."""
    job = slurm.submit(2, "hadar:model=resnet18,batch=64,steps=1000")
    slurm.start(job, "v100-1")
    now = time.time()
    journal.save_jobs(
        [record(job, run_since=now - 60, steps=400.0, total_steps=1000.0, steps_per_s=5.0, moves=1, restarts=1)]
    )
    slurm.jobs[job] = replace(slurm.jobs[job], restarts=1)
    journal.update_dashboard(now, DashboardChanges(runs=[Run(job, now - 60, None, HELD, True)]))
    (tmp_path / ".hadar" / job / "checkpoints" / "gen-0-step-350").mkdir(parents=True)
    (tmp_path / f"slurm-{job}.out").write_text("a\n" * 50 + "step 400\x1b[2J\n10 %\r20 %\n")

    text, found = see(job)

    assert f"job {job} job1 of alice: running since" in text and "on v100-1 2xv100" in text
    assert "400 of 1000 steps (40 %) at 5 steps/s" in text and "checkpoint   at step 350" in text
    assert "1 move, 1 restart: v100-1 2xv100 for" in text
    assert "| step 400?[2J" in text and "    | 20 %" in text and "10 %" not in text
    assert f"hadar logs -f {job}" in text
    assert found["state"] == "running" and found["where"] == {"v100-1": {"v100": 2}}
    assert (found["steps"], found["total_steps"], found["checkpoint"]["step"]) == (400.0, 1000.0, 350)
    assert found["end"] is not None and found["last_lines"][-1] == "20 %"


def test_a_job_that_has_outrun_what_was_stated(slurm: Asked, journal: Journal, see: Any) -> None:
    """It is not told to be done, nor by when it is in all likelihood."""
    job = slurm.submit(2, "hadar:model=resnet18,batch=64,steps=100")
    slurm.start(job, "v100-1")
    slurm.jobs[job] = replace(slurm.jobs[job], restarts=1)
    journal.save_jobs([record(job, run_since=time.time() - 60, steps=384.0, total_steps=100.0, restarts=1)])

    text, found = see(job)

    assert "384 of 100 steps (more than stated)" in text
    assert "100 %" not in text and "80 % to end" not in text
    assert found["done_share"] is None and found["end_80"] is None


def test_a_job_whose_stated_total_was_raised_too_often(slurm: Asked, journal: Journal, see: Any) -> None:
    """It is not told to be nearly done."""
    job = slurm.submit(2, "hadar:model=resnet18,batch=64,steps=100")
    slurm.start(job, "v100-1")
    slurm.jobs[job] = replace(slurm.jobs[job], restarts=1)
    known = record(job, run_since=time.time() - 60, steps=98.0, total_steps=100.0, raised=10, restarts=1)
    journal.save_jobs([known])

    text, found = see(job)

    assert "98 of 100 steps (its stated total was raised 10 times: how many it makes is not known)" in text
    assert "98 %" not in text and "80 % to end" not in text
    assert found["done_share"] is None and found["end_80"] is None


def test_a_move_that_no_round_has_seen(slurm: Asked, journal: Journal, see: Any) -> None:
    """Its time on the GPUs of before ends where Slurm has begun it anew."""
    job = slurm.submit(2, "hadar:model=resnet18,batch=64,steps=1000")
    slurm.start(job, "v100-1")
    now = time.time()
    slurm.jobs[job] = replace(slurm.jobs[job], restarts=1, start=now - 100)
    journal.save_jobs([record(job, moves=1, steps=400.0, total_steps=1000.0)])
    there = Placement.of({"k80-1": {"k80": 2}})
    journal.update_dashboard(now, DashboardChanges(runs=[Run(job, now - 142, None, there, True)]))

    assert "1 move, 0 restarts: k80-1 2xk80 for 42 s" in see(job)[0]


def test_a_waiting_job_says_why(slurm: Asked, journal: Journal, see: Any) -> None:
    """What the last round said of it, and what no round has to say: no GPU here will do."""
    job = slurm.submit(2, "hadar:model=resnet18")
    vain = slurm.submit(2, "hadar:mem=80g")
    journal.replace_waits(1, {job: {"tier": "waits-for-capacity", "why": "others hold them"}})

    text, found = see(job)
    assert "pending since" in text and "waits for GPUs that others hold: others hold them" in text and "start  " in text
    assert found["tier"] == "waits-for-capacity" and found["start"] is not None
    text, found = see(vain)
    assert "no GPU type here will do: k80 has 12 GB, v100 has 16 GB" in text and "scontrol update JobId=" in text
    assert found["tier"] == "cannot-run"


@pytest.mark.parametrize("known_to", ["slurm", "journal", "sacct"])
def test_a_job_that_is_over(slurm: Asked, journal: Journal, see: Any, known_to: str) -> None:
    """As long as anybody knows it: Slurm for some minutes, the journal for weeks, the accounting for ever."""
    job = "7"
    if known_to == "slurm":
        job = slurm.submit(2)
        slurm.start(job, "v100-1")
        slurm.fail(job)
        slurm.code = "3:0"
        journal.save_jobs([record(job, saved_step=200.0, ended=time.time(), final="FAILED")])
    elif known_to == "journal":
        journal.save_jobs([record(job, ended=time.time(), final="FAILED", saved_step=200.0)])
        journal.add_events(1, time.time(), [Event(job, "restart", "x")])
    else:
        slurm.sacct = f"{job}|alice|FAILED|100|200|300|gres/gpu=2|train\n"

    text, found = see(job)

    assert "of alice: failed at" in text and found["state"] == "failed"
    assert ("exit code 3" in text, f"scontrol requeue {job}" in text) == (known_to == "slurm",) * 2
    assert ("checkpoint   at step 200" in text) is (known_to != "sacct")


@pytest.mark.usefixtures("journal")
def test_an_earlier_job_of_that_number_is_not_told(slurm: Asked, see: Any) -> None:
    slurm.sacct = "7|bob|FAILED|100|200|300|gres/gpu=2|train\n7|alice|COMPLETED|1000|2000|2600|gres/gpu=2|train\n"

    text, found = see("7")

    assert "of alice: completed at" in text and found["state"] == "completed"


def test_arrays_and_their_tasks(slurm: Asked, journal: Journal, see: Any) -> None:
    """The array by its tasks, those that are alike in one line, and those that are over; a task as any job."""
    for task in range(4):
        job = slurm.submit(1, "hadar:model=resnet18")
        slurm.jobs[f"20_{task}"] = replace(slurm.jobs.pop(job), job_id=f"20_{task}", array_id="20")
    slurm.start("20_0", "v100-1")
    journal.save_jobs([record("20_9", ended=time.time(), final="COMPLETED")])
    journal.save_forks({"20": (3, 120, 400.0, None)})

    text, found = see("20")

    assert "job array 20: 1 completed, 3 pending, 1 running" in text and "20_[1-3]" in text and "20_0" in text
    assert "forked job: 120 of 400 steps are in consolidation 3" in text
    assert len(found["tasks"]) == 4 and found["over"] == [{"job_id": "20_9", "state": "completed"}]
    assert "job 20_0 job1 of alice: running" in see("20_0")[0]


@pytest.mark.usefixtures("journal")
def test_who_nobody_knows(slurm: Asked, config: Config) -> None:
    with pytest.raises(HadarError, match="job 99 is known neither to Slurm"):
        status_of(slurm, config, "99")


def test_what_cannot_be_asked_is_said(slurm: Asked, config: Config, journal: Journal) -> None:
    """Without a journal Slurm's word is shown, without Slurm the journal's."""
    journal.save_jobs([record("1", final="")])
    slurm.away = True
    assert "slurm" in " ".join(status_of(slurm, config, "1").faults).lower()
    slurm.away = False
    job = slurm.submit(2)
    elsewhere = load(None, [f"controller.state_dir={str(config.controller.state_dir / 'none')!r}"])
    found: Status = status_of(slurm, elsewhere, job)
    assert found.state == "pending" and any("no journal at" in fault for fault in found.faults)


def test_only_plain_files_are_shown(tmp_path: Path) -> None:
    """A pipe does not hang it; nothing is read of a file that is not there."""
    import os

    os.mkfifo(tmp_path / "pipe")

    assert tail(tmp_path / "pipe") == tail(tmp_path / "none") == tail(tmp_path) == []


def test_what_goes_to_a_file_of_its_own_on_stderr_is_shown(
    slurm: Asked, see: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that fails tells why there; of one with a single file nothing is said twice."""
    job, plain_job = slurm.submit(2), slurm.submit(2)
    errors = slurm.work_dir / "why.err"
    errors.write_text("Traceback\nValueError: too large\n")
    ask = slurm.ask

    def with_stderr(*words: str) -> str:
        path = errors if words[-1] == job else slurm.work_dir / f"slurm-{words[-1]}.out"
        return ask(*words).replace("   StdOut=", f"   StdErr={path}\n   StdOut=")

    monkeypatch.setattr(slurm, "ask", with_stderr)

    text, found = see(job)
    assert f"  errors       {errors}\n    | Traceback\n    | ValueError: too large\n" in text
    assert found["errors"] == str(errors)
    text, found = see(plain_job)
    assert "errors" not in text and found["errors"] is None


def test_what_users_write_is_not_taken_for_slurms_word(slurm: Asked) -> None:
    job = slurm.submit(2)
    text = slurm.ask("scontrol", "show", "job", job).replace(
        "Comment=x", "Comment=x\n   JobState=DONE\n   StdOut=/etc/x"
    )

    assert str(shown(lambda *_words: text, job).output) == f"{slurm.work_dir}/slurm-{job}.out"
    assert shown(lambda *_words: text, job).word == "PENDING"


def test_a_task_that_an_array_has_not() -> None:
    """Slurm fails then, and says nothing."""

    def ask(*_words: str) -> str:
        raise SlurmError("scontrol failed: no reason given")

    assert shown(ask, "7_3") is None
    with pytest.raises(SlurmError):
        shown(ask, "7")


TASK = "JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=x\n   JobState=RUNNING\n"
ALONE = "JobId=8 JobName=x\n   JobState=RUNNING\n"
COMPONENT = (
    "JobId=49 HetJobId=49 HetJobOffset=0 JobName=x\n   JobState=PENDING\n\nJobId=50 HetJobId=49 HetJobOffset=1\n"
)


@pytest.mark.parametrize(
    ("text", "asked", "named"),
    [(TASK, "8", "7_0"), (TASK, "7", "7"), (COMPONENT, "49", "49+0"), (ALONE, "8", "8")],
)
def test_the_name_of_a_job_by_its_number(text: str, asked: str, named: str) -> None:
    assert shown(lambda *_words: text, asked).job_id == named


@pytest.mark.usefixtures("journal")
def test_a_task_by_its_number(slurm: Asked, see: Any, config: Config, monkeypatch: Any) -> None:
    """It is the task, and what stands under that number is another job's; a task of that number there is not."""
    job = slurm.submit(1)
    slurm.jobs["7_0"] = replace(slurm.jobs.pop(job), job_id="7_0", array_id="7")
    slurm.start("7_0", "v100-1")
    monkeypatch.setattr(slurm, "ask", lambda *_words: TASK)

    text, found = see("8")
    assert text.startswith("job 7_0 job1 of alice: running") and found["job_id"] == "7_0"
    with pytest.raises(HadarError, match="job 8_0 is not known; Slurm knows 7_0"):
        status_of(slurm, config, "8_0")


@pytest.mark.parametrize(("began", "state"), [(1.0, "running"), (None, "pending")])
def test_while_slurm_is_away_it_is_what_it_was(
    slurm: Asked, config: Config, journal: Journal, began: float | None, state: str
) -> None:
    journal.save_jobs([record("1", run_since=began)])
    slurm.away = True

    assert status_of(slurm, config, "1").state == state
    slurm.away = False
    assert status_of(slurm, config, "1").state == "gone"


def test_a_copy_is_as_far_as_its_job(slurm: Asked, journal: Journal, see: Any) -> None:
    """Its own checkpoint would be none: what counts are the consolidations."""
    job = slurm.submit(1, "hadar:fork=auto")
    slurm.jobs["20_1"] = replace(slurm.jobs.pop(job), job_id="20_1", array_id="20")
    journal.save_jobs([record("20_1", steps=1.0, total_steps=400.0, saved_step=1.0)])
    journal.save_forks({"20": (3, 120, 400.0, None)})

    text, _ = see("20_1")

    assert "progress     120 of 400 steps (30 %)" in text and "checkpoint" not in text


def test_a_controller_that_is_silent_is_told_of(slurm: Asked, config: Config, see: Any, tmp_path: Path) -> None:
    """Killed, say, or with a full disk: what it knew is of then. Of a job that is over nothing changes any more."""
    over = slurm.submit(2, "hadar:model=resnet18,batch=64,steps=1000")
    job = slurm.submit(2, "hadar:model=resnet18,batch=64,steps=1000")
    slurm.jobs.pop(over)
    journal = Journal(tmp_path / JOURNAL)
    journal.save_jobs([record(over, ended=time.time() - 800)])
    journal.add_round(RoundRecord(time.time() - 600, "act", "hadar", round_s=60.0))
    silent = "the controller has been silent since"

    assert silent in see(job)[0] and silent in see(job)[1]["faults"][0]
    assert silent in queue_view(slurm, config)[1]
    assert silent not in see(over)[0]
    journal.add_round(RoundRecord(time.time(), "act", "hadar", round_s=60.0))
    assert see(job)[1]["faults"] == [] and queue_view(slurm, config)[1] == ""


def test_a_job_that_is_over_where_the_accounts_do_not_answer(
    slurm: Asked, config: Config, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal knows it; that the accounts could not be asked is told."""
    journal.save_jobs([record("7", ended=time.time() - 800, final="COMPLETED")])
    asked = slurm.ask

    def ask(*words: str) -> str:
        if words[0] == "sacct":
            raise SlurmUnavailable("slurmdbd does not answer sacct")
        return asked(*words)

    monkeypatch.setattr(slurm, "ask", ask)

    found = status_of(slurm, config, "7")
    assert found.state == "completed" and found.faults == ("slurmdbd does not answer sacct",)
    with pytest.raises(SlurmUnavailable):
        status_of(slurm, config, "8")


def test_the_checkpoint_of_another_clusters_job_is_not_its_own(slurm: Asked, config: Config, tmp_path: Path) -> None:
    """Job ids begin anew where Slurm does: the directories of the one before are there still."""
    job = slurm.submit(comment="hadar:")
    for home, cluster, step in ((".hadar", "another", 600), (f".hadar-{os.getuid()}", slurm.cluster_name(), 90)):
        (tmp_path / home / job / "checkpoints" / f"gen-0-step-{step}").mkdir(parents=True)
        (tmp_path / home / job / "owner").write_text(f"{cluster} {job} 1700000000\n")

    saved = status_of(slurm, config, job).saved

    assert saved is not None and saved.step == 90

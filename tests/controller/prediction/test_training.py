"""When the predictor is trained, and what is told of it: with trainings that only pretend, and one that is real."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import PredictSection
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.prediction.training import Trainer, training_command
from slurm_hadar.predict.attempts import Attempt, Attempts
from slurm_hadar.predict.store import VersionStore

DAY_S = 86400.0


class Process:
    """A training that goes on until it is told to end."""

    pid = 0

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Desk:
    """A trainer whose processes are counted."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.settings = folder, PredictSection(**settings)
        self.versions = folder / "predictor"
        self.attempts = Attempts(self.versions)
        self.journal = Journal(folder / "journal.db")
        self.begun: list[Process] = []
        self.restart()

    def restart(self) -> None:
        self.trainer = Trainer(self.settings, self.folder, self.versions, self.journal, self._spawn)

    def _spawn(self, *_: Any, **__: Any) -> Process:
        self.begun.append(Process())
        return self.begun[-1]

    def ends(self, began: float, **outcome: Any) -> None:
        """The training that goes on is over."""
        self.attempts.save(Attempt(began, began + 5, **outcome))
        self.begun[-1].code = 0


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_one_at_a_time_and_once_a_day(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome goes to journal and log once, also over a restart."""
    caplog.set_level(logging.INFO)
    for now in (0.0, 10.0, DAY_S + 1):
        desk.trainer.check(now)
    assert len(desk.begun) == 1
    desk.ends(0.0, version="0001", predictor="forest", notes=("Slurm keeps no accounts",))
    for now in (20.0, 30.0):
        desk.trainer.check(now)
    desk.restart()
    desk.trainer.check(DAY_S - 1)
    assert len(desk.begun) == 1
    told = [m for m in caplog.messages if "predictor" in m]
    assert told == [
        "a training of the predictor begins",
        "predictor: Slurm keeps no accounts",
        "predictor version 0001 is trained and accepted: forest",
    ]
    (entry,) = desk.journal.trainings()
    assert (entry["began"], entry["version"], entry["predictor"], entry["detail"]) == (0.0, "0001", "forest", "")
    desk.trainer.check(DAY_S)
    assert len(desk.begun) == 2


def test_a_failure_is_one_line_and_tried_again_sooner(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.trainer.check(0.0)
    desk.ends(0.0, detail="3 jobs ended well; predict.min_jobs asks for 20")
    for now in (10.0, 3599.0):
        desk.trainer.check(now)
    assert [m for m in caplog.messages if "not trained" in m] == [
        "the predictor was not trained: 3 jobs ended well; predict.min_jobs asks for 20; next try in 3600 s"
    ]
    assert len(desk.begun) == 1
    desk.trainer.check(3600.0)
    assert len(desk.begun) == 2
    desk.ends(3600.0, detail="4 jobs ended well; predict.min_jobs asks for 20")
    desk.trainer.check(3610.0)
    levels = [r.levelname for r in caplog.records if "not trained" in r.message]
    assert levels == ["WARNING"] and len(desk.journal.trainings()) == 2  # going on to fail is told at level info


def test_a_refused_forest_is_told_with_the_reason(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """There is a new version all the same, which goes by the group mean: the next training is a day away."""
    caplog.set_level(logging.INFO)
    desk.trainer.check(0.0)
    desk.ends(0.0, version="0003", predictor="group mean", detail="its mean error 90% is above the group mean's 50%")
    desk.trainer.check(7200.0)
    assert caplog.messages[-1] == (
        "predictor version 0003 goes by the group mean, not by a forest: its mean error 90% is above the group "
        "mean's 50%"
    )
    assert desk.journal.trainings()[0]["detail"].startswith("its mean error") and len(desk.begun) == 1


def test_one_that_dies_without_a_word(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Killed, or not even begun: told, and not begun anew in every round."""
    desk.trainer.check(100.0)
    desk.begun[-1].code = 1
    desk.trainer.check(101.0)
    desk.trainer.check(200.0)
    assert len(desk.begun) == 1
    assert [m for m in caplog.messages if "ended from outside, or took longer than predict.timeout_s" in m]


def test_rounds_out_of_cron(tmp_path: Path) -> None:
    """Each has a trainer of its own: one begins it, the next finds it going on, a later one tells of it."""
    desk = Desk(tmp_path)
    desk.trainer.check(1000.0)
    desk.restart()
    desk.trainer.check(1030.0)
    with desk.attempts.alone():  # as the training does, once it is up
        desk.restart()
        desk.trainer.check(3000.0)
        assert desk.journal.trainings() == [] and len(desk.begun) == 1
    desk.attempts.save(Attempt(1001.0, 3001.0, "0001", "forest"))
    desk.restart()
    desk.trainer.check(3060.0)
    assert [e["version"] for e in desk.journal.trainings()] == ["0001"] and len(desk.begun) == 1


def test_never_by_itself(tmp_path: Path) -> None:
    """retrain_s = 0: trainings by hand are told of all the same."""
    desk = Desk(tmp_path, retrain_s=0)
    desk.trainer.check(0.0)
    desk.attempts.save(Attempt(5.0, 9.0, "0001", "forest"))
    desk.trainer.check(10.0)
    assert not desk.begun and len(desk.journal.trainings()) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Said once; rounds go on."""
    desk = Desk(tmp_path)
    desk.versions.write_text("a file")
    for now in (0.0, 1.0, 2.0):
        desk.trainer.check(now)
    assert sum("the predictor cannot be trained" in m for m in caplog.messages) == 1 and not desk.begun


def test_a_note_of_others_costs_one_training(desk: Desk) -> None:
    desk.versions.mkdir()
    for text in ("{", "[]", '{"began": "x"}', "\xff"):
        (desk.versions / "training.json").write_text(text)
        assert desk.attempts.last() is None


def test_the_real_thing(tmp_path: Path, poll: Callable[..., Any]) -> None:
    """A process of its own learns from the journal, while nothing waits for it."""
    settings = PredictSection(source="journal", min_jobs=4, timeout_s=300)
    journal = Journal(tmp_path / "journal.db")
    now = time.time()
    journal.save_jobs(
        JobRecord(
            str(i),
            now - 900,
            arrival=now - 900,
            workers=1,
            user="ann",
            name="train",
            ran_s={"v100": 100.0},
            final="COMPLETED",
            ended=now - 60 + i,
        )
        for i in range(4)
    )
    trainer = Trainer(settings, tmp_path, tmp_path / "predictor", journal)

    def over() -> bool:
        trainer.check(time.time())
        return bool(journal.trainings())

    poll(over, 240.0, 0.2)
    (entry,) = journal.trainings()
    assert (entry["version"], entry["predictor"]) == ("0001", "group mean"), entry
    assert len(VersionStore(tmp_path / "predictor").load().history) == 4
    trainer.stop()


def test_what_is_run(tmp_path: Path) -> None:
    """Nice'd and limited; the settings travel along."""
    command = training_command(PredictSection(predictor="group_median", timeout_s=77), tmp_path)
    assert command[:6] == ["nice", "-n", "19", "timeout", "--kill-after=10", "77"] and command[6] == sys.executable
    assert {'predict.predictor="group_median"', "predict.min_jobs=20", f'controller.state_dir="{tmp_path}"'} <= {
        *command
    }


def test_a_training_is_ended_with_the_daemon(tmp_path: Path) -> None:
    def sleeps(*_: Any, **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], start_new_session=how["start_new_session"])

    trainer = Trainer(PredictSection(), tmp_path, tmp_path / "predictor", Journal(":memory:"), sleeps)
    trainer.check(0.0)
    trainer.stop()
    assert trainer._process.poll() is not None  # noqa: SLF001 its process is to die unseen

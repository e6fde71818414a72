"""Training the predictor now and then, in a process of its own, and telling what became of it."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_hadar.config import PredictSection
from slurm_hadar.controller.journal import Journal
from slurm_hadar.errors import PredictionError
from slurm_hadar.predict.attempts import Attempt, Attempts

__all__ = ["Trainer", "training_command"]

log = logging.getLogger(__name__)
_STARTS_WITHIN_S = 60.0  # a training whose process holds no lock this long after its begin is over


def training_command(settings: PredictSection, state_dir: Path) -> list[str]:
    """``hadar predict --train``, last in the queue for CPUs, and ended when it takes too long."""
    chosen = {
        f"predict.{name}": value for name in ("predictor", "source", "min_jobs") if (value := getattr(settings, name))
    }
    chosen["controller.state_dir"] = str(state_dir.absolute())
    return [
        "nice", "-n", "19", "timeout", "--kill-after=10", f"{settings.timeout_s:.0f}",
        sys.executable, "-P", "-m", "slurm_hadar.cli.main", "predict", "--train",
        "--since", f"{math.ceil(settings.history_days)}d",
        *(part for key, value in chosen.items() for part in ("--set", f'{key}="{value}"' if isinstance(value, str)
                                                              else f"{key}={value}")),
    ]  # fmt: skip


class Trainer:
    """Begins a training when one is due, and notes in journal and log what became of it.

    When it is due follows from the note that every training leaves beside the versions, so that a daemon, rounds out of
    cron and trainings by hand count together; nothing is waited for.

    Parameters
    ----------
    settings: how often. state_dir: the controller's. folder: the versions'. journal: where outcomes are kept.
    spawn: begins the process; for tests.
    """

    def __init__(
        self,
        settings: PredictSection,
        state_dir: Path,
        folder: Path,
        journal: Journal,
        spawn: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        self._settings, self._state_dir, self._folder = settings, state_dir, folder
        self._attempts = Attempts(folder)
        self._journal = journal
        self._spawn = spawn
        self._process: subprocess.Popen[bytes] | None = None
        self._noted: set[str] = set()
        self._failing = ""
        self._failed = False
        self._told: Attempt | None = None

    def reconfigure(self, settings: PredictSection) -> None:
        """Other times or another source from now on; where it is not enabled no training begins."""
        self._settings = settings

    def check(self, now: float) -> None:
        """Once a round: tell the outcome of a training that is over, and begin one that is due."""
        try:
            last = self._attempts.last()
            alive = self._alive(last, now)
            if last is not None and not alive and last != self._told:
                self._tell(last)
                self._told = last
            if not alive and self._due(last, now):
                self._begin(now)
            self._failing = ""
        except (PredictionError, OSError) as error:
            if str(error) != self._failing:
                self._failing = str(error)
                log.warning("the predictor cannot be trained: %s", error)

    def stop(self) -> None:
        """End a training that this process began and that goes on."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()

    def _alive(self, last: Attempt | None, now: float) -> bool:
        if self._process is not None and self._process.poll() is None:
            return True
        mine, self._process = self._process, None
        if last is None or last.ended is not None:
            return False
        return self._attempts.going_on() or (mine is None and 0 <= now - last.began < _STARTS_WITHIN_S)

    def _due(self, last: Attempt | None, now: float) -> bool:
        every_s = self._settings.retrain_s
        if every_s <= 0 or not self._settings.enabled:
            return False
        if last is None:
            return True
        wait_s = every_s if last.stored else min(every_s, self._settings.retry_s)
        return not 0 <= now - last.began < wait_s  # also where the clock was set back

    def _begin(self, now: float) -> None:
        # noted before it begins: one that dies at once is not begun again in every round
        self._attempts.save(Attempt(now))
        with (self._folder / "training.log").open("wb") as output:
            self._process = self._spawn(
                training_command(self._settings, self._state_dir),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        log.info("a training of the predictor begins")

    def _tell(self, last: Attempt) -> None:
        detail = last.detail
        if last.ended is None:
            detail = f"it was ended from outside, or took longer than predict.timeout_s; see {self._log()}"
        if not self._journal.add_training(last.began, last.ended, last.version, last.predictor, detail):
            return
        for note in last.notes:
            if note not in self._noted:
                self._noted.add(note)
                log.info("predictor: %s", note)
        if not last.stored:
            level = logging.INFO if self._failed else logging.WARNING  # once is enough where it goes on failing
            self._failed = True
            log.log(level, "the predictor was not trained: %s; next try in %.0f s", detail, self._settings.retry_s)
            return
        self._failed = False
        if detail:
            log.info("predictor version %s goes by the %s, not by a forest: %s", last.version, last.predictor, detail)
        else:
            log.info("predictor version %s is trained and accepted: %s", last.version, last.predictor)

    def _log(self) -> Path:
        return self._folder / "training.log"

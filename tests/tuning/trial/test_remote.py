"""Reports that nobody was there to hear: told by a later run of the trial, in their order, each once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.tuning.trial.remote import Paused, RemoteTrial
from slurm_hadar.tuning.trial.wire import TunerGone


class Line:
    """What is told, while somebody is there."""

    def __init__(self) -> None:
        self.there = True
        self.told: list[Any] = []

    def ask(self, _: str, **said: Any) -> str:
        if not self.there:
            raise TunerGone
        self.told.append((said["step"], said["value"]))
        return "go"


@pytest.fixture(autouse=True)
def saves_at_a_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


def of(line: Line, folder: Path, rank: int = 0) -> RemoteTrial:
    return RemoteTrial(line, 0, rank, None, folder / "untold")


def test_one_that_goes_on_tells_them_before_its_own(tmp_path: Path) -> None:
    line = Line()
    trial = of(line, tmp_path)
    trial.report(0.5, 1)
    line.there = False
    trial.report(0.4, 2)
    trial.report(float("inf"), 3)
    line.there = True

    of(line, tmp_path).report(0.2, 4)

    assert line.told == [(1, 0.5), (2, 0.4), (3, "inf"), (4, 0.2)] and not list(tmp_path.iterdir())


def test_one_that_begins_anew_comes_to_them_itself(tmp_path: Path) -> None:
    line = Line()
    line.there = False
    trial = of(line, tmp_path)
    trial.report(0.4, 2)
    trial.report(0.3, 3)
    line.there = True

    trial = of(line, tmp_path)
    for step in (1, 2):
        trial.report(0.1, step)
    assert line.told == [(1, 0.1), (2, 0.1)]
    trial.catch_up()  # the objective returns

    assert line.told[2:] == [(3, 0.3)] and not list(tmp_path.iterdir())


def test_one_that_a_full_disk_has_cut_costs_itself_alone(tmp_path: Path) -> None:
    line = Line()
    line.there = False
    of(line, tmp_path).report(0.4, 2)
    with (tmp_path / "untold").open("a") as file:
        file.write("[3, 0.")
    of(line, tmp_path).report(0.2, 4)
    line.there = True

    of(line, tmp_path).report(0.1, 5)

    assert line.told == [(2, 0.4), (4, 0.2), (5, 0.1)] and not list(tmp_path.iterdir())


def test_who_is_not_heard_again_keeps_them_all(tmp_path: Path) -> None:
    line = Line()
    line.there = False
    of(line, tmp_path).report(0.4, 2)
    of(line, tmp_path).report(0.3, 3)
    with pytest.raises(TunerGone):
        of(line, tmp_path).catch_up()
    of(line, tmp_path, rank=1).report(9.0, 1)
    of(line, tmp_path, rank=1).catch_up()
    line.there = True

    of(line, tmp_path).catch_up()

    assert line.told == [(2, 0.4), (3, 0.3)]


def test_one_that_saves_at_no_signal_ends_at_once(tmp_path: Path) -> None:
    """And begins anew in its next run, which comes to the report itself."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    line = Line()
    line.there = False

    with pytest.raises(Paused):
        of(line, tmp_path).report(0.4, 2)

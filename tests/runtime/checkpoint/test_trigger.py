"""When a training saves, and what it does after that; and waiting for a file that this node does not see yet."""

from __future__ import annotations

import operator
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.checkpoint import trigger, visible
from slurm_hadar.runtime.checkpoint.trigger import SaveDecision, SaveEvery, Trigger
from slurm_hadar.runtime.progress.endings import Ending


class Leader:
    """Rank 0 of a gang that agrees anew after ten steps; counts how often."""

    leads = True

    def __init__(self) -> None:
        self.asked = 0

    def agree(self, decision: SaveDecision) -> SaveDecision:
        self.asked += 1
        return decision

    def steps_until_look(self, _every_s: float, _per_step_s: float) -> int:
        return 10

    def broadcast(self, value: Any) -> Any:
        return value


class Wishes:
    """The scheduler's, instead of a link to its agent."""

    def __init__(self) -> None:
        self.wish = (False, 0.0)
        self.answered = 0

    def asked(self) -> tuple[bool, float]:
        return self.wish

    def answer(self) -> None:
        self.answered += 1


class Clock:
    """Time stands still, unless a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def made(every: SaveEvery) -> tuple[Trigger, Any, Any, Ending]:
    gang: Any = Leader()
    link: Any = Wishes()
    ending = Ending()
    return Trigger(gang, link, ending, None, every), gang, link, ending


def test_saves_by_count_come_at_their_step_and_need_no_look_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers agree at the first step, then each ten steps, and wherever a save is due by count."""
    Clock(monkeypatch)
    one, gang, _, _ = made(SaveEvery(None, 7))
    saves = [step for step in range(1, 22) if one.due(step) is not None]
    assert saves == [7, 14, 21]
    assert gang.asked == 1 + len(saves)


def test_no_steps_are_no_saves_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As None, which is what other libraries call 0."""
    Clock(monkeypatch)
    one, *_ = made(SaveEvery(None, 0))
    assert not any(one.due(step) for step in range(1, 22))


def test_a_save_waits_until_it_is_ripe(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due by count, or asked for, stays due, and is looked for at each step."""
    Clock(monkeypatch)
    one, _, link, _ = made(SaveEvery(None, 4))
    assert [one.due(step, ripe=partial(operator.le, 6, step)) is not None for step in range(1, 8)] == [False] * 5 + [
        True,
        False,
    ]
    link.wish = (True, 30.0)
    assert one.due(16, ripe=lambda: False) is None
    assert one.due(17) == SaveDecision(True, True, 30.0, False, 10)


def test_saves_by_time_and_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many seconds after the last save, when the training itself wishes, and when a SIGTERM has come."""
    clock = Clock(monkeypatch)
    one, _, _, ending = made(SaveEvery(60.0))
    assert one.due(1) is None
    clock.now += 61
    due = one.due(11)
    assert due is not None and not due.awaited
    one.saved()
    assert one.due(21) is None
    assert one.due(31, wanted=True) is not None
    ending.asked = True
    due = one.due(41)
    assert due is not None and due.ends and due.awaited


def test_who_asked_is_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After the save; and a training that was told to end says whether its step is safe."""
    Clock(monkeypatch)
    one, _, link, _ = made(SaveEvery())
    one.follow(SaveDecision(save=True), 5, safe=True)
    assert link.answered == 0
    one.follow(SaveDecision(save=True, asked=True), 5, safe=True)
    assert link.answered == 1

    died: list[bool] = []
    monkeypatch.setattr(trigger, "die", lambda: died.append(True))
    one.follow(SaveDecision(save=True, ends=True), 6, safe=False)
    assert died and capsys.readouterr().err == ""
    one.follow(SaveDecision(save=True, ends=True), 6, safe=True)
    assert capsys.readouterr().err == "hadar: told to end (SIGTERM); step 6 is saved\n"


def test_a_file_that_is_seen_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again and again; what never shows is an error that names the file and the reason."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    def read() -> str:
        if len(slept) < 3:
            raise CheckpointError("it has no manifest")
        return "content"

    assert visible.when_visible(Path("/x"), read) == "content"
    monkeypatch.setattr(visible, "VISIBLE_WITHIN_S", -1.0)
    slept.clear()
    with pytest.raises(CheckpointError, match="/x, read by rank 0, cannot be read here: it has no manifest"):
        visible.when_visible(Path("/x"), read)

"""The executor's loop and what trials tell it; no process, no Optuna study."""

from __future__ import annotations

import errno
import os
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_hadar.errors import AllocationLost, HadarError
from slurm_hadar.tuning.allocation.pool import Limits
from slurm_hadar.tuning.allocation.widths import Grant
from slurm_hadar.tuning.executor.channel import Message
from slurm_hadar.tuning.executor.executor import Executor, Stopped
from slurm_hadar.tuning.executor.group import Group
from slurm_hadar.tuning.executor.handler import MessageHandler
from slurm_hadar.tuning.executor.launch import Ended
from slurm_hadar.tuning.executor.live import Live, Why
from slurm_hadar.tuning.executor.runs import Runs
from slurm_hadar.tuning.executor.site import Site, Sites
from slurm_hadar.tuning.executor.state import Settings


def test_who_ends_with_the_last_straw_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials are told of together, and the first of them ends the run; else the tuner waits for the other's end
    until its grace is over."""
    heard = []

    def fails(one: Ended) -> None:
        heard.append(one.run[0])
        raise HadarError("the first 10 trials have failed")

    monkeypatch.setattr("slurm_hadar.tuning.executor.executor.TICK_S", 0.01)
    launcher: Any = SimpleNamespace(files=list, ended=lambda: [Ended((0, 0), 1), Ended((1, 0), 1)])
    state: Any = SimpleNamespace(book=None, record=None, lives={number: Live(number) for number in (0, 1)})
    executor = Executor(state, launcher)
    monkeypatch.setattr(executor._ends, "ended", fails)  # noqa: SLF001 - what follows from an end is not asked here
    try:
        with pytest.raises(HadarError, match="have failed"):
            executor._hear()  # noqa: SLF001 - a step of its loop
    finally:
        executor.close()
    assert heard == [0, 1]


def test_what_the_tuner_cannot_open_is_no_fault_of_the_objective() -> None:
    def suggest(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    told: list[str] = []
    live = Live(0)
    live.process = (0, 0)
    channel: Any = SimpleNamespace(
        answer=lambda *_, **__: told.append("answer"), say_gone=lambda _: told.append("gone")
    )
    state: Any = SimpleNamespace(lives={0: live}, book=SimpleNamespace(suggest=suggest), settings=None)
    asked = {"kind": "float", "name": "x", "arguments": {}}
    with pytest.raises(HadarError, match="trial 0 cannot be answered: Too many open files"):
        MessageHandler(state, channel).handle(Message(b"", True, "suggest", 0, 0, 0, asked))
    assert told == ["gone"]


@pytest.mark.parametrize("told", [True, False])
def test_who_is_told_to_stop_stops_though_its_job_ends_with_it(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is cancelled tells tuner and trials alike, and is over for Slurm when the first trial has ended."""

    def survey() -> Sites:
        raise AllocationLost("job 7 is CANCELLED")

    monkeypatch.setattr("slurm_hadar.tuning.executor.executor.TICK_S", 0.01)
    launcher: Any = SimpleNamespace(files=list, ended=lambda: [Ended((0, 0), -15)])
    book, group = SimpleNamespace(lay_down=list), SimpleNamespace(members=[], over=False, late=False, next_legs=list)
    state: Any = SimpleNamespace(
        book=book, record=SimpleNamespace(stop_requested=told), lives={0: Live(0)}, running=list, reached=None,
        new_allocator=list, submit=list,
    )  # fmt: skip
    executor = Executor(state, launcher, survey=survey)
    for part, step in (("_runs", "reconcile"), ("_runs", "enforce"), ("_runs", "clear"), ("_ends", "ended")):
        monkeypatch.setattr(getattr(executor, part), step, lambda *_: None)
    monkeypatch.setattr(executor, "_feed", lambda _: None)
    try:
        with pytest.raises(Stopped if told else AllocationLost):
            executor._play(cast("Group", group))  # noqa: SLF001 - its loop
    finally:
        executor.close()


@pytest.mark.parametrize("state", ["complete", "failed"])
def test_who_has_told_its_result_does_not_hold_its_gpu_for_ever(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the objective has left, or its function for the end: the process has a while, then it is killed,
    which is said once. One that has told nothing has all the time that it needs."""
    clock, killed, told = [1000.0], list[tuple[int, int]](), list[str]()
    monkeypatch.setattr("slurm_hadar.tuning.executor.runs.time.monotonic", lambda: clock[0])
    over, busy = Live(0, process=(0, 0)), Live(1, process=(1, 0))
    settings: Any = SimpleNamespace(time_limit_s=None)
    state_: Any = SimpleNamespace(
        book=None, settings=settings, say=told.append, lives={0: over, 1: busy}, running=lambda: [over, busy]
    )
    channel: Any = SimpleNamespace(token="0" * 64, answer=lambda *_: None)
    launcher: Any = SimpleNamespace(kill=lambda run, _step: killed.append(run))
    runs, handler = Runs(state_, channel, launcher), MessageHandler(state_, channel)

    handler.handle(Message(b"", True, "end", 0, 0, 0, {"state": state, "value": 1.0, "text": "ValueError"}))
    for second in range(60):
        clock[0] = 1000.0 + second
        runs.enforce()
        assert bool(killed) == (second > 30)
    assert set(killed) == {(0, 0)} and len(told) == 1 and told[0].startswith("trial 0: its objective ended 30 s ago")
    assert over.outcome is not None and over.outcome["state"] == state and over.why is None

    busy.why, busy.asked_s = Why.RUNG, clock[0]
    clock[0] += 100.0
    runs.enforce()
    assert set(killed) == {(0, 0)}


def test_the_first_rank_that_fails_says_why() -> None:
    """The others fail of its being gone, which tells nobody what to mend."""
    live = Live(0, process=(0, 0))
    state: Any = SimpleNamespace(lives={0: live}, book=None)
    channel: Any = SimpleNamespace(answer=lambda *_: None)
    handler = MessageHandler(state, channel)
    for rank, state_, text in (
        (1, "complete", ""),
        (3, "failed", "ValueError: lr"),
        (0, "failed", "connection closed"),
    ):
        said = {"state": state_, "text": text}
        handler.handle(Message(b"", True, "end", 0, 0, rank, said))
    assert live.outcome == {"state": "failed", "text": "ValueError: lr"}


def test_a_trial_that_cannot_be_started_is_not_waited_for(tmp_path: Path) -> None:
    """As where there is no room for an srun: the search ends, and not only when a grace is over."""

    def start(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    live, site = Live(0), Site("a", "v100", (0,), node="a")
    allocator: Any = SimpleNamespace(
        running={"0": SimpleNamespace(grant=Grant("a", Fraction(1)))},
        gpus=SimpleNamespace(places=lambda _: (("a", 0),)),
        limits=Limits(1, 1),
    )
    state: Any = SimpleNamespace(
        allocator=allocator,
        sites={"a": site},
        settings=Settings(Path("study.py"), "objective"),
        record=SimpleNamespace(trial_folder=lambda number: tmp_path / str(number)),
    )
    channel: Any = SimpleNamespace(token="0" * 64, address="", server_key="")
    launcher: Any = SimpleNamespace(start=start)
    with pytest.raises(HadarError, match="trial 0 cannot be started: Resource temporarily unavailable"):
        Runs(state, channel, launcher)._launch(live, warm=True)  # noqa: SLF001
    assert live.process is None

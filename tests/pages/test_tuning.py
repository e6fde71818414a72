"""The picture of a tuning run, and what it is drawn from."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_hadar.pages.tuning import best_over_time, gpu_use, stays, tuning_picture


def event(time: float, what: str, **said: Any) -> dict[str, Any]:
    return {"time": time, "event": what, **said}


def start(time: float, trial: int, width: str, *gpus: str, run: int = 0) -> dict[str, Any]:
    return event(time, "start", trial=trial, run=run, width=width, gpus=list(gpus))


#: Two share a GPU; one moves to both; the first tuner dies, a second one goes on.
EVENTS = [
    event(100, "began", gpus=2),
    start(100, 0, "1/2", "g:0"),
    start(102, 1, "1/2", "g:0"),
    event(104, "value", trial=0, step=1, value=3.0),
    event(105, "value", trial=1, step=1, value=4.0),
    event(106, "end", trial=0, run=0, why="resize"),
    start(106, 0, "2", "g:0", "g:1", run=1),
    event(110, "value", trial=0, step=2, value=1.0),
    event(120, "began", gpus=2),
    start(121, 0, "1", "g:1", run=2),
    event(125, "end", trial=0, run=2, why="complete"),
]


def test_stays_end_with_their_tuner() -> None:
    found = [(s.trial, s.gpu, s.begin_s, s.end_s) for s in stays(EVENTS)]
    assert sorted(found) == sorted(
        [(0, "g:0", 0, 6), (0, "g:0", 6, 10), (0, "g:1", 6, 10), (0, "g:1", 21, 25), (1, "g:0", 2, 10)]
    )
    assert gpu_use(stays(EVENTS), 2, 25.0) == pytest.approx((10 + 4 + 4) / 50)


def test_the_best_so_far() -> None:
    assert best_over_time(EVENTS, maximize=False) == [(4, 3.0), (10, 1.0)]
    assert best_over_time(EVENTS, maximize=True) == [(4, 3.0), (5, 4.0)]


HUGE = [event(3, "value", trial=0, step=step, value=value) for step, value in enumerate((1.7e308, 1.0, -1.7e308))]


@pytest.mark.parametrize("events", [EVENTS, EVENTS[:1], [event(1, "began"), start(1, 0, "1", "g:0")], HUGE])
def test_it_is_drawn(events: list[dict[str, Any]]) -> None:
    assert tuning_picture(events, maximize=False).startswith(b"\x89PNG")

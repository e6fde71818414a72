"""Which other jobs have turns on a shared GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ChannelError
from slurm_hadar.runtime import company
from slurm_hadar.runtime.company import Company, GivesWay


class _Broker:
    """Says what it is told to, each time that it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions: list[tuple[str, str, int]] | None = []
        monkeypatch.setattr("slurm_hadar.sharing.broker.queries.status_of", self.status)
        monkeypatch.setattr(company, "LOOK_S", 0.0)

    def status(self, _path: Path) -> dict[str, Any]:
        if self.sessions is None:
            raise ChannelError("no broker answers")
        return {"sessions": [{"session": s, "label": label, "turns": t} for s, label, t in self.sessions]}


def test_who_has_had_turns_since_the_last_look_is_company(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = _Broker(monkeypatch)
    seen = Company("/socket", "7")
    told = []
    for sessions in (
        [("1", "job 7 mine", 1), ("2", "job 8_2 other", 1), ("3", "job 9", 4)],  # the first look compares with nothing
        [("1", "job 7 mine", 2), ("2", "job 8_2 other", 2), ("3", "job 9", 4)],
        [("1", "job 7 mine", 3), ("2", "job 8_2 other", 3), ("3", "job 9", 4)],
        [("1", "job 7 mine", 4), ("2", "job 8_2 other", 4), ("3", "job 9", 5)],
        [("1", "job 7 mine", 5)],
        [("1", "job 7 mine", 6), ("4", "job 5", 0)],
        [("1", "job 7 mine", 7), ("4", "job 5", 1), ("5", "job 6", 1)],  # who has come since has had its turns since
        [("1", "job 7 mine", 8), ("6", "my own label", 1)],
        None,
    ):
        broker.sessions = sessions
        told.append((seen.changed(), seen.now))

    assert told == [(False, None), (True, "8_2"), (False, "8_2"), (True, "8_2+9"), (True, ""), (False, ""),
                    (True, "5+6"), (True, None), (False, None)]  # fmt: skip


def test_a_gpu_of_its_own_has_no_company() -> None:
    seen = Company(None, "7")

    assert seen.changed() is False and seen.now is None


def test_between_two_looks_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it the same company as before."""
    broker, seen = _Broker(monkeypatch), Company("/socket", "7")
    broker.sessions = [("1", "job 7 mine", 1)]
    seen.changed()
    monkeypatch.setattr(company, "LOOK_S", 3600.0)

    assert seen.changed() is None


def _needs(monkeypatch: pytest.MonkeyPatch, *looks: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known of job 7 after the broker has told these sessions, one look after the other."""
    monkeypatch.setattr(company, "LOOK_S", 0.0)
    told = iter(looks)
    monkeypatch.setattr("slurm_hadar.sharing.broker.queries.status_of", lambda _: {"sessions": next(told)})
    seen = Company("/socket", "7")
    for _ in looks:
        seen.changed()
    return seen.needs


_MINE = {"label": "job 7 mine", "session": "1", "persistent_bytes": 10, "ephemeral_bytes": 20}
_BEGAN = {**_MINE, "turns": 5, "used_s": 1.0, "duty": 0.5}


def test_what_the_broker_knows_of_the_job_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured goes before declared; of first turns, and of several sessions of one job, nothing is said."""
    other = {**_MINE, "session": "2", "label": "job 8", "turns": 90, "used_s": 9.0}
    measured = {"persistent_bytes": 11, "ephemeral_bytes": 33}
    told = [
        _needs(monkeypatch, [_BEGAN, other], [*mine, other])
        for mine in (
            [{**_MINE, "turns": 5, "used_s": 1.5, "duty": 0.5}],
            [{**_MINE, "turns": 13, "used_s": 5.0}],
            [{**_MINE, "turns": 21, "used_s": 5.0, "measured": measured, "duty": 0.5}],
            [{**_MINE, "turns": 40, "used_s": 1.0}, {**_MINE, "session": "3", "turns": 40, "used_s": 2.0}],
        )
    ]

    assert told == [
        {},
        {"persistent_bytes": 10, "ephemeral_bytes": 20, "iter_s": 0.5},
        {"persistent_bytes": 11, "ephemeral_bytes": 33, "iter_s": 0.25, "duty": 0.5},
        {},
    ]


def test_first_turns_count_neither_for_the_length_of_a_turn_nor_for_the_duty(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may take minutes, to compile say, and one that needs the GPU little would look as if it needed it always."""
    slow = {**_MINE, "turns": 6, "used_s": 300.0, "duty": 0.999}
    later = {**_MINE, "turns": 106, "used_s": 301.0, "duty": 301.0 / (301.0 + 300.0 / 0.999 - 300.0 + 9.0)}

    needs = _needs(monkeypatch, [slow], [later])

    assert needs["iter_s"] == pytest.approx(0.01) and needs["duty"] == pytest.approx(0.1)


def test_after_another_broker_a_job_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which counts its sessions and their turns from the start."""
    anew = {**_MINE, "turns": 5, "used_s": 0.5}
    later = {**_MINE, "turns": 15, "used_s": 1.5, "duty": 0.25}

    assert _needs(monkeypatch, [{**_BEGAN, "turns": 9}], [anew], [later])["iter_s"] == pytest.approx(0.1)


def test_giving_way_is_said_again_and_again_and_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may be another by then; and whoever ordered it may be gone."""
    told: list[tuple[str, float]] = []
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "slurm_hadar.sharing.broker.queries.give_way", lambda _path, job, share, _for_s: told.append((job, share))
    )
    way = GivesWay("/socket", "7")
    way.keep_up()
    assert told == []
    way.obey(0.25, 5.0)
    for _ in range(9):
        clock[0] += 1.0
        way.keep_up()
    assert told == [("7", 0.25)] * 3 + [("7", 0.5)]
    way.obey(0.0, 60.0)
    way.obey(0.5, 0.0)
    clock[0] += 10.0
    way.keep_up()
    assert told[4:] == [("7", 0.0), ("7", 0.5)]

"""The page of what a controller did, from its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.controller.journal import Decision, Gain, JobRecord, Journal, RoundRecord, SightChanges
from slurm_hadar.controller.usage import Usage
from slurm_hadar.model import Placement
from slurm_hadar.simulator.journal_page import _intervals, journal_page
from slurm_hadar.throughput.store import EstimateError
from tests.simulator.test_compare import read_page

NOW = 1_700_000_000.0
FOUR, TWO = Placement.of({"v100-1": {"v100": 4}}), Placement.of({"k80-1": {"k80": 2}})
HALF_LIFE_S = 3600.0


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Three rounds an hour apart; job 1 is started, moved and ends, job 2 is stopped; one round was only advice."""
    journal = Journal(tmp_path / "j.db")
    for hour, mode, decisions in [
        (1, "act", [Decision("1", "start", new=FOUR), Decision("3", "wait", why="told")]),
        (2, "act", [Decision("1", "move", FOUR, TWO, "<faster> there"), Decision("2", "preempt", FOUR, why="for 3")]),
        (3, "advise", [Decision("2", "start", new=FOUR, why="only advice")]),
        (4, "act", [Decision("1", "end", why="completed")]),
    ]:
        record = RoundRecord(NOW - (5 - hour) * 3600, mode, "hadar", 4, 3, 2, 1, moves=hour == 2, read_s=0.5)
        journal.add_decisions(journal.add_round(record), record.time, decisions)
    journal.save_jobs([
        JobRecord("1", arrival=NOW - 5 * 3600, workers=4, ended=NOW - 3600, steps=10, total_steps=20, moves=1),
        JobRecord("2", arrival=NOW - 6 * 3600), JobRecord("0", arrival=0.0, ended=NOW - 90_000),
    ])  # fmt: skip
    usage = Usage(journal, HALF_LIFE_S)
    usage.book("ann<", "lab", {"v100": 7200.0}, NOW - HALF_LIFE_S)
    usage.save()
    return journal


def test_the_page_tells_what_was_done(journal: Journal) -> None:
    """Rounds, moves and their reasons, jobs, usage as it counts now, errors of estimates; no advice as if done."""
    errors = [EstimateError("resnet18:64", "v100", 2, False, "by the data sheets", 15.0, 10.0, NOW)]
    words = read_page(journal_page(journal, errors, HALF_LIFE_S, NOW - 86400, NOW, "hadar report --journal"))

    for said in ("4 rounds in mode act with policy hadar, advise with policy hadar; 0 starts, 1 moves",
                 "1 jobs ended; from submission to end they took 4.00 h on average", "<faster> there",
                 "v100-1 4 x v100", "10 of 20", "ann<", "+50 %", "by the data sheets"):  # fmt: skip
        assert said in words
    assert "only advice" not in words and "stopped" in words
    row = words[words.index("ann<") :].split("\n")[0]
    assert "1.0" in row


def test_what_was_gained_and_what_would_have_been(journal: Journal) -> None:
    """Of rounds that acted, and of those that only looked; nothing older than the page."""
    for hours, mode, gain in [
        (30, "act", (3600.0, 36_000.0)), (3, "act", (7200.0, 10_800.0)), (2, "observe", (0.0, 0.0)),
    ]:  # fmt: skip
        moment = NOW - hours * 3600
        journal.add_sight(moment, SightChanges(gain=Gain(moment, mode, *gain, gain[0] / 2, 0.0, 4.0, 5.0)))

    words = read_page(journal_page(journal, [], HALF_LIFE_S, NOW - 86400, NOW, "hadar report --journal"))

    assert "+50.0 % work per GPU-hour (60 GPU-minutes saved); for 50 %" in words
    assert "had the decisions been carried out, the GPUs would have done +25.0 % work" in words
    assert "hadar replay --out" in words


def test_the_accounting_on_the_same_page(journal: Journal) -> None:
    """The comparison of hadar replay: findings, figures and what was assumed."""
    replayed = {
        "policies": [{"label": "what happened", "jobs": 3, "avg_jct_s": 7200.0},
                     {"label": "hadar", "jobs": 3, "avg_jct_s": 3600.0}],
        "trace": "sacct", "cluster": "v100:1x4", "assumptions": ["speeds follow the data sheets"],
    }  # fmt: skip

    words = read_page(journal_page(journal, [], HALF_LIFE_S, NOW - 86400, NOW, "x", replayed))

    assert "Shortest average job completion time: hadar, 1.00 h; what happened takes 2.00 times as long." in words
    assert "speeds follow the data sheets" in words and "hadar replay --out" not in words


def test_what_jobs_held(journal: Journal) -> None:
    """From decision to decision, on the clock of the page; what held GPUs before the first decision counts from 0."""
    decisions = [d for d in journal.decisions_since(NOW - 4.5 * 3600) if d["mode"] == "act"]
    held = _intervals(decisions, NOW - 4.5 * 3600, NOW)

    assert sorted((job, node, n, round(a / 360), round(b / 360)) for job, node, _, n, a, b in held) == [
        ("1", "k80-1", 2, 15, 35), ("1", "v100-1", 4, 5, 15), ("2", "v100-1", 4, 0, 15),
    ]  # fmt: skip


def test_an_empty_journal_gives_a_page(tmp_path: Path) -> None:
    """Nothing was done: said in words, not in empty pictures."""
    words = read_page(journal_page(Journal(tmp_path / "j.db"), [], 1.0, NOW - 10, NOW, "x"))

    assert "The rounds say nothing about it yet" in words
    assert "No round in this time" in words and "No job was seen" in words

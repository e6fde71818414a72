"""Faults on purpose, in short; ``make chaos`` goes on for as long as one likes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.campaigns.sent import changes_of, unexplained
from benchmarks.chaos.chain import link_of, result_of
from benchmarks.chaos.episode import Plan, play
from benchmarks.chaos.jobs import PlainJob
from benchmarks.chaos.schedule import KINDS, draw
from benchmarks.chaos.watch import End, check_result
from slurm_hadar.controller.journal import Journal, Purpose, WriteOutcome, WriteRecord

SHORT = (
    "kill-controller", "kill-agent", "kill-training", "kill-slurmd", "drain-node", "fill-state-disk", "jump-clock",
    "cut-journal-stopped", "cut-channel", "bad-messages", "second-controller",
)  # fmt: skip


@pytest.mark.slurm
@pytest.mark.timeout(420)
def test_a_short_episode(tmp_path: Path) -> None:
    """Eight faults within twenty seconds: all jobs end with the weights of an undisturbed run, and all else holds."""
    plan = Plan(2, "shuffle", draw(2, 20.0, 8, SHORT), 20.0, 5, 0, 0, nap_s=0.03)

    episode = play(plan, print, tmp_path)

    assert episode.problems == []
    assert episode.completed == episode.jobs == 5
    # of the messages those that come first may find the controller not there yet, the others find it killed
    assert sum(episode.injected.values()) >= 4 + episode.fake_clock


def test_the_schedule_is_a_function_of_the_seed() -> None:
    """The same faults at the same times; another seed, others."""
    assert draw(7, 90.0, 14) == draw(7, 90.0, 14) != draw(8, 90.0, 14)


@pytest.mark.parametrize("seed", range(40))
def test_no_part_is_broken_twice_at_once(seed: int) -> None:
    """Faults of one part are apart; their times are within bounds."""
    faults = draw(seed, 90.0, 14)
    for one, other in ((a, b) for a in faults for b in faults if a is not b):
        parts = {KINDS[f.kind].part for f in (one, other)}
        if len(parts) == 1 and parts - {"", "node"}:
            assert one.at_s + one.for_s < other.at_s or other.at_s + other.for_s < one.at_s
    assert len(faults) == 14 and [f.at_s for f in faults] == sorted(f.at_s for f in faults)


def test_the_chain_tells_every_step() -> None:
    """A step that is left out, made twice, or out of order changes it."""
    right = result_of(4)

    def chain(steps: list[int]) -> str:
        text = ""
        for step in steps:
            text = link_of(text, step)
        return text

    assert chain([0, 1, 2, 3]) == right
    assert right not in {chain(wrong) for wrong in ([0, 1, 2], [0, 1, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 3, 3])}


@pytest.mark.parametrize(
    ("ends", "spans", "words", "again"),
    [
        ([("w", 10.0)], [], "", 0),
        ([("x", 10.0)], [], "other weights", 0),
        ([("w", 10.0), ("w", 50.0)], [], "twice", 0),
        ([("w", 10.0), ("w", 50.0)], [("kill-slurmctld", 5.0, 8.0)], "", 1),
        ([("w", 10.0), ("w", 50.0)], [("kill-controller", 5.0, 60.0)], "twice", 0),
        ([], [], "no result", 0),
    ],
)
def test_what_is_found_wrong_with_a_job(
    tmp_path: Path, ends: list[tuple[str, float]], spans: list[tuple[str, float, float]], words: str, again: int
) -> None:
    """Other weights, a second end that nothing explains, or none at all."""
    result = tmp_path / "r"
    if ends:
        lines = [json.dumps({"steps": 5, "weights": w, "time": t, "run": "0", "node": "n"}) for w, t in ends]
        result.write_text("\n".join(lines) + "\n")
    found = End()

    check_result(PlainJob("chain0", "7", 5, "w", result, tmp_path / "o", "chain"), SimpleNamespace(spans=spans), found)

    assert [words in p for p in found.problems] == ([True] if words else []) and found.again == again


def test_what_was_sent_is_read_as_the_journal_writes_it(tmp_path: Path) -> None:
    """Lists of jobs become one change per job; signals are none."""
    batch = tmp_path / "scontrol.ab12.sent"
    batch.write_text(
        'update JobId=5,6_1 StartTime=now+20\nupdate JobId=7 Comment="a b" NodeList=\n'
        "requeue incomplete 8,9\nrequeue 10\n"
    )
    signal = tmp_path / "scancel.cd34.sent"
    signal.write_text("--signal=USR2 7.0\n")

    assert changes_of(batch) == [
        ("5", "update 5 StartTime=now+20"),
        ("6_1", "update 6_1 StartTime=now+20"),
        ("7", "update 7 Comment=a b NodeList="),
        ("8", "requeue 8"),
        ("9", "requeue 9"),
        ("10", "restart 10"),
    ]
    assert changes_of(signal) == []


def test_the_last_lease_tells_of_those_before_it(tmp_path: Path) -> None:
    """The journal keeps no more of them; of anything else, and of jobs without any, each has to be there."""
    sent = tmp_path / "scontrol.ab12.sent"
    with_tasks = "NumTasks=2 StartTime=now+20"
    sent.write_text(
        "update JobId=5,6 StartTime=now+20\n" * 2 + f"update JobId=7 {with_tasks}\n" * 2 + "requeue incomplete 5\n" * 2
    )
    journal = Journal(tmp_path / "journal.db")
    leases = [
        WriteRecord(job, f"update {job} {fields}", WriteOutcome.OK, purpose=Purpose.LEASE)
        for job, fields in (("5", "StartTime=now+20"), ("7", with_tasks))
    ]
    for number in (1, 2):
        journal.settle_writes(number, 1.0, leases)
    journal.add_writes(2, 1.0, [WriteRecord("5", "requeue 5", WriteOutcome.OK)])
    journal.close()

    total, problems = unexplained(tmp_path, tmp_path)

    assert total == 8 and problems == [
        "the journal does not tell of: update 6 StartTime=now+20 (job 6, 2 times)",
        "the journal does not tell of: requeue 5 (job 5, 1 times)",
    ]

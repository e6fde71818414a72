"""``hadar history``: a job's journal in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.jobs.history import history
from slurm_hadar.controller.journal import (
    Decision,
    Event,
    EventKind,
    JobRecord,
    Journal,
    RoundRecord,
    WriteOutcome,
    WriteRecord,
)
from slurm_hadar.controller.words import clock, in_words
from slurm_hadar.model import Placement

V100, K80 = Placement.of({"v100-1": {"v100": 2}}), Placement.of({"k80-1": {"k80": 2}})
NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("update 7 StartTime=now+720", f"not to start it before {clock(NOW + 720)}, unless told otherwise (lease)"),
        ("update 7 TresPerJob= TresPerNode=gres:gpu:2 NumNodes=1-1 NodeList=v100-1 StartTime=now",
         "start it on v100-1, 2 GPUs on each"),
        ("update 7 TresPerNode=gres:gpu:1 NodeList=v100-1 StartTime=now", "start it on v100-1, 1 GPU on each"),
        ("update 7 TresPerNode=gres:shard:1 NodeList=k80-1 StartTime=now", "start it on k80-1, with 1 shard of a GPU"),
        ("update 7 NodeList=a,b StartTime=now+2", "start it on a,b in 2 s"),
        ("update 7 NodeList= StartTime=now", "start it anywhere, as it was submitted"),
        ("update 7 TresPerNode=gres:gpu:2 NodeList= StartTime=now+60",
         f"not to start it before {clock(NOW + 60)}, unless told otherwise (lease)"),
        ("update 7 TresPerNode=gres:gpu:2,gres:nic:1 NodeList=v100-1 StartTime=now",
         "start it on v100-1, 2 GPUs on each"),
        ("update 7 NumTasks=4 NodeList=", "give it back every node, in the shape it was submitted in"),
        ("update 7 StartTime=now", "start it now"),
        ("requeue 7", "stop it and put it back into the queue"),
        ("release 7", "release it"),
        ("cancel", "cancel"),
        ("place v100-1", "place v100-1"),
    ],
)  # fmt: skip
def test_what_slurm_was_told(command: str, words: str) -> None:
    """Every write that the controller makes has words; anything else is shown as it is."""
    entry = {"time": NOW, "round": 1, "command": command, "outcome": "ok", "detail": ""}

    assert in_words(entry) == ("  Slurm was told", words)


@pytest.mark.parametrize("kind", get_args(EventKind))
def test_what_happened_has_words(kind: str) -> None:
    words, why = in_words({"time": NOW, "round": 1, "event": kind, "why": "so"})

    assert words not in ("", kind) and why == "so"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a controller that has waited, started, moved and ended job 7."""
    journal = Journal(tmp_path / "journal.db")
    advise = journal.add_round(RoundRecord(NOW, "advise", "hadar"))
    journal.add_decisions(advise, NOW, [Decision("7", "start", new=V100, why="cheapest")])
    act = journal.add_round(RoundRecord(NOW + 60, "act", "hadar"))
    journal.add_decisions(act, NOW + 60, [Decision("7", "move", K80, V100, "3 times as fast")])
    journal.add_writes(act, NOW + 61, [WriteRecord("7", "requeue 7", WriteOutcome.INEFFECTIVE, "still running")])
    journal.add_events(act, NOW + 90, [Event("7", "restart", "run 2 from its checkpoint at step 400")])
    journal.add_decisions(act, NOW + 99, [Decision("7", "end", why="completed \x1b[31m")])
    journal.save_jobs(
        [JobRecord("7", arrival=NOW, moves=1, restarts=1, user="eve", name="net", ended=NOW, final="DONE")]
    )
    journal.close()
    return tmp_path


def run(state: Path, *arguments: str) -> str:
    done = CliRunner().invoke(history, [*arguments, "--set", f"controller.state_dir={state}"])
    assert done.exit_code == 0, done
    return done.stdout


def test_a_job_from_beginning_to_end(state: Path) -> None:
    """A summary, then a line for each; what was only advised is not told as done."""
    summary, _titles, *lines = run(state, "7").splitlines()

    assert summary.startswith("job 7 of eve (net), submitted ") and "1 move, 1 restart, " in summary
    assert ["  ".join(line.split("  ")[1:]).split() for line in lines] and len(lines) == 5
    shown = [" ".join(line.split()) for line in lines]
    assert shown[0].endswith("1 would start v100-1 2xv100; cheapest")
    assert shown[1].endswith("2 moves from k80-1 2xk80 to v100-1 2xv100; 3 times as fast")
    assert shown[2].endswith("2 without effect stop it and put it back into the queue (still running)")
    assert shown[3].endswith("2 is put back run 2 from its checkpoint at step 400")
    assert shown[4].endswith("2 has ended completed ?[31m")


def test_word_for_word(state: Path) -> None:
    """--commands shows the command; JSON has command, words and mode."""
    assert "requeue 7  (still running)" in run(state, "7", "--commands")
    entries = json.loads(run(state, "7", "--json"))
    assert [e.get("kind") or e.get("event") or e["outcome"] for e in entries] == [
        "start",
        "move",
        "ineffective",
        "restart",
        "end",
    ]
    assert entries[0]["mode"] == "advise" and entries[0]["words"] == "would start: v100-1 2xv100; cheapest"
    assert entries[2]["command"] == "requeue 7"


def test_of_an_array_all_tasks(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    act = journal.add_round(RoundRecord(NOW, "act", "hadar"))
    journal.add_events(act, NOW + 2, [Event("39_0", "restart", "again")])
    journal.add_events(act, NOW + 1, [Event("39_10", "restart", "too")])
    journal.add_events(act, NOW, [Event("391_0", "restart", "another")])
    journal.save_jobs([JobRecord(j, arrival=NOW, ended=NOW) for j in ("39_0", "39_10", "391_0")])
    journal.close()
    options = ["39", "--set", f"controller.state_dir={tmp_path}"]
    shown = CliRunner().invoke(history, options)
    entries = json.loads(CliRunner().invoke(history, [*options, "--json"]).stdout)

    assert [entry["job_id"] for entry in entries] == ["39_10", "39_0"]
    assert "JOB" in shown.stdout and "39_10" in shown.stdout and "391_0" not in shown.stdout

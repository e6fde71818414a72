"""The page of what a controller did, from its journal."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from slurm_hadar.controller.journal import DashboardChanges, Decision, Gain, JobRecord, Journal, RoundRecord, Run
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.model import Placement
from slurm_hadar.pages.journal_runs import Window, held_in
from slurm_hadar.pages.report import journal_page
from slurm_hadar.throughput.measurements import EstimateError
from tests.pages.test_comparison import read_page

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
    journal.save_jobs(
        [
            JobRecord("1", arrival=NOW - 5 * 3600, workers=4, ended=NOW - 3600, steps=10, total_steps=20, moves=1),
            JobRecord("2", arrival=NOW - 6 * 3600),
            JobRecord("0", arrival=0.0, ended=NOW - 90_000),
        ]
    )
    usage = UsageBook(journal, HALF_LIFE_S)
    usage.book("ann<", "lab", {"v100": 7201.0e6}, 1e-6, NOW - HALF_LIFE_S)
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
    assert "1.00 h" in row


def test_rounds_that_saw_nothing_are_no_empty_queue(short: Journal, drawn: list[Figure]) -> None:
    """Slurm does not answer in every other round: figures and findings are of those in which it did."""
    for minute in range(40):
        record = RoundRecord(BEGAN + (minute + 0.5) * MINUTE, "observe", "hadar", note="skipped: away", skipped=True)
        short.add_round(record)
    words = read_page(journal_page(short, [], HALF_LIFE_S, BEGAN - 1, NOW, "x"))
    counts = drawn[0].axes[0].lines[0].get_ydata()

    assert "40 of the rounds were skipped, and saw nothing." in words
    assert [int(n) for n in counts[:41]] == [sum(j[4] <= m < j[5] for j in TRUTH) for m in range(41)]


def test_what_was_gained_and_what_would_have_been(journal: Journal) -> None:
    """Of rounds that acted, and of those that only looked; nothing older than the page."""
    for hours, mode, gain in [
        (30, "act", (3600.0, 36_000.0)),
        (3, "act", (7200.0, 10_800.0)),
        (2, "observe", (0.0, 0.0)),
    ]:
        moment = NOW - hours * 3600
        journal.update_dashboard(moment, DashboardChanges(gain=Gain(moment, mode, *gain, gain[0] / 2, 0.0, 4.0, 5.0)))

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


MINUTE = 60.0
BEGAN = NOW - 40 * MINUTE
#: Who held what in truth, in minutes from the first of 41 rounds: (job, node, GPU type, GPUs, start, end)
TRUTH = (
    ("10", "k80-1", "k80", 2, -9.0, 4.4),
    ("11", "k80-1", "k80", 1, 4.5, 12.25),
    ("12", "k80-1", "k80", 1, 4.75, 40.0),
    ("13", "v100-1", "v100", 4, 1.5, 20.0),
    ("14", "v100-1", "v100", 2, 20.1, 22.9),
    ("15", "v100-1", "v100", 4, 23.0, 40.0),
)


@pytest.fixture
def short(tmp_path: Path) -> Journal:
    """A controller that has watched for 40 minutes: Slurm starts and ends jobs between its looks. It knows when they
    began, and that they are gone once it has looked again. One node has never had a job."""
    journal = Journal(tmp_path / "short.db")
    for minute in range(41):
        here = [j for j in TRUTH if j[4] <= minute < j[5]]
        journal.add_round(RoundRecord(BEGAN + minute * MINUTE, "observe", "hadar", 3, len(here), 0, len(here)))
    sight = DashboardChanges()
    for node, gpu_type, count in (("k80-1", "k80", 2), ("v100-1", "v100", 4), ("k80-2", "k80", 2)):
        sight.nodes[node] = json.dumps(
            {"gpus": {gpu_type: count}, "taken": {}, "available": True, "state": "idle", "reason": "", "partitions": []}
        )
    for job, node, gpu_type, count, start, end in TRUTH:
        gone = None if end >= 40 else BEGAN + math.ceil(end) * MINUTE
        sight.runs.append(Run(job, BEGAN + start * MINUTE, gone, Placement.of({node: {gpu_type: count}}), False))
    journal.update_dashboard(NOW, sight)
    journal.save_jobs(JobRecord(job, arrival=BEGAN + (start - 1) * MINUTE, workers=count, ended=None if end >= 40 else
                                BEGAN + math.ceil(end) * MINUTE) for job, _, _, count, start, end in TRUTH)  # fmt: skip
    return journal


def over(end: float) -> float:
    """In the middle between the two looks between which it ended."""
    return end if end >= 40 else math.ceil(end) - 0.5


def expected(gpu_type: str, gpus: int) -> float:
    """The mean share held, by looking at every tenth of a second of the 40 minutes: a job is gone half a round before
    it is seen to be, or when others have its GPUs."""
    total = 0
    for tenth in range(24_000):
        minute = tenth / 600
        newest_first = sorted((j for j in TRUTH if j[2] == gpu_type and j[4] <= minute), key=lambda j: -j[4])
        free = 2 if gpu_type == "k80" else 4
        for _, _, _, count, _, end in newest_first:
            if minute < over(end) and count <= free:
                free -= count
                total += count
    return total / 24_000 / gpus


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is made into a picture, as matplotlib has it."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        save(figure, *args, **kwargs)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.mark.thorough
def test_seven_days_of_a_journal_of_forty_minutes(short: Journal, drawn: list[Figure]) -> None:
    """The page tells of the 40 minutes, and says so: in its words, in its tables and on the axes of all pictures."""
    words = read_page(journal_page(short, [], HALF_LIFE_S, NOW - 7 * 86400, NOW, "hadar report --journal"))

    assert "(40.0 min), the time between the first and the last round in the 7.00 d that were asked for" in words
    k80, v100 = expected("k80", 4), expected("v100", 4)
    assert f"k804{100 * k80:.1f} %" in words.replace("\n", "") and f"v1004{100 * v100:.1f} %" in words.replace("\n", "")
    took = [math.ceil(end) - (start - 1) for *_, start, end in TRUTH if end < 40]
    assert f"{len(took)} jobs ended; from submission to end they took {sum(took) / len(took):.1f} min" in words
    assert not re.search(r"\d h\b", words)
    for figure in drawn:
        for axis in figure.axes:
            assert axis.xaxis.get_offset_text().get_text() == axis.yaxis.get_offset_text().get_text() == ""
            if "since" in axis.get_xlabel():
                assert axis.get_xlim() == (0.0, 40.0) and axis.get_xlabel().startswith("minutes since ")


def test_what_the_pictures_of_a_journal_show(short: Journal, drawn: list[Figure]) -> None:
    """Curves and bars have the numbers that the truth gives, and no more GPUs than there are."""
    journal_page(short, [], HALF_LIFE_S, NOW - 7 * 86400, NOW, "x")

    queue, use, who = (
        next(f for f in drawn if title in [a.get_title(loc="left") for a in f.axes])
        for title in ("jobs in the queue", "GPUs held", "all jobs")
    )
    times: Any
    counts: Any
    times, counts = queue.axes[0].lines[0].get_data()
    for minute, count in list(zip(times, counts, strict=True))[:41]:
        assert count == sum(1 for j in TRUTH if j[4] <= round(minute) < j[5])
    curve: Any = use.axes[0].lines[0].get_ydata()
    assert sum(curve) / len(curve) == pytest.approx((expected("k80", 4) + expected("v100", 4)) / 2, abs=1e-3)
    assert max(curve) <= 1.0
    assert [tick.get_text() for tick in use.axes[1].get_xticklabels()] == ["k80 x 4", "v100 x 4"]
    bars: Any = use.axes[1].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([expected("k80", 4), expected("v100", 4)], abs=1e-3)
    (bars,) = (c for c in who.axes[0].collections if isinstance(c, PolyCollection))
    spans = sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in bars.get_paths())
    wanted = [(0, 4.5)] * 2 + [(4.5, 12.5), (4.75, 40)] + [(1.5, 19.5)] * 4 + [(20.1, 22.5)] * 2 + [(23, 40)] * 4
    assert [x for span in spans for x in span] == pytest.approx([x for span in sorted(wanted) for x in span], abs=1e-6)
    lanes = [path.vertices[:, 1] for path in bars.get_paths()]
    assert min(y.min() for y in lanes) >= 0 and max(y.max() for y in lanes) <= 8


@given(
    runs=st.lists(st.tuples(st.integers(-50, 90), st.integers(1, 60), st.integers(1, 4)), max_size=20),
    gpus=st.integers(4, 8),
)
def test_no_node_holds_more_than_it_has(runs: list[tuple[int, int, int]], gpus: int) -> None:
    """Whatever the journal says of ends, begins are kept and no GPU has two jobs at once."""
    journal, sight = Journal(":memory:"), DashboardChanges()
    sight.nodes["n"] = json.dumps({"gpus": {"v100": gpus}, "taken": {}, "available": True, "state": "", "reason": ""})
    for number, (began, length, count) in enumerate(runs):
        sight.runs.append(
            Run(str(number), NOW + began, NOW + began + length, Placement.of({"n": {"v100": count}}), True)
        )
    journal.update_dashboard(NOW, sight)

    held = held_in(journal, Window([NOW, NOW + 100.0])).intervals

    for moment in range(100):
        assert sum(i.count for i in held if i.start_s <= moment + 0.5 < i.end_s) <= gpus
    for i in held:
        began, length, count = runs[int(i.job_id)]
        assert i.start_s == max(0, began) and i.end_s <= min(100, began + length) and i.count == count
    journal.close()


def test_an_empty_journal_gives_a_page(tmp_path: Path) -> None:
    """Nothing was done: said in words, not in empty pictures."""
    words = read_page(journal_page(Journal(tmp_path / "j.db"), [], 1.0, NOW - 10, NOW, "x"))

    assert "The rounds say nothing about it yet" in words
    assert "No round in this time" in words and "No job was seen" in words

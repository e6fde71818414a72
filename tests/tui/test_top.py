"""``hadar top``, driven by keys in a terminal that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Input, Static

from slurm_hadar.config import load
from slurm_hadar.controller.answers.lines import Line
from slurm_hadar.controller.answers.trends import trend_of
from slurm_hadar.controller.answers.view import job_view, picture_of, queue_view
from slurm_hadar.controller.journal import DashboardChanges, Journal, ReadOnlyJournal, RoundRecord, Run
from slurm_hadar.model import Placement
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.testing.journals import write_journal
from slurm_hadar.tui import panes
from slurm_hadar.tui.app import MOST_ROWS, Top, Words
from slurm_hadar.tui.details import in_lines
from slurm_hadar.tui.rows import by_user, cells, chosen, first_task
from slurm_hadar.tui.signs import PLAIN, RICH, signs_for


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a controller with 800 jobs on 8 nodes."""
    folder = tmp_path_factory.mktemp("state")
    write_journal(folder / "journal.db", time.time(), jobs=800, nodes=8, name="\x1b[31m[red]name").close()
    return folder


class Seat:
    """Someone at the terminal: what Slurm is, what the journal has, and how often they looked."""

    def __init__(self, state: Path) -> None:
        self.slurm = FakeSlurm({"v100-1": ("v100", 4), "k80-1": ("k80", 2)})
        self.state = state
        self.looks = 0

    def look(self) -> Any:
        self.looks += 1
        return picture_of(self.slurm, load(None, [f"controller.state_dir={self.state}"]), time.time())

    def details(self, job_id: str) -> list[str]:
        with ReadOnlyJournal(self.state / "journal.db") as journal:
            found = job_view(journal, job_id)
        return in_lines(found, time.time()) if found else [f"job {job_id} is not known"]

    def sit(self, what: Callable[..., Any], size: tuple[int, int] = (80, 24)) -> None:
        """Run ``what(app, pilot)`` in a terminal of that size, once the first look is on the screen."""

        async def run() -> None:
            app = Top(self.look, self.details, 3600)
            async with app.run_test(size=size) as pilot:
                await self.looked(app, pilot)
                await what(app, pilot)

        asyncio.run(run())

    @staticmethod
    async def looked(app: Top, pilot: Any) -> None:
        await app.workers.wait_for_complete()
        await pilot.pause()


@pytest.fixture
def seat(state: Path) -> Seat:
    """At a cluster whose Slurm answers, with three jobs in it, of which the journal says that 3 came before 2."""
    seat = Seat(state)
    for gpus, user in ((2, "ann"), (2, "bob"), (4, "eve")):
        seat.slurm.submit(gpus=gpus, user=user, name="\x1b[31mnet", comment="hadar:model=resnet18,batch=64")
    with ReadOnlyJournal(state / "journal.db") as journal:
        records = journal.load_jobs()
    seat.slurm.jobs |= {n: replace(job, submit=records[n].submit) for n, job in seat.slurm.jobs.items()}
    seat.slurm.start("1", "v100-1")
    return seat


def text_of(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def screen(app: Top) -> str:
    """Every line as it is on the terminal."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())  # noqa: SLF001 what is on the screen


def ids(app: Top) -> list[str]:
    return [str(row.key.value) for row in app.query_one(DataTable).ordered_rows]


def test_slurm_as_it_is_now(seat: Seat) -> None:
    """Running jobs first with their place, GPUs in use by type, and the controller's last round; nothing is cut off in
    80 columns, and no name can write to the terminal."""

    async def what(app: Top, _pilot: Any) -> None:
        assert ids(app) == ["1", "3", "2"]
        assert "3 jobs, 2 wait" in text_of(app, "beat") and "act hadar" in text_of(app, "beat")
        assert "v100 " in text_of(app, "types") and "2 of 4 used" in text_of(app, "types")
        shown = screen(app)
        assert "v100-1 2xv100" in shown and "\x1b" not in shown and text_of(app, "fault") == ""
        assert app.query_one(DataTable).virtual_size.width <= 80
        assert "quit" in shown.splitlines()[-1]

    seat.sit(what)


def damage(journal: Path) -> None:
    """Spoil tables so that it shows where they are read, not where the file is opened."""
    with contextlib.closing(sqlite3.connect(journal)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        pages = [page for (page,) in db.execute("SELECT rootpage FROM sqlite_schema WHERE name IN ('rounds', 'jobs')")]
    content = bytearray(journal.read_bytes())
    for page in pages:
        content[(page - 1) * size : page * size] = b"\xff" * size
    journal.write_bytes(content)


def test_a_journal_that_is_damaged_within(seat: Seat, tmp_path: Path) -> None:
    """Slurm's word is shown with what is wrong, as in ``hadar queue`` and ``hadar status``."""
    write_journal(tmp_path / "journal.db", time.time(), jobs=20, nodes=2).close()
    damage(tmp_path / "journal.db")
    seat.state = tmp_path
    config = load(None, [f"controller.state_dir={tmp_path}"])

    async def what(app: Top, _pilot: Any) -> None:
        assert "cannot read the journal" in text_of(app, "fault")
        assert sorted(ids(app)) == ["1", "2", "3"]

    seat.sit(what)
    lines, note = queue_view(seat.slurm, config)
    assert len(lines) == 3 and "only what Slurm says: cannot read the journal" in note


def test_slurm_away(seat: Seat) -> None:
    """The journal's last round is shown, and that it is; when Slurm is back it is asked again."""

    async def what(app: Top, pilot: Any) -> None:
        assert "Slurm is away" in text_of(app, "fault") and "connection refused" in text_of(app, "fault")
        assert "800 jobs" in text_of(app, "beat")
        assert app.query_one(DataTable).row_count == MOST_ROWS
        assert "\x1b" not in screen(app)
        seat.slurm.away = False
        await pilot.press("r")
        await seat.looked(app, pilot)
        assert text_of(app, "fault") == "" and ids(app) == ["1", "3", "2"]

    seat.slurm.away = True
    seat.sit(what)


def test_neither_slurm_nor_a_journal(seat: Seat, tmp_path: Path) -> None:
    """Two reasons, no traceback."""

    async def what(app: Top, pilot: Any) -> None:
        assert "Slurm is away" in text_of(app, "fault") and "no journal at" in text_of(app, "fault")
        assert ids(app) == []
        await pilot.press("s", "r", "enter")
        await seat.looked(app, pilot)

    seat.slurm.away, seat.state = True, tmp_path
    seat.sit(what, size=(160, 40))


def test_sorting_and_the_chosen_job(seat: Seat) -> None:
    """``s`` goes through the columns and ``S`` back; the chosen job stays chosen when it moves in the list."""

    async def what(app: Top, pilot: Any) -> None:
        await pilot.press("down")
        table = app.query_one(DataTable)
        assert ids(app)[table.cursor_row] == "3"
        await pilot.press("s")
        assert "by job" in text_of(app, "beat") and ids(app) == ["1", "2", "3"]
        assert ids(app)[table.cursor_row] == "3"
        await pilot.press("s", "s")
        assert "by GPUs" in text_of(app, "beat")
        await pilot.press("S")
        assert "by user" in text_of(app, "beat") and ids(app) == ["1", "2", "3"]

    seat.sit(what)


def test_filtering(seat: Seat) -> None:
    """Every word must match somewhere; keys typed there are text, and escape shows all jobs again."""

    async def what(app: Top, pilot: Any) -> None:
        await pilot.press("slash", *"eve", "enter")
        assert ids(app) == ["3"] and "with 'eve'" in text_of(app, "beat")
        await pilot.press("slash", "end", *" pending q", "enter")
        assert ids(app) == [] and "pending q'" in text_of(app, "beat")
        await pilot.press("escape")
        assert ids(app) == ["1", "3", "2"] and app.query_one(Input).value == ""

    seat.sit(what)


def test_details_and_help(seat: Seat) -> None:
    """Enter opens what is known of the chosen job, ? the keys; escape and q lead back."""

    async def what(app: Top, pilot: Any) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Words)
        words = str(app.screen.query_one("#words", Static).render())
        assert "Job 1" in words and "Speed on each GPU type" in words and "run 2 from its checkpoint" in words
        assert "\x1b" not in words and "?[31m[red]name" in words
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        assert "one squeue" in str(app.screen.query_one("#words", Static).render())
        await pilot.press("q")
        await pilot.pause()
        assert not isinstance(app.screen, Words)
        await pilot.press("q")

    seat.sit(what)


def test_a_wider_terminal_shows_more(seat: Seat) -> None:
    """Names, age and expected start where there is room; the table follows a change of size."""

    async def what(app: Top, pilot: Any) -> None:
        titles = [str(column.label).strip() for column in app.query_one(DataTable).ordered_columns]
        assert {"NAME", "AGE", "STARTS ABOUT"} <= set(titles)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.pause()
        titles = [str(column.label).strip() for column in app.query_one(DataTable).ordered_columns]
        assert "NAME" not in titles and "WHERE OR WHY" in titles and ids(app)

    seat.slurm.away = True
    seat.sit(what, size=(160, 40))


def test_a_low_terminal_shows_jobs_and_no_decisions(seat: Seat) -> None:
    """Of ten lines the last decisions would leave one to the jobs, or none."""

    async def what(app: Top, pilot: Any) -> None:
        assert app.query_one(DataTable).size.height >= 3 and not app.query_one("#moves").display
        await pilot.resize_terminal(60, 24)
        await pilot.pause()
        await pilot.pause()
        assert app.query_one("#moves").display

    seat.sit(what, size=(60, 10))


@pytest.mark.parametrize("keys", [["ctrl+c"], ["slash", "ctrl+c"], ["question_mark", "ctrl+c"]])
def test_ctrl_c_ends_it(seat: Seat, keys: list[str]) -> None:
    """As it ends other programs, wherever one is."""

    async def what(app: Top, pilot: Any) -> None:
        await pilot.press(*keys)
        assert not app.is_running or app._exit  # noqa: SLF001 whether it is about to end

    seat.sit(what)


def test_a_sigterm_ends_it_as_it_should(seat: Seat) -> None:
    """A terminal that is left as it was needs a program that ends by itself."""
    found = []

    async def what(app: Top, pilot: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        await pilot.pause()
        found.append(app.return_code)

    seat.sit(what)
    assert found == [143]


def test_a_slow_slurm_holds_up_no_key(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys work while a look is under way, and it is not asked once more meanwhile."""
    import threading

    go = threading.Event()
    first = seat.look

    def slow() -> Any:
        picture = first()
        if seat.looks > 1:
            assert go.wait(300)
        return picture

    async def what(app: Top, pilot: Any) -> None:
        await pilot.press("r", "s")
        assert "by job" in text_of(app, "beat")
        await pilot.press("r", "r")
        assert seat.looks == 2
        go.set()
        await seat.looked(app, pilot)

    monkeypatch.setattr(seat, "look", slow)
    seat.sit(what)


def test_the_end_does_not_wait_for_slurm(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who presses q while Slurm hangs is back at the prompt; a look that comes behind the help is no fault."""
    import threading

    go, over = threading.Event(), threading.Event()
    first = seat.look

    def hanging() -> Any:
        picture = first()
        if seat.looks > 2:
            go.wait(300)
            over.set()
        return picture

    async def what(app: Top, pilot: Any) -> None:
        await pilot.press("question_mark")
        app.action_look()
        await seat.looked(app, pilot)
        await pilot.press("escape", "r", "q")

    monkeypatch.setattr(seat, "look", hanging)
    seat.sit(what)
    assert seat.looks == 3 and not over.is_set()
    go.set()
    assert over.wait(300)


def test_a_wait_in_words(state: Path) -> None:
    """Why, at what price, where to, and about when."""
    with ReadOnlyJournal(state / "journal.db") as journal:
        (row,), _ = journal.queue_page({"state": "pending"}, limit=1)
        found = job_view(journal, row["job_id"])

    text = "\n".join(in_lines(found, time.time()))

    assert found["wait"]["why"] in text and "would take" in text and "starts about" in text and "payoff" in text


def test_an_empty_journal_shows_nothing_and_fails_nowhere(tmp_path: Path) -> None:
    """A controller that has never made a round."""
    Journal(tmp_path / "journal.db").close()
    seat = Seat(tmp_path)
    seat.slurm.away = True

    async def what(app: Top, _pilot: Any) -> None:
        assert "no round yet" in text_of(app, "beat") and ids(app) == []

    seat.sit(what)


def line(job_id: str, **changes: Any) -> Line:
    """One that waits, unless changed."""
    fields = {"user": "ann", "name": "net", "state": "pending", "gpus": 2, "where": "-", "steps_per_s": None,
              "done_share": None, "arrival": 0.0, "restarts": 0, "moves": 0, "tier": "waits-for-capacity",
              "why": "the GPUs it needs are held by jobs that must not move: 1, 2, 3, 4 and 17 more"}  # fmt: skip
    return Line(job_id=job_id, **{**fields, **changes})


def test_waiting_tasks_of_an_array_share_a_line() -> None:
    """With their number; the one that runs has its own, and a search sees every task. Enter tells of the first."""
    tasks = [line("12_1", state="running"), *(line(f"12_{i}") for i in (2, 3, 4, 9)), line("13")]

    rows = chosen(tasks, "", "state")

    assert [row.job_id for row in rows] == ["12_1", "12_[2-4,9]", "13"]
    assert cells(rows[1], 0.0, 40)["STATE"] == "4 pending" and cells(rows[2], 0.0, 40)["STATE"] == "pending"
    assert [row.job_id for row in chosen(tasks, "12_9", "state")] == ["12_9"]
    assert first_task("12_[2-4,9]") == "12_2" and first_task("12_9") == "12_9" and first_task("7") == "7"


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        ({}, "no 2 GPUs free"),
        ({"wanted": {"a": {"v100": 1}, "b": {"v100": 1}}}, "no 2 v100 free"),
        ({"tier": "waits-by-policy", "wanted": {"a": {"k80": 2}}}, "others first on 2 k80"),
        ({"tier": "pinned", "why": "has no hadar: comment, and so on"}, "Slurm's: has no hadar: comment, and so on"),
        ({"state": "running", "held": {f"n{i}": {"v100": 2} for i in range(9)}, "why": ""}, "18xv100 on 9 nodes"),
        ({"state": "running", "held": {"n1": {"v100": 2}}, "why": "x" * 40}, "n1 2xv100"),
    ],
)
def test_a_reason_that_does_not_fit_is_said_in_short(changes: dict[str, Any], short: str) -> None:
    """Where it fits, in full."""
    shown = line("1", **changes)

    assert cells(shown, 0.0, 26)["WHERE OR WHY"] == short
    assert shown.why in cells(shown, 0.0, 300)["WHERE OR WHY"]


def test_words_are_cut_where_they_end() -> None:
    """One long word is cut inside; nothing becomes longer."""
    assert RICH.cut_to("the nodes open to it", 13) == "the nodes…"
    assert PLAIN.cut_to("the nodes open", 12) == "the nodes.."
    assert RICH.cut_to("a" * 30, 9) == "a" * 8 + "…" and RICH.cut_to("short", 9) == "short"


def test_sparklines() -> None:
    """From nothing to full; of more values than characters the highest count. ASCII where the terminal has no more."""
    assert RICH.sparkline([0, 7, 14], 14, 10) == "▁▅█" and PLAIN.sparkline([0, 7, 14], 14, 10) == "_=#"
    assert RICH.sparkline([0, 0, 0, 14, 0, 0], 14, 3) == "▁█▁" and RICH.sparkline([0, 0], 0, 5) == "▁▁"
    assert signs_for("UTF-8") is RICH and signs_for("ascii") is PLAIN and signs_for(None) is PLAIN
    assert all(ord(sign) < 128 for sign in PLAIN.steps + PLAIN.used + PLAIN.free + PLAIN.down + PLAIN.cut)


def test_the_trend_of_a_journal() -> None:
    """GPUs held at each round by runs that went on then, out of all; jobs that did not run."""
    journal, now = Journal(":memory:"), 1000.0
    for i, (jobs, running) in enumerate([(3, 1), (9, 2), (5, 2)]):
        journal.add_round(RoundRecord(now + 60 * i, "act", "hadar", 1, jobs, 0, running))
    sight = DashboardChanges(nodes={"n": json.dumps({"gpus": {"v100": 8}})})
    held = Placement.of({"n": {"v100": 2}})
    sight.runs += [Run("1", 900.0, 1060.0, held, True), Run("2", 1030.0, None, held, True)]
    sight.runs += [Run("3", 1061.0, None, held, False)]
    journal.update_dashboard(now, sight)

    found = trend_of(journal)

    assert (found.times, found.used, found.waiting) == ([1000.0, 1060.0, 1120.0], [0.25, 0.25, 0.5], [2, 7, 3])
    assert str(panes.trend(found, 80, PLAIN)) == "GPUs used ,,= 50 %  waiting ,#- 3, most 7, in 2 min"
    assert str(panes.trend(trend_of(Journal(":memory:")), 80, PLAIN)) == ""


def test_of_a_gpu_that_several_share_each_user_has_a_part() -> None:
    """So that all together hold no more GPUs than there are."""
    held = {"n": {"k80": 1}}
    rows = by_user(
        line(job, state="running", user=user, held=held, shares={"gpu": 0, "with": others, "keeps": None})
        for job, user, others in (("1", "ann", ["2", "3"]), ("2", "ann", ["1", "3"]), ("3", "bob", ["1", "2"]))
    )

    assert sum(sum(row.held.values()) for row in rows) == pytest.approx(1.0)
    shown = str(panes.users(rows, 80)).splitlines()
    assert [shown[n].split() for n in (1, 2)] == [
        ["ann", "0.67", "2", "0", "0.67", "k80"],
        ["bob", "0.33", "1", "0", "0.33", "k80"],
    ]


@pytest.mark.parametrize(
    ("others", "keeps", "width", "shown"),
    [("17", 0.5, 80, "k80-1 1xk80; GPU 0 with 17, keeps 50 % of its speed (turns)"),
     ("17", 0.5, 40, "k80-1 1xk80; GPU 0 with 17, 50 %"),
     ("12 13 14 15 16 17", 1 / 7, 40, "k80-1 1xk80; GPU 0 with 6 others, 14 %"),
     ("12 13 14 15 16 17", None, 40, "k80-1 1xk80; GPU 0 with 6 others"),
     ("12 13 14 15 16 17", 1 / 7, 20, "k80-1 1xk80")],
)  # fmt: skip
def test_with_whom_a_job_shares_where_there_is_little_room(
    others: str, keeps: float | None, width: int, shown: str
) -> None:
    shares = {"gpu": 0, "with": others.split(), "keeps": keeps, "known_by": "turns"}
    sharer = line("9", state="running", held={"k80-1": {"k80": 1}}, shares=shares, why="")

    assert cells(sharer, 0.0, width)["WHERE OR WHY"] == shown


def test_a_line_per_user(seat: Seat) -> None:
    """Who holds most comes first; there where there is room, or where it is asked for."""
    rows = by_user([line("1", state="running", held={"n": {"v100": 2}}), line("2", user="bob"), line("3"),
                    line("4", user="eve"), line("5", user="eve")])  # fmt: skip
    assert [(r.user, r.held, r.running, r.waiting) for r in rows] == [
        ("ann", {"v100": 2}, 1, 1),
        ("eve", {}, 0, 2),
        ("bob", {}, 0, 1),
    ]

    async def small(app: Top, pilot: Any) -> None:
        assert not app.query_one("#users").display
        await pilot.press("u")
        assert app.query_one("#users").display and "ann" in text_of(app, "users")
        assert text_of(app, "users").splitlines()[1].split()[:4] == ["ann", "2", "1", "0"]
        await pilot.press("u")
        assert not app.query_one("#users").display

    async def large(app: Top, _pilot: Any) -> None:
        assert app.query_one("#users").display

    seat.sit(small)
    seat.sit(large, size=(160, 50))

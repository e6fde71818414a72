"""The terminal view: GPUs by type, jobs, the last decisions; looks again every so often."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from slurm_hadar.controller.answers.view import Picture, type_use
from slurm_hadar.controller.words import plain
from slurm_hadar.tui import panes
from slurm_hadar.tui.rows import COLUMNS, SORTS, Column, by_user, cells, chosen, first_task
from slurm_hadar.tui.signs import RICH, Signs

__all__ = ["Top"]

MOST_ROWS = 500
_ROOM_FOR_USERS, _ROOM_FOR_MOVES = 40, 16  # lines of the terminal
_ENDED = 128 + signal.SIGTERM
_FIGURES = ("GPUS", "STEPS/S", "DONE", "PRICE")
_HELP = """\
hadar top

  up, down, PgUp, PgDn   choose a job         left, right   the rest of a wide line
  enter                  what is known of it: why it waits, its speeds, its history
  s, S                   sort by the next column, the one before
  /                      show only jobs with these words in id, user, name, partition,
                         state, place, GPU type or reason; empty = all
  u                      a line per user: GPUs held, jobs that run and wait (always
                         there on a terminal of 40 lines or more)
  r                      look again now
  q, Ctrl-C              quit                 esc           back

One look is one squeue and one sinfo. If Slurm does not answer, jobs and GPUs are as
the controller's last round saw them, and the second line says so.
Waiting tasks of a job array that are alike share a line; enter tells of the first.
Where a reason does not fit, the table has it in short, and enter in full.
PRICE is what a waiting job's GPUs would cost. STEPS/S, PRICE, NAME, AGE and STARTS ABOUT
are shown where there is room.
"""


class Words(ModalScreen[None]):
    """A page of text above the rest."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "app.pop_screen", "back"),
    ]

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(self._words), id="words")
        yield Footer()


class Top(App[None]):
    """``look`` gives the cluster as it is now and may take its time; ``details`` the lines about one job; ``every_s``
    is how long to wait between two looks."""

    TITLE = "hadar top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #beat { height: 1; }
    #fault { display: none; height: auto; max-height: 2; color: $warning; }
    #fault.open { display: block; }
    #types { height: auto; max-height: 8; }
    #trend { height: auto; max-height: 1; }
    #users { display: none; height: auto; max-height: 10; }
    #users.open { display: block; }
    #jobs { height: 1fr; }
    #moves { height: auto; max-height: 4; color: $text-muted; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #filter.open { display: block; }
    Words { background: $surface; }
    Words VerticalScroll { height: 1fr; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort back", show=False),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("u", "users", "users"),
        Binding("r", "look", "look now"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("escape", "unfilter", "all jobs", show=False),
    ]

    def __init__(
        self,
        look: Callable[[], Picture],
        details: Callable[[str], list[str]],
        every_s: float = 30.0,
        signs: Signs = RICH,
    ) -> None:
        super().__init__()
        self._signs = signs
        self._look = look
        self._details = details
        self._every_s = every_s
        self._picture: Picture | None = None
        self._looking = False
        self._sort = "state"
        self._words = ""
        self._users: bool | None = None  # None = as there is room
        self._columns: tuple[Column, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static("looking at the cluster ...", id="beat")
        yield Static(id="fault")
        yield Static(id="types")
        yield Static(id="trend")
        yield Static(id="users")
        yield DataTable(id="jobs", cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield Input(placeholder="words to look for", id="filter")
        yield Static(id="moves")
        yield Footer()

    def on_mount(self) -> None:
        ended = partial(self.exit, return_code=_ENDED)  # else the terminal stays as it is now
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended)
        self.query_one(DataTable).focus()
        self.action_look()
        self.set_interval(self._every_s, self.action_look)

    def action_look(self) -> None:
        """Look, unless a look is under way: a Slurm that hangs is not asked again and again."""
        if not self._looking:
            self._looking = True
            self._look_aside()

    @work(group="look")
    async def _look_aside(self) -> None:
        """In another thread: Slurm may be slow, and neither keys nor the end of the program wait for it."""
        try:
            self.show(await _in_daemon(self._look))
        finally:
            self._looking = False

    def show(self, picture: Picture) -> None:
        """Put a picture on the screen; the chosen job stays chosen."""
        self._picture = picture
        self.query_one("#beat", Static).update(panes.beat(picture, self._sort, self._words))
        faults = [
            f"Slurm is away, this is as of the last round: {picture.fault}" if picture.fault else "",
            picture.journal_fault,
        ]
        self.query_one("#fault", Static).update(Text(plain("; ".join(filter(None, faults)))))
        self.query_one("#fault", Static).set_class(any(faults), "open")
        width, signs = self.size.width, self._signs
        self.query_one("#types", Static).update(panes.bars(type_use(picture.nodes), width, signs))
        self.query_one("#trend", Static).update(panes.trend(picture.trend, width, signs))
        self.query_one("#users", Static).update(panes.users(by_user(picture.lines), width))
        self.query_one("#users", Static).set_class(self._shows_users, "open")
        self.query_one("#moves", Static).update(panes.moves(picture, width, signs))
        self.query_one("#moves", Static).display = self.size.height >= _ROOM_FOR_MOVES
        self._fill(picture)

    def _fill(self, picture: Picture) -> None:
        table = self.query_one(DataTable)
        width = self.size.width
        columns = tuple(column for column in COLUMNS if width >= column[2])
        here = table.cursor_row
        key = _key_at(table)
        lines = chosen(picture.lines, self._words, self._sort)
        table.clear(columns=columns != self._columns)
        rest = max(16, width - sum(fixed + 1 for _, fixed, _ in columns if fixed) - 2)  # 2 for the scroll bar
        if columns != self._columns:
            for title, fixed, _ in columns:
                table.add_column(
                    self._cell(title, title, fixed or rest, ""), key=title, width=fixed + 1 if fixed else rest
                )
            self._columns = columns
        for line in lines[:MOST_ROWS]:
            texts = cells(line, picture.time, rest)
            table.add_row(
                *(self._cell(title, texts[title], fixed or rest, line.state) for title, fixed, _ in columns),
                key=line.job_id,
            )
        if lines:
            again = table.get_row_index(key) if key is not None and key in table.rows else here
            table.move_cursor(row=min(again, table.row_count - 1))

    def on_resize(self) -> None:
        """The columns follow the width, once that is known everywhere."""
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self._columns = ()
        self._show_again()

    @on(DataTable.RowSelected)
    def open_job(self, event: DataTable.RowSelected) -> None:
        """Enter on a job."""
        self.push_screen(Words("\n".join(self._details(first_task(str(event.row_key.value))))))

    @on(Input.Submitted)
    def filter_by(self, event: Input.Submitted) -> None:
        """Enter in the filter."""
        self._filter(event.value)

    def _filter(self, words: str) -> None:
        self._words = words
        self.query_one(Input).set_class(False, "open")
        self.query_one(DataTable).focus()
        self._show_again()

    def action_filter(self) -> None:
        self.query_one(Input).set_class(True, "open").focus()

    def action_unfilter(self) -> None:
        self.query_one(Input).value = ""
        self._filter("")

    @property
    def _shows_users(self) -> bool:
        return self.size.height >= _ROOM_FOR_USERS if self._users is None else self._users

    def action_users(self) -> None:
        self._users = not self._shows_users
        self._show_again()

    def action_sort(self, by: int) -> None:
        names = list(SORTS)
        self._sort = names[(names.index(self._sort) + by) % len(names)]
        self._show_again()

    def _show_again(self) -> None:
        if self._picture is not None:
            self.show(self._picture)

    def _cell(self, title: str, text: str, width: int, state: str) -> Text:
        shown = self._signs.cut_to(text, width)
        if title in _FIGURES:
            shown = shown.rjust(width)
        style = {"running": "green", "pending": "yellow", "starting": "cyan"}.get(state, "") if title == "STATE" else ""
        return Text(shown, style, no_wrap=True, end="")

    def action_help(self) -> None:
        self.push_screen(Words(_HELP))


def _key_at(table: DataTable[Text]) -> str | None:
    if not table.row_count:
        return None
    return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value


def _in_daemon(call: Callable[[], Picture]) -> asyncio.Future[Picture]:
    """What ``call`` gives, from a thread of its own, for which the end of the program does not wait."""
    found: Future[Picture] = Future()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            try:
                found.set_result(call())
            except Exception as error:
                found.set_exception(error)

    threading.Thread(target=run, name="look", daemon=True).start()
    return asyncio.wrap_future(found)

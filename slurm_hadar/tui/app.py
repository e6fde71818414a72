"""The terminal view: GPUs by type, jobs, the last decisions; looks again every so often."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from slurm_hadar.controller.view import Picture, TypeUse, type_use
from slurm_hadar.controller.words import clock, plain, span
from slurm_hadar.tui.rows import COLUMNS, SORTS, Column, cells, chosen

__all__ = ["Top"]

MOST_ROWS = 500
_MOVES = 3
_FIGURES = ("GPUS", "STEPS/S", "DONE", "PRICE")
_HELP = """\
hadar top

  up, down, PgUp, PgDn   choose a job         left, right   the rest of a wide line
  enter                  what is known of it: why it waits, its speeds, its history
  s, S                   sort by the next column, the one before
  /                      show only jobs with these words in id, user, name, partition,
                         state, place, GPU type or reason; empty = all
  r                      look again now
  q                      quit                 esc           back

One look is one squeue and one sinfo. If Slurm does not answer, jobs and GPUs are as
the controller's last round saw them, and the second line says so.
PRICE is what a waiting job's GPUs would cost; STARTS ABOUT is shown where there is room.
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
    #fault { height: auto; max-height: 2; color: $warning; }
    #types { height: auto; max-height: 8; }
    #jobs { height: 1fr; }
    #moves { height: auto; max-height: 4; color: $text-muted; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #filter.open { display: block; }
    Words { background: $surface; }
    Words VerticalScroll { height: 1fr; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort back", show=False),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("r", "look", "look now"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("escape", "unfilter", "all jobs", show=False),
    ]

    def __init__(
        self, look: Callable[[], Picture], details: Callable[[str], list[str]], every_s: float = 30.0
    ) -> None:  # fmt: skip
        super().__init__()
        self._look = look
        self._details = details
        self._every_s = every_s
        self._picture: Picture | None = None
        self._sort = "state"
        self._words = ""
        self._columns: tuple[Column, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static("looking at the cluster ...", id="beat")
        yield Static(id="fault")
        yield Static(id="types")
        yield DataTable(id="jobs", cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield Input(placeholder="words to look for", id="filter")
        yield Static(id="moves")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.action_look()
        self.set_interval(self._every_s, self.action_look)

    @work(thread=True, exclusive=True, group="look")
    def action_look(self) -> None:
        """Look in another thread: Slurm may be slow, and keys must not wait for it."""
        picture = self._look()
        self.call_from_thread(self.show, picture)

    def show(self, picture: Picture) -> None:
        """Put a picture on the screen; the chosen job stays chosen."""
        self._picture = picture
        self.query_one("#beat", Static).update(_beat(picture, self._sort, self._words))
        faults = [f"Slurm is away, this is as of the last round: {picture.fault}" if picture.fault else "",
                  picture.journal_fault]  # fmt: skip
        self.query_one("#fault", Static).update(Text(plain("; ".join(filter(None, faults)))))
        self.query_one("#types", Static).update(_bars(type_use(picture.nodes), self.size.width))
        self.query_one("#moves", Static).update(_moves(picture, self.size.width))
        self._fill(picture)

    def _fill(self, picture: Picture) -> None:
        table = self.query_one(DataTable)
        width = self.size.width
        columns = tuple(column for column in COLUMNS if width >= column[2])
        here = table.cursor_row
        key = _key_at(table)
        lines = chosen(picture.lines, self._words, self._sort)
        table.clear(columns=columns != self._columns)
        if columns != self._columns:
            rest = width - sum(fixed + 1 for _, fixed, _ in columns if fixed) - 2  # 2 for the scroll bar
            for title, fixed, _ in columns:
                table.add_column(_cell(title, title, fixed, ""), key=title, width=fixed + 1 if fixed else max(16, rest))
            self._columns = columns
        for line in lines[:MOST_ROWS]:
            texts = cells(line, picture.time)
            table.add_row(*(_cell(title, texts[title], fixed, line.state) for title, fixed, _ in columns),
                          key=line.job_id)  # fmt: skip
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
        self.push_screen(Words("\n".join(self._details(str(event.row_key.value)))))

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

    def action_sort(self, by: int) -> None:
        names = list(SORTS)
        self._sort = names[(names.index(self._sort) + by) % len(names)]
        self._show_again()

    def _show_again(self) -> None:
        if self._picture is not None:
            self.show(self._picture)

    def action_help(self) -> None:
        self.push_screen(Words(_HELP))


def _key_at(table: DataTable[Text]) -> str | None:
    if not table.row_count:
        return None
    return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value


def _beat(picture: Picture, sort: str, words: str) -> Text:
    """The first line: the controller's state, and what the table shows."""
    beat = picture.beat
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(clock(picture.time), "bold")
    if beat.time is None:
        text.append("  no round yet", "yellow")
    elif beat.alive:
        text.append(f"  {beat.mode} {beat.policy}, round {span(beat.age_s)} ago", "green")
    else:
        text.append(f"  controller silent for {span(beat.age_s)}", "bold red")
    text.append(f"  {picture.total} jobs, {picture.waiting} wait  by {sort}")
    if len(picture.lines) < picture.total:
        text.append(f" (of the first {len(picture.lines)})")
    if words:
        text.append(f"  with '{plain(words)}'", "reverse")
    return text


def _bars(types: list[TypeUse], width: int) -> Text:
    """A line per GPU type: used, free, down."""
    text = Text(no_wrap=True, overflow="ellipsis")
    names = max((len(use.gpu_type) for use in types), default=0)
    room = max(10, min(60, width - names - 32))
    for index, use in enumerate(types):
        used = round(room * use.used / use.gpus) if use.gpus else 0
        down = min(room - used, round(room * use.down / use.gpus)) if use.gpus else 0
        text.append("\n" if index else "")
        text.append(f"{plain(use.gpu_type):<{names}} ")
        text.append("█" * used, "green")
        text.append("·" * (room - used - down), "dim")
        text.append("x" * down, "red")
        text.append(f" {use.used} of {use.gpus} used" + (f", {use.down} down" if use.down else ""))
    return text


def _moves(picture: Picture, width: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for index, entry in enumerate(picture.moves[:_MOVES]):
        text.append("\n" if index else "")
        words = f"{clock(entry['time'])}  job {entry['job_id']} {entry['what']}: {entry['detail_words']}"
        text.append(plain(words)[: max(20, width - 1)])
    return text


def _cell(title: str, text: str, width: int, state: str) -> Text:
    shown = text if not width or len(text) <= width else text[: width - 1] + "…"
    if title in _FIGURES:
        shown = shown.rjust(width)
    style = {"running": "green", "pending": "yellow", "starting": "cyan"}.get(state, "") if title == "STATE" else ""
    return Text(shown, style, no_wrap=True, end="")

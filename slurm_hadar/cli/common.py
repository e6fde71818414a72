"""Options and output that several commands share."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_hadar.config import Config, load
from slurm_hadar.controller.journal import ReadOnlyJournal
from slurm_hadar.controller.state_dir import JOURNAL, chosen_state_dir
from slurm_hadar.controller.words import plain
from slurm_hadar.errors import ConfigError, HadarError

if TYPE_CHECKING:  # large, and for the commands that draw tables only
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Number", "as_in_the_queue", "cell", "config_loader", "config_options", "console", "facts_table",
    "fitting_table", "journal_path", "json_option", "known_jobs", "open_journal", "policy_settings", "print_json",
    "printed", "write_json", "write_text",
]  # fmt: skip

_LOADER = "slurm_hadar.config_loader"


class Number(click.FloatRange):
    """A finite number, in a range where one is given. Click's own types take NaN, which is in every range."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            among = self._describe_range()
            self.fail(f"{value} is not a finite number{among and f' in the range {among}'}.", param, ctx)
        return found

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config and --set, and pass the loaded Config as ``config``."""

    @click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration file.")
    @click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting.")
    @click.pass_context
    def wrapped(ctx: click.Context, /, path: Path | None, settings: tuple[str, ...], **rest: Any) -> Any:
        ctx.meta[_LOADER] = lambda: load(path, settings)
        return ctx.invoke(command, config=load(path, settings), **rest)

    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__click_params__ = [  # type: ignore[attr-defined]
        *getattr(command, "__click_params__", []),
        *wrapped.__click_params__,  # type: ignore[attr-defined]
    ]
    return wrapped


def known_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """What the shell may complete a job's id to: the newest that the journal knows. Nothing where it cannot be read;
    who presses TAB wants no error."""
    try:
        with open_journal(load(ctx.params.get("path"), ctx.params.get("settings") or ())) as journal:
            return journal.job_ids(incomplete)
    except HadarError:
        return []


def config_loader() -> Callable[[], Config]:
    """What loads the configuration of the command at work anew, from the same files and settings."""
    loader: Callable[[], Config] = click.get_current_context().meta[_LOADER]
    return loader


def open_journal(config: Config) -> ReadOnlyJournal:
    """The controller's journal, to read from. Raises StoreError if no controller has run here, or this user may
    not read it."""
    return ReadOnlyJournal(journal_path(config))


def as_in_the_queue(config: Config, job_id: str) -> str:
    """The id of a job in the queue: of a task of an array by Slurm's own number, which is what a script has in
    ``SLURM_JOB_ID``, that of the task. The same where Slurm does not tell."""
    from slurm_hadar.slurm.backend.cli import CliBackend
    from slurm_hadar.slurm.shown import JOB_ID, shown

    try:
        found = shown(CliBackend(config.slurm.timeout_s, retries=0).ask, job_id) if JOB_ID.fullmatch(job_id) else None
    except HadarError:
        return job_id
    return found.job_id if found is not None and found.job_id else job_id


def journal_path(config: Config) -> Path:
    """The journal of the state directory that is configured; it need not be there."""
    return chosen_state_dir(config) / JOURNAL


def cell(text: str, style: str = "") -> Text:
    """``text`` for one line of a table: printable, not read as markup, cut only where the terminal is too narrow."""
    from rich.text import Text

    return Text(plain(text), style=style, no_wrap=True, overflow="ellipsis")


def console() -> Console:
    """stdout: as wide as the terminal, and into a file or a pipe wide enough for everything."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end the process with 1, as if something had failed."""
            raise BrokenPipeError

    return Ours() if sys.stdout.isatty() else Ours(width=10_000)


def fitting_table(
    rows: Sequence[Mapping[str, str]], titles: Sequence[str], dropped: Sequence[str], width: int
) -> Table:
    """Cells by title; what a terminal so narrow has no room for is ``dropped`` in that order. What stays is not cut."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    needs = {title: max([len(title), *(cell_len(row[title]) for row in rows)]) + 2 for title in titles}
    for title in dropped:
        if sum(needs.values()) > width:
            del needs[title]
    table = Table(box=None)
    for title in needs:
        table.add_column(title, no_wrap=title in dropped, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[title]) for title in needs))
    return table


def facts_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Names, values and what is to be said beside them, without a heading."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value, note in rows:
        table.add_row(cell(name), cell(value), cell(note))
    return table


def policy_settings(settings: Iterable[str]) -> dict[str, str]:
    """A policy's parameters from texts ``key=value``. Raises ConfigError for any other text."""
    params = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r} must read key=value")
        params[key.strip()] = value.strip()
    return params


def print_json(content: Any) -> None:
    """Indented, with sorted keys; what JSON does not have as its text."""
    click.echo(json.dumps(_of_json(content), indent=2, sort_keys=True, default=str))


def _of_json(content: Any) -> Any:
    """The same with the text of numbers that are infinite or none, which JSON does not have and Python writes."""
    if isinstance(content, dict):
        return {key: _of_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_of_json(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def printed(**files: str | None) -> bool:
    """Whether one of the options (``jobs_csv`` for ``--jobs-csv``) says ``-`` and has the terminal for itself; usage
    error where several do."""
    dashes = [f"--{name.replace('_', '-')} -" for name, target in files.items() if target == "-"]
    if len(dashes) > 1:
        raise click.UsageError(f"{' and '.join(dashes)} would print into each other: give all but one a file")
    return bool(dashes)


def write_text(target: str, text: str) -> None:
    """To a file, or to the terminal for ``-``."""
    if target == "-":
        click.echo(text, nl=False)
    else:
        Path(target).write_text(text, encoding="utf-8")


def write_json(target: str, content: Any) -> None:
    """To a file, or to the terminal for ``-``: what ``--json FILE`` asks for."""
    if target == "-":
        print_json(content)
    else:
        Path(target).write_text(json.dumps(_of_json(content), indent=2, sort_keys=True) + "\n", encoding="utf-8")

"""Man pages: of every command from click, of the configuration from its schema, of hadar-srun by hand.

Own and not click-man: exit status, environment, files and section 5 would have to be put into its pages afterwards.
"""

from __future__ import annotations

import datetime
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from slurm_hadar import __version__
from slurm_hadar.cli.main import hadar
from tools.config_reference import default_text, sections
from tools.package import source_time
from tools.package.completion import SHELLS

EXITS = "0: done. 1: refused or failed, with one line that says why. 2: wrong usage."
FILES = (
    ("/etc/slurm-hadar/config.toml, /etc/slurm-hadar/config.d/*.toml", "the configuration"),
    ("/var/lib/slurm-hadar", "journal, keys and audit log of the service"),
)
ENVIRONMENT = (
    ("HADAR_CONFIG", "configuration file, instead of those in /etc/slurm-hadar"),
    ("SLURM_CONF", "which Slurm"),
)


def write(folder: Path) -> list[Path]:
    """Write all pages into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{name}.1": text for name, text in commands()}
    pages["slurm-hadar.toml.5"] = configuration()
    pages["hadar-srun.1"] = _by_hand("hadar-srun.1")
    for name, text in pages.items():
        (folder / name).write_text(text)
    return [folder / name for name in pages]


def commands() -> Iterator[tuple[str, str]]:
    """Name and page of ``hadar`` and of each command below it."""
    yield from _pages(hadar, "hadar", None)


def _pages(command: click.Command, words: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    inner: list[tuple[str, click.Command]] = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                inner.append((name, found))
    yield words.replace(" ", "-"), _page(command, words, context, inner)
    for name, found in inner:
        yield from _pages(found, f"{words} {name}", context)


def _page(command: click.Command, words: str, context: click.Context, inner: list[tuple[str, click.Command]]) -> str:
    name = words.replace(" ", "-")
    about = inspect.cleandoc(command.help or "")
    lines = [*_head(name, 1), ".SH NAME", f"{_text(name)} \\- {_text(command.get_short_help_str(200).rstrip('.'))}"]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [".SH SYNOPSIS", f".B {_text(words)}", _text(usage), ".SH DESCRIPTION", *_paragraphs(about)]
    options = [record for p in command.get_params(context) if (record := p.get_help_record(context)) is not None]
    if options:
        lines += [".SH OPTIONS", *_list(options)]
    if inner:
        lines.append(".SH COMMANDS")
        lines += _list([(f"{words} {n}", f"{c.get_short_help_str(200)} See {name}-{n}(1).") for n, c in inner])
    lines += [".SH EXIT STATUS", _text(EXITS), ".SH ENVIRONMENT", *_list(ENVIRONMENT), ".SH FILES", *_list(FILES)]
    if parent := context.parent:
        seen = f"{parent.command_path.replace(' ', '-')}(1), slurm-hadar.toml(5)"
    else:
        seen = "hadar-srun(1), slurm-hadar.toml(5), squeue(1), scontrol(1)"
        lines += [".SH SHELL COMPLETION", *_completion()]
    lines += [".SH SEE ALSO", _text(seen)]
    return "\n".join(lines) + "\n"


def _completion() -> list[str]:
    """How each shell learns to complete, where no package has installed it."""
    how = {"bash": 'eval "$({})"', "zsh": 'eval "$({})"', "fish": "{} | source"}
    called = {shell: how[shell].format(f"_HADAR_COMPLETE={shell}_source hadar") for shell in SHELLS}
    called["fish"] = f"env {called['fish']}"
    return [".nf", *(f"{_text(shell + ':')}\t{_text(line)}" for shell, line in called.items()), ".fi"]


def configuration() -> str:
    """slurm-hadar.toml(5)."""
    lines = [*_head("slurm-hadar.toml", 5), ".SH NAME", "slurm\\-hadar.toml \\- configuration of hadar(1)"]
    lines += [".SH SYNOPSIS", _text(FILES[0][0]), ".SH DESCRIPTION"]
    lines += _paragraphs(
        "TOML. Files are read in the order above, those of config.d by name, and later ones win. A file named by "
        "--config or HADAR_CONFIG is read instead of both; --set SECTION.KEY=VALUE on the command line goes before "
        "all.\n\n"
        "hadar config check says whether it is valid, hadar config show --origin what is in force and why. The service "
        "takes a new configuration by systemctl reload slurm-hadar; a wrong one leaves the old one in force."
    )
    for prefix, section in sections():
        lines += [f".SH [{_text(prefix)}]", *_paragraphs(inspect.cleandoc(section.__doc__ or "").replace("`", ""))]
        settings = []
        for name, field in section.model_fields.items():
            default = default_text(field)
            about = (field.description or "").replace("`", "")
            settings.append((name, f"{about}. Default: {default}." if default else f"{about}."))
        lines += _list(settings)
    lines += [".SH EXAMPLE", ".nf", *(_text(line) for line in EXAMPLE.splitlines()), ".fi"]
    lines += [".SH SEE ALSO", "hadar(1), hadar\\-config(1)"]
    return "\n".join(lines) + "\n"


EXAMPLE = """\
[controller]
mode = "observe"

[partitions.gpu]
mode = "act"

[guard]
exempt_qos = ["urgent"]
"""


def _by_hand(name: str) -> str:
    page = (Path(__file__).parent / name).read_text()
    return page.replace("@DATE@", _date()).replace("@VERSION@", __version__)


def _head(name: str, section: int) -> list[str]:
    return [f'.TH "{name.upper()}" {section} "{_date()}" "slurm_hadar {__version__}" "slurm_hadar"', ".nh", ".ad l"]


def _date() -> str:
    return datetime.datetime.fromtimestamp(source_time(), datetime.UTC).date().isoformat()


def _paragraphs(words: str) -> list[str]:
    """Paragraphs of a docstring; those that click shall leave as they are keep their lines."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", words):
        kept = paragraph.startswith("\b")
        body = paragraph.lstrip("\b").strip("\n").splitlines()
        if not body:
            continue
        lines.append(".PP")
        lines += [".nf", *(_text(line) for line in body), ".fi"] if kept else _wrapped(" ".join(body))
    return lines


def _list(entries: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> list[str]:
    lines = []
    for term, about in entries:
        lines += [".TP", f"\\fB{_text(term)}\\fR", *_wrapped(about)]
    return lines


def _wrapped(words: str) -> list[str]:
    return [_text(line) for line in textwrap.wrap(" ".join(words.split()), 100)] or ["\\&"]


def _text(words: str) -> str:
    """``words`` as roff has them."""
    safe = words.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe

"""Man pages: one for every command, and nothing wrong in them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from slurm_hadar.cli.main import COMMANDS, hadar
from slurm_hadar.config import Config
from tools.package import man


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Text of each page by its file's name."""
    return {path.name: path.read_text() for path in man.write(tmp_path_factory.mktemp("man"))}


def _options(command: click.Command) -> list[str]:
    return [name for p in command.params if isinstance(p, click.Option) and not p.hidden for name in p.opts]


def test_every_command_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    """Also commands of commands, such as hadar-config-show(1)."""
    context = click.Context(hadar, info_name="hadar")
    for name in COMMANDS:
        command = hadar.get_command(context, name)
        inner = {f"{name}-{n}": c for n, c in getattr(command, "commands", {}).items()}
        for words, found in {name: command, **inner}.items():
            page = pages[f"hadar-{words}.1"].replace("\\-", "-")
            assert all(option in page for option in _options(found)), words
        assert f"hadar {name}" in pages["hadar.1"].replace("\\-", "-")


def test_configuration_has_every_setting(pages: dict[str, str]) -> None:
    """slurm-hadar.toml(5) names each section and each key."""
    page = pages["slurm-hadar.toml.5"]
    for key in Config().flat():
        section, _, name = key.partition(".")
        assert f".SH [{section}" in page
        assert not name or f"\\fB{name}\\fR" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed (Debian's package groff-base)")
def test_groff_finds_nothing_wrong(pages: dict[str, str]) -> None:
    """All warnings on; a page with an unknown request must be found, too."""
    for name, text in {**pages, "broken": ".XX no such request\n"}.items():
        done = subprocess.run(
            ["groff", "-ww", "-man", "-Tutf8", "-z"], input=text, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert bool(done.stderr) == (name == "broken"), f"{name}: {done.stderr}"


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed (Debian's package man-db)")
def test_man_shows_backslashes_and_dots(tmp_path: Path) -> None:
    """Text that roff would take for its own is shown as it is."""
    page = tmp_path / "x.1"
    safe = man._text(".start 'of' a\\b `line` --now")  # noqa: SLF001 - no page has all of these
    page.write_text(f".TH X 1\n.SH NAME\nx \\- y\n.PP\n{safe}\n")

    done = subprocess.run(["man", "-l", str(page)], capture_output=True, text=True, check=True, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"})  # fmt: skip

    assert ".start 'of' a\\b line --now" in done.stdout

"""The documentation says what the code does."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tools import rooms

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_config_reference_is_current() -> None:
    """docs/config.md is what the schema gives; refresh it with: python tools/config_reference.py > docs/config.md."""
    spec = importlib.util.spec_from_file_location("config_reference", ROOT / "tools" / "config_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert (ROOT / "docs" / "config.md").read_text() == module.page()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture exists."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def _commands_of(text: str) -> Iterator[str]:
    """Every command line of hadar in code: blocks (fenced or indented, lines joined at a backslash) and `spans`."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = re.findall(
        r"(?m)^ *(?:\$ |.*\| )?(hadar [a-z][^\n]*)", "\n".join(re.findall(r"(?ms)^ *```[a-z]*\n(.*?)```", joined))
    )
    lines += re.findall(r"(?m)^    +(hadar [a-z][^\n]*)", joined)
    lines += re.findall(r"`(hadar [a-z][^`\n]*)`", re.sub(r"(?ms)^ *```.*?```", "", joined))
    for line in lines:
        yield re.split(r" +#| *[;&|]| > | 2>", line)[0].strip()


def _problem(line: str) -> str:
    """What the command line parser has against it; "" if nothing. Nothing is run."""
    from slurm_hadar.cli.main import hadar

    words = shlex.split(line)[1:]
    command: click.Command = hadar
    context = click.Context(hadar, info_name="hadar")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    if command.name == "submit":  # whose options are sbatch's
        return "" if "--" in words[:-1] else "says not what is to be run"
    known = {name for p in command.get_params(context) for name in (*p.opts, *p.secondary_opts)}
    unknown = [w for w in words if w.startswith("-") and w != "-" and w.partition("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else ""


def test_wrong_commands_are_found() -> None:
    """Unknown options and subcommands, in blocks, spans and continued lines; comments and what follows are no part."""
    text = "```\nhadar run --mode act --rounds 3   # --not\nhadar queue | less --x\n```\n"
    text += "say `hadar cluster upp` and\n\n    hadar compare --trace t \\\n        --polices fifo\n"

    assert [_problem(line) for line in _commands_of(text)] == [
        "no option --rounds",
        "",
        "no option --polices",
        "no command upp",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """Every `hadar COMMAND` that a page prints is a command, and every make target a target."""
    from slurm_hadar.cli.main import COMMANDS

    text = page.read_text()
    for command in re.findall(r"(?:^|`|\$ )hadar ([a-z]+)", text, re.MULTILINE):
        assert command in COMMANDS, f"{page.name} prints hadar {command}"
    for line in _commands_of(text):
        problem = _problem(line)
        assert not problem, f"{page.name} prints {line!r}: {problem}"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert f"\n{target}:" in makefile, f"{page.name} prints make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_toml_examples_are_valid_configurations(page: Path) -> None:
    """Every TOML block can be used as it stands."""
    from slurm_hadar.config import Config

    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        Config.model_validate(tomllib.loads(block))


def test_each_line_of_explain_is_explained() -> None:
    """What begins a line of its answer begins a row of the page's table, too."""
    jobs = ROOT / "slurm_hadar" / "cli" / "jobs"
    said = (jobs / "explain.py").read_text() + (jobs / "expectation.py").read_text()
    begins = set(re.findall(r'"  ([A-Za-z]+(?: [a-z]+)?)  ', said)) - {"expected", "Slurm says"}  # below the table
    rows = re.findall(r"(?m)^\| (`[^|]+`) \|", (ROOT / "docs" / "explain.md").read_text())

    assert {"start", "time limit", "WARNING"} <= begins
    assert begins <= set(re.findall(r"`([^`]+)`", " ".join(rows)))


@pytest.mark.built
def test_the_documentation_builds(tmp_path: Path) -> None:
    """Without a warning, and every link of a built page leads to a file and an anchor that are there."""
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-n", "-W", "--keep-going", "-q", "-d", tmp_path / "trees",
         ROOT / "docs", tmp_path / "html"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    pages = {path: path.read_text() for path in (tmp_path / "html").rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    assert len(pages) > 25
    for path, text in pages.items():
        assert not re.search(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)"', text), (
            f"{path.name} fetches something"
        )
        for target in re.findall(r'(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:|//", target):
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / name.partition("?")[0]).resolve() if name else path
            assert there.exists(), f"{path.name} links to {target}"
            if anchor and there in anchors:
                assert anchor in anchors[there], f"{path.name} links to {target}"


def test_every_room_is_described() -> None:
    """The contracts on imports have each room, and the table of rooms is made from them."""
    package = ROOT / "slurm_hadar"
    there = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    page = rooms.PAGE.read_text()

    assert rooms.rooms().keys() == there
    assert rooms.with_table(page) == page, "python -m tools.rooms"


def test_pictures_are_current(tmp_path: Path) -> None:
    """Each is drawn by the script, and used."""
    subprocess.run([sys.executable, ROOT / "docs" / "pictures" / "draw.py", tmp_path], check=True)

    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    text = (ROOT / "docs" / "concepts.md").read_text()
    assert all(f"(pictures/{name})" in text for name in drawn)

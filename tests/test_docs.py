"""The documentation says what the code does."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """Every `hadar COMMAND` that a page prints is a command, and every make target a target."""
    from slurm_hadar.cli.main import COMMANDS

    text = page.read_text()
    for command in re.findall(r"(?:^|`|\$ )hadar ([a-z]+)", text, re.MULTILINE):
        assert command in COMMANDS, f"{page.name} prints hadar {command}"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert f"\n{target}:" in makefile, f"{page.name} prints make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_toml_examples_are_valid_configurations(page: Path) -> None:
    """Every TOML block can be used as it stands."""
    from slurm_hadar.config import Config

    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        Config.model_validate(tomllib.loads(block))

"""Shells complete the command: each one really loads its script and asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.controller.journal import JobRecord, Journal
from tools.package import ROOT, completion


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which ``hadar`` is the checkout's, and ``$SCRIPTS`` the folder of what the shells load."""
    folder = tmp_path_factory.mktemp("completion")
    completion.write(folder)
    (folder / "bin").mkdir()
    program = folder / "bin" / "hadar"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m slurm_hadar.cli.main "$@"\n')
    program.chmod(0o755)
    config = folder / "config.toml"
    config.write_text(f'[controller]\nstate_dir = "{folder}"\n')
    journal = Journal(folder / "journal.db")
    journal.save_jobs([JobRecord(job_id, arrival=0.0) for job_id in ("41", "412_0", "5")])
    journal.close()
    return {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "SCRIPTS": str(folder),
        "HOME": str(folder),
        "HADAR_CONFIG": str(config),
    }


def _ask(shell: str, script: str, environ: dict[str, str]) -> list[str]:
    words = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *words, "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=120,
        cwd=environ["SCRIPTS"],
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hadar exp", ["explain"]),
        ("hadar config ", ["check", "show"]),
        ("hadar run --mode ", ["observe", "advise", "act"]),
        ("hadar history 4", ["412_0", "41"]),
        ("hadar explain 7", []),
    ],
)
def test_bash(line: str, expected: list[str], environ: dict[str, str]) -> None:
    """As bash itself asks: with COMP_WORDS, by the function that the script registers."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        . "$SCRIPTS/hadar.bash"
        registered=$(complete -p hadar); registered=${{registered#*-F }}
        COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
        "${{registered%% *}}" hadar '{words[-1]}' '{words[-2]}'
        echo "${{COMPREPLY[@]}}"
    """

    assert _ask("bash", script, environ) == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(environ: dict[str, str]) -> None:
    """fish says what it would offer; each word comes with its help."""
    found = _ask("fish", 'source "$SCRIPTS/hadar.fish"; complete --do-complete "hadar exp"', environ)

    assert found[0] == "explain"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh(environ: dict[str, str]) -> None:
    """zsh finds the script by its name, and the function asks for the words; what it would add is printed instead."""
    script = """
        fpath=("$SCRIPTS" $fpath); autoload -U compinit; compinit -u -D
        [[ ${_comps[hadar]} = _hadar ]] || exit 1
        _describe() { print -l ${(P)3} }
        compdef() { }; source "$SCRIPTS/_hadar"
        words=(hadar exp); CURRENT=2; _hadar_completion
    """

    assert any(word.startswith("explain") for word in _ask("zsh", script, environ))


def test_scripts_are_what_click_tells_users(environ: dict[str, str]) -> None:
    """The files that are installed are those that ``_HADAR_COMPLETE=SHELL_source hadar`` prints."""
    for shell in ("zsh", "fish"):
        told = subprocess.run(
            ["hadar"], env={**environ, "_HADAR_COMPLETE": f"{shell}_source"}, capture_output=True, text=True,
            check=True, timeout=60,
        ).stdout  # fmt: skip
        assert Path(environ["SCRIPTS"], completion.SHELLS[shell][1]).read_text() == told

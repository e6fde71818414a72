"""The command line without a Slurm: usage, errors in one line, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from slurm_hadar.cli import main as cli_main
from slurm_hadar.cli.main import COMMANDS


@pytest.fixture
def hadar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> Any:
    """``hadar`` as a user would run it, with no Slurm commands on PATH and an empty home."""
    for name in os.environ:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return call


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(hadar: Any, command: str) -> None:
    """--help works everywhere and ends with 0."""
    done = hadar(command, "--help")

    assert done.returncode == 0, done.stderr
    assert "Usage: hadar" in done.stdout


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    """It is read in their files, since to import them all takes a second."""
    for name in COMMANDS:
        found = cli_main.hadar.get_command(click.Context(cli_main.hadar), name)
        assert found is not None
        assert cli_main._outline(name).get_short_help_str() == found.get_short_help_str()  # noqa: SLF001 - what it is for


def _options(command: click.Command) -> Iterator[click.Parameter]:
    """Of a command and of all below it."""
    yield from command.params
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from _options(below)


def test_no_number_of_any_command_may_be_nan_or_infinite() -> None:
    numbers = [p for p in _options(cli_main.hadar) if isinstance(p.type, click.types.FloatParamType)]

    assert len(numbers) > 20
    for option in numbers:
        for text in ("nan", "inf", "-inf", "1e400"):
            with pytest.raises(click.BadParameter, match=r"finite number|range"):
                option.type.convert(text, option, None)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["run", "--mode", "go"], 2, "'go' is not one of"),
        (["explain"], 2, "Missing argument"),
        (["report", "r.json", "--replay", "x.json", "--out", "p.html"], 2, "--replay goes with --journal"),
        (["report", "--journal", "--replay", "/nowhere.json", "--out", "p.html"], 1, "/nowhere.json does not exist"),
        (["run", "--once", "--config", "/nowhere.toml"], 1, "configuration file /nowhere.toml does not exist"),
        (["run", "--once", "--set", "guard.x=1"], 1, "unknown key guard.x"),
        (["run", "--once", "--policy", "wishful"], 1, "wishful"),
        (["run", "--once", "--round", "0"], 1, "round_s"),
        (["queue"], 1, "not on PATH"),
        (["release"], 1, "not on PATH"),
        (["history", "1"], 1, "no journal at"),
        (["speeds"], 1, "no journal at"),
    ],
)
def test_faults_are_one_line(hadar: Any, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    """Wrong usage ends with 2, a refusal with 1; one clear line, never a traceback."""
    state = () if arguments[0] == "frobnicate" else ("--set", f"controller.state_dir={tmp_path / 'state'}")
    if code == 1:
        arguments = [*arguments, *state]

    done = hadar(*arguments)

    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert code == 2 or len([line for line in done.stderr.splitlines() if "INFO" not in line]) == 1


def test_config_show_and_check(hadar: Any, tmp_path: Path) -> None:
    """The settings in force can be printed with where they come from."""
    path = tmp_path / "c.toml"
    path.write_text("[controller]\nround_s = 60\n")

    assert hadar("config", "check", "--config", str(path)).stdout == "configuration is valid\n"
    unknown = hadar("config", "check", "--set", 'guard.exempt_users=["root","nosuchuser"]')
    assert (unknown.returncode, unknown.stdout) == (0, "configuration is valid\n")
    assert unknown.stderr.count("\n") == 1 and "names 'nosuchuser', whom this host does not know" in unknown.stderr
    shown = json.loads(hadar("config", "show", "--origin", "--json", "--config", str(path)).stdout)
    assert shown["controller.round_s"] == {"value": 60.0, "origin": str(path)}
    assert "guard.min_run_s = 300.0    # default" in hadar("config", "show", "--origin").stdout
    odd = hadar("config", "show", "--json", "--set", "policy.params.y=nan").stdout
    assert '"policy.params.y": "nan"' in odd  # JSON has no such number


def test_config_check_looks_for_programs(hadar: Any) -> None:
    """A hook that is not there is found before a job is moved."""
    assert hadar("config", "check", "--set", "hooks.moved=/bin/sh -c true").returncode == 0
    done = hadar("config", "check", "--set", "hooks.moved=/nowhere/mail.sh -x")

    assert done.returncode == 1
    assert done.stderr == "hadar: command line: hooks.moved = '/nowhere/mail.sh': is no program that can be run\n"


def test_config_check_reads_policy_parameters(hadar: Any) -> None:
    """A misspelt parameter of a policy is found before a round is run."""
    done = hadar("config", "check", "--set", "policy.params.objectve=jct")

    assert done.returncode == 1 and "objectve" in done.stderr and "objective" in done.stderr


def test_output_into_a_closed_pipe() -> None:
    """``hadar ... | head`` ends quietly."""
    command = f"{sys.executable} -m slurm_hadar.cli.main config show | head -1"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env, timeout=60, check=False)

    assert done.returncode == 0 and done.stderr == ""


def test_doctor_without_slurm(hadar: Any, tmp_path: Path) -> None:
    """One line says that there is none, the rest of the host is judged, and the exit code is 1; JSON says the same."""
    state = ("--set", f"controller.state_dir={tmp_path / 'state'}")

    done = hadar("doctor", *state)

    assert done.returncode == 1 and done.stderr == "" and "\x1b" not in done.stdout
    assert sum("scontrol is not on PATH" in line for line in done.stdout.splitlines()) == 1
    assert "35 more checks need a Slurm that answers" in done.stdout
    told = json.loads(hadar("doctor", "--json", *state).stdout)
    assert told["counts"]["problem"] == 1 and set(told["checks"][0]) == {
        "check",
        "verdict",
        "found",
        "why",
        "fix",
        "ask",
        "link",
    }
    assert not (tmp_path / "state").exists()


def test_doctor_reads_a_broken_configuration(hadar: Any, tmp_path: Path) -> None:
    """As a problem of its own, beside the others."""
    path = tmp_path / "c.toml"
    path.write_text("[guard]\nx = 1\n")

    done = hadar("doctor", "--config", str(path))

    assert done.returncode == 1 and done.stderr == ""
    assert "unknown key guard.x" in done.stdout and "fix: hadar config check" in done.stdout

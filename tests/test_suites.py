"""The runner of the suites: what fails once is run once more, what fails twice has failed, and both are shown."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.selection import may_choose
from tools import suites

FLAKY = """
from pathlib import Path

def test_fails_the_first_time():
    seen = Path("seen")
    was, _ = seen.exists(), seen.touch()
    assert was

def test_passes():
    Path("passes").open("a").write(".")
"""

LOW = """
import os
from pathlib import Path

def test_low():
    Path("niceness").write_text(str(os.nice(0)))
"""
LIVE = """
import pytest, time
from pathlib import Path

@pytest.mark.slurm
def test_runs_before_the_other():
    while not Path("niceness").exists() or not (found := Path("niceness").read_text()):
        time.sleep(0.05)
    assert int(found) >= 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the tests there need none, and they take a second
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slurm: needs a cluster\n")
    return tmp_path


def suite(name: str, marker: str) -> suites.Suite:
    return suites.Suite(name, marker, ("-p", "no:randomly"), (sys.executable, "-m"))


def test_what_fails_once_is_run_once_more_alone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_flaky.py").write_text(FLAKY)
    assert suites.run([suite("units", "not slurm")], []) == 0
    said = capfd.readouterr().out
    assert "1 failed, 1 passed" in said and "== what failed of units, once more ==" in said
    assert (folder / "passes").read_text() == "."  # only who failed


def test_what_runs_behind_is_shown_and_tried_again_too(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_flaky.py").write_text(FLAKY)
    (folder / "test_low.py").write_text(LOW)
    (folder / "test_live.py").write_text(LIVE)
    assert suites.run([replace(suite("units", "not slurm"), behind=True), suite("live", "slurm")], []) == 0
    said = capfd.readouterr().out
    assert "1 failed, 2 passed" in said and "== what failed of units, once more ==" in said
    assert said.index("1 passed, 3 deselected") < said.index("1 failed, 2 passed")


def test_every_test_is_in_one_suite() -> None:
    marks = [set(chosen) for n in range(4) for chosen in itertools.combinations(("slurm", "torch", "built"), n)]
    for marked in marks:
        names = {name: name in marked for name in ("slurm", "torch", "built")}
        for thorough in (False, True):
            of = {**names, "thorough": thorough}
            assert sum(eval(s.marker, {}, of) for s in suites.every()) == (not thorough)
            assert sum(eval(s.marker, {}, of) for s in suites.every(thorough=True)) == 1


def test_who_fails_twice_has_failed_whatever_runs_after_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    (folder / "test_live.py").write_text("import pytest\n@pytest.mark.slurm\ndef test_right():\n    pass\n")
    assert suites.run([suite("units", "not slurm"), suite("live", "slurm")], []) == 1
    said = capfd.readouterr().out
    assert said.count("1 failed") == 2 and "once more" in said
    assert suites.run([suite("live", "slurm")], []) == 0


def test_a_fault_of_the_run_is_not_tried_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_right.py").write_text("def test_right():\n    pass\n")
    assert suites.run([suite("units", "not slurm")], ["--no-such-option"]) == 4
    assert "once more" not in capfd.readouterr().out


def test_options_and_their_values_are_pytests(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], list[str]]] = []
    monkeypatch.setattr(suites, "run", lambda chosen, options: asked.append(([s.name for s in chosen], options)))
    suites.main(["-k", "journal", "tests/web", "--durations=5"])
    suites.main(["--only", "live", "--by", "enter 24.11", "-x"])
    every = ["units", "trainings", "live"]
    assert asked == [(every, ["-k", "journal", "tests/web", "--durations=5"]), (["live"], ["-x"])]


ALL_LIVE = "pytestmark = [pytest.mark.slurm, pytest.mark.torch]\n"
SOME_LIVE = "@pytest.mark.slurm\ndef test_live(): ...\ndef test_other(): ...\n"
NONE = "THOROUGH = pytest.mark.thorough\ndef test_any(): ...\n"


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        ("slurm", (True, True, False)),
        ("not slurm", (False, True, True)),
        ("slurm and not torch", (False, True, False)),
        ("not slurm and (torch or built)", (False, False, False)),
        ("not slurm and not torch and not built and not thorough", (False, True, True)),
        ("thorough", (True, True, True)),
    ],
)
def test_files_without_a_chosen_test_are_not_read(expression: str, read: tuple[bool, ...]) -> None:
    assert tuple(may_choose(expression, text) for text in (ALL_LIVE, SOME_LIVE, NONE)) == read

"""Commands that only read leave the controller's files as they are, whatever state those are in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.cli.main import main
from slurm_hadar.controller.journal import Decision, JobRecord, Journal, RoundRecord
from slurm_hadar.throughput.store import ThroughputStore

READERS = (
    ["history", "7"],
    ["explain", "7"],
    ["speeds"],
    ["predict", "--trainings"],
    ["report", "--journal", "--out", "page"],
)


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(state: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Call ``hadar`` in this process; gives its exit code, and what it said where it failed."""

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--set", f"controller.state_dir={state}"])
        return int(left.value.code or 0), capsys.readouterr().err

    return call


def files(state: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change by name."""
    return {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in state.iterdir()}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with the journal of a controller that is not running."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "state").mkdir()
    journal = Journal(tmp_path / "state" / "journal.db")
    ThroughputStore(journal.connection)
    number = journal.add_round(RoundRecord(1000.0, "observe", "hadar"))
    journal.add_decisions(number, 1000.0, [Decision("7", "end", why="completed")])
    journal.save_jobs([JobRecord("7", arrival=900.0, user="ann", name="net", ended=1000.0, final="DONE")])
    journal.close()
    return tmp_path / "state"


@pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
def test_nothing_is_written(state: Path, ask: Ask, arguments: list[str]) -> None:
    """Not even where it could be: no log, no migration, no folder."""
    before = files(state)

    code, said = ask(*arguments)

    assert files(state) == before
    assert code == 0, said


@pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
def test_a_damaged_journal_is_the_controllers_to_replace(state: Path, ask: Ask, arguments: list[str]) -> None:
    """Who looks says so in one line, and leaves it where it is."""
    (state / "journal.db").write_bytes(b"not a database, but as long as one" * 100)
    before = files(state)

    code, said = ask(*arguments)

    assert files(state) == before
    assert code == 1 and said.count("\n") == 1 and "cannot read the journal" in said, said


@pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
def test_who_may_not_read_is_told_whom_to_ask(ask: Ask, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read everything."""
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    code, said = ask(*arguments)

    assert code == 1 and said.count("\n") == 1 and "may not be read by you" in said, said

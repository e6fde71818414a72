"""The record of a search, and who writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.tuning.study.record import Record, folder_of, read_events


def test_records_that_were_cut(tmp_path: Path) -> None:
    folder = folder_of(f"sqlite:///{tmp_path}/a.db", "s/../t")
    assert folder == tmp_path / "a.db.hadar" / "s_.._t"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(json.dumps({"time": 1, "event": "began"}) + '\n{"time": 2, "ev\n[]\n')
    assert read_events(folder) == [{"time": 1, "event": "began"}]


def test_the_tuner_of_the_run_before_is_waited_for(tmp_path: Path) -> None:
    """Said once; refused at once where there was no run before."""
    before, said = Record(tmp_path, print), []

    def say(line: str) -> None:
        said.append(line)
        before.close()

    with pytest.raises(ConfigError, match="another tuner is at work"):
        Record(tmp_path, say)
    assert not said
    Record(tmp_path, say, patience_s=60.0).close()
    assert len(said) == 1 and "waiting for its end" in said[0]

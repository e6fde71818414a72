"""The record of a search, and who writes it."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from slurm_hadar.errors import ConfigError, StoreError
from slurm_hadar.tuning.executor.runs import _next_run
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


def test_a_full_disk_costs_no_count_of_runs(tmp_path: Path) -> None:
    """Who counts anew finds that its own checkpoints are of a later run, and fails."""
    (tmp_path / "runs").write_text("5\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"runs: File too large"):
            _next_run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _next_run(tmp_path) == 5 and (tmp_path / "runs").read_text() == "6\n"

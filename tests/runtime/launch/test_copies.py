"""Copies of a forked job that Slurm restarts before they have come to their command."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.runtime.launch.copies import prepare
from slurm_hadar.runtime.launch.directory import note_owner
from slurm_hadar.runtime.launch.slurmctld import SEP, JobFacts

FIRST, LATER, LATEST = "2026-11-20T10:00:00", "2026-11-20T11:00:00", "2026-11-20T12:00:00"


def environ_of(copy: int, root: Path) -> dict[str, str]:
    return {
        "SLURM_ARRAY_JOB_ID": "70",
        "SLURM_ARRAY_TASK_ID": str(copy),
        "HADAR_JOB_ID": f"70_{copy}",
        "HADAR_JOB_DIR": str(root / f"70_{copy}"),
    }


def place(copy: int, root: Path, squeue: list[tuple[int, str]], submitted: str = LATEST) -> str:
    """Where copy meets the others, by the name of the directory; why it was not started, if it was not."""
    environ = environ_of(copy, root)
    shown = "\n".join(f"{restarts}{SEP}{at}{SEP}" for restarts, at in squeue)
    facts = JobFacts(1, submitted, 1, False, root, "hadar:fork=auto")
    refusal = prepare(environ, facts, lambda _command: shown or None)
    return refusal or Path(environ["HADAR_FORK_DIR"]).name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that those of jobs are in."""
    room = tmp_path / ".hadar"
    room.mkdir(mode=0o700)
    return room


def test_those_that_slurm_has_not_restarted_know(root: Path) -> None:
    assert place(3, root, [(1, LATEST), (0, FIRST), (2, LATER)]) == "fork-20261120T100000"
    assert place(3, root, []) == "fork-20261120T100000", "it was not written down"


def test_what_another_copy_has_noted(root: Path) -> None:
    """Not what a copy of an earlier job with the same id has."""
    note_owner(environ_of(1, root), "2020-01-01T00:00:00")
    note_owner(environ_of(2, root), FIRST)
    (root / "70_2.before-20260101T000000").mkdir(mode=0o700)
    (root / "70_2.before-20260101T000000" / "owner").write_text("c 70_2 2026-12-31T00:00:00")
    (root / "70_4").mkdir(mode=0o700)
    (root / "70_4" / "owner").touch()  # left empty by a full disk

    assert place(3, root, [(1, LATEST), (2, LATER)]) == "fork-20261120T100000"


def test_where_all_were_restarted_they_agree(root: Path) -> None:
    told = [(1, LATEST), (1, LATER)]

    assert place(1, root, told) == place(2, root, told, LATER) == "fork-20261120T110000"


def test_where_nobody_knows_it_does_not_start(root: Path) -> None:
    """It might train the whole job by itself."""
    refusal = place(3, root, [])

    assert "squeue tells nothing of job array 70" in refusal and "\n" not in refusal

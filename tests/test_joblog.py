"""What we say in a job's log costs the job nothing, whatever becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.joblog import say

INJECTED = Path(__file__).resolve().parents[1] / "slurm_hadar" / "runtime" / "inject"


def test_a_line_has_our_name(capsys: pytest.CaptureFixture[str]) -> None:
    say("moved")
    assert capsys.readouterr().err == "hadar: moved\n"


def test_a_line_begins_anew_behind_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bars = pytest.importorskip("tqdm")
    for _ in bars.tqdm(range(2)):
        say("moved")
    say("over")
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert [line for line in lines if "hadar" in line] == ["hadar: moved", "hadar: moved", "hadar: over"]


def test_a_line_of_a_process_that_began_without_stderr_is_not_written_to_its_results() -> None:
    script = "from slurm_hadar.joblog import say; say('moved'); print('result')"
    words = ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", script]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "result\n"


@pytest.mark.parametrize("log", ["a full disk", "nobody reads", "closed"])
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(log: str) -> None:
    """Nor does the process end with another code for it."""
    closes = "sys.stderr.close(); " if log == "closed" else ""
    script = f"import sys; from slurm_hadar.joblog import say; {closes}say('moved'); sys.exit(7)"
    if log == "nobody reads":
        read_end, write_end = os.pipe()
        os.close(read_end)
    else:
        write_end = os.open("/dev/full", os.O_WRONLY)
    try:
        assert subprocess.run([sys.executable, "-c", script], stderr=write_end, check=False).returncode == 7
    finally:
        os.close(write_end)


def test_what_is_injected_into_scripts_fails_as_little() -> None:
    script = f"import sys; sys.path.insert(0, {str(INJECTED)!r}); import sitecustomize; sitecustomize._say('old')"
    with open("/dev/full", "w") as full:  # noqa: PTH123
        assert subprocess.run([sys.executable, "-c", script], stderr=full, check=False).returncode == 0

"""The stand-in for a training that the fidelity benchmark starts by the dozen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def _run(folder: Path, steps: int) -> list[str]:
    notes = folder / "notes"
    environ = {**os.environ, "HADAR_JOB_ID": "1", "HADAR_JOB_DIR": str(folder), "SLURM_JOB_ID": "1"}
    command = [sys.executable, "-m", "benchmarks.fidelity.worker", f"--steps={steps}", "--workers=2"]
    done = subprocess.run([*command, f"--notes={notes}"], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return notes.read_text().splitlines()


def test_it_makes_its_steps_and_goes_on_where_it_was(tmp_path: Path) -> None:
    assert _run(tmp_path, 5)[-1].split()[-1] == "0"
    assert json.loads((tmp_path / "stand-in.json").read_text())["state"]["step"] == 5
    assert _run(tmp_path, 9)[-1].split()[-1] == "5"

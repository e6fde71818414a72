"""Rank 0's side of the page that a training shares with its agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slurm_hadar.runtime.inject import _hadar_progress as shared

# hadar-srun's copy, loaded at Python's start, without the words that were added since
OLDER = """
import importlib.util, sys
from slurm_hadar.runtime import inject
spec = importlib.util.spec_from_file_location("_hadar_progress", inject.INJECT / "_hadar_progress.py")
older = sys.modules["_hadar_progress"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(older)
del older.GLOBAL_BATCH, older.WANTED
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.workers.gang import Gang
Link(Gang(), True).begin(3, 10, 512)
"""


def test_hadar_srun_may_be_older_than_what_the_script_imports(tmp_path: Path) -> None:
    """Each is brought up to date by someone else: one by the administrator, the other by the job's owner."""
    subprocess.run([sys.executable, "-c", OLDER], env={"HADAR_RUN_DIR": str(tmp_path)}, timeout=50, check=True)

    (file,) = tmp_path.iterdir()
    words = shared.Page(file).words
    assert (words[shared.STEPS], words[shared.TOTAL], words[shared.GLOBAL_BATCH]) == (3, 10, 512)

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


# as on a disk that is full: files can be made there, and nothing can be written to them
FULL = """
import errno, os, sys
def write(descriptor, data, real=os.write):
    if descriptor == 2: return real(descriptor, data)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.ftruncate = os.write = write
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.workers.gang import Gang
link = Link(Gang(), True)
link.begin(3, 10)
sys.exit(link.asked()[0])
"""
# the same process as two programs, one after the other, and what the agent has asked of the first in between
ANEW = """
import os, sys
from slurm_hadar.runtime.inject import _hadar_progress as shared
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.workers.gang import Gang
link = Link(Gang(), True)
link.begin(*map(int, sys.argv[1:3]))
if sys.argv[3:]:
    link.saved(3, 1, 0.5)
    shared.open_page(0, 1).words[shared.ASKED] += 1
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], *sys.argv[3:]])
"""


def test_a_full_disk_costs_measuring_and_not_the_training(tmp_path: Path) -> None:
    """A page that cannot be filled is not used: who writes to it would die of a bus error."""
    environ = {"HADAR_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FULL], env=environ, timeout=50, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 0 and "is not measured" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_container_without_the_nodes_tmp_costs_measuring_and_not_the_training(tmp_path: Path) -> None:
    environ = {"HADAR_RUN_DIR": str(tmp_path / "not there")}
    done = subprocess.run([sys.executable, "-c", FULL], env=environ, timeout=50, stderr=subprocess.PIPE, text=True)

    why = "this training is not measured, and not asked to save before the job is moved: No such file or directory"
    assert (done.returncode, done.stderr) == (0, f"hadar: {why}\n")


def test_a_page_has_no_hole(tmp_path: Path) -> None:
    """Its room is there before it is mapped."""
    shared.Page(tmp_path / "1.map", create=True)
    assert (tmp_path / "1.map").stat().st_blocks > 0


def test_a_script_that_executes_itself_anew_trains_on(tmp_path: Path) -> None:
    """The page is that of the process, which stays the same; a wish to save is still to be answered."""
    command = [sys.executable, "-c", ANEW, "3", "10", "0", "20"]
    subprocess.run(command, env={"HADAR_RUN_DIR": str(tmp_path)}, timeout=50, check=True)

    (file,) = tmp_path.iterdir()
    page = shared.Page(file)
    assert page.ready
    assert [page.words[word] for word in (shared.STEPS, shared.TOTAL, shared.SAVED_STEP, shared.SAVES)] == [
        0,
        20,
        -1,
        0,
    ]
    assert page.words[shared.ASKED] > page.words[shared.ANSWERED]

"""Several trainings of one job, each in a process of its own: none goes on from another one's checkpoints unnoticed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import CheckpointError
from slurm_hadar.procstat import stat_of
from slurm_hadar.runtime.checkpoint.store import Store
from slurm_hadar.runtime.checkpoint.trained import Trained, follows

LAST = Trained(0, ["/a/train.py", "--fold", "1"], "elsewhere", 17, "5")


def test_the_same_command_goes_on() -> None:
    """After a failure in the same run, and after a restart whatever its arguments: they may hold a time."""
    assert follows(None, LAST) is None
    assert follows(LAST, replace(LAST, pid=18)) is None
    assert follows(LAST, replace(LAST, pid=18, generation=1, words=["/b/train.py", "--out", "now"])) is None
    assert follows(replace(LAST, ended=True), replace(LAST, ended=True)) is None  # this process itself


@pytest.mark.parametrize("ended", [False, True])
def test_others_are_told_of(ended: bool) -> None:
    last = replace(LAST, ended=ended)
    next_fold = follows(last, replace(LAST, pid=18, words=["/a/train.py", "--fold", "2"]))
    assert next_fold is not None and next_fold.ended is ended and "(train.py --fold 1)" in next_fold.who
    later = follows(last, replace(LAST, pid=18, generation=1, words=["/a/tune.py"]))
    assert later is not None and not later.ended and later.who == "train.py in an earlier run of this job"
    again = follows(last, replace(LAST, pid=18))
    assert (again is not None) is ended and (again is None or not again.ended)


def test_another_program_is_refused_in_the_same_run_and_so_is_one_beside_a_live_one() -> None:
    with pytest.raises(CheckpointError, match=r"are those of another training of this job \(train.py --fold 1\); give"):
        follows(LAST, replace(LAST, pid=18, words=["/a/tune.py"]))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        alive = replace(Trained.here(0), pid=process.pid, born=str(stat_of(process.pid).began))
        with pytest.raises(CheckpointError, match=f"is running, process {process.pid}, and saves to the same place"):
            follows(alive, Trained.here(0))
        assert follows(replace(alive, born="1"), Trained.here(0)) is None  # another process has its number now


def test_a_process_that_executes_another_command_is_told_from_the_one_before() -> None:
    """It keeps its number."""
    here = Trained.here(0)
    with pytest.raises(CheckpointError, match="are those of another training of this job"):
        follows(here, replace(here, words=["/a/another.py", *here.words[1:]]))
    next_fold = follows(replace(here, ended=True), replace(here, words=[*here.words, "--fold"]))
    assert next_fold is not None and next_fold.ended


def test_a_script_may_have_a_name_that_the_kernel_cuts_within_a_letter(tmp_path: Path) -> None:
    script = tmp_path / "обучение-сети"
    script.write_text(f"#!{sys.executable}\nfrom {Trained.__module__} import *\nprint(Trained.here(0).alive)\n")
    script.chmod(0o700)

    assert subprocess.run([script], capture_output=True, text=True, check=False).stdout == "True\n"


def _note(**changes: object) -> str:
    return json.dumps({"generation": 0, "words": [], "host": "a", "pid": 1, "born": None} | changes)


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", "\0", '{"generation": 0, "more": 1}', _note(words=5), _note(words=[5])):
        (tmp_path / "training").write_text(text)
        assert Trained.read(tmp_path) is None
    LAST.end(tmp_path)
    assert Trained.read(tmp_path) == replace(LAST, ended=True)


def test_a_named_directory_is_for_going_on_from_each_other(tmp_path: Path) -> None:
    LAST.write(tmp_path)
    store = Store(tmp_path, "any", None)
    store.claim()
    assert store.follows is None and Trained.read(tmp_path) == LAST


TRAINING = """
import sys
sys.argv[0] = sys.argv.pop(1)
import torch, slurm_hadar
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = list(slurm_hadar.train(model, optimizer, total_steps=int(sys.argv[1]), name=(sys.argv + [None])[2]))
print("made", len(steps), file=sys.stderr)
"""


@pytest.fixture
def train(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[..., tuple[int, str]]:
    """Run a script of this name to its end: so many steps; its exit code, and what it said."""
    pytest.importorskip("torch")

    def run(script: str, *words: str, **variables: str) -> tuple[int, str]:
        started = start_script(TRAINING, {**job_env, **variables}, f"/somewhere/{script}", *words)
        _, said = started.communicate(120)
        return started.returncode, said

    return run


@pytest.mark.torch
def test_programs_one_after_the_other_in_one_job(train: Callable[..., tuple[int, str]]) -> None:
    assert "made 6" in train("first.py", "6")[1]
    code, said = train("second.py", "9")
    assert (
        code == 1 and "are those of another training of this job (first.py 6); give each training of this job" in said
    )
    assert "made 9" in train("second.py", "9", "own")[1]
    code, said = train("first.py", "4")
    assert (
        code == 1 and "has the checkpoints of a training that has ended; give each training of this job a name" in said
    )
    code, said = train("first.py", "8")
    assert code == 0 and "made 2" in said and "WARNING: goes on from where another training of this job" in said
    code, said = train("first.py", "8")  # an evaluation behind it has failed and was run again, or so
    assert code == 0 and "made 0" in said and "WARNING: goes on from where" in said
    code, said = train("first.py", "8", SLURM_RESTART_COUNT="1")
    assert code == 0 and "made 0" in said and "WARNING" not in said


@pytest.mark.torch
def test_commands_that_share_a_gpu_have_their_own(train: Callable[..., tuple[int, str]]) -> None:
    """Also where it is the same program with the same arguments."""
    for run in ("0", "1"):
        for number in ("1", "2", "3"):
            _, said = train("same.py", "5", HADAR_COMMAND=number, SLURM_RESTART_COUNT=run)
            assert f"made {5 if run == '0' else 0}" in said and "WARNING" not in said

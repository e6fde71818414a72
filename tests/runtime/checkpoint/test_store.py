"""Checkpoints: whole or not there, never another's, never spoiled by an older run."""

import json
import os
import pathlib
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from slurm_hadar.errors import CheckpointError  # noqa: E402
from slurm_hadar.runtime.checkpoint import files  # noqa: E402
from slurm_hadar.runtime.checkpoint import store as checkpoint  # noqa: E402
from slurm_hadar.runtime.checkpoint.listing import CLAIM, newest_step  # noqa: E402
from slurm_hadar.runtime.checkpoint.store import Store  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def content(step: int) -> dict[str, Any]:
    return {"state": {"step": step, "w": torch.full((100,), float(step))}, "ranks": [1]}


def store(directory: Path, generation: int | None = 0, keep: int = 2, job: str = "77") -> Store:
    return Store(directory, job, generation, keep)


def names(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir() if p.name != CLAIM}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """The newest checkpoint comes first, with tensors and plain data as they were."""
    ours = store(tmp_path)
    ours.save(1, content(1))
    ours.save(2, content(2))
    newest = next(ours.good())
    assert (newest.step, newest.generation) == (2, 0)
    loaded = ours.load(newest)
    assert loaded["ranks"] == [1]
    assert torch.equal(loaded["state"]["w"], torch.full((100,), 2.0))


def test_only_the_last_ones_stay(tmp_path: Path) -> None:
    """``keep`` checkpoints remain and nothing else."""
    ours = store(tmp_path, keep=3)
    for step in range(6):
        ours.save(step, content(step))
    assert names(tmp_path) == {f"gen-0-step-{s}" for s in (3, 4, 5)}


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "no manifest", "cut manifest", "foreign", "renamed"]
)
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with the newest, it is named in one line and the one before is used."""
    ours = store(tmp_path)
    ours.save(1, content(1))
    path = ours.save(2, content(2)).path
    file, manifest = path / "state.pt", path / checkpoint.MANIFEST
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flipped":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "missing":
        file.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "cut manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif damage == "foreign":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "job": "78"}))
    else:
        path.rename(tmp_path / "gen-0-step-9")
    assert [c.step for c in ours.good()] == [1]
    (said,) = capsys.readouterr().err.splitlines()
    assert "passed over" in said


def test_what_was_passed_over_stays_until_the_training_is_as_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be good for another version, say. That the training begins anew is said loudly."""
    before = store(tmp_path)
    for step in (90, 100):
        newest = before.save(step, content(step))
    for manifest in tmp_path.glob("*/manifest.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": checkpoint.FORMAT + 1}))

    ours = store(tmp_path, 1)
    ours.claim()
    assert ours.newest(ours.load) is None
    said = capsys.readouterr().err.splitlines()
    assert "WARNING: this training begins anew" in said[-1] and "step 100 stays" in said[-1]
    for step in (10, 20, 30):
        ours.save(step, content(step))
    assert names(tmp_path) == {"gen-0-step-90", newest.name, "gen-1-step-20", "gen-1-step-30"}

    again = store(tmp_path, 2)  # and in its next run
    again.claim()
    found = again.newest(again.load)
    assert found is not None and found[0].step == 30 and "WARNING" not in capsys.readouterr().err
    for step in (95, 99):
        again.save(step, content(step))
    assert names(tmp_path) == {newest.name, "gen-2-step-95", "gen-2-step-99"}
    again.save(110, content(110))
    assert names(tmp_path) == {"gen-2-step-99", "gen-2-step-110"}


def test_a_first_run_has_nothing_to_warn_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert store(tmp_path / "none").newest(lambda found: found) is None
    assert capsys.readouterr().err == ""


CUTS = ("mkdir", "torch.save", "manifest", "fsync", "rename", "after")
# each cut in a forked child, since importing PyTorch takes longer than all of them
KILLED = """
import os, signal, sys, torch
from pathlib import Path
from slurm_hadar.runtime.checkpoint import files, store
def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)
def half(value, file, real=torch.save):
    real(value, file); die()
def save(directory, cut):
    ours = store.Store(directory, "77", 0)
    ours.claim(); ours.save(1, {"state": torch.ones(5)})
    if cut == "mkdir": files.write_object = die
    if cut == "torch.save": torch.save = half
    if cut == "manifest": files.write_bytes = die
    if cut == "fsync": os.fsync = die
    if cut == "rename": store.Store._publish = die
    if cut == "after": store.Store._prune = die
    ours.save(2, {"state": torch.ones(5)})
for cut in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        save(Path(sys.argv[1], cut), cut)
        os._exit(0)
    print(cut, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_killed_while_saving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kill -9 at any point of a save leaves a good checkpoint, and the next run clears the rest away."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", KILLED, str(tmp_path), *CUTS]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == [f"{cut} -9" for cut in CUTS], done.stderr
    for cut in CUTS:
        ours = store(tmp_path / cut, generation=1)
        ours.claim()
        assert next(ours.good()).step == (2 if cut == "after" else 1), cut
        assert capsys.readouterr().err == "", cut
        assert not [n for n in names(tmp_path / cut) if n.startswith(".")], cut


def test_a_full_disk_leaves_the_previous_one(tmp_path: Path) -> None:
    """Out of space in the middle of a save: one clear error, no remains, the previous checkpoint intact."""
    ours = store(tmp_path)
    ours.save(1, content(1))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(CheckpointError, match="step 2 was not written") as caught:
            ours.save(2, {"state": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert "File too large" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"gen-0-step-1"}
    assert [c.step for c in ours.good()] == [1]


def test_no_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason that the system gives (ENOSPC) is in the message, though torch.save hides it."""
    ours = store(tmp_path)

    def full(self: object, _data: bytes) -> int:
        self.error = OSError(28, "No space left on device")  # type: ignore[attr-defined]
        raise self.error  # type: ignore[attr-defined]

    monkeypatch.setattr(files.Summed, "write", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        ours.save(2, content(2))
    assert names(tmp_path) == set()


def test_an_older_run_spoils_nothing(tmp_path: Path) -> None:
    """A run that goes on after it was replaced can neither write nor remove anything."""
    old = store(tmp_path, generation=0, keep=1)
    old.claim()
    old.save(10, content(10))
    new = store(tmp_path, generation=1, keep=2)
    new.claim()
    with pytest.raises(CheckpointError, match="run 1 has taken over"):
        old.save(20, content(20))
    assert next(new.good()).step == 10
    new.save(15, content(15))
    assert names(tmp_path) == {"gen-0-step-10", "gen-1-step-15"}
    with pytest.raises(CheckpointError, match="taken over"):
        old.claim()


def test_what_is_passed_over_takes_no_ones_place(tmp_path: Path) -> None:
    """Checkpoints of another job that are further stay, beside those of this one, until it is as far."""
    other, ours = store(tmp_path, job="1"), store(tmp_path)
    other.save(20, content(20)), other.save(30, content(30))
    assert ours.newest(ours.load) is None
    for step in (5, 6, 7):
        ours.save(step, content(step))
    assert names(tmp_path) == {"gen-0-step-6", "gen-0-step-7", "gen-0-step-20", "gen-0-step-30"}
    ours.save(25, content(25))
    assert names(tmp_path) == {"gen-0-step-7", "gen-0-step-25", "gen-0-step-30"}


def test_the_newest_run_counts_before_the_highest_step(tmp_path: Path) -> None:
    """What an older run wrote unnoticed does not hide the newer run's history, nor does its pruning touch it."""
    for generation, step in [(0, 10), (1, 15)]:
        store(tmp_path, generation).save(step, content(step))
    (tmp_path / "gen-1-step-15").rename(tmp_path / "hidden")
    old = store(tmp_path, generation=0, keep=1)
    old.save(99, content(99))
    (tmp_path / "hidden").rename(tmp_path / "gen-1-step-15")
    old._prune()  # noqa: SLF001 - as each save of it would, were it not refused
    assert names(tmp_path) == {"gen-0-step-99", "gen-1-step-15"}
    assert next(store(tmp_path, generation=2).good()).step == 15
    assert newest_step(tmp_path) == 15


def test_saving_the_same_step_again(tmp_path: Path) -> None:
    """The same run may save the same step twice; the later one stands."""
    ours = store(tmp_path)
    ours.save(5, content(5))
    ours.save(5, content(6))
    assert names(tmp_path) == {"gen-0-step-5"}
    assert ours.load(next(ours.good()))["state"]["step"] == 6


def test_a_named_directory_counts_its_runs(tmp_path: Path) -> None:
    """Without restart counts each run that claims the directory is the next generation."""
    for expected in range(3):
        ours = store(tmp_path, generation=None)
        ours.claim()
        assert ours.generation == expected
        ours.save(expected, content(expected))


def test_objects_beyond_plain_data(tmp_path: Path) -> None:
    """What a user's scheduler or state holds beside tensors survives too."""
    ours = store(tmp_path)
    ours.save(1, {"state": {"path": Path("/x"), "set": {1, 2}}})
    assert ours.load(next(ours.good()))["state"] == {"path": Path("/x"), "set": {1, 2}}


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_what_another_python_has_saved(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is of another module with Python 3.13 alone."""
    ours = store(tmp_path)
    with monkeypatch.context() as other:
        other.setitem(sys.modules, module, pathlib)
        other.setattr(pathlib.PosixPath, "__module__", module)
        ours.save(1, {"state": {"path": Path("/x")}})
    assert ours.load(next(ours.good()))["state"]["path"] == Path("/x")


def test_nothing_there(tmp_path: Path) -> None:
    """A directory that does not exist holds no checkpoint, which is no error."""
    assert newest_step(tmp_path / "none") is None
    assert list(store(tmp_path / "none").good()) == []

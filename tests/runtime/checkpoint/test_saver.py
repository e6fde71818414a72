"""Checkpoints of gangs: resharded bit by bit, written beside the training, and whole whenever the writer is killed."""

import enum
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import slurm_hadar  # noqa: E402
from slurm_hadar.errors import CheckpointError  # noqa: E402
from slurm_hadar.runtime.checkpoint import files, saver  # noqa: E402
from slurm_hadar.runtime.checkpoint import store as checkpoint  # noqa: E402
from slurm_hadar.runtime.checkpoint.listing import CLAIM, Checkpoint  # noqa: E402
from slurm_hadar.runtime.checkpoint.states import sharded  # noqa: E402
from slurm_hadar.runtime.inject import _hadar_progress as shared  # noqa: E402
from tests.runtime.forkserver import Script  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def forked(*arguments: object) -> list[dict[str, Any]]:
    """The lines of one run of ``forked.py``, outside Slurm; not measured for coverage, which its hundreds of forks,
    killed or ended at once, would not write down."""
    others = ("SLURM", "HADAR", "RANK", "WORLD", "MASTER", "COVERAGE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    command = [sys.executable, str(ROOT / "tests/runtime/forked.py"), *map(str, arguments)]
    env = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_resharded_to_the_last_bit(tmp_path: Path) -> None:
    """Models, Adam's and momentum's state are the same after each change of the number of workers and of the wrapper:
    4 to 3, 3 to 2, 2 to 1 and 1 to 2 of DDP and of FSDP2, and from each to the other and to a process without a group.
    """
    worlds = ["ddp:4", "ddp:3", "ddp:2", "ddp:1", "ddp:2", "fsdp:4", "fsdp:3", "fsdp:2", "fsdp:1", "fsdp:2"]
    stages = [*worlds, "plain:0", "fsdp:2", "ddp:2", "plain:0", "ddp:1"]
    lines = forked("reshard", tmp_path, *stages)
    assert [line["stage"] for line in lines] == stages
    assert not any(any(line["codes"]) for line in lines), lines


@pytest.mark.parametrize(
    ("mode", "every", "at_bytes"), [pytest.param("async", 2, 12, marks=pytest.mark.thorough), ("sync", 4, 6)]
)
def test_killed_at_any_point(tmp_path: Path, mode: str, every: int, at_bytes: int) -> None:
    """kill -9 before each operation on files of a run, and after any number of bytes: the next run goes on from a
    checkpoint, passes none over, and ends with the bits of a run left alone; even with ``keep=1``."""
    (line,) = forked("kill", tmp_path, every, at_bytes, mode)
    assert line["operations"] > 50
    assert set(line["began"]) == {0, 4, 8, 12}
    assert line["began"] == sorted(line["began"])  # cut later, resumed no earlier
    assert len(line["at_bytes"]) == at_bytes


@pytest.mark.parametrize(("who", "world"), [(0, 2), (1, 3)])
def test_a_worker_killed_in_a_save(tmp_path: Path, who: int, world: int) -> None:
    """One of several dies while it writes: the others say so and end; the checkpoint before is good."""
    (line,) = forked("fail", tmp_path, "kill", who, world)
    assert line["codes"][who] == -signal.SIGKILL
    assert all(line["codes"])
    assert "checkpoint of step 8 was not written: another worker is gone" in (tmp_path / "log").read_text()
    ours = checkpoint.Store(tmp_path, "any", None)
    ours.claim()
    assert [c.step for c in ours.good()] == [4]


def test_a_full_disk_of_one_worker(tmp_path: Path) -> None:
    """All go on; one line names the worker and the reason; no half of a checkpoint remains."""
    (line,) = forked("fail", tmp_path, "full", 1, 2)
    assert line["codes"] == [0, 0]
    (said,) = (tmp_path / "log").read_text().splitlines()
    assert said.endswith("worker 1: No space left on device; the training goes on")
    assert {p.name for p in tmp_path.iterdir()} == {"claim", "log", "gen-0-step-4", "gen-0-step-12"}


def small(directory: Path, **options: object) -> Any:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    options = {"total_steps": 10, "save_every_s": None, **options}
    return layer, slurm_hadar.train(layer, optimizer, directory=directory, **options)


class SlowDisk:
    """Holds the background's writing up until it is let go; the first use of it is seen by ``reached``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        write, main = files.Summed.write, threading.main_thread()

        def slow(file: files.Summed, data: bytes) -> int:
            if threading.current_thread() is not main:
                self.reached.set()
                assert self.go.wait(300)
            return write(file, data)

        monkeypatch.setattr(files.Summed, "write", slow)


def test_the_training_goes_on_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are made while a save is being written, and what is written is the state at its step."""
    disk = SlowDisk(monkeypatch)
    layer, run = small(tmp_path, save_every_steps=3, total_steps=5)
    for _ in run:
        layer.weight.data.fill_(run.step + 1)
        if run.step == 4:
            assert disk.reached.wait(300)
            assert not list(tmp_path.glob("gen-*"))
            disk.go.set()
    assert checkpoint.read_checkpoint(tmp_path / "gen-0-step-3")["model"]["weight"].tolist() == [[3.0, 3.0]]
    assert checkpoint.read_checkpoint(tmp_path / "gen-0-step-5")["model"]["weight"].tolist() == [[5.0, 5.0]]


def test_a_save_that_was_asked_for_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler hears of a save when it is safe; the page tells how long it took and the training stood."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("HADAR_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(shared, "_page", None)
    monkeypatch.setattr(shared, "_counting", True)
    _, run = small(tmp_path / "c", save_every_steps=2)
    (path,) = (tmp_path / "run").iterdir()
    page = shared.Page(path)
    assert page.seconds[shared.STALL_S] == -1
    for _ in run:
        if run.step == 4:
            page.words[shared.ASKED] += 1
        if run.step == 5:
            assert page.words[shared.ANSWERED] == 1
            assert (tmp_path / "c/gen-0-step-5").exists()
            assert page.words[shared.SAVED_STEP] == 5
            assert page.seconds[shared.STALL_S] == page.seconds[shared.SAVE_S] > 0
            break
    assert page.words[shared.SAVES] == 3  # 2, 4 and the one asked for


def test_a_slow_save_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who waits for a write that does not end says so, again and again."""
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(saver, "WORD_EVERY_S", 0.02)
    _, run = small(tmp_path)
    said = ""

    def let_go() -> None:
        nonlocal said
        deadline = time.monotonic() + 60
        while said.count("still being written") < 2 and time.monotonic() < deadline:
            said += capfd.readouterr().err
        disk.go.set()

    watcher = threading.Thread(target=let_go)
    watcher.start()
    run.save()
    watcher.join()
    assert "checkpoint of step 0 is still being written" in said
    assert said.count("still being written") >= 2


def test_a_newer_run_takes_over_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What an older run has not published by then never is; it says why and goes on."""
    disk = SlowDisk(monkeypatch)
    _, run = small(tmp_path, save_every_steps=3, total_steps=5)
    for _ in run:
        if run.step == 4:
            assert disk.reached.wait(300)
            (tmp_path / CLAIM).write_text("7\n")
            disk.go.set()
    assert "run 7 has taken over; the training goes on" in capfd.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {CLAIM}


LEAVING = """
import os, sys, threading, torch, slurm_hadar
from slurm_hadar.runtime.checkpoint import files
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
run = slurm_hadar.train(layer, optimizer, total_steps=9, save_every_steps=2, directory=sys.argv[1])
write, reached, go = files.Summed.write, threading.Event(), threading.Event()
def slow(self, data):
    reached.set(); go.wait(300)
    return write(self, data)
files.Summed.write = slow
steps = iter(run)
for _ in range(3): next(steps)
reached.wait(300)
if sys.argv[2] == "fork" and os.fork() == 0:
    steps.close()
    sys.exit(0)
if sys.argv[2] == "fork": assert os.wait()[1] == 0
go.set()
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["exit", "fork"])
def test_leaving_while_it_is_written(tmp_path: Path, how: str, start_script: Callable[..., Script]) -> None:
    """A process that ends finishes its writing; a forked child that ends meanwhile neither hangs nor spoils it."""
    done = start_script(LEAVING, dict(os.environ), str(tmp_path / "kept"), how)
    assert done.wait(120) == 3
    ours = checkpoint.Store(tmp_path / "kept", "any", None)
    assert [c.step for c in ours.good()] == [2]


def test_a_checkpoint_of_format_1_is_resumed(tmp_path: Path) -> None:
    """What was saved before the upgrade: everything in state.pt."""
    layer, run = small(tmp_path, total_steps=4)
    list(run)
    old = checkpoint.Store(tmp_path / "old", "any", None)
    content = old.load(Checkpoint(0, 4, tmp_path / "gen-0-step-4"))
    old.claim()
    old.save(4, content)
    manifest = tmp_path / "old/gen-0-step-4" / checkpoint.MANIFEST
    text = manifest.read_text().replace('"format": 3', '"format": 1')
    manifest.write_text(text)
    again, resumed = small(tmp_path / "old")
    assert resumed.step == 4
    assert torch.equal(again.weight, layer.weight)
    manifest.write_text(text.replace('"format": 1', '"format": 4'))
    with pytest.raises(CheckpointError, match="its format is 4, and this version reads up to 3"):
        checkpoint.read_checkpoint(manifest.parent)


def test_a_replacement_that_was_cut_off_is_taken_back(tmp_path: Path) -> None:
    """Killed between the two renames of a step that is saved again: the next run finds the earlier state."""
    ours = checkpoint.Store(tmp_path, "any", None)
    path = ours.save(5, {"state": 1}).path
    path.rename(tmp_path / f".old-{path.name}")
    again = checkpoint.Store(tmp_path, "any", None)
    again.claim()
    assert [c.step for c in again.good()] == [5]


def test_odd_tensors_and_names(tmp_path: Path) -> None:
    """Sparse and empty tensors go the other way; names that would meet are kept apart; a dict's class stays."""
    tree = {"a.b": {"c": torch.ones(2)}, "a": {"b.c": torch.zeros(2)}, "e": torch.empty(0, 3), "l": (torch.ones(()), 2)}
    tree["s"] = torch.ones(2, 2).to_sparse()
    form, tensors = sharded.split(tree)
    assert list(tensors) == ["a.b.c", "a.b.c~", "l.0"]
    local = sharded.LocalPlan(tensors, True)
    (plan,), metadata = local.combine([local.plan], tmp_path)
    local.finish(plan)
    results, entries = sharded.write(local, sharded.Stage().copy(local), tmp_path)
    entries |= sharded.write_metadata(metadata, [results], tmp_path)
    for name, entry in entries.items():
        files.verify(tmp_path / name, entry)
    back = sharded.read(tmp_path, form)
    assert torch.equal(back["a.b"]["c"], torch.ones(2))
    assert torch.equal(back["a"]["b.c"], torch.zeros(2))
    assert (back["l"], back["e"], back["s"]) == ((torch.ones(()), 2), tree["e"], tree["s"])


@contextmanager
def _written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """DCP's description of a tensor is written when it ends, as another Python does; then the tensor is read."""
    form, tensors = sharded.split({"a": torch.ones(2)})
    local = sharded.LocalPlan(tensors, True)
    (plan,), metadata = local.combine([local.plan], tmp_path)
    local.finish(plan)
    results, _ = sharded.write(local, sharded.Stage().copy(local), tmp_path)
    with monkeypatch.context() as other:
        yield other
        sharded.write_metadata(metadata, [results], tmp_path)
    assert torch.equal(sharded.read(tmp_path, form)["a"], torch.ones(2))


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_tensors_that_another_python_has_saved(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DCP's description of them holds a path, whose class is of another module with Python 3.13 alone."""
    with _written(tmp_path, monkeypatch) as other:
        other.setitem(sys.modules, module, pathlib)
        other.setattr(pathlib.PosixPath, "__module__", module)
    assert bytes([len(module)]) + module.encode() in (tmp_path / ".metadata").read_bytes()


def test_tensors_that_an_early_python_3_11_has_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 3.11.3, which Debian 12 has, a member of an enumeration is written as its attribute."""
    with _written(tmp_path, monkeypatch) as other:
        other.setattr(enum.Enum, "__reduce_ex__", lambda one, _: (getattr, (type(one), one.name)))
    assert b"builtins" in (tmp_path / ".metadata").read_bytes()


def test_an_attribute_of_anything_else_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"cbuiltins\ngetattr\n(cpathlib\nPosixPath\nVhome\ntR.")
    with pytest.raises(CheckpointError, match="the attribute home of"):
        sharded.read(tmp_path, {})


def test_a_stream_that_is_let_go_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a traceback of a save that failed: no word of it, which Python 3.13 would print into the job's output."""
    from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms

    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with files.create(tmp_path / "file") as file:
        stream = _StorageWriterTransforms().transform_save_stream(Any, file)
        file.write(b"1234")
    del stream
    gc.collect()
    assert told == [] and (tmp_path / "file").read_bytes() == b"1234"


def test_the_tools_of_pytorch_read_it(tmp_path: Path) -> None:
    """The tensors are an ordinary checkpoint of torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    layer, run = small(tmp_path)
    list(run)
    dcp_to_torch_save(tmp_path / "gen-0-step-10" / checkpoint.TENSORS, tmp_path / "plain.pt")
    assert torch.equal(torch.load(tmp_path / "plain.pt")["model.weight"], layer.weight)


def test_fsdp1_is_refused(tmp_path: Path) -> None:
    """Its state_dict is collective, and would hang: one line that names the way out."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = torch.nn.Sequential(torch.nn.Linear(2, 1))
    wrapped[0] = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    torch.nn.Module.__init__(wrapped[0])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(CheckpointError, match=r"use torch\.distributed\.fsdp\.fully_shard"):
        slurm_hadar.train(wrapped, optimizer, total_steps=1, directory=tmp_path)


def test_zero_is_refused(tmp_path: Path) -> None:
    """No save of it would ever succeed."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer.__new__(ZeroRedundancyOptimizer)
    with pytest.raises(CheckpointError, match="ZeroRedundancyOptimizer is not supported"):
        slurm_hadar.train(torch.nn.Linear(2, 1), optimizer, total_steps=1, directory=tmp_path)

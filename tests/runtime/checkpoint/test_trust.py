"""A job loads what it has saved itself, and nothing that could run code, whoever wrote it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import slurm_hadar  # noqa: E402
from slurm_hadar import messages  # noqa: E402
from slurm_hadar.errors import CheckpointError  # noqa: E402
from slurm_hadar.runtime.checkpoint import files  # noqa: E402
from slurm_hadar.runtime.checkpoint.place import store_here  # noqa: E402
from tests.runtime.other_users import give, needs_root  # noqa: E402


def _save() -> tuple[Any, Path]:
    store = store_here(None, None, 2)
    assert store is not None
    store.claim()
    return store, store.save(5, {"state": {"a": 1}}).path


@pytest.mark.usefixtures("in_job")
def test_a_manifest_that_was_changed(capfd: pytest.CaptureFixture[str]) -> None:
    """Its sums may be right: without the token there is no seal."""
    store, path = _save()
    assert [c.step for c in store.good()] == [5]
    manifest = json.loads((path / "manifest.json").read_text())

    for forged in (
        {**manifest, "world": 2},
        {**manifest, "seal": "0" * 64},
        {k: v for k, v in manifest.items() if k != "seal"},
    ):
        (path / "manifest.json").write_text(json.dumps(forged))
        assert list(store.good()) == []
        assert "its seal does not fit this job's token" in capfd.readouterr().err


def test_a_token_that_was_replaced(in_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What the old one has sealed is passed over, with a line."""
    _save()
    (in_job / ".hadar" / "77" / messages.TOKEN_FILE).unlink()
    store = store_here(None, None, 2)
    assert store is not None and list(store.good()) == []
    assert "or the token was replaced" in capfd.readouterr().err


def test_a_token_that_is_lost_while_the_training_runs(in_job: Path) -> None:
    """As where old files are cleared away, or the directory is moved: what is saved then is of use to the next run."""
    home = in_job / ".hadar" / "77"
    store, _ = _save()
    (home / messages.TOKEN_FILE).unlink()
    store.save(6, {"state": {"a": 2}})
    home.rename(in_job / "moved")
    store.save(7, {"state": {"a": 3}})
    (home / messages.TOKEN_FILE).write_text("0" * 64 + "\n")  # another step of the job has made itself one
    store.save(8, {"state": {"a": 4}})

    after = store_here(None, None, 2)
    assert after is not None and [c.step for c in after.good()] == [8]


def test_a_token_that_others_may_read_meanwhile(in_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is told once, with what helps; the training's saves are good once that is done."""
    store, _ = _save()
    token = in_job / ".hadar" / "77" / messages.TOKEN_FILE
    token.chmod(0o644)
    for step in (6, 7):
        store.save(step, {"state": {"a": 2}})
    (said,) = capfd.readouterr().err.splitlines()
    assert "WARNING" in said and f"chmod 600 {token}" in said

    token.chmod(0o600)
    after = store_here(None, None, 2)
    assert after is not None and [c.step for c in after.good()] == [7, 6]


@needs_root
@pytest.mark.parametrize("name", ["", "state.pt", "manifest.json"])
@pytest.mark.usefixtures("in_job")
def test_a_file_of_another_user_in_a_checkpoint(name: str) -> None:
    """It is not this job's, whatever it says."""
    store, path = _save()
    give(path / name)
    assert list(store.good()) == []


@pytest.mark.usefixtures("in_job")
def test_a_checkpoint_of_an_earlier_version_is_resumed(capfd: pytest.CaptureFixture[str]) -> None:
    """It has no seal: it counts where nobody else could have written it."""
    store, path = _save()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["seal"]
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    assert [store.load(c)["state"] for c in store.good()] == [{"a": 1}]

    (path / "state.pt").chmod(0o666)
    assert list(store.good()) == []
    assert f"other users may have changed state.pt; if you trust it: chmod -R go-w {path}" in capfd.readouterr().err


RunScript = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_script(start_script: Callable[..., Any]) -> RunScript:
    """Run a script to its end; its exit code, and what it said on stdout and stderr."""

    def run(*arguments: Any, **options: Any) -> tuple[int, str, str]:
        script = start_script(*arguments, **options)
        out, err = script.communicate(120)
        return script.returncode, out, err

    return run


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def _checkpoint_with(payload: Payload, part: str, into: Path) -> Path:
    """A checkpoint whose sums are right, made by the same code, with a payload in one of its files."""
    layer = torch.nn.Linear(2, 2)
    list(slurm_hadar.train(layer, torch.optim.SGD(layer.parameters()), total_steps=3, directory=into))
    path = into / "gen-0-step-3"
    if part == "tensors/.metadata":
        (path / part).write_bytes(pickle.dumps(payload))
    else:
        torch.save(payload, path / part)
    manifest = json.loads((path / "manifest.json").read_text())
    data = (path / part).read_bytes()
    manifest["files"][part] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize("part", ["state.pt", "ranks.pt", "tensors/.metadata"])
@pytest.mark.usefixtures("in_job")
def test_no_file_runs_code(tmp_path: Path, part: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Not even from a directory that the user has named, where nothing is sealed: it is passed over, with a line."""
    mark = tmp_path / "ran"
    _checkpoint_with(Payload(mark), part, tmp_path / "named")

    layer = torch.nn.Linear(2, 2)
    run = slurm_hadar.train(layer, torch.optim.SGD(layer.parameters()), total_steps=3, directory=tmp_path / "named")

    assert run.step == 0 and not mark.exists()
    assert "gen-0-step-3 is passed over" in capfd.readouterr().err


_ATTACK = """
import sys
from pathlib import Path
from tests.runtime.checkpoint.test_trust import Payload, _checkpoint_with
path = _checkpoint_with(Payload(Path(sys.argv[2])), "state.pt", Path(sys.argv[1]))
"""
_VICTIM = """
import torch, slurm_hadar
layer = torch.nn.Linear(2, 2)
run = slurm_hadar.train(layer, torch.optim.SGD(layer.parameters()), total_steps=3)
print("begins at", run.step)
list(run)
"""


@needs_root
@pytest.mark.skipif(not shutil.which("runuser"), reason="needs runuser")
def test_a_prepared_directory_in_a_shared_place(in_job: Path, tmp_path: Path, run_script: RunScript) -> None:
    """The attack as it was: .hadar/<next id> with owner file and checkpoint, made by another user. The job trains from
    its beginning, says why, and its own restart resumes."""
    trap = in_job / ".hadar" / "77"
    mark = tmp_path / "ran"
    env = dict(os.environ)
    for name in ("SLURM_JOB_ID", "SLURM_SUBMIT_DIR"):
        env.pop(name)
    code, _, err = run_script(_ATTACK, env, str(trap / "checkpoints"), str(mark))
    assert code == 0, err
    (trap / "owner").write_text("cluster 77 2026-11-20T10:00:00\n")
    for path in (in_job / ".hadar", *(in_job / ".hadar").rglob("*")):
        give(path)
    env |= {"SLURM_JOB_ID": "77", "SLURM_SUBMIT_DIR": str(in_job)}

    _, first, said = run_script(_VICTIM, env)
    _, again, _ = run_script(_VICTIM, {**env, "SLURM_RESTART_COUNT": "1"})

    assert "begins at 0" in first and not mark.exists()
    assert f"belongs to user nobody: this job's files go to {in_job}/.hadar-0/77" in said
    assert "begins at 3" in again


class Vocabulary:
    """A class of the user's."""


@pytest.mark.usefixtures("in_job")
def test_what_could_not_be_loaded_is_refused_when_it_is_saved(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part and its class are named, and the fix is true: allowed classes are saved and loaded."""

    def train() -> Any:
        layer = torch.nn.Linear(2, 2)
        state = {"words": [Vocabulary()]}
        return slurm_hadar.train(layer, torch.optim.SGD(layer.parameters()), total_steps=3, state=state)

    assert len(list(train())) == 3
    said = capfd.readouterr().err
    assert f"user.words.0 is an object of {__name__}.Vocabulary" in said and "add_safe_globals" in said

    with torch.serialization.safe_globals([Vocabulary]):
        list(train())
        assert isinstance(train().state["words"][0], Vocabulary)
    assert train().step == 0, "no longer allowed: passed over"
    assert f"holds {__name__}.Vocabulary" in capfd.readouterr().err
    monkeypatch.setenv("HADAR_UNSAFE_LOAD", "1")
    assert train().step == 3


@pytest.mark.usefixtures("in_job")
def test_what_cannot_be_saved_is_told_of_when_the_training_begins(capfd: pytest.CaptureFixture[str]) -> None:
    """Its first save may be that of a job which is told to end."""
    from collections import defaultdict, deque

    layer = torch.nn.Linear(2, 2)
    for kind, value in (("state", deque([1], 5)), ("also", defaultdict(list)), ("state", [1])):
        given: dict[str, Any] = {kind: {"seen": value}, "name": type(value).__name__}
        slurm_hadar.train(layer, torch.optim.SGD(layer.parameters()), total_steps=3, **given)
        told = f"WARNING: no checkpoint can be written while that stays so: {kind}.seen is an object of collections."
        assert (told + type(value).__name__ in capfd.readouterr().err) == (type(value) is not list)
    with pytest.raises(TypeError, match=r"tensors and arrays as state=\{'h': ...\}, to be read and set as run.state"):
        slurm_hadar.train(layer, torch.optim.SGD(layer.parameters()), total_steps=3, also={"h": torch.ones(2)})


@pytest.mark.usefixtures("in_job")
def test_so_it_is_of_objects_that_are_given(capfd: pytest.CaptureFixture[str]) -> None:
    """But for those that are not ready to be asked for a state, and loaders, which would begin an epoch."""
    asked = []

    class Kept(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "kept": Vocabulary()}

    class Other:
        def state_dict(self) -> dict[str, Any]:
            asked.append(self)
            raise RuntimeError("not yet")

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class Loader(Other):
        def __iter__(self) -> Any: ...

    layer = torch.nn.Sequential(torch.nn.LazyLinear(2))
    also = {"other": (other := Other()), "loader": Loader()}
    slurm_hadar.train(layer, Kept(torch.nn.Linear(2, 2).parameters()), total_steps=3, also=also, name="kept")
    told = "WARNING: no checkpoint can be written while that stays so: optimizer.kept is an object of "
    assert told + f"{__name__}.Vocabulary" in capfd.readouterr().err and asked == [other]
    slurm_hadar.train(layer, torch.optim.SGD(torch.nn.Linear(2, 2).parameters()), total_steps=3, also=also)
    assert "no checkpoint can be written" not in capfd.readouterr().err


def test_arrays_of_the_first_numpy_are_loaded(tmp_path: Path) -> None:
    """Those that it has pickled name another module of it."""
    import numpy as np

    file, old = tmp_path / "new.pt", tmp_path / "old.pt"
    torch.save({"best": np.float64(0.5), "array": np.arange(3)}, file)
    with zipfile.ZipFile(file) as read, zipfile.ZipFile(old, "w") as written:
        for name in read.namelist():
            written.writestr(name, read.read(name).replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray"))
    assert old.read_bytes() != file.read_bytes()
    back = files.load(old)
    assert back["best"] == 0.5 and back["array"].tolist() == [0, 1, 2]


@pytest.mark.usefixtures("in_job")
def test_harmless_classes_need_no_permission() -> None:
    """What schedulers and users commonly keep beside plain data."""
    import argparse
    import collections
    import datetime

    import numpy as np

    store = store_here(None, None, 2)
    assert store is not None
    store.claim()
    kept = {
        "array": np.arange(3),
        "best": np.float64(0.5),
        "path": Path("/x"),
        "set": {1, 2},
        "frozen": frozenset("ab"),
        "counter": collections.Counter("aab"),
        "args": argparse.Namespace(lr=0.1),
        "when": datetime.date(2026, 11, 20),
        "ordered": collections.OrderedDict(a=1),
        "text": np.array(["a", "b"]),
    }
    store.save(1, {"state": kept})
    back = store.load(next(store.good()))["state"]
    assert back.keys() == kept.keys()
    assert all(type(back[k]) is type(v) and np.array_equal(back[k], v) for k, v in kept.items()), back


@pytest.mark.parametrize("value", [Vocabulary(), [_save], __import__("collections").deque([1])])
def test_what_is_refused_is_named(value: Any) -> None:
    """Objects, functions, and classes that PyTorch cannot rebuild though they are allowed."""
    import collections

    from slurm_hadar.runtime.checkpoint import files

    with torch.serialization.safe_globals([collections.deque]), pytest.raises(CheckpointError) as caught:
        files.pickled({"a": {"b": value}})
    kind = type(value[0] if isinstance(value, list) else value)
    found = f"{kind.__module__}.{kind.__qualname__}"
    names = [found, f"{__name__}._save"]
    assert str(caught.value).startswith("a.b") and any(
        f"is an object of {name}," in str(caught.value) for name in names
    )


_LIGHTNING = """
import os, sys, logging, warnings, torch, lightning, slurm_hadar
warnings.filterwarnings("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
os.chdir(sys.argv[3])
class Settings: pass
class Model(lightning.LightningModule):
    def __init__(self, settings):
        super().__init__(); self.save_hyperparameters(); self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index): return self.layer(batch).mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = lightning.Trainer(
    max_steps=int(sys.argv[2]), accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
    enable_model_summary=False, callbacks=[slurm_hadar.LightningCallback(directory=sys.argv[1])])
trainer.fit(Model(Settings()), torch.utils.data.DataLoader(torch.randn(16, 2), batch_size=2))
"""


@pytest.mark.usefixtures("in_job")
def test_a_library_loads_nothing_that_runs_code(tmp_path: Path, run_script: RunScript) -> None:
    """Lightning's own loading is told so; its hyperparameters, any objects at all, are left out. From a directory that
    the user has named a library loads only what is the user's, since not every library is to be told."""
    pytest.importorskip("lightning")
    named, mark = tmp_path / "named", tmp_path / "ran"
    env = dict(os.environ)
    env.pop("SLURM_JOB_ID")

    def train(steps: int) -> tuple[int, str]:
        arguments = (str(named), str(steps), str(tmp_path))
        code, _, err = run_script(_LIGHTNING, env, *arguments, modules=("lightning",))
        return code, err

    assert "not written" not in train(4)[1]
    assert "resumed from gen-0-step-4" in train(6)[1]
    file = named / "gen-1-step-6" / "lightning" / "trainer.ckpt"
    file.chmod(0o666)
    assert "other users may have changed trainer.ckpt" in train(8)[1]
    file.chmod(0o600)
    torch.save(Payload(mark), file)
    manifest = json.loads((file.parents[1] / "manifest.json").read_text())
    data = file.read_bytes()
    manifest["files"]["lightning/trainer.ckpt"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (file.parents[1] / "manifest.json").write_text(json.dumps(manifest))
    assert train(8)[0] != 0 and not mark.exists()

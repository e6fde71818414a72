"""Versions on disk: whole, or refused with one clear line."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_hadar.errors import PredictionError
from slurm_hadar.model import JobState
from slurm_hadar.predict import store as store_module
from slurm_hadar.predict.evaluate import Training
from slurm_hadar.predict.features import samples
from slurm_hadar.predict.history import HistoryJob
from slurm_hadar.predict.predictors import ForestPredictor, GroupMean, GroupMedian
from slurm_hadar.predict.store import KEPT, VersionStore


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path / "predictor")


def add(store: VersionStore, training: Any, history: Any, created: float = 5.0) -> Any:
    return store.add(training, history, "sacct", ("k80", "v100"), created)


def test_what_is_stored_is_read_again(store: VersionStore, training: Training, history: list[HistoryJob]) -> None:
    """Jobs that teach nothing are left out; a second store sees the same."""
    failed = replace(history[0], job_id="no", state=JobState.FAILED)
    version = add(store, training, [*history, failed])
    stored = VersionStore(store.folder).load()

    rows = [s.row for s in samples(history)]
    assert stored.version == version and stored.history == tuple(history)
    assert (stored.forest.predict(rows) == training.forest.predict(rows)).all()
    assert (version.name, version.jobs, version.created, version.source) == ("0001", 400, 5.0, "sacct")
    assert version.grown_by.startswith("scikit-learn") and version.report["tested"] == 80


def test_the_newest_are_kept(store: VersionStore, training: Training, history: list[HistoryJob]) -> None:
    for i in range(KEPT + 2):
        add(store, training, history[:60], float(i))

    assert store.names() == ["0003", "0004", "0005", "0006", "0007"] and store.current() == "0007"
    assert store.load().version.created == 6 and store.load("0003").version.created == 2
    names = {p.name for p in store.folder.iterdir()}
    assert names == {"current", *(f"000{i}.{s}" for i in range(3, 8) for s in ("json", "npz"))}


def test_a_version_without_a_forest_answers_from_its_history(
    store: VersionStore, training: Training, history: list[HistoryJob]
) -> None:
    """One whose forest was refused goes by the group mean; one that wanted the median by that."""
    refused = add(store, Training("group mean", None, training.report, "it is bad"), history)
    assert (refused.predictor, refused.refused, refused.samples, refused.jobs) == ("group mean", "it is bad", 0, 400)
    assert isinstance(store.load().predictor, GroupMean) and store.load().history == tuple(history)
    add(store, Training("group median", None, None, None), history)
    assert isinstance(store.load().predictor, GroupMedian) and store.load().version.report == {}
    add(store, training, history)
    assert isinstance(store.load().predictor, ForestPredictor)


def test_a_crash_leaves_the_version_before(
    store: VersionStore, training: Training, history: list[HistoryJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file it was that could not be written."""
    add(store, training, history[:60], 1.0)
    write = store_module.write_durably
    for last in ("0002.npz", "0002.json", "current"):

        def fails(path: Path, content: bytes, last: str = last) -> None:
            if path.name == last:
                raise OSError(28, "No space left on device")
            write(path, content)

        monkeypatch.setattr(store_module, "write_durably", fails)
        with pytest.raises(PredictionError, match="cannot be written: No space left on device"):
            add(store, training, history[:60], 2.0)
        assert store.load().version.created == 1.0


def test_nothing_is_there_yet(store: VersionStore) -> None:
    assert store.current() is None and store.names() == []
    with pytest.raises(PredictionError, match="holds no predictor yet; train anew with hadar predict --train"):
        store.load()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _change(path: Path, **what: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | what))


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda f: _cut(f / "0001.npz"), "0001.npz: is damaged: it is not what its manifest says; train anew"),
        (lambda f: _flip(f / "0001.npz"), "0001.npz: is damaged"),
        (lambda f: (f / "0001.npz").unlink(), "0001.npz: is missing"),
        (lambda f: (f / "0001.json").unlink(), "0001.json: is missing"),
        (lambda f: (f / "0001.json").write_text("{"), "0001.json: is no manifest of a predictor"),
        (lambda f: (f / "0001.json").write_text("[]"), "0001.json: is no manifest"),
        (lambda f: (f / "0001.json").write_bytes(b"\xff"), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", format=99), "0001.json: was written by a newer slurm_hadar .format 99."),
        (lambda f: _change(f / "0001.json", format="x"), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", format=0), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", features=["x"]), "0001.json: is of another version of this program"),
        (lambda f: _change(f / "0001.json", samples="many"), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", created=1e300), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", created=float("nan")), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", gpu_types=3), "0001.json: is no manifest"),
        (lambda f: _change(f / "0001.json", predictor="tarot"), "0001.json: is no manifest"),
        (lambda f: (f / "current").write_text("../../etc"), "current: must name a version such as 0001, not"),
        (lambda f: (f / "current").write_bytes(b"\xff"), "current: cannot be read"),
        (lambda f: (f / "current").write_text("0009"), "0009.json: is missing"),
    ],
)
def test_damage_is_told(
    store: VersionStore, training: Training, history: list[HistoryJob], damage: Any, error: str
) -> None:
    add(store, training, history[:60])
    damage(store.folder)

    with pytest.raises(PredictionError, match=error):
        store.load()


def test_the_first_format_is_still_read(store: VersionStore, training: Training, history: list[HistoryJob]) -> None:
    """Its manifests did not say that a forest answers, as nothing else could. The file stays as it was written."""
    add(store, training, history[:60])
    path = store.folder / "0001.json"
    manifest = json.loads(path.read_text())
    old = {k: v for k, v in manifest.items() if k not in ("predictor", "refused")} | {"format": 1}
    path.write_text(json.dumps(old))

    assert isinstance(store.load().predictor, ForestPredictor)
    assert json.loads(path.read_text()) == old


@pytest.mark.parametrize("kind", ["pickled", "no zip", "other arrays", "no history"])
def test_foreign_files_with_a_right_sum_run_nothing(
    store: VersionStore, training: Training, history: list[HistoryJob], kind: str
) -> None:
    """A file made to match its manifest is still only read as arrays: never unpickled."""
    add(store, training, history[:60])
    buffer = io.BytesIO()
    if kind == "pickled":
        np.savez(buffer, history=np.asarray([_Bomb()], dtype=object), left=np.asarray([_Bomb()], dtype=object))
    elif kind == "other arrays":
        np.savez(buffer, x=np.arange(3))
    elif kind == "no history":
        np.savez(buffer, **training.forest.arrays(), history=np.zeros(3, dtype=np.uint8))
    else:
        buffer.write(b"no zip at all")
    (store.folder / "0001.npz").write_bytes(buffer.getvalue())
    _change(store.folder / "0001.json", sha256=hashlib.sha256(buffer.getvalue()).hexdigest())

    with pytest.raises(PredictionError, match=r"0001\.npz: holds no predictor of this program"):
        store.load()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("unpickled",)

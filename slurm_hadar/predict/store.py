"""Versions of a trained predictor on disk: a forest and the history that it answers from, each with its manifest.

A folder holds, per version, ``0007.npz`` (arrays only) and ``0007.json`` (the manifest: what it is, by what it was
grown, how it did, the SHA-256 of the arrays), and ``current``, which names the version in use. Everything is written to
a temporary name, synced and renamed, the manifest after the arrays and ``current`` last: a crash leaves the version
before in use. Nothing in these files is ever run: arrays are read without pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_hadar.errors import PredictionError
from slurm_hadar.predict.evaluate import CHOICES, Training
from slurm_hadar.predict.features import FEATURES
from slurm_hadar.predict.forest import Forest
from slurm_hadar.predict.history import HistoryJob, from_rows, to_rows
from slurm_hadar.predict.predictors import ForestPredictor, GroupMean, GroupMedian, Predictor

__all__ = ["FORMAT", "KEPT", "Stored", "Version", "VersionStore"]

FORMAT = 2
# What a manifest of each format says beyond the one before, with what held before it was said.
_ADDED: dict[int, dict[str, Any]] = {2: {"predictor": "forest", "refused": ""}}
#: So many versions are kept, the newest.
KEPT = 5
_LATEST_S = 1e10  # epoch seconds, until the year 2286; far beyond no calendar goes
_NAME = re.compile(r"\d{4,9}")
_RETRAIN = "train anew with hadar predict --train"


@dataclass(frozen=True, slots=True)
class Version:
    """What a manifest says. ``created`` is epoch seconds, ``predictor`` what it answers by (of ``evaluate.CHOICES``),
    ``refused`` why that is no forest although one was wanted, or "", ``samples`` the jobs that its forest was grown on
    and ``jobs`` those of its history, ``report`` the evaluation as JSON has it ({} = none), ``source`` what it was
    trained on, ``gpu_types`` those among which the fastest was looked for when the history was put together."""

    name: str
    created: float
    predictor: str
    refused: str
    grown_by: str
    samples: int
    jobs: int
    source: str
    gpu_types: tuple[str, ...]
    report: dict[str, Any]
    sha256: str


@dataclass(frozen=True)
class Stored:
    """A version, read."""

    version: Version
    forest: Forest | None
    history: tuple[HistoryJob, ...]

    @property
    def predictor(self) -> Predictor:
        """What answers, from a past that is the history."""
        if self.forest is not None:
            return ForestPredictor(self.forest)
        return GroupMedian() if self.version.predictor == GroupMedian.name else GroupMean()


class VersionStore:
    """The versions in one folder, which is made when the first is written. Raises PredictionError for what is damaged,
    foreign or cannot be read or written, with the fix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, training: Training, history: Sequence[HistoryJob], source: str, gpu_types: Iterable[str], created: float
    ) -> Version:
        """Write a new version, make it the current one and delete all but the newest :data:`KEPT`."""
        taught = [job for job in history if job.teaches]
        columns = json.dumps(to_rows(taught), allow_nan=False).encode()
        buffer = io.BytesIO()
        forest = training.forest
        arrays: dict[str, Any] = {} if forest is None else forest.arrays()
        np.savez_compressed(buffer, history=np.frombuffer(columns, dtype=np.uint8), **arrays)
        content = buffer.getvalue()
        name = f"{max((int(n) for n in self.names()), default=0) + 1:04d}"
        version = Version(
            name,
            created,
            training.predictor,
            training.refused or "",
            forest.grown_by if forest else "",
            forest.samples if forest else 0,
            len(taught),
            source,
            tuple(gpu_types),
            training.report.as_dict() if training.report else {},
            hashlib.sha256(content).hexdigest(),
        )
        manifest = {"format": FORMAT, "features": list(FEATURES), **{k: getattr(version, k) for k in version.__slots__}}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_durably(self.folder / f"{name}.npz", content)
            write_durably(self.folder / f"{name}.json", json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n")
            write_durably(self.folder / "current", f"{name}\n".encode())
        except OSError as error:
            raise PredictionError(f"{self.folder}: cannot be written: {error.strerror}") from None
        self._prune(name)
        return version

    def names(self) -> list[str]:
        """All versions that have a manifest, oldest first."""
        try:
            found = [p.stem for p in self.folder.glob("*.json") if _NAME.fullmatch(p.stem)]
        except OSError as error:
            raise PredictionError(f"{self.folder}: cannot be read: {error.strerror}") from None
        return sorted(found, key=int)

    def current(self) -> str | None:
        """The name of the version in use; None if there is none yet."""
        path = self.folder / "current"
        try:
            name = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise PredictionError(f"{path}: cannot be read ({error}); {_RETRAIN}") from None
        if not _NAME.fullmatch(name):
            raise PredictionError(f"{path}: must name a version such as 0001, not {name[:40]!r}; {_RETRAIN}")
        return name

    def load(self, name: str | None = None) -> Stored:
        """Read a version, by default the current one. The arrays are opened only if they match their manifest."""
        chosen = name or self.current()
        if chosen is None:
            raise PredictionError(f"{self.folder}: holds no predictor yet; {_RETRAIN}")
        version = self._manifest(chosen)
        path = self.folder / f"{chosen}.npz"
        content = _read(path)
        if hashlib.sha256(content).hexdigest() != version.sha256:
            raise PredictionError(f"{path}: is damaged: it is not what its manifest says; {_RETRAIN}")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                grown = version.predictor == "forest"
                forest = Forest.of_arrays(arrays, version.samples, version.grown_by) if grown else None
                rows = json.loads(arrays["history"].tobytes())
        except (ValueError, KeyError, OSError, zipfile.BadZipFile, PredictionError) as error:
            raise PredictionError(f"{path}: holds no predictor of this program ({error}); {_RETRAIN}") from None
        return Stored(version, forest, from_rows(rows, str(path)))

    def _manifest(self, name: str) -> Version:
        path = self.folder / f"{name}.json"
        try:
            found = _brought_forward(json.loads(_read(path)), path)
            if found["features"] != list(FEATURES):
                raise PredictionError(f"{path}: is of another version of this program; {_RETRAIN}")
            version = Version(**{**{k: found[k] for k in Version.__slots__}, "gpu_types": tuple(found["gpu_types"])})
            good = isinstance(version.sha256, str) and isinstance(version.grown_by, str) and version.name == name
            good = good and isinstance(version.samples, int) and isinstance(version.report, dict)
            good = good and version.predictor in CHOICES and isinstance(version.refused, str)
            good = good and isinstance(version.created, int | float) and 0 <= version.created <= _LATEST_S
            good = good and isinstance(version.jobs, int)
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise PredictionError(f"{path}: is no manifest of a predictor; {_RETRAIN}")
        return version

    def _prune(self, current: str) -> None:
        """Older versions go, manifest first; one that cannot be deleted does no harm."""
        for name in self.names()[:-KEPT]:
            if name != current:
                for suffix in ("json", "npz"):
                    with contextlib.suppress(OSError):
                        (self.folder / f"{name}.{suffix}").unlink()


def _brought_forward(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    """A manifest of any earlier format as one of :data:`FORMAT`. The file stays as it is: an older program may go on
    with it."""
    number = manifest["format"]
    if isinstance(number, int) and number > FORMAT:
        raise PredictionError(
            f"{path}: was written by a newer slurm_hadar (format {number}); upgrade this one, or {_RETRAIN}"
        )
    for after in range(number, FORMAT):
        manifest = {**manifest, **_ADDED[after + 1]}
    return manifest


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PredictionError(f"{path}: is missing; {_RETRAIN}") from None
    except OSError as error:
        raise PredictionError(f"{path}: cannot be read: {error.strerror}; {_RETRAIN}") from None


def write_durably(path: Path, content: bytes) -> None:
    """Whole or not at all, also when the machine goes down."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

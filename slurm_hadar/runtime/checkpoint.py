"""Checkpoints that a kill, a full disk or an older run of the same job cannot spoil.

One directory each, ``gen-<generation>-step-<n>/``; the generation is Slurm's restart count of the run that wrote it::

    checkpoints/
      claim                        the newest generation that has started; an older one no longer writes
      gen-0-step-400/ manifest.json state.pt ranks.pt
      .tmp-gen-1-step-450-.../     being written; cleared away by the next run

Files are written under a temporary name, synced, then the directory is renamed, so that what bears a final name is
whole; the manifest's sizes and SHA-256 sums find what was damaged later. Reading takes the highest generation first,
then the highest step: the newest run's history counts, even where an older one that was cut off got further.

This module needs no PyTorch until something is saved or loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from slurm_hadar.errors import CheckpointError

__all__ = ["Checkpoint", "Store", "newest_step"]

FORMAT = 1
MANIFEST = "manifest.json"
CLAIM = "claim"
_NAME = re.compile(r"gen-(\d{1,9})-step-(\d{1,18})")
_BLOCK = 2**20


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint directory by its name; its content has not been looked at."""

    generation: int
    step: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name


def newest_step(directory: Path) -> int | None:
    """Step of the checkpoint that a restart would try first, judged by names alone; None if there is none."""
    found = _list(directory)
    return found[0].step if found else None


class Store:
    """The checkpoints of one job, as one run (generation) of it sees them.

    Parameters
    ----------
    directory: made when the first checkpoint is saved.
    job: canonical job id, written into each manifest; another job's checkpoints are never loaded.
    generation: restart count of this run; None: one more than the last that used the directory (known after claim).
    keep: how many of the newest checkpoints stay (at least 1).
    warn: told one line for each checkpoint that is passed over.
    """

    def __init__(
        self,
        directory: Path,
        job: str,
        generation: int | None = 0,
        keep: int = 2,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep}: at least 1 checkpoint must be kept")
        self.directory = Path(directory)
        self._job, self._keep = job, keep
        self._given, self.generation = generation, generation or 0
        self._warn = warn or _to_stderr

    def claim(self) -> None:
        """Say that this generation has started, so that an older run still going writes no more; clear its leftovers.

        Call once per run, before loading. Raises CheckpointError if a newer generation has started already.
        """
        newest = self._claimed()
        if self._given is None:
            self.generation = newest + 1
        if newest > self.generation:
            raise self._superseded(newest)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            temporary = self.directory / f".{CLAIM}-{self.generation}-{os.getpid()}"
            temporary.write_text(f"{self.generation}\n")
            temporary.replace(self.directory / CLAIM)
            for left in self.directory.glob(".tmp-*"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"{self.directory}: cannot be written: {error.strerror}") from error

    def save(self, step: int, parts: Mapping[str, Any], world: int = 1) -> Checkpoint:
        """Write ``{name: object}``, one file each by ``torch.save``, as the checkpoint of ``step``.

        Returns when it is safe on disk and the oldest surplus ones are gone. Raises CheckpointError, leaving earlier
        checkpoints as they were, if the disk is full or fails, or if a newer run of the job has taken over.
        """
        newest = self._claimed()
        if newest > self.generation:
            raise self._superseded(newest)
        name = f"gen-{self.generation}-step-{step}"
        temporary = self.directory / f".tmp-{name}-{os.getpid()}-{time.time_ns()}"
        try:
            temporary.mkdir(parents=True)
            files = {f"{part}.pt": _write(temporary / f"{part}.pt", value) for part, value in parts.items()}
            self._write_manifest(temporary, step, world, files)
            _sync_directory(temporary)
            self._publish(temporary, self.directory / name)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            reason = error.strerror or str(error)
            raise CheckpointError(f"checkpoint of step {step} was not written to {self.directory}: {reason}") from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._prune()
        return Checkpoint(self.generation, step, self.directory / name)

    def good(self) -> Iterator[Checkpoint]:
        """Checkpoints of this job that pass their manifest's sums, newest first; one line of warning for each other."""
        for checkpoint in _list(self.directory):
            try:
                self.verify(checkpoint)
            except CheckpointError as error:
                self._warn(f"checkpoint {checkpoint.name} is passed over: {error}")
            else:
                yield checkpoint

    def verify(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The manifest, once all files match it. Raises CheckpointError saying what is wrong."""
        manifest = _read_manifest(checkpoint.path)
        if manifest["job"] != self._job:
            raise CheckpointError(f"it belongs to job {manifest['job']}, not to {self._job}")
        if (manifest["generation"], manifest["step"]) != (checkpoint.generation, checkpoint.step):
            raise CheckpointError("its manifest is of another checkpoint")
        for name, entry in manifest["files"].items():
            _verify_file(checkpoint.path / name, entry)
        return manifest

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """``{name: object}`` as given to :meth:`save`, tensors on the CPU. Raises CheckpointError."""
        manifest = _read_manifest(checkpoint.path)
        return {Path(name).stem: _load(checkpoint.path / name) for name in manifest["files"]}

    def _claimed(self) -> int:
        """The newest generation known to have started, by the claim or by what it has already saved."""
        generations = [c.generation for c in _list(self.directory)]
        with contextlib.suppress(OSError, ValueError):
            generations.append(int((self.directory / CLAIM).read_text()))
        return max(generations, default=-1)

    def _superseded(self, newest: int) -> CheckpointError:
        return CheckpointError(
            f"run {self.generation} of job {self._job} writes no more checkpoints: run {newest} has taken over"
        )

    def _write_manifest(self, directory: Path, step: int, world: int, files: dict[str, Any]) -> None:
        content = {
            "format": FORMAT,
            "job": self._job,
            "generation": self.generation,
            "step": step,
            "world": world,
            "time": time.time(),
            "files": files,
        }
        with (directory / MANIFEST).open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def _publish(self, temporary: Path, final: Path) -> None:
        """Give the finished directory its name. The same step saved again by the same run holds the same state."""
        if final.exists():
            aside = temporary.with_name(temporary.name + "-old")
            final.rename(aside)
            temporary.rename(final)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            temporary.rename(final)
        _sync_directory(self.directory)

    def _prune(self) -> None:
        """Drop what is older than the last ``keep``; what a newer generation wrote is not this run's to touch."""
        ours = [c for c in _list(self.directory) if c.generation <= self.generation]
        for old in ours[self._keep :]:
            # the name goes first: a directory half removed must not look like a checkpoint
            grave = self.directory / f".tmp-{old.name}-removed-{os.getpid()}"
            with contextlib.suppress(OSError):
                old.path.rename(grave)
                shutil.rmtree(grave, ignore_errors=True)


class _Summed:
    """A file that sums what is written to it, and remembers why a write failed: ``torch.save`` hides the reason."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.sum.update(data)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, value: Any) -> dict[str, Any]:
    import torch

    with path.open("xb", buffering=0) as file:
        summed = _Summed(file)
        try:
            torch.save(value, cast(Any, summed))
        except RuntimeError as error:
            raise summed.error or error from error
        os.fsync(file.fileno())
    return {"size": summed.size, "sha256": summed.sum.hexdigest()}


def _load(path: Path) -> Any:
    import torch

    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            # objects other than tensors and plain data, put there by the user's own scheduler or run.state; the sums
            # have shown that the file is what this job wrote
            return torch.load(path, map_location="cpu", weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        content = json.loads((directory / MANIFEST).read_text())
    except FileNotFoundError:
        raise CheckpointError("it has no manifest") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"its manifest cannot be read: {str(error).splitlines()[0]}") from error
    wanted = {"format": int, "job": str, "generation": int, "step": int, "world": int, "files": dict}
    if not isinstance(content, dict) or any(not isinstance(content.get(k), t) for k, t in wanted.items()):
        raise CheckpointError("its manifest is not one of ours")
    if content["format"] != FORMAT:
        raise CheckpointError(f"its format is {content['format']}, and this version reads {FORMAT}")
    return content


def _verify_file(path: Path, entry: Any) -> None:
    try:
        size, expected = entry["size"], entry["sha256"]
        actual = path.stat().st_size
        if actual != size:
            raise CheckpointError(f"{path.name} has {actual} bytes instead of {size}")
        found = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except (KeyError, TypeError):
        raise CheckpointError(f"its manifest says nothing usable of {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    if found.hexdigest() != expected:
        raise CheckpointError(f"{path.name} is damaged: its SHA-256 sum differs")


def _list(directory: Path) -> list[Checkpoint]:
    """By name alone, best first: highest generation, then highest step."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in directory.iterdir():
            if match := _NAME.fullmatch(path.name):
                found.append(Checkpoint(int(match[1]), int(match[2]), path))
    return sorted(found, reverse=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_stderr(line: str) -> None:
    print(f"hadar: {line}", file=sys.stderr, flush=True)

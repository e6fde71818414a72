"""Checkpoints that a kill, a full disk or an older run of the same job cannot spoil.

One directory each, ``gen-<generation>-step-<n>/``; the generation is Slurm's restart count of the run that wrote it::

    checkpoints/
      claim                        the newest generation that has started; an older one no longer writes
      training                     the command and process that has used it last
      gen-0-step-400/ manifest.json state.pt ranks.pt tensors/
      .tmp-gen-1-step-450-.../     being written; cleared away by the next run

Files are written under a temporary name, synced, then the directory is renamed, so that what bears a final name is
whole; the manifest's sizes and SHA-256 sums find what was damaged later. In a job's own directory the manifest is
sealed with the job's token, and nothing is read that another user has put there. Reading takes the highest generation
first, then the highest step: the newest run's history counts, even where an older one that was cut off got further.

``state.pt`` holds rank 0's plain data and the form of the state, ``ranks.pt`` each rank's random states, ``tensors/``
what ``torch.distributed.checkpoint`` wrote: one file of each rank that had something to write, and ``.metadata``
(:mod:`slurm_hadar.runtime.checkpoint.states.sharded`). Who writes when is :mod:`slurm_hadar.runtime.checkpoint.saver`'s
affair.

This module needs no PyTorch until something is saved or loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from slurm_hadar import __version__
from slurm_hadar.errors import CheckpointError
from slurm_hadar.joblog import say
from slurm_hadar.runtime.checkpoint import files
from slurm_hadar.runtime.checkpoint.listing import ASIDE, CLAIM, DRAFT, Checkpoint, listed
from slurm_hadar.runtime.checkpoint.states import sharded
from slurm_hadar.runtime.checkpoint.trained import NOTE, Follows, Trained, follows
from slurm_hadar.runtime.launch import own

__all__ = ["TENSORS", "Draft", "Store", "read_checkpoint"]

FORMAT = 3
READABLE = (1, 2, 3)  # 1: the tensors are in state.pt, all of them; 2: without a seal
SEALED = 3
MANIFEST = "manifest.json"
TENSORS = "tensors"
#: Where this process has trained (by its id, for a forked child has not), and whether to the end.
_TRAINED: dict[tuple[int, Path], bool] = {}
_told: set[str] = set()  # in this process, which may train epoch by epoch
_Read = TypeVar("_Read")


class Store:
    """The checkpoints of one job, as one run (generation) of it sees them.

    Parameters
    ----------
    directory: made when the first checkpoint is saved.
    job: canonical job id, written into each manifest; another job's checkpoints are never loaded.
    generation: restart count of this run; None: one more than the last that used the directory (known after claim).
    keep: how many of the newest checkpoints stay (at least 1).
    token: the job's secret, where ``directory`` is the job's own: then all of it must be this user's, and manifests are
        sealed. None where the user has named a directory.
    home: where the token stands; None: it is not looked after.
    """

    def __init__(
        self,
        directory: Path,
        job: str,
        generation: int | None = 0,
        keep: int = 2,
        token: str | None = None,
        home: Path | None = None,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep}: at least 1 checkpoint must be kept")
        self.directory = Path(directory)
        self.job, self._keep = job, keep
        self._given, self.generation = generation, generation or 0
        self._token, self._home, self._told = token, home, False
        self.follows: Follows | None = None  # another training of this process or job
        self._trained: Trained | None = None  # ours, where this process has claimed
        self._unused = set[str]()  # checkpoints that this run has passed over

    @property
    def sealed(self) -> bool:
        """Whether this is the job's own directory, in which only what the job has written counts."""
        return self._token is not None

    def claim(self) -> None:
        """Say that this generation has started, so that an older run still going writes no more; clear its leftovers.

        Call once per run, before loading. Raises CheckpointError if a newer generation has started already, or if
        another training of the job is there (:func:`slurm_hadar.runtime.checkpoint.trained.follows`).
        """
        try:
            self._make()
            if self.sealed:
                self._trained = Trained.here(self.generation)
                self.follows = self.follows or follows(Trained.read(self.directory), self._trained)
            newest = self._claimed()
            if self._given is None:
                self.generation = newest + 1
            if newest > self.generation:
                raise self._superseded(newest)
            temporary = self.directory / f".{CLAIM}-{self.generation}-{os.getpid()}"
            temporary.write_text(f"{self.generation}\n")
            temporary.replace(self.directory / CLAIM)
            if self._trained is not None:
                self._trained.write(self.directory)
            self._clear()
        except OSError as error:
            raise CheckpointError(f"{self.directory}: cannot be written: {error.strerror}") from error

    def enter(self) -> None:
        """A training of this process takes the checkpoints for its own; all ranks call it."""
        here = os.getpid(), self.directory.absolute()
        before = _TRAINED.get(here)
        self.follows = None if before is None else Follows("another training of this process", "this process", before)
        _TRAINED[here] = False

    def begins(self, over: bool, leads: bool) -> None:
        """The training begins from a checkpoint that was there; ``over``: at its end. ``leads``: the worker that speaks
        for all. Raises CheckpointError if it is so by another training that has ended in this process or job: this one
        (a fold of a cross-validation, say) would not train.
        """
        other = self.follows
        if other is None or not self.sealed:
            return
        if over and other.ended:
            raise CheckpointError(f"{self.directory} has the checkpoints of a training that has ended; {other.advice}")
        warning = f"WARNING: goes on from where {other.who} was. If this is not the same: {other.advice}"
        if leads and warning not in _told:
            _told.add(warning)
            say(warning)

    def ended(self) -> None:
        """The training that has entered came to its end."""
        _TRAINED[os.getpid(), self.directory.absolute()] = True
        if self._trained is not None:
            self._trained.end(self.directory)

    def _make(self) -> None:
        if self.sealed:
            own.make(self.directory)
        else:
            self.directory.mkdir(parents=True, exist_ok=True)

    def begin(self, step: int) -> Draft:
        """A directory to write the checkpoint of ``step`` into; it counts once it is committed.

        Raises CheckpointError if a newer run of the job has taken over, or if nothing can be written.
        """
        self.check()
        self._keep_token()
        name = f"gen-{self.generation}-step-{step}"
        draft = Draft(self, step, self.directory / f"{DRAFT}{name}-{os.getpid()}-{time.time_ns()}")
        try:
            draft.path.mkdir(parents=True)
        except OSError as error:
            raise self.not_written(step, error) from error
        return draft

    def _keep_token(self) -> None:
        """What is sealed must fit the token that the next run finds; where that takes its owner's help, it is told."""
        if self._token is None or self._home is None:
            return
        try:
            self._token = own.token(self._home, self._token)
        except CheckpointError as error:
            if not self._told:
                self._told = True
                say(f"WARNING: the next run cannot use this job's checkpoints as it is now: {error}")

    def check(self) -> None:
        """Raises CheckpointError if a newer run of the job has taken over: then this one writes no more."""
        newest = self._claimed()
        if newest > self.generation:
            raise self._superseded(newest)

    def not_written(self, step: int, error: OSError) -> CheckpointError:
        """The one line for a disk that is full or fails."""
        reason = error.strerror or str(error)
        return CheckpointError(f"checkpoint of step {step} was not written to {self.directory}: {reason}")

    def save(self, step: int, parts: Mapping[str, Any], world: int = 1) -> Checkpoint:
        """Write ``{name: object}``, one file each by ``torch.save``, as the checkpoint of ``step``.

        Returns when it is safe on disk and the oldest surplus ones are gone. Raises CheckpointError, leaving earlier
        checkpoints as they were, if the disk is full or fails, or if a newer run of the job has taken over.
        """
        draft = self.begin(step)
        try:
            entries = {f"{part}.pt": files.write_object(draft.path / f"{part}.pt", v) for part, v in parts.items()}
            return draft.commit(entries, world)
        except OSError as error:
            raise self.not_written(step, error) from error
        finally:
            draft.discard()

    def good(self) -> Iterator[Checkpoint]:
        """Checkpoints of this job that pass their manifest's sums, newest first; one line of warning for each other."""
        for checkpoint in listed(self.directory):
            try:
                self.verify(checkpoint)
            except CheckpointError as error:
                self._pass_over(checkpoint, error)
            else:
                yield checkpoint

    def _pass_over(self, checkpoint: Checkpoint, error: CheckpointError) -> None:
        self._unused.add(checkpoint.name)
        say(f"checkpoint {checkpoint.name} is passed over: {error}")

    def newest(self, read: Callable[[Checkpoint], _Read]) -> tuple[Checkpoint, _Read] | None:
        """The newest good one that can be read, and what was read. Where there are some, and none can be used, that is
        said: the training begins anew."""
        for checkpoint in self.good():
            try:
                return checkpoint, read(checkpoint)
            except CheckpointError as error:
                self._pass_over(checkpoint, error)
        if there := listed(self.directory):
            furthest = max(checkpoint.step for checkpoint in there)
            say(
                f"WARNING: this training begins anew: no checkpoint in {self.directory} can be used, as is said above. "
                f"That of step {furthest} stays there until the training is as far again"
            )
        return None

    def verify(self, checkpoint: Checkpoint, sums: bool = True) -> dict[str, Any]:
        """The manifest, once all files match it; without ``sums``, by their sizes. Raises CheckpointError saying what
        is wrong."""
        manifest = self.manifest(checkpoint)
        if manifest["job"] != self.job:
            raise CheckpointError(f"it belongs to job {manifest['job']}, not to {self.job}")
        if (manifest["generation"], manifest["step"]) != (checkpoint.generation, checkpoint.step):
            raise CheckpointError("its manifest is of another checkpoint")
        for name, entry in manifest["files"].items():
            (files.verify if sums else files.same_size)(checkpoint.path / name, entry)
        return manifest

    def manifest(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The manifest; in the job's own directory, once it is known to be the job's. Raises CheckpointError."""
        if not self.sealed:
            return _read_manifest(checkpoint.path)
        own.check_tree(checkpoint.path)
        manifest = _read_manifest(checkpoint.path)
        if manifest["format"] < SEALED:
            own.check_tree(checkpoint.path, unchanged=True)
        elif not hmac.compare_digest(str(manifest.get("seal")), self.seal(manifest)):
            raise CheckpointError("its seal does not fit this job's token: it was changed, or the token was replaced")
        return manifest

    def seal(self, content: Mapping[str, Any]) -> str:
        """What shows that a manifest was written by who has the job's token."""
        said = json.dumps({k: v for k, v in content.items() if k != "seal"}, sort_keys=True)
        return hmac.new((self._token or "").encode(), said.encode(), hashlib.sha256).hexdigest()

    def load(
        self, checkpoint: Checkpoint, target_of: sharded.TargetOf | None = None, worker: tuple[int, int] = (0, 1)
    ) -> dict[str, Any]:
        """``{name: object}`` as given to :meth:`save`. Raises CheckpointError.

        Tensors are whole and on the CPU, but where ``target_of`` gives another
        (:func:`slurm_hadar.runtime.checkpoint.states.sharded.read`). ``worker``: its rank, of how many, for which the
        state is; what it has saved of its own is in it if there were as many.
        """
        manifest = self.manifest(checkpoint)
        parts = {n.removesuffix(".pt"): files.load(checkpoint.path / n) for n in manifest["files"] if "/" not in n}
        rank, world = worker
        if world == manifest["world"]:
            parts["state"] |= parts.get("own", {}).get(rank, {})
        if any(name.startswith(f"{TENSORS}/") for name in manifest["files"]):
            parts["state"] = sharded.read(checkpoint.path / TENSORS, parts["state"], target_of)
        return parts

    def _claimed(self) -> int:
        """The newest generation known to have started, by the claim or by what it has already saved."""
        generations = [c.generation for c in listed(self.directory)]
        with contextlib.suppress(OSError, ValueError):
            generations.append(int((self.directory / CLAIM).read_text()))
        return max(generations, default=-1)

    def _superseded(self, newest: int) -> CheckpointError:
        return CheckpointError(
            f"run {self.generation} of job {self.job} writes no more checkpoints: run {newest} has taken over"
        )

    def _publish(self, temporary: Path, final: Path) -> None:
        """Give the finished directory its name. The same step saved again by the same run: the later one stands."""
        if final.exists():
            # between the two renames a kill leaves it under this name, from which claim() takes it back
            aside = final.with_name(ASIDE + final.name)
            shutil.rmtree(aside, ignore_errors=True)
            final.rename(aside)
            temporary.rename(final)
            files.sync_directory(self.directory)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            temporary.rename(final)
            files.sync_directory(self.directory)

    def _clear(self) -> None:
        """Remove what runs that were cut off have left; take back what was being replaced."""
        for left in self.directory.glob(f"{DRAFT}*"):
            shutil.rmtree(left, ignore_errors=True)
        for name in (CLAIM, NOTE):
            for left in self.directory.glob(f".{name}-*"):
                left.unlink(missing_ok=True)
        for aside in self.directory.glob(ASIDE + "*"):
            final = self.directory / aside.name.removeprefix(ASIDE)
            if final.exists():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.rename(final)

    def publish(self, temporary: Path, step: int) -> Checkpoint:
        """Make a finished directory the checkpoint of ``step``; drop the oldest surplus ones."""
        self.check()
        final = self.directory / f"gen-{self.generation}-step-{step}"
        self._publish(temporary, final)
        self._unused.discard(final.name)
        self._prune()
        return Checkpoint(self.generation, step, final)

    def _prune(self) -> None:
        """Drop what is older than the last ``keep``. What a newer generation wrote is not this run's to touch, and what
        has more steps than the newest was passed over by a run that is not as far yet: it may be good, if not for who
        read it (an older version, a lost token). It takes no one's place until then."""
        there = [c for c in listed(self.directory) if c.generation <= self.generation]
        ours = [c for c in there if c.name not in self._unused] or there
        for old in (c for c in there if c not in ours[: self._keep] and c.step <= ours[0].step):
            # the name goes first: a directory half removed must not look like a checkpoint
            grave = self.directory / f"{DRAFT}{old.name}-removed-{os.getpid()}"
            with contextlib.suppress(OSError):
                old.path.rename(grave)
                shutil.rmtree(grave, ignore_errors=True)


class Draft:
    """A checkpoint that is being written; ``path`` is its directory."""

    def __init__(self, store: Store, step: int, path: Path) -> None:
        self.path = path
        self._store, self._step = store, step

    def commit(self, entries: Mapping[str, Any], world: int) -> Checkpoint:
        """Write the manifest of the files that are there (name below ``path``: size and sum), and publish.

        Returns when it is safe on disk and the oldest surplus checkpoints are gone. Raises OSError, or CheckpointError
        if a newer run of the job has taken over meanwhile.
        """
        store = self._store
        content = {
            "format": FORMAT,
            "version": __version__,
            "job": store.job,
            "generation": store.generation,
            "step": self._step,
            "world": world,
            "time": time.time(),
            "files": dict(entries),
        }
        if store.sealed:
            content["seal"] = store.seal(content)
        files.write_bytes(self.path / MANIFEST, json.dumps(content, indent=1).encode())
        for below in {Path(name).parent for name in entries} - {Path()}:
            files.sync_directory(self.path / below)
        files.sync_directory(self.path)
        return store.publish(self.path, self._step)

    def discard(self) -> None:
        """Remove what was written, unless it has been published."""
        shutil.rmtree(self.path, ignore_errors=True)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """One checkpoint directory as whole tensors on the CPU, whoever wrote it, for a look or to take weights out.

    ``{"model": ..., "optimizer": ..., "scheduler": ..., "step": ..., "user": run.state, ...}``; a part of which there
    is only one is its ``state_dict``, several are ``{name: state_dict}``. Raises CheckpointError if a file is damaged.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    found = Checkpoint(manifest["generation"], manifest["step"], path)
    store = Store(path.parent, manifest["job"], manifest["generation"])
    store.verify(found)
    if "state.pt" not in manifest["files"]:
        raise CheckpointError(f"{path} holds what a library saved by itself: load it with that library")
    state = dict(store.load(found)["state"])
    return {k: v[""] if isinstance(v, dict) and list(v) == [""] else v for k, v in state.items()}


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        content = json.loads((directory / MANIFEST).read_text())
    except FileNotFoundError:
        raise CheckpointError("it has no manifest") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"its manifest cannot be read: {str(error).splitlines()[0]}") from error
    wanted = {"format": int, "job": str, "generation": int, "step": int, "world": int, "files": dict}
    if not isinstance(content, dict) or any(not isinstance(content.get(k), t) for k, t in wanted.items()):
        raise CheckpointError("its manifest is not one of ours")
    if content["format"] not in READABLE:
        raise CheckpointError(f"its format is {content['format']}, and this version reads up to {FORMAT}")
    if any(name.startswith("/") or ".." in PurePosixPath(name).parts for name in content["files"]):
        raise CheckpointError("its manifest names files elsewhere")
    return content

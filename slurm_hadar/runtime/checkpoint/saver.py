"""One training's checkpoints over time: who of a gang writes what, in the foreground or beside the training.

A save has two halves. In the foreground, between two steps, the ranks agree on who writes what, and each copies its
share to host memory. In the background each writes its copy, rank 0 hears of all and publishes. For a save that
somebody waits for, nothing is copied, and the training stands until the checkpoint is safe.

At most one save is being written. The next one waits for it, rather than being left out: what a crash can lose stays
what ``save_every_steps`` and ``save_every_s`` promise, and a disk that cannot keep up shows as a longer stall.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.errors import CheckpointError, reason_of
from slurm_hadar.joblog import say
from slurm_hadar.runtime.checkpoint import files
from slurm_hadar.runtime.checkpoint.listing import Checkpoint
from slurm_hadar.runtime.checkpoint.states import sharded
from slurm_hadar.runtime.checkpoint.states.by_worker import likeness, own_names, renamed
from slurm_hadar.runtime.checkpoint.states.devices import places_of
from slurm_hadar.runtime.checkpoint.states.parts import kept_alike, order_of, sent_round, state_of, targets_of
from slurm_hadar.runtime.checkpoint.store import TENSORS, Draft, Store
from slurm_hadar.runtime.checkpoint.visible import when_visible
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["Saver"]

WORD_EVERY_S = 60.0
SHARDED_KINDS = ("model", "optimizer", "also")
"""What holds the bulk of a state; schedulers are a few numbers, and are pickled with the rest."""


@dataclass
class _Save:
    """One save from its agreement on. Rank 0 alone has ``draft``, ``metadata`` and ``plain`` (file name: bytes)."""

    step: int
    local: sharded.LocalPlan
    directory: Path
    began: float
    draft: Draft | None = None
    metadata: Any = None
    plain: dict[str, Any] = field(default_factory=dict)
    source: sharded.LocalPlan | sharded.Stage | None = None
    stall_s: float | None = None
    error: str | None = None
    alone: bool = False
    thread: threading.Thread | None = None


class Saver:
    """Saves and restores one training, on each of its ranks. Making one is collective.

    Parameters
    ----------
    store: the checkpoints. gang: the workers. link: is told what was saved.
    background: write beside the training what nobody waits for.
    """

    def __init__(self, store: Store, gang: Gang, link: Link, background: bool = True) -> None:
        self.background = background
        self.saved_step: int | None = None
        self._resumed = False
        self._store, self._gang, self._link = store, gang, link
        self._apart = gang.apart()
        self._stage = sharded.Stage()
        self._current: _Save | None = None
        self._process = os.getpid()

    @property
    def _worker(self) -> tuple[int, int]:
        return self._gang.rank, self._gang.world

    def save(self, step: int, parts: dict[str, Any], plain: dict[str, Any], random_states: Any, wait: bool) -> None:
        """Save ``step``; all ranks together. With ``wait`` it is safe on return, else it may fail later, on stderr.

        Raises CheckpointError if it failed; what was saved before is as it was.
        """
        began = time.monotonic()
        self.wait_written()
        try:
            save = self._agree(step, parts, plain, random_states, began)
        except CheckpointError:
            self._link.failed()
            raise
        wait = wait or not self.background
        if wait:
            save.source = save.local
        else:
            try:
                save.source = self._stage.copy(save.local)
            except Exception as error:  # out of host memory, say; the others hear of it with the outcome
                save.error = reason_of(error)
            save.stall_s = time.monotonic() - began
        # no daemon: a process that ends first finishes what it has begun to write
        save.thread = threading.Thread(target=self._write, args=(save,), name="hadar-save", daemon=False)
        self._current = save
        try:
            save.thread.start()
        except RuntimeError:  # the interpreter ends
            save.thread = None
            self._write(save)
        if wait and (failed := self.wait_written()) is not None:
            raise CheckpointError(failed)

    def wait_written(self) -> str | None:
        """Wait until nothing is being written any more; why the last save failed, if it did."""
        save, self._current = self._current, None
        if save is None or os.getpid() != self._process:  # a forked child has no part in its parent's writing
            return None
        since = time.monotonic()
        while save.thread is not None and save.thread.is_alive():
            save.thread.join(WORD_EVERY_S)
            if save.thread.is_alive():
                waited_s = time.monotonic() - since
                say(f"checkpoint of step {save.step} is still being written; waiting for {waited_s:.0f} s")
        if save.error is None:
            self.saved_step = save.step
        return save.error

    def begins(self, over: bool) -> None:
        """The loop begins; see :meth:`Store.begins`."""
        if self._resumed:
            self._store.begins(over, self._gang.leads)

    def ended(self) -> None:
        """The training came to its end."""
        self._store.ended()

    def resume(self, parts: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]] | None:
        """Claim the checkpoints for this run; the newest good one and its content, sharded as ``parts`` are.

        None if there is none. Raises CheckpointError if a newer run has taken over.
        """
        found, content, error = None, None, None
        self._store.enter()
        target_of = targets_of(parts)
        if self._gang.leads:
            try:
                self._store.claim()
                load = lambda checkpoint: self._store.load(checkpoint, target_of, self._worker)  # noqa: E731
                found, content = self._store.newest(load) or (None, None)
            except CheckpointError as problem:
                error = str(problem)
        found, error, self._store.follows = self._gang.broadcast((found, error, self._store.follows))
        if error is not None:
            raise CheckpointError(error)
        if found is None:
            return None
        if content is None:
            content = when_visible(found.path, lambda: _load(self._store, found, target_of, self._worker))
        self.saved_step, self._resumed = found.step, True
        return found, content

    def _agree(self, step: int, parts: Any, plain: Any, random_states: Any, began: float) -> _Save:
        """Who writes what, and into which directory. Raises CheckpointError, the same on all ranks."""
        mine, state, error = None, b"", None
        form, tensors = dict[str, Any](), dict[str, Any]()
        try:
            states = {k: state_of(parts[k]) for k in SHARDED_KINDS if k in parts}
            form, tensors = sharded.split(states, order_of(parts))
            form |= {kind: state_of(part) for kind, part in parts.items() if kind not in form}
            if self._gang.leads:
                places = places_of({**states, **plain}, parts)
                state = files.pickled({**form, **plain, "places": places})
            world = self._gang.world
            mine = likeness(form, tensors, sent_round(parts, world)) if world > 1 else None
        except Exception as problem:  # a user's object that cannot be pickled, say: no reason to end the training
            error = f"checkpoint of step {step} was not written: {reason_of(problem)}"
        leaders = self._gang.broadcast(mine)
        local, own = None, None
        try:
            alike = kept_alike(parts, self._gang.world)
            names = own_names(mine, leaders, self._gang.rank, alike) if mine and leaders else {}
            if mine and leaders and (names or mine.form != leaders.form):
                own = renamed(form, names)
            local = sharded.LocalPlan(tensors, self._gang.leads, names)
        except Exception as problem:
            error = error or f"checkpoint of step {step} was not written: {reason_of(problem)}"
        prepared = self._gang.gather((local.plan if local is not None else None, random_states, own, error))
        save, answers = None, None
        if prepared is not None:
            save, answers = self._divide(step, local, state, prepared, began)
        error, directory, plan = self._gang.scatter(answers)
        if error is not None:
            raise CheckpointError(error)
        assert local is not None
        local.finish(plan)
        return save or _Save(step, local, directory, began)

    def _divide(
        self, step: int, local: Any, state: Any, prepared: list[Any], began: float
    ) -> tuple[_Save | None, list[tuple[str | None, Path | None, Any]]]:
        """Rank 0: open the checkpoint and give each rank its share; or say to all why not."""
        draft = None
        error = next((e for *_, e in prepared if e is not None), None)
        try:
            if error is None:
                draft = self._store.begin(step)
                directory = draft.path / TENSORS
                directory.mkdir()
                plans, metadata = local.combine([p for p, *_ in prepared], directory)
                plain = {"state.pt": state, "ranks.pt": files.pickled([states for _, states, *_ in prepared])}
                if own := {rank: form for rank, (_, _, form, _) in enumerate(prepared) if form is not None}:
                    plain["own.pt"] = files.pickled(own)
                save = _Save(step, local, directory, began, draft, metadata, plain)
                return save, [(None, directory, plan) for plan in plans]
        except CheckpointError as problem:
            error = str(problem)
        except OSError as problem:
            error = str(self._store.not_written(step, problem))
        except Exception as problem:
            error = f"checkpoint of step {step} was not written: {reason_of(problem)}"
        if draft is not None:
            draft.discard()
        return None, [(error, None, None)] * len(prepared)

    def _write(self, save: _Save) -> None:
        """The second half, on all ranks; leaves the outcome in ``save.error``."""
        done: tuple[list[Any], dict[str, Any], str | None] = ([], {}, save.error)
        try:
            if save.source is not None:
                done = (*sharded.write(save.local, save.source, save.directory), None)
        except Exception as problem:
            done = ([], {}, reason_of(problem))
        try:
            everyone = self._apart.gather(done)
            error = self._commit(save, everyone) if everyone is not None else None
        except RuntimeError as problem:
            error = self._alone(save, problem)
        try:
            error = self._apart.broadcast(error)
        except RuntimeError as problem:
            # what rank 0 has published stands, whether the others hear of it or not
            error = error if self._gang.leads else self._alone(save, problem)
        save.error = error
        self._report(save)

    def _commit(self, save: _Save, everyone: list[tuple[list[Any], dict[str, Any], str | None]]) -> str | None:
        """Rank 0: what only it writes, and the publishing; what went wrong, if it did."""
        assert save.draft is not None
        failed = [(rank, error) for rank, (_, _, error) in enumerate(everyone) if error is not None]
        try:
            if failed:
                who = f"worker {failed[0][0]}: " if len(everyone) > 1 else ""
                return str(self._store.not_written(save.step, OSError(who + failed[0][1])))
            entries = {f"{TENSORS}/{name}": e for _, written, _ in everyone for name, e in written.items()}
            tail = sharded.write_metadata(save.metadata, [results for results, _, _ in everyone], save.directory)
            entries |= {f"{TENSORS}/{name}": entry for name, entry in tail.items()}
            entries |= {name: files.write_bytes(save.draft.path / name, data) for name, data in save.plain.items()}
            save.draft.commit(entries, len(everyone))
        except CheckpointError as problem:
            return str(problem)
        except OSError as problem:
            return str(self._store.not_written(save.step, problem))
        except Exception as problem:
            return f"checkpoint of step {save.step} was not written: {reason_of(problem)}"
        finally:
            save.draft.discard()
        return None

    def _alone(self, save: _Save, problem: RuntimeError) -> str:
        """Connections are broken; each rank that notices says so, for rank 0 may be the one that is gone."""
        if save.draft is not None:
            save.draft.discard()
        save.alone = True
        found = re.search(r"(Connection|Read error|Timed out)[^\[.]*", str(problem))  # gloo adds its source lines
        cause = found[0].strip() if found else reason_of(problem)
        return f"checkpoint of step {save.step} was not written: another worker is gone ({cause})"

    def _report(self, save: _Save) -> None:
        save.plain.clear()
        if save.error is not None and save.stall_s is not None and self._gang.leads:
            say(f"{save.error}; the training goes on")
        elif save.error is not None and save.alone and not self._gang.leads:
            say(f"rank {self._gang.rank}: {save.error}")
        if save.error is not None:
            self._link.failed()
        else:
            self._link.saved(save.step, self._store.generation, time.monotonic() - save.began, save.stall_s)


def _load(store: Store, found: Checkpoint, target_of: sharded.TargetOf, worker: tuple[int, int]) -> dict[str, Any]:
    """What rank 0 has found good: its sums need no second look."""
    store.verify(found, sums=False)
    return store.load(found, target_of, worker)

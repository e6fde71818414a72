"""The training API: a loop that saves when asked and resumes where it was.

::

    import slurm_hadar
    run = slurm_hadar.train(model, optimizer, total_steps=2000, loader=loader)
    for batch in run:
        ...
        optimizer.step()

One turn of the loop is one step. Resuming is exact: weights, optimizer, scheduler, random numbers, place in the data.
Where nothing is there to save for (outside Slurm, with no ``directory``), it is an ordinary loop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_hadar import messages
from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime import emulation
from slurm_hadar.runtime.checkpoint import Checkpoint, Store
from slurm_hadar.runtime.data import Feed
from slurm_hadar.runtime.gang import Gang
from slurm_hadar.runtime.inject import _hadar_progress

__all__ = ["Run", "train"]

AGREE_EVERY_S = 0.25
MOST_STEPS_UNWATCHED = 10_000
PAUSE_POLL_S = 0.1
VISIBLE_WITHIN_S = 30.0


def train(
    model: Any,
    optimizer: Any,
    *,
    total_steps: int,
    loader: Any = None,
    scheduler: Any = None,
    state: dict[str, Any] | None = None,
    save_every_s: float | None = 600.0,
    save_every_steps: int | None = None,
    keep: int = 2,
    name: str | None = None,
    directory: str | Path | None = None,
    model_name: str | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
) -> Run:
    """Make the loop of a training, resumed from its newest good checkpoint if there is one.

    With ``torch.distributed`` initialised (and the model wrapped) all ranks call this, and save together.

    Parameters
    ----------
    model, optimizer, scheduler: one object with ``state_dict``, or a list, tuple or dict of them.
    total_steps: the loop ends when so many steps were made, over all runs of the job.
    loader: see :class:`slurm_hadar.runtime.data.Feed`; None gives step numbers.
    state: plain data of yours (``run.state``) that is saved and restored too; rank 0's.
    save_every_s, save_every_steps: saves that nobody asked for; None: none of that sort.
    keep: checkpoints that stay. name: tells several trainings of one job apart.
    directory: where checkpoints go, whichever job runs; default: the job's own directory.
    model_name, batch: the workload, where the job's comment does not say it.
    global_batch: samples in one step over all workers. The loader's batch size becomes ``global_batch / workers``, so
        that a step, the number of steps and the samples of each step stay the same when the job goes on with another
        number of workers. Needed for ``gpus=2-8`` in the comment; take a ``DistributedSampler`` even for one worker.
        A loader of your own asks ``run.worker_batch``.

    Raises CheckpointError if a checkpoint is there that does not fit the model, or if a newer run has taken over;
    ValueError if the workers cannot share ``global_batch`` equally, or if the loader's batches cannot be made of it.
    """
    gang = Gang()
    worker_batch = _share(global_batch, gang.world)
    return Run(
        {"model": model, "optimizer": optimizer, "scheduler": scheduler},
        total_steps,
        gang,
        Feed(loader, worker_batch),
        dict(state or {}),
        save_every_s,
        save_every_steps,
        _store(directory, name, keep),
        _workload(model_name, batch),
        worker_batch,
    )


class Run:
    """One run of a training; iterate over it for batches. Made by :func:`train`."""

    def __init__(
        self,
        parts: dict[str, Any],
        total_steps: int,
        gang: Gang,
        feed: Feed,
        state: dict[str, Any],
        save_every_s: float | None,
        save_every_steps: int | None,
        store: Store | None,
        workload: tuple[str | None, int | None],
        worker_batch: int | None,
    ) -> None:
        self.step = 0
        self.worker_batch = worker_batch
        self.total_steps = total_steps
        self.state = state
        self._parts = {kind: _named(part) for kind, part in parts.items()}
        self._feed = feed
        self._store = store
        self._save_every_s, self._save_every_steps = save_every_s, save_every_steps
        self._gang = gang
        self._pace = emulation.pace_here(gang.world, *workload, worker_batch)
        self._link = _Link(self._gang, resumable=store is not None)
        self._saved_step: int | None = None
        self._in_step = self._wanted = False
        self._resume()
        self._link.begin(self.step, total_steps)
        self._saved_at = self._checked_at = time.monotonic()
        self._checked_step, self._next_check = self.step, self.step + 1

    @property
    def _samples_per_step(self) -> int | None:
        return self.worker_batch * self._gang.world if self.worker_batch else None

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, from 0."""
        return self._feed.epoch

    def __iter__(self) -> Iterator[Any]:
        if self._pace is not None:
            self._pace.restart()
        while self.step < self.total_steps:
            batch = self._feed.next()
            self._in_step = True
            yield batch
            self._in_step = False
            self.step += 1
            self._link.count(self.step)
            if self._pace is not None:
                self._pace.wait()
            self._between_steps()
        if self._store is not None and self._saved_step != self.step:
            self._try_save()
        self._gang.leave_together()

    def save(self) -> None:
        """Save. Within the loop: when this step is done; rank 0's call counts. Outside: at once, on all ranks together.

        Raises CheckpointError if saving at once fails; what was saved before is as it was. A save at the end of a step
        that fails is told on stderr, and the training goes on.
        """
        if self._store is None:
            raise CheckpointError("nowhere to save: outside a Slurm job give train(..., directory=...)")
        if self._in_step:
            self._wanted = True
        else:
            self._save()

    def _save(self) -> None:
        assert self._store is not None
        self._wanted = False
        began = time.monotonic()
        states = self._gang.gather(self._feed.random_states())
        error = self._write(states) if self._gang.leads else None
        error = self._gang.share(error)
        self._saved_at = time.monotonic()
        if error is not None:
            self._link.failed()
            raise CheckpointError(error)
        self._saved_step = self.step
        self._link.saved(self.step, self._store.generation, self._saved_at - began)

    def _write(self, states: list[Any] | None) -> str | None:
        """Rank 0's part; returns what went wrong, since the other ranks wait to hear it."""
        assert self._store is not None
        try:
            content: dict[str, Any] = {kind: _state_of(part) for kind, part in self._parts.items()}
            content |= {"step": self.step, "user": self.state, "position": self._feed.position()}
            content["samples_per_step"] = self._samples_per_step
            self._store.save(self.step, {"state": content, "ranks": states}, self._gang.world)
        except CheckpointError as error:
            return str(error)
        except Exception as error:  # a user's object that cannot be pickled, say: no reason to end the training
            return f"checkpoint of step {self.step} was not written: {type(error).__name__}: {error}"
        return None

    def _try_save(self) -> None:
        try:
            self._save()
        except CheckpointError as error:
            if self._gang.leads:
                print(f"hadar: {error}; the training goes on", file=sys.stderr, flush=True)

    def _between_steps(self) -> None:
        """Do what is due at a step boundary, the same on all ranks."""
        if self._store is None:
            return
        by_count = self._save_every_steps is not None and self.step % self._save_every_steps == 0
        if self.step < self._next_check and not by_count:
            return
        asked, save, pause_ms, ahead = self._gang.agree(self._decide() if self._gang.leads else (0, 0, 0, 0))
        self._next_check = self.step + ahead
        self._checked_at, self._checked_step = time.monotonic(), self.step
        if not (save or by_count):
            return
        self._try_save()
        if asked:
            self._link.answer()
        if pause_ms:
            self._pause(pause_ms / 1000)
        if self._pace is not None:
            self._pace.restart()
        self._checked_at = time.monotonic()

    def _decide(self) -> tuple[int, int, int, int]:
        """Rank 0: (was asked, save, pause in ms, steps until the next look)."""
        now = time.monotonic()
        asked, pause_s = self._link.asked()
        overdue = self._save_every_s is not None and now - self._saved_at >= self._save_every_s
        ahead = 1
        if self._gang.world > 1:
            per_step_s = (now - self._checked_at) / max(1, self.step - self._checked_step)
            ahead = max(1, min(MOST_STEPS_UNWATCHED, int(AGREE_EVERY_S / max(per_step_s, 1e-9))))
        return int(asked), int(asked or overdue or self._wanted), int(pause_s * 1000), ahead

    def _pause(self, seconds: float) -> None:
        """Make no step until the end, or until told to go on, or until the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            over = time.monotonic() >= deadline or self._link.told_to_go_on()
            if self._gang.agree((int(over),))[0]:
                return
            if self._gang.leads:
                time.sleep(PAUSE_POLL_S)

    def _resume(self) -> None:
        if self._store is None:
            return
        began = time.monotonic()
        found, content, error = None, None, None
        if self._gang.leads:
            try:
                self._store.claim()
                found, content = _newest(self._store)
            except CheckpointError as problem:
                error = str(problem)
        found, error = self._gang.share((found, error))
        if error is not None:
            raise CheckpointError(error)
        if found is None:
            return
        if content is None:
            content = _load_when_visible(self._store, found)
        self._apply(found, content)
        self._link.loaded(found, time.monotonic() - began)
        if self._gang.leads:
            print(f"hadar: resumed from {found.name}", file=sys.stderr, flush=True)

    def _apply(self, found: Checkpoint, content: dict[str, Any]) -> None:
        saved, ranks = content["state"], content["ranks"]
        try:
            for kind, part in self._parts.items():
                _restore_state(part, saved[kind])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{found.path} does not fit this training: {str(error).splitlines()[0]}; "
                "remove it, or tell trainings apart by train(..., name=...)"
            ) from error
        self.step, self._saved_step = saved["step"], saved["step"]
        self.state.clear()
        self.state.update(saved["user"])
        position = dict(saved["position"])
        then, now = saved.get("samples_per_step"), self._samples_per_step
        if then and now:
            position["index"] = position["index"] * then // now
        elif len(ranks) != self._gang.world:  # as many samples were used, by another number of workers
            position["index"] = position["index"] * len(ranks) // self._gang.world
        self._feed.restore(position, ranks[self._gang.rank] if self._gang.rank < len(ranks) else None)


class _Signals:
    """SIGUSR2 where no agent takes it. The handler only counts; a handler of the user's own is kept."""

    count = 0

    @classmethod
    def listen(cls) -> None:
        free = threading.current_thread() is threading.main_thread()
        if free and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, cls._on_signal)

    @classmethod
    def _on_signal(cls, number: int, frame: Any) -> None:
        cls.count += 1


class _Link:
    """Rank 0's connection to its agent, if there is one, and to the signal that stands in for it if not."""

    def __init__(self, gang: Gang, resumable: bool) -> None:
        # the copy that counts an unmodified script's steps, if it is in this process
        self._shared: Any = sys.modules.get("_hadar_progress", _hadar_progress)
        self._page: Any = self._shared.take_over(0, gang.world) if gang.leads else None
        self._resumable = resumable
        self._seen = self._go_on = 0
        self._signals = self._signals_seen = _Signals.count
        if "HADAR_RUN_DIR" not in os.environ and resumable:
            _Signals.listen()

    def begin(self, step: int, total_steps: int) -> None:
        if self._page is None:
            return
        words = self._page.words
        words[self._shared.STEPS], words[self._shared.TOTAL] = step, total_steps
        words[self._shared.RESUMABLE] = int(self._resumable)

    def count(self, step: int) -> None:
        if self._page is not None:
            self._page.words[self._shared.STEPS] = step

    def asked(self) -> tuple[bool, float]:
        """Whether a save is wanted, and for how long to pause after it; to be answered by :meth:`answer`."""
        self._signals_seen = _Signals.count
        signalled = self._signals_seen > self._signals
        if self._page is None:
            return signalled, 0.0
        self._seen = self._page.words[self._shared.ASKED]
        self._go_on = self._page.words[self._shared.GO_ON]
        wanted = self._seen > self._page.words[self._shared.ANSWERED]
        return wanted or signalled, self._page.seconds[self._shared.PAUSE_S] if wanted else 0.0

    def answer(self) -> None:
        self._signals = self._signals_seen
        if self._page is not None:
            self._page.words[self._shared.ANSWERED] = self._seen

    def told_to_go_on(self) -> bool:
        return self._page is not None and self._page.words[self._shared.GO_ON] != self._go_on

    def saved(self, step: int, generation: int, seconds: float) -> None:
        if self._page is not None:
            self._page.seconds[self._shared.SAVE_S] = seconds
            self._note(step, generation)
            self._page.words[self._shared.SAVES] += 1

    def loaded(self, found: Checkpoint, seconds: float) -> None:
        if self._page is not None:
            self._page.seconds[self._shared.LOAD_S] = seconds
            self._note(found.step, found.generation)

    def failed(self) -> None:
        if self._page is not None:
            self._page.words[self._shared.FAILURES] += 1

    def _note(self, step: int, generation: int) -> None:
        self._page.words[self._shared.SAVED_STEP] = step
        self._page.words[self._shared.GENERATION] = generation


def _store(directory: str | Path | None, name: str | None, keep: int) -> Store | None:
    """The job's own checkpoints by restart count; those of a directory that was named by order of starting."""
    environ = os.environ
    below = name or ""
    if directory is not None:
        return Store(Path(directory) / below, job="any", generation=None, keep=keep)
    own = messages.job_dir(environ, Path.cwd())
    if own is None:
        return None
    job = messages.canonical_job_id(environ) or "none"
    generation = messages.restart_count(environ)
    return Store(own / messages.CHECKPOINTS_DIR / below, job=job, generation=generation, keep=keep)


def _share(global_batch: int | None, workers: int) -> int | None:
    """Each worker's batch."""
    if global_batch is None:
        return None
    share, rest = divmod(global_batch, workers)
    if rest or share < 1:
        raise ValueError(
            f"global_batch={global_batch} cannot be shared equally by {workers} workers; say batch= (of one worker) in "
            "the job's comment, and only gang sizes that can share it are chosen"
        )
    return share


def _workload(model_name: str | None, batch: int | None) -> tuple[str | None, int | None]:
    text = os.environ.get("HADAR_BATCH", "")
    return model_name or os.environ.get("HADAR_MODEL"), batch or (int(text) if text.isdecimal() else None)


def _newest(store: Store) -> tuple[Checkpoint | None, dict[str, Any] | None]:
    for checkpoint in store.good():
        try:
            return checkpoint, store.load(checkpoint)
        except CheckpointError as error:
            print(f"hadar: checkpoint {checkpoint.name} is passed over: {error}", file=sys.stderr, flush=True)
    return None, None


def _load_when_visible(store: Store, found: Checkpoint) -> dict[str, Any]:
    """Other ranks may see a shared file system later than rank 0 does."""
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    while True:
        try:
            store.verify(found)
            return store.load(found)
        except CheckpointError as error:
            if time.monotonic() > deadline:
                raise CheckpointError(f"{found.path}, read by rank 0, cannot be read here: {error}") from error
            time.sleep(0.5)


def _named(part: Any) -> dict[str, Any]:
    """{name: object with state_dict}, the wrappers of DDP and torch.compile taken off."""
    if part is None:
        return {}
    if isinstance(part, Mapping):
        items = {str(k): v for k, v in part.items()}
    elif isinstance(part, (list, tuple)):
        items = {str(i): v for i, v in enumerate(part)}
    else:
        items = {"": part}
    return {k: _unwrap(v) for k, v in items.items()}


def _unwrap(part: Any) -> Any:
    from torch.nn import DataParallel
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if isinstance(part, (DistributedDataParallel, DataParallel)):
            part = part.module
        elif hasattr(part, "_orig_mod"):
            part = part._orig_mod
        else:
            return part


def _state_of(part: dict[str, Any]) -> dict[str, Any]:
    return {name: item.state_dict() for name, item in part.items()}


def _restore_state(part: dict[str, Any], saved: dict[str, Any]) -> None:
    if part.keys() != saved.keys():
        raise ValueError(f"it has states of {sorted(saved)}, and the training of {sorted(part)}")
    for name, item in part.items():
        item.load_state_dict(saved[name])

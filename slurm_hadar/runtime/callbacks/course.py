"""What the callbacks of all libraries have in common: a training's course from resuming to its end.

The library makes the steps and writes the files; here is when, where, and how the workers agree. Checkpoints are kept
by the rules of :mod:`slurm_hadar.runtime.checkpoint.store`: the library writes into a directory with a temporary name,
which is summed, synced and renamed. It does so in the foreground, the training stands meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from slurm_hadar import __version__, messages
from slurm_hadar.errors import CheckpointError, reason_of
from slurm_hadar.joblog import say
from slurm_hadar.runtime import emulation
from slurm_hadar.runtime.checkpoint import files
from slurm_hadar.runtime.checkpoint.listing import Checkpoint
from slurm_hadar.runtime.checkpoint.place import store_here, workload_here
from slurm_hadar.runtime.checkpoint.store import Draft
from slurm_hadar.runtime.checkpoint.trigger import SaveDecision, SaveEvery, Trigger
from slurm_hadar.runtime.checkpoint.visible import when_visible
from slurm_hadar.runtime.forks.place import fork_place
from slurm_hadar.runtime.launch import own
from slurm_hadar.runtime.progress.endings import Ending
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["Course", "CourseCallback", "Options", "freeze", "frozen_in"]


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of every callback; their meaning is that of :func:`slurm_hadar.runtime.training.train`'s."""

    save_every_s: float | None = 600.0
    save_every_steps: int | None = None
    keep: int = 2
    name: str | None = None
    directory: str | Path | None = None
    model_name: str | None = None
    batch: int | None = None


class Course:
    """One training as one of its workers sees it. Making one, and all methods, are collective.

    Parameters
    ----------
    options: the user's.
    library: the folder in a checkpoint that holds what the library wrote; tells its checkpoints from others'.
    place: a dataclass that says where a worker was, kept by :meth:`keep_place`.
    saves: False reports progress only.
    theirs: tells a handler of SIGTERM that is the library's own. From :meth:`begin` to :meth:`leave` a SIGTERM saves
        and then ends the process; a handler of the training's own stays.

    Raises CheckpointError in a copy of a forked job, whose weights a callback cannot bring together.
    """

    def __init__(
        self,
        options: Options,
        library: str,
        place: type[Any],
        saves: bool = True,
        theirs: Callable[[Any], bool] = lambda _handler: False,
    ) -> None:
        if fork_place(os.environ, messages.restart_count(os.environ)) is not None:
            raise CheckpointError("a copy of a forked job (fork= in its comment) trains by slurm_hadar.train only")
        self.gang = Gang()
        self.saved_step: int | None = None
        self._options, self._library, self._place = options, library, place
        self._store = store_here(options.directory, options.name, options.keep) if saves else None
        self._link = Link(self.gang, resumable=self._store is not None)
        self._pace = emulation.pace_here(self.gang.world, *workload_here(options.model_name, options.batch))
        self._began = time.monotonic()
        self._found: Checkpoint | None = None
        self._ending = Ending(self.gang.leads, theirs)
        self._saved_last = False
        every = SaveEvery(options.save_every_s, options.save_every_steps)
        self._trigger = Trigger(self.gang, self._link, self._ending, self._pace, every)

    @property
    def saves(self) -> bool:
        """Whether there is a place to save to."""
        return self._store is not None

    def find(self) -> Path | None:
        """Claim the checkpoints for this run; what the library wrote into the newest good one.

        Raises CheckpointError if a newer run has taken over, or if the checkpoint is not this library's.
        """
        if self._store is None:
            return None
        self._began = time.monotonic()
        found, error = None, None
        self._store.enter()
        if self.gang.leads:
            try:
                self._store.claim()
                found, world = self._store.newest(self._saved_by) or (None, None)
                if found is not None and not self._store.sealed and not files.unsafe_allowed():
                    own.check_tree(found.path, unchanged=True)  # libraries do not load all that they save safely
                if found is not None and not (found.path / self._library).is_dir():
                    error = f"{found.path} was not saved by this callback; remove it, or give the callback a name="
                elif found is not None and world != self.gang.world:
                    say(
                        f"WARNING: {found.name} was saved by {world} workers, and {self.gang.world} go on: data and "
                        "random numbers are not those that the training would have seen"
                    )
            except CheckpointError as problem:
                error = str(problem)
        found, error, self._store.follows = self.gang.broadcast((found, error, self._store.follows))
        if error is not None:
            raise CheckpointError(error)
        if found is None:
            return None
        if not self.gang.leads:
            store, seen = self._store, found
            when_visible(seen.path, lambda: store.verify(seen, sums=False))
        self._found, self.saved_step = found, found.step
        folder: Path = found.path / self._library
        return folder

    def _saved_by(self, checkpoint: Checkpoint) -> int:
        """How many workers have saved it. Raises CheckpointError where a later version did, and says more than this
        one knows of where they were."""
        assert self._store is not None
        manifest, file = self._store.manifest(checkpoint), _place_file(checkpoint.path / self._library, 0)
        known = {field.name for field in fields(self._place)}
        if file.exists() and (more := sorted(files.load(file).keys() - known)):
            raise CheckpointError(
                f"it was saved by slurm_hadar {manifest.get('version', '?')}, and {__version__} does not know all of "
                f"its place in the data ({', '.join(more)})"
            )
        return int(manifest["world"])

    def keep_place(self, folder: Path, place: Any) -> None:
        """Where this worker is, into what the library writes."""
        files.write_object(_place_file(folder, self.gang.rank), asdict(place))

    def place_in(self, folder: Path) -> Any:
        """Where this worker was; None where nobody knows, as of one more than those that saved."""
        file = _place_file(folder, self.gang.rank)
        return self._place(**files.load(file)) if file.exists() else None

    def begin(self, step: int, total_steps: int) -> None:
        """The library has loaded what :meth:`find` gave it, and begins at ``step``; ``total_steps`` -1: unknown."""
        self._link.begin(step, total_steps)
        if self._found is not None:
            assert self._store is not None
            self._store.begins(0 <= total_steps <= step, self.gang.leads)
            self._link.loaded(self._found.step, self._found.generation, time.monotonic() - self._began)
            if self.gang.leads:
                say(f"resumed from {self._found.name}")
            self._found = None
        self._trigger.begin(step)
        if self._pace is not None:
            self._pace.restart()
        if self._store is not None:
            self._ending.__enter__()

    def leave(self) -> None:
        """The training is over on all workers, or has failed on this one."""
        self._ending.safe = self._saved_last
        self._ending.__exit__()

    def stepped(self, step: int) -> SaveDecision | None:
        """``step`` steps are made: count, keep the pace, and see whether a save is due; the same on all workers."""
        self._link.count(step)
        if self._pace is not None:
            self._pace.wait()
        return self._trigger.due(step) if self._store is not None else None

    def fulfil(self, due: SaveDecision, step: int, write: Callable[[Path], None]) -> None:
        """Save, answer who asked, and pause or end if told to. A save that fails is told on stderr; the training goes
        on."""
        self.try_save(step, write, due.ends)
        self._trigger.follow(due, step, safe=self.saved_step == step)

    def end(self, step: int, write: Callable[[Path], None], due: SaveDecision | None) -> None:
        """The training is over: its last step is safe before the process goes on."""
        if self._store is not None and self.saved_step != step:
            self.try_save(step, write, ends=True)
        self._saved_last = self.saved_step == step
        if self._store is not None:
            self._store.ended()
        if due is not None and due.asked:
            self._link.answer()

    def try_save(self, step: int, write: Callable[[Path], None], ends: bool = False) -> None:
        """:meth:`save`, with a failure told on stderr. ``ends``: the training does not go on."""
        try:
            self.save(step, write)
        except CheckpointError as error:
            if self.gang.leads:
                say(str(error) if ends else f"{error}; the training goes on")

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Let each worker ``write`` into the folder that it is given, and make that the checkpoint of ``step``.

        Raises CheckpointError if it failed; what was saved before is as it was.
        """
        assert self._store is not None
        began = time.monotonic()
        draft, folder, error = self._open(step) if self.gang.leads else (None, None, None)
        folder, error = self.gang.broadcast((folder, error))
        if error is None:
            failure = self._written(write, folder)
            failures = self.gang.gather(failure)
            if draft is not None and failures is not None:
                error = self._commit(draft, step, failures)
            error = self.gang.broadcast(error)
        self._trigger.saved()
        if error is not None:
            self._link.failed()
            raise CheckpointError(error)
        self.saved_step = step
        self._link.saved(step, self._store.generation, time.monotonic() - began)

    def _open(self, step: int) -> tuple[Draft | None, Path | None, str | None]:
        assert self._store is not None
        try:
            draft = self._store.begin(step)
        except CheckpointError as problem:
            return None, None, str(problem)
        folder = draft.path / self._library
        try:
            folder.mkdir()
        except OSError as problem:
            draft.discard()
            return None, None, str(self._store.not_written(step, problem))
        return draft, folder, None

    def _written(self, write: Callable[[Path], None], folder: Path) -> str | None:
        """Why this worker could not write, if so. Whatever a library raises must not leave the others waiting."""
        try:
            write(folder)
        except Exception as problem:
            return reason_of(problem)
        return None

    def _commit(self, draft: Draft, step: int, failures: list[str | None]) -> str | None:
        """Rank 0: sum, sync and publish; what went wrong, if it did."""
        assert self._store is not None
        try:
            for rank, failure in enumerate(failures):
                if failure is not None:
                    raise OSError(f"worker {rank}: {failure}" if len(failures) > 1 else failure)
            written = sorted(p for p in draft.path.rglob("*") if p.is_file())
            entries = {p.relative_to(draft.path).as_posix(): files.seal(p) for p in written}
            draft.commit(entries, len(failures))
        except CheckpointError as problem:
            return str(problem)
        except OSError as problem:
            return str(self._store.not_written(step, problem))
        finally:
            draft.discard()
        return None


def frozen_in(module: Any) -> list[str]:
    """Parameters that are not trained now; a script may freeze them, or train them from some step on."""
    return [name for name, parameter in module.named_parameters() if not parameter.requires_grad]


def freeze(module: Any, names: list[str]) -> None:
    """These parameters, and no others."""
    frozen = set(names)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)


def _place_file(folder: Path, rank: int) -> Path:
    return folder / f"random-{rank}.pt"


class CourseCallback:
    """What the callbacks of all libraries take, and hold on to while a training runs."""

    def __init__(
        self,
        *,
        save_every_s: float | None = 600.0,
        save_every_steps: int | None = None,
        keep: int = 2,
        name: str | None = None,
        directory: str | Path | None = None,
        model_name: str | None = None,
        batch: int | None = None,
    ) -> None:
        super().__init__()
        self._options = Options(save_every_s, save_every_steps, keep, name, directory, model_name, batch)
        self._course: Course | None = None
        self._due: SaveDecision | None = None
        self._prepare()

    def _prepare(self) -> None:
        """What the library needs before a training begins."""

"""For Hugging Face: ``Trainer(..., callbacks=[slurm_hadar.HuggingFaceCallback()])``.

A save that is due after a step is made when the Trainer has logged, evaluated and saved what it wants to after that
step, by the Trainer's own ``_save_checkpoint`` into the job's directory. ``output_dir``, ``save_strategy`` and
``save_total_limit`` stay the user's, for the user's checkpoints.

``Trainer.train`` takes the checkpoint to resume from as its argument, and no callback hears of it before. So making the
first callback replaces ``Trainer.train`` by a function that gives Trainers with this callback that argument, and calls
the original.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.batches.positioned import warm_up
from slurm_hadar.runtime.callbacks.course import Course, CourseCallback, freeze, frozen_in
from slurm_hadar.runtime.callbacks.others import Others
from slurm_hadar.runtime.callbacks.shard import Place, Placed
from slurm_hadar.runtime.checkpoint import files

__all__ = ["HuggingFaceCallback"]

FOLDER = "huggingface"
FINISHED = "finished"
FROZEN = "frozen.pt"
ADVICE = "Trainer saves no tensors of a callback. pin=yes in the job's comment has the job left alone"
_REPLACED = ("_maybe_log_save_evaluate", "_run_epoch", "get_eval_dataloader")
NEEDED = ("_maybe_log_save_evaluate", "_run_epoch", "_save_checkpoint", "_init_training_state", "_load_rng_state")


class _Hooks(CourseCallback):
    """Progress, checkpoints on request and exact resuming for Hugging Face's Trainer.

    The arguments are those of :func:`slurm_hadar.train` of the same names. A step is one of ``max_steps``. With a
    hyperparameter search only progress is reported.
    """

    _epoch_over = False
    _placed: Placed | None = None
    _frozen: list[str] | None = None
    _others: Others | None = None

    def _prepare(self) -> None:
        _teach_trainer()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self._course is not None:
            if self._frozen is not None:
                freeze(model, self._frozen)
            self._course.begin(state.global_step, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._epoch_over = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._course is not None:
            self._due = self._course.stepped(state.global_step) or self._due

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._epoch_over = True

    @contextlib.contextmanager
    def _steering(self, trainer: Any, trial: Any) -> Iterator[str | None]:
        """While ``trainer`` trains: see to its saves. Yields what to resume from."""
        _check(trainer)
        searching = trial is not None or getattr(trainer, "hp_search_backend", None) is not None
        self._due, self._epoch_over = None, False
        self._course = Course(self._options, FOLDER, Place, saves=not searching)
        folder = self._course.find()
        self._others = Others(ADVICE) if self._course.saves and self._course.gang.leads else None
        original = trainer._maybe_log_save_evaluate

        def log_save_evaluate(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._between_steps(trainer)
            return result

        def make_no_step(*_: Any, **__: Any) -> None:
            trainer.control.should_training_stop = True

        self._frozen = None
        try:
            trainer._maybe_log_save_evaluate = log_save_evaluate
            if folder is not None:
                _keep_workers(trainer)
                self._frozen = files.load(folder / FROZEN) if (folder / FROZEN).exists() else None
            if folder is not None and (folder / FINISHED).exists():
                trainer._run_epoch = make_no_step  # one that ended within an epoch would make a step more
            elif self._course.saves and not trainer.args.ignore_data_skip:
                self._placed = Placed(trainer, self._course.gang, self._place_in(folder))
            theirs = str(next(folder.glob("checkpoint-*"))) if folder is not None else None
            yield theirs
            if folder is not None and (folder / FINISHED).exists():  # what follows draws what it would have drawn
                trainer._load_rng_state(theirs)
            self._course.gang.leave_together()
        finally:
            self._course.leave()
            if self._placed is not None:
                self._placed.leave()
            for name in _REPLACED:
                trainer.__dict__.pop(name, None)
            self._course = self._placed = None

    def _place_in(self, folder: Path | None) -> Place | None:
        assert self._course is not None
        return None if folder is None else self._course.place_in(folder)

    def _between_steps(self, trainer: Any) -> None:
        """Save what is due, and the end. Where an epoch ends with the step, only when the epoch's end is done, too."""
        state, over = trainer.state, trainer.control.should_training_stop
        ends = over or _whole(state.epoch) or (self._placed is not None and self._placed.pass_over)
        if self._course is None or (ends and not self._epoch_over):
            return
        if self._others is not None:
            self._others.look(_of_the_script(trainer), trainer.model, over or self._due is not None)
        due, self._due = self._due, None
        if over:
            self._course.end(state.global_step, lambda folder: self._write(trainer, folder, finished=True), due)
        elif due is not None:
            self._course.fulfil(due, state.global_step, lambda folder: self._write(trainer, folder))

    def _write(self, trainer: Any, folder: Path, finished: bool = False) -> None:
        """This worker's part of a checkpoint: the Trainer's own, and the place in the data."""
        assert self._course is not None
        place = self._placed.place(self._epoch_over) if self._placed is not None and not finished else None
        if place is not None:
            self._course.keep_place(folder, place)
        if self._course.gang.leads:
            files.write_object(folder / FROZEN, frozen_in(trainer.model))
        _write(trainer, folder, finished)


def _of_the_script(trainer: Any) -> Iterator[Any]:
    """Its callbacks that are neither ours nor the library's own."""
    for one in trainer.callback_handler.callbacks:
        if not isinstance(one, _Hooks) and type(one).__module__.split(".")[0] != "transformers":
            yield one


def _keep_workers(trainer: Any) -> None:
    """Workers that an evaluation keeps are there where a training is resumed, as they were in the one that was stopped:
    to start them draws a random number."""
    given = trainer.get_eval_dataloader

    def get_eval_dataloader(*args: Any, **kwargs: Any) -> Any:
        loader = given(*args, **kwargs)
        if any(name.startswith("eval_") for entry in trainer.state.log_history for name in entry):
            warm_up(getattr(loader, "base_dataloader", loader))
        return loader

    trainer.get_eval_dataloader = get_eval_dataloader


def _whole(epoch: float | None) -> bool:
    return epoch is not None and epoch == int(epoch)


def _write(trainer: Any, folder: Path, finished: bool) -> None:
    """The Trainer's own checkpoint, as if it had been asked for in ``output_dir``."""
    args = trainer.args
    # a whole checkpoint, of which the hub, the limit of the user's own and "the best one" know nothing
    meanwhile = {"output_dir": str(folder), "save_only_model": False, "push_to_hub": False, "save_total_limit": None}
    meanwhile["save_strategy"] = type(args.save_strategy)("no")
    before = {name: getattr(args, name) for name in meanwhile}
    for name, value in meanwhile.items():
        setattr(args, name, value)
    try:
        if finished and args.should_save:
            (folder / FINISHED).touch()
        trainer._save_checkpoint(trainer.model_wrapped, trial=None)
    finally:
        for name, value in before.items():
            setattr(args, name, value)


def _teach_trainer() -> None:
    """Let ``Trainer.train`` ask the callback of its Trainer what to resume from; once."""
    from transformers import Trainer

    original = Trainer.train
    if hasattr(original, "_hadar"):
        return

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = [c for c in self.callback_handler.callbacks if isinstance(c, _Hooks)]
        if not found:
            return original(self, resume_from_checkpoint, trial, *args, **kwargs)
        with found[0]._steering(self, trial) as checkpoint:
            return original(self, checkpoint or resume_from_checkpoint, trial, *args, **kwargs)

    train._hadar = True  # type: ignore[attr-defined]
    Trainer.train = train


def _check(trainer: Any) -> None:
    """Raises CheckpointError if this Trainer has not what saving needs."""
    missing = [name for name in NEEDED if not hasattr(trainer, name)]
    if missing:
        import transformers

        raise CheckpointError(
            f"HuggingFaceCallback does not know this Trainer ({type(trainer).__name__} of transformers "
            f"{transformers.__version__} has no {missing[0]}); use transformers 5"
        )


if TYPE_CHECKING:
    HuggingFaceCallback = _Hooks


def __getattr__(name: str) -> Any:
    """The class itself is made when it is first asked for: its base is the library's."""
    if name != "HuggingFaceCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError(
            "slurm_hadar.HuggingFaceCallback needs transformers: pip install transformers accelerate"
        ) from error
    made = type(name, (_Hooks, TrainerCallback), {"__module__": __name__, "__doc__": _Hooks.__doc__})
    globals()[name] = made  # one class, that pickles
    return made

"""For PyTorch Lightning: ``Trainer(callbacks=[slurm_hadar.LightningCallback()])``.

A save that is due after a step is made when the next batch is there: then everything that belongs to the step is done
(validation, the end of an epoch, schedulers), and what the next one changes is not. Lightning's checkpoint knows how
many batches were used; which ones, and the random numbers, are kept beside it.

Lightning asks a callback nothing before it has decided what to load. So this one replaces two methods on the trainer's
own parts (not on classes): the connector's ``resume_start`` and the data source's ``dataloader``.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_hadar.errors import CheckpointError
from slurm_hadar.joblog import say
from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.positioned import warm_up
from slurm_hadar.runtime.callbacks import finders
from slurm_hadar.runtime.callbacks.course import Course, CourseCallback, freeze, frozen_in
from slurm_hadar.runtime.callbacks.loader import Position, entered, positioned
from slurm_hadar.runtime.callbacks.others import Others
from slurm_hadar.runtime.checkpoint import files

__all__ = ["LightningCallback"]

FOLDER = "lightning"
FILE = "trainer.ckpt"
KEY = "slurm_hadar"
#: Lightning's own that set at an epoch's beginning what they save nowhere, or save other weights than they have.
INEXACT = {"ModelPruning", "StochasticWeightAveraging"}
HYPER_PARAMETERS = {"hyper_parameters", "hparams_type", "datamodule_hyper_parameters", "datamodule_hparams_type"}
FLAVOURS = ("lightning.pytorch", "pytorch_lightning")
ADVICE = "Give its class state_dict() and load_state_dict(), by which Lightning saves it and gives it back"
NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class _Hooks(CourseCallback):
    """Progress, checkpoints on request and exact resuming for Lightning's Trainer.

    The arguments are those of :func:`slurm_hadar.train` of the same names. A step is one optimizer step of the loop
    (``accumulate_grad_batches`` batches), whatever the number of optimizers.
    """

    _step = 0
    _loader: Any = None
    _start: Position | None = None
    _loaded: dict[str, Any] | None = None
    _finished = False
    _validated = True
    _after: dict[str, Any] | None = None
    _at_end: dict[str, Any] | None = None
    _others: Others | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Claim the job's checkpoints; have the newest one loaded, whatever ``ckpt_path`` says."""
        if stage != "fit":
            return
        _check(trainer)
        trainer.callbacks.remove(self)
        trainer.callbacks.insert(0, self)  # a save comes before other callbacks see the next batch
        self._step, self._due, self._start, self._loaded, self._finished = 0, None, None, None, False
        self._validated, self._after, self._at_end, self._loader = True, None, None, None
        self._others = None
        if finders.searches_only(trainer):  # no training: nothing to resume, nothing to save
            self._course = None
            return
        signals = getattr(trainer, "_signal_connector", None)
        self._course = Course(
            self._options, FOLDER, Position, saves=not trainer.fast_dev_run,
            theirs=lambda handler: _only_of(signals, handler),
        )  # fmt: skip
        folder = self._course.find()
        if folder is not None:
            self._have_loaded(trainer, folder)
        if self._course.saves and self._course.gang.leads:
            _tell_of_callbacks(trainer)
            self._others = Others(ADVICE)
        source = trainer.fit_loop._data_source
        source.dataloader = lambda: self._position(source)

    def _have_loaded(self, trainer: Any, folder: Path) -> None:
        assert self._course is not None
        self._start = self._course.place_in(folder)
        if self._start is not None:
            self._validated, self._after = self._start.validated, self._start.after
            self._at_end = self._start.now or self._start.epoch
            if self._validated:
                _keep_workers(trainer.fit_loop.epoch_loop.val_loop)
        finders.leave_out(trainer)
        connector = trainer._checkpoint_connector

        def resume_start(*_: Any, **__: Any) -> None:
            del connector.resume_start
            with files.safe_classes():
                connector.resume_start(folder / FILE, weights_only=not files.unsafe_allowed())

        connector.resume_start = resume_start

    def _position(self, source: Any) -> Any:
        """The training's batches, from where the last run was."""
        flavour = next(name for name in FLAVOURS if type(source).__module__.startswith(name))
        combined = importlib.import_module(f"{flavour}.utilities").CombinedLoader
        self._loader = positioned(type(source).dataloader(source), combined)
        self._loader.start, self._start = self._start, None
        if self._due is not None:  # the step to be saved was the last of an epoch, and the next one has a loader anew
            self._loader.capture_next()
        return self._loader

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Into each checkpoint of the training, also those that are not ours."""
        checkpoint[KEY] = {
            "step": self._step,
            "batches_that_stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "finished": self._finished,
            "found": finders.found(trainer, pl_module),
            **_in_force(trainer, pl_module),
        }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._step = checkpoint.get(KEY, {}).get("step", checkpoint.get("global_step", 0))
        if self._course is not None and self._course.saved_step is not None:
            self._loaded = checkpoint[KEY]
            # of loaders that tell where they are (torchdata's): they are brought there by us, and not once more
            checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)
            if trainer.strategy.restore_checkpoint_after_setup:  # after on_fit_start
                self._put_found_back(trainer, pl_module)

    def _put_found_back(self, trainer: Any, pl_module: Any) -> None:
        if self._course is not None and self._loaded is not None:
            finders.put_back(trainer, pl_module, self._loaded.get("found", {}), self._course.gang.leads)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._put_found_back(trainer, pl_module)
        if self._loaded is not None and self._loaded["finished"]:
            trainer.should_stop = True  # ended early by someone's wish, which Lightning's checkpoints do not hold

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._course is None:
            return
        loops = trainer.fit_loop
        if self._loaded is not None and loops.restarting:
            # of the batch that was there already when the checkpoint was written, and is yet to be trained
            batches = loops.epoch_loop.batch_progress
            batches.is_last_batch, batches.total.ready = False, batches.total.completed
            warnings.filterwarnings("ignore", message=NOT_RESUMABLE)
        if self._loaded is not None:
            _put_in_force(trainer, pl_module, self._loaded)
        total = trainer.estimated_stepping_batches
        self._course.begin(self._step, int(total) if 0 <= total < math.inf else -1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count; a save that is due waits for the next batch. Gradients are not saved, so none may be accumulated."""
        if self._course is None or ((batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch):
            return
        self._step += 1
        self._due = self._course.stepped(self._step) or self._due
        if self._due is not None:
            self._loader.capture_next()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._loaded is not None:
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._loaded["batches_that_stepped"]
            trainer.fit_loop._restarting = False  # else Lightning leaves out this epoch's end for plateau schedulers
            if "accumulate" in self._loaded:  # not before: its own callback refuses any but 1 when a training starts
                trainer.accumulate_grad_batches = self._loaded["accumulate"]
            validation = trainer.fit_loop.epoch_loop.val_loop._combined_loader
            if validation is not None and not self._validated:
                validation.reset()  # Lightning has entered its loaders, to count the batches of the last one
            if self._after is not None:  # between the batch that was fetched ahead and here Lightning draws, too
                rng.restore(self._after, self._loader.generators())
            self._loaded = None
        if self._others is not None:
            self._others.look(_without_state(trainer.callbacks), pl_module, self._due is not None)
        if self._course is None or self._due is None:
            return
        due, self._due = self._due, None
        loader = self._loader
        now = loader.states or rng.capture(loader.generators())
        place = Position(batch_idx, loader.epoch_states, now, loader.begun, _has_validated(trainer), loader.passes)
        if loader.fetches_ahead:
            place.ahead, place.after = loader.before, rng.capture(loader.generators())
        self._course.fulfil(due, self._step, lambda folder: self._write(trainer, folder, place))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end, too: a job that is started once more does not train again."""
        if self._course is None:
            return
        loader = self._loader
        now = rng.capture(loader.generators())
        progress = trainer.fit_loop.epoch_progress.current
        whole = progress.processed == progress.ready
        used = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        place = Position(used, loader.epoch_states, now, loader.begun, _has_validated(trainer), loader.passes)
        if loader.fetches_ahead:
            place.ahead = loader.states
        if whole:
            again = entered(loader) and not _loads_anew(trainer.fit_loop, "train")
            place = replace(place, used=0, epoch=now, now=None, begun=again, passes=[], ahead=None)
        due, self._due, self._finished = self._due, None, trainer.should_stop
        self._course.end(self._step, lambda folder: self._write(trainer, folder, place), due)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            trainer.fit_loop._data_source.__dict__.pop("dataloader", None)
            finders.take_back(trainer)
            if self._course is not None and self._loaded is not None:  # resumed at its end: no step was made
                self._course.begin(self._step, self._step)
                if (states := self._at_end) is not None:  # what follows draws what it would have drawn
                    rng.restore(states, self._loader.generators() if self._loader is not None else ())
            if self._course is not None:
                self._course.gang.leave_together()
                self._course.leave()
            self._course = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._course is not None:
            self._course.leave()

    def _write(self, trainer: Any, folder: Path, place: Position) -> None:
        """This worker's part of a checkpoint: Lightning's own, and the place in the data."""
        assert self._course is not None
        self._course.keep_place(folder, place)
        content = trainer._checkpoint_connector.dump_checkpoint(False)
        for key in HYPER_PARAMETERS & content.keys():  # any objects at all, which resuming does not need
            if not files.loadable(content[key]):
                del content[key]
        strategy = trainer.strategy
        given = io = strategy.checkpoint_io
        while type(io).__name__ == "AsyncCheckpointIO":  # would return before the file is there
            io = io.checkpoint_io
        strategy.checkpoint_io = io
        try:
            strategy.save_checkpoint(content, folder / FILE)
        finally:
            strategy.checkpoint_io = given
        if (folder / FILE).is_file():  # a directory's is the strategy's own affair
            files.check_loadable(folder / FILE, content)


def _tell_of_callbacks(trainer: Any) -> None:
    for name in sorted(INEXACT & {type(one).__name__ for one in trainer.callbacks}):
        say(
            f"WARNING: Lightning's {name} does not go on as it was where a training is resumed in the midst of an "
            "epoch: a job that is moved ends with other weights. pin=yes in the job's comment has it left alone"
        )


def _without_state(callbacks: list[Any]) -> Iterator[Any]:
    """Those of which Lightning saves nothing, but for ours, and what is told of in any case."""
    bases, saving = _bases(), ("state_dict", "on_save_checkpoint")
    for one in callbacks:
        if type(one).__name__ in INEXACT or isinstance(one, _Hooks):
            continue
        if all(any(getattr(type(one), name) is getattr(base, name) for base in bases) for name in saving):
            yield one


def _in_force(trainer: Any, module: Any) -> dict[str, Any]:
    """What hooks at the beginning of an epoch have set, which are not called in the midst of one; and the latest
    metrics, by which schedulers and callbacks may go before the next validation."""
    metrics = {name: value.detach().cpu().clone() for name, value in trainer.callback_metrics.items()}
    return {
        "accumulate": trainer.accumulate_grad_batches,
        "frozen": frozen_in(module),
        "evaluating": [name for name, part in module.named_modules() if not part.training],
        "metrics": metrics,
        "loaded": _loaded_ago(trainer),
    }


def _put_in_force(trainer: Any, module: Any, saved: dict[str, Any]) -> None:
    if "frozen" not in saved:  # of an older version
        return
    freeze(module, saved["frozen"])
    for name, part in module.named_modules() if "evaluating" in saved else ():
        part.training = name not in saved["evaluating"]  # not train(), which is for all within it, and may be theirs
    metrics = {name: value.to(module.device) for name, value in saved["metrics"].items()}
    trainer._logger_connector._callback_metrics.update(metrics)
    for (loop, stage), ago in zip(_loops(trainer), saved.get("loaded", ()), strict=False):
        if loop._combined_loader is not None:  # reload_dataloaders_every_n_epochs counts on
            setattr(loop, _last_load(stage), trainer.current_epoch - ago)


def _loops(trainer: Any) -> list[tuple[Any, str]]:
    return [(trainer.fit_loop, "train"), (trainer.fit_loop.epoch_loop.val_loop, "val")]


def _last_load(stage: str) -> str:
    return f"_last_{stage}_dl_reload_epoch"


def _loaded_ago(trainer: Any) -> list[int]:
    """How many epochs ago the loaders of training and validation were made; 0 for those that are to be made anew."""
    every = trainer.reload_dataloaders_every_n_epochs or math.inf
    agos = [trainer.current_epoch - getattr(loop, _last_load(stage)) for loop, stage in _loops(trainer)]
    return [int(ago) if ago < every else 0 for ago in agos]


def _loads_anew(loop: Any, stage: str) -> bool:
    """Whether the next epoch has other loaders than the last; those that the script has made itself stay."""
    return bool(getattr(loop, f"_should_reload_{stage}_dl")) and loop._data_source.is_module()


def _has_validated(trainer: Any) -> bool:
    """Whether the validation's next loaders keep workers since they were gone through, be it for a sanity check."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    return loop._combined_loader is not None and entered(loop._combined_loader) and not _loads_anew(loop, "val")


def _keep_workers(loop: Any) -> None:
    """Let the validation's loaders have the workers that they keep at once, as they had in the run that was stopped: to
    start them draws a random number. Lightning makes no sanity check when it resumes."""
    original = loop.setup_data

    def setup_data() -> None:
        original()
        if loop._combined_loader is not None:
            del loop.setup_data
            for loader in loop._combined_loader.flattened:
                warm_up(loader)

    loop.setup_data = setup_data


def _only_of(signals: Any, handler: Any) -> bool:
    """Whether a signal's handler is made of nothing but methods of Lightning's ``signals``."""
    parts = getattr(handler, "signal_handlers", None)
    return signals is not None and parts is not None and all(getattr(p, "__self__", None) is signals for p in parts)


def _check(trainer: Any) -> None:
    """Raises CheckpointError if this Lightning has not what resuming needs."""
    loops = getattr(trainer, "fit_loop", None)
    epoch_loop = getattr(loops, "epoch_loop", None)
    needed = [
        (getattr(trainer, "_checkpoint_connector", None), "resume_start"),
        (getattr(trainer, "_checkpoint_connector", None), "dump_checkpoint"),
        (getattr(loops, "_data_source", None), "dataloader"),
        (getattr(loops, "_data_source", None), "is_module"),
        (loops, "_restarting"),
        (loops, "_last_train_dl_reload_epoch"),
        (getattr(getattr(trainer, "_logger_connector", None), "_callback_metrics", None), "update"),
        (epoch_loop, "_batches_that_stepped"),
        (getattr(epoch_loop, "val_loop", None), "setup_data"),
        (getattr(epoch_loop, "val_loop", None), "_combined_loader"),
        (getattr(epoch_loop, "val_loop", None), "_last_val_dl_reload_epoch"),
        (getattr(epoch_loop, "batch_progress", None), "is_last_batch"),
    ]
    missing = [name for part, name in needed if not hasattr(part, name)]
    if missing:
        version = getattr(sys.modules.get(type(trainer).__module__.split(".")[0]), "__version__", "?")
        raise CheckpointError(
            f"LightningCallback does not know this Lightning ({version} has no {missing[0]}); use lightning 2.5 or 2.6"
        )


def _bases() -> tuple[type, ...]:
    """``Callback`` of the packages that the program uses: ``lightning``, ``pytorch_lightning``, or both."""
    names = [name for name in FLAVOURS if name in sys.modules]
    if not names:
        names = [name for name in FLAVOURS if importlib.util.find_spec(name.split(".")[0])][:1]
    if not names:
        raise ImportError("slurm_hadar.LightningCallback needs PyTorch Lightning: pip install lightning")
    return tuple(importlib.import_module(name).Callback for name in names)


if TYPE_CHECKING:
    import lightning

    class LightningCallback(_Hooks, lightning.Callback): ...


def __getattr__(name: str) -> Any:
    """The class itself is made when it is first asked for: its base is the library's."""
    if name != "LightningCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (_Hooks, *_bases()), {"__module__": __name__, "__doc__": _Hooks.__doc__})
    globals()[name] = made  # one class, that pickles
    return made

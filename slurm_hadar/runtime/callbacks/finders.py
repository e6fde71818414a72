"""Lightning's searches before a training: ``LearningRateFinder``, ``BatchSizeFinder``, and what is derived from them.

A training that is resumed is not searched for again: the search would lose its place, and find something else for the
weights of now. What was found is kept in the checkpoint.
"""

from __future__ import annotations

import importlib
from typing import Any

from slurm_hadar.joblog import say

__all__ = ["found", "leave_out", "put_back", "searches_only", "take_back"]

_NAMES = {"LearningRateFinder", "BatchSizeFinder"}
_HOOK = "on_fit_start"
_RATES = ("lr", "learning_rate")  # where Lightning looks if it is not told


def searches_only(trainer: Any) -> bool:
    """Whether this fit ends with the search, as those of Lightning's ``Tuner`` do."""
    return any(getattr(finder, "_early_exit", False) for finder in _finders(trainer))


def leave_out(trainer: Any) -> None:
    """Let this fit begin without a search."""
    for finder in _finders(trainer):
        setattr(finder, _HOOK, lambda *_: None)


def take_back(trainer: Any) -> None:
    """:meth:`leave_out`, for the fits that follow."""
    for finder in _finders(trainer):
        finder.__dict__.pop(_HOOK, None)


def found(trainer: Any, module: Any) -> dict[str, float]:
    """The attributes that are searched for, as they are now; plain numbers."""
    names = [name for finder in _finders(trainer) if (name := _attribute(finder, module)) is not None]
    values = {name: _parsing(trainer).lightning_getattr(module, name) for name in names}
    return {name: float(v) if isinstance(v, float) else v for name, v in values.items() if isinstance(v, (int, float))}


def put_back(trainer: Any, module: Any, values: dict[str, float], tells: bool) -> None:
    """Have what :func:`found` returned when the checkpoint was written; ``tells``: this worker speaks for all."""
    for finder in _finders(trainer):
        name = _attribute(finder, module)
        if name in values:
            _parsing(trainer).lightning_setattr(module, name, values[name])
        elif name is not None and tells:
            say(
                f"WARNING: {type(finder).__name__} is left out where a training is resumed, and the checkpoint does "
                f"not hold what it had found: {name} is as the script sets it"
            )


def _finders(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if _NAMES & {c.__name__ for c in type(callback).__mro__}]


def _attribute(finder: Any, module: Any) -> str | None:
    """Of the module, its hyperparameters or its data; None if the search sets nothing."""
    names = (finder._batch_arg_name,) if hasattr(finder, "_batch_arg_name") else (finder._attr_name or None, *_RATES)
    if not getattr(finder, "_update_attr", True):
        return None
    parsing = _parsing(module.trainer)
    return next((name for name in names if name is not None and parsing.lightning_hasattr(module, name)), None)


def _parsing(trainer: Any) -> Any:
    library = type(trainer.fit_loop._data_source).__module__.partition(".trainer")[0]
    return importlib.import_module(f"{library}.utilities.parsing")

"""The random number generators that a script gives its loaders and samplers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

__all__ = ["generators_of"]


def generators_of(source: Any) -> list[Any]:
    """The user's own generators, whose states belong to the position."""
    loaders = [source] if hasattr(source, "sampler") else [source, *_held_by(source)]
    holders = [holder for loader in loaders for holder in _drawing(loader)]
    candidates = [getattr(holder, "generator", None) for holder in holders]
    unique = {id(g): g for g in candidates if hasattr(g, "get_state") and hasattr(g, "set_state")}
    return list(unique.values())


def _drawing(loader: Any) -> list[Any]:
    """What may have a generator of its own in a loader."""
    batches = getattr(loader, "batch_sampler", None)
    return [loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]


def _held_by(source: Any) -> Iterable[Any]:
    """The loaders that a function, or an object of the training's own, goes through; in an order of their names."""
    from torch.utils.data import DataLoader

    if inspect.isfunction(source):
        names = inspect.getclosurevars(source)
        held = {**names.globals, **names.nonlocals}
    else:
        held = getattr(source, "__dict__", {})
    found: list[Any] = []
    for _, value in sorted(held.items()):
        found += value if isinstance(value, (list, tuple)) else (value,)
    return [one for one in found if isinstance(one, DataLoader)]

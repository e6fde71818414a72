"""On which devices tensors are that nobody moves back by themselves: those of ``state=``, and of states in ``also=``.

What is read from a checkpoint is in main memory. Modules and optimizers of PyTorch's copy it to where they are; a
script that takes a tensor out of ``run.state``, or a class of its own, does not, and would compute with it beside
tensors on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_hadar.runtime.checkpoint.states import sharded

__all__ = ["places_of", "put_back"]

_KINDS = ("also", "user")
_HOME = ""  # where the model is, which may be on another GPU in the next run


def places_of(states: Mapping[str, Any], parts: Mapping[str, dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    """By path, kind first, the devices of tensors in ``states`` ("also", "user") that are not in main memory.
    ``parts``: of the training."""
    import torch

    home, found = _home_of(parts), dict[tuple[Any, ...], str]()
    taken = {("also", name, key) for name, one in parts.get("also", {}).items() for key in _taken_by(one)}

    def see(value: Any, path: tuple[Any, ...]) -> None:
        plain = isinstance(value, torch.Tensor) and not sharded.is_sharded(value)
        if plain and value.device.type != "cpu" and path not in taken:
            found[path] = _HOME if value.device == home else str(value.device)

    sharded.walk({kind: states[kind] for kind in _KINDS if kind in states}, see)
    return found


def put_back(saved: Mapping[str, Any], parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What was saved with its places, where it was. A device that is not here is that of the model."""
    import torch

    home, places = _home_of(parts), saved.get("places") or {}
    moved = dict[tuple[int, str], Any]()  # what stands in two places stays one

    def move(value: Any, path: tuple[Any, ...]) -> Any:
        if path not in places or not isinstance(value, torch.Tensor):
            return None
        return moved.setdefault((id(value), places[path]), _moved(value, _device(places[path], home)))

    kinds = {kind: saved[kind] for kind in _KINDS if places and kind in saved}
    return {**saved, **sharded.walk(kinds, move)}


def _moved(value: Any, device: Any) -> Any:
    """One that is trained, too, is a leaf there."""
    import torch

    there = value.detach().to(device)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(there, value.requires_grad)
    return there.requires_grad_(value.requires_grad)


def _taken_by(one: Any) -> list[str]:
    """What a module copies to its own device; not what a metric has besides."""
    import torch

    if not isinstance(one, torch.nn.Module):
        return []
    held = (one.named_parameters(remove_duplicate=False), one.named_buffers(remove_duplicate=False))
    return [name for each in held for name, _ in each]


def _home_of(parts: Mapping[str, dict[str, Any]]) -> Any:
    models = (one for one in parts.get("model", {}).values() if hasattr(one, "parameters"))
    first = next((parameter for model in models for parameter in model.parameters()), None)
    return None if first is None else first.device


def _device(place: str, home: Any) -> Any:
    import torch

    own = home if home is not None else torch.device("cpu")
    if place == _HOME:
        return own
    try:
        return torch.empty(0, device=place).device
    except (RuntimeError, AssertionError):  # built without it, or fewer of them
        return own

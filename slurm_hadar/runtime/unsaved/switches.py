"""What a script may switch in the objects that it gives, or these hold by themselves, and no state holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_hadar.runtime.checkpoint.states.by_worker import sums_of
from slurm_hadar.runtime.unsaved.held import is_plain

__all__ = ["Switches", "differ", "inner_of"]


class Switches(NamedTuple):
    """What of an object a script may switch and no state holds: which of its parameters are trained, and in which
    precision; which parts of a model are in another mode than the whole; how many parameter groups there are; and the
    names of a model's parameters."""

    trained: Mapping[int, bool]
    kinds: Mapping[int, Any]
    modes: Mapping[int, bool]
    groups: int
    names: frozenset[str]

    @classmethod
    def of(cls, one: Any) -> Switches:
        parameters = list(one.parameters()) if hasattr(one, "parameters") else []
        parts = list(one.modules()) if hasattr(one, "modules") and hasattr(one, "training") else []
        return cls(
            {id(p): p.requires_grad for p in parameters},
            {id(p): p.dtype for p in parameters},
            {id(part): part.training != one.training for part in parts},
            len(getattr(one, "param_groups", ())),
            frozenset(name for name, _ in one.named_parameters()) if parts else frozenset(),
        )


def differ(given: Mapping[int, Any], now: Mapping[int, Any]) -> bool:
    return any(now.get(key, value) != value for key, value in given.items())


def inner_of(model: Any) -> dict[str, float]:
    """What parts of a model have and no state holds, by name: numbers, as a dropout's rate, and the sums of buffers
    that are not persistent and of tensors that are no buffers. What has a history of gradients is made anew each turn.
    """
    parts = list(model.named_modules()) if hasattr(model, "named_modules") else []
    numbers, tensors = dict[str, float](), dict[str, Any]()
    for name, part in parts:
        path = f"{name}." if name else ""
        for key in sorted(getattr(part, "_non_persistent_buffers_set", ())):
            if (buffer := getattr(part, key, None)) is not None and buffer.numel():
                tensors[f"buffer {path}{key}"] = buffer
        made = _made_of_others(part)
        for key, value in vars(part).items():
            if key in made:
                continue
            if type(value) in (int, float, bool) and key != "training" and value == value:
                numbers[f"number {path}{key}"] = value
            elif hasattr(value, "grad_fn") and value.grad_fn is None and is_plain(value) and value.numel():
                tensors[f"tensor {path}{key}"] = value
    return {**numbers, **sums_of(tensors)}


def _made_of_others(part: Any) -> set[Any]:
    """Names of weights that a hook makes anew before each use (``weight_norm``, ``spectral_norm``, ``prune``)."""
    hooks = getattr(part, "_forward_pre_hooks", {}).values()
    return {getattr(one, name, None) for one in hooks for name in ("name", "_tensor_name")}

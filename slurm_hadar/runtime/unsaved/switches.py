"""What a script may switch in the objects that it gives, and no state holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Switches", "differ"]


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

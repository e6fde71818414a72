"""What objects of a script hold that goes on with a training, and no checkpoint has: averages of weights, counts of
steps, as of a schedule. Nothing of theirs is called: to ask for a state may be slow, wait for other workers, or fail.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from slurm_hadar.runtime.checkpoint.states import sharded
from slurm_hadar.runtime.unsaved.carried import Known, leaves_within, sameness, sums

__all__ = ["Held", "is_plain", "models_within", "stateful_among", "tensors_of"]


class _Seen(NamedTuple):
    same: Callable[[Any], bool]
    sum: Any


class Held:
    """The attributes of an object, and the first of them that was seen to go on.

    An attribute goes on where the very tensors in it have other values than at the last look, or where others stand in
    the very dict under names of the model's parameters. What is set anew otherwise, as the last output, is no state.

    numbers, modules: whether numbers, and modules with their tensors, are looked at, too.
    """

    def __init__(self, of: Any, *, numbers: bool = False, modules: bool = False) -> None:
        self.of, self.gone_on = of, ""
        self._numbers, self._modules, self._on = numbers, modules, True
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._counts: dict[str, float] = {}
        self._dicts: dict[str, int | None] = {}  # by their ids; None: replaced at times

    def look(self, known: Known, names: Iterable[str]) -> None:
        """``known``: what is saved. ``names``: of parameters."""
        if not self._on or self.gone_on:
            return
        try:
            self._look(known, frozenset(names))
        except Exception:  # whatever a script's objects think of being looked at
            self._on = False

    def _look(self, known: Known, names: frozenset[str]) -> None:
        attributes = dict(vars(self.of))
        counts = {n: v for n, v in attributes.items() if type(v) in (int, float) and v == v} if self._numbers else {}
        found = [name for name, count in counts.items() if self._counts.get(name, count) != count]
        self._counts = counts
        held = {name: known.without(self._leaves(value)) for name, value in attributes.items()}
        summed = sums(held)
        for name, leaves in held.items():
            self._see_dict(name, attributes[name])
            for path, one in leaves.items():
                if path not in summed[name]:
                    continue
                before = self._seen.get((name, path))
                self._seen[name, path] = now = _Seen(sameness(one), summed[name][path])
                kept = isinstance(self._dicts.get(name), int) and path.removeprefix(".") in names
                if before is not None and before.sum != now.sum and (kept or before.same(one)):
                    found.append(name)
        self.gone_on = found[0] if found else ""

    def _see_dict(self, name: str, value: Any) -> None:
        if isinstance(value, dict) and self._dicts.setdefault(name, id(value)) != id(value):
            self._dicts[name] = None

    def _leaves(self, value: Any) -> dict[str, Any]:
        if hasattr(type(value), "named_parameters"):
            return tensors_of(value) if self._modules else {}
        return dict(leaves_within("", value))


def stateful_among(there: Mapping[str, Any], given: Iterable[Any]) -> dict[str, Held]:
    """Objects of a script that could be given to ``train``, by their names, but for those that are ``given``, or held
    by one that is. Of an object with a model that is given, as a script's own trainer, numbers are not looked at."""
    mine = list(given)
    saved = {id(p) for one in mine if hasattr(one, "parameters") for p in one.parameters()}
    known = {id(inner) for one in mine for inner in (one, *(() if _is_told_otherwise(one) else _inside(one)))}
    found = dict[str, Held]()
    for name, one in there.items():
        if id(one) in known or not _has_state(one):
            continue
        known.add(id(one))
        models = (inner for inner in _inside(one) if hasattr(type(inner), "named_parameters"))
        has_given = any(id(p) in saved for model in models for _, p in model.named_parameters())
        found[name] = Held(one, numbers=not has_given)
    return found


def models_within(there: Mapping[str, Any]) -> dict[str, Any]:
    """Models that objects of a script have as attributes, but for averages of PyTorch's, which are found wherever they
    are."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    module, average = torch.nn.Module, torch.optim.swa_utils.AveragedModel
    return {
        f"{name}.{attribute}": inner
        for name, one in there.items()
        if not isinstance(one, (module, type, types.ModuleType, types.FunctionType))
        for attribute, inner in _own(one).items()
        if isinstance(inner, module) and not isinstance(inner, average)
    }


def _own(one: Any) -> dict[str, Any]:
    """Its attributes, as they are now."""
    try:
        own = one.__dict__
    except Exception:  # whatever a script's objects think of being looked at
        return {}
    return dict(own) if isinstance(own, dict) else {}


def _inside(one: Any) -> Iterator[Any]:
    """Its attributes, and what is in lists and dicts that are some."""
    for value in _own(one).values():
        yield value
        if isinstance(value, (dict, list, tuple)):
            yield from value.values() if isinstance(value, dict) else value


def _has_state(one: Any) -> bool:
    """Not what is gone through, as loaders and samplers, whose place is looked for otherwise, and not metrics, which
    begin anew by themselves."""
    kind = type(one)
    if not (hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")) or _is_told_otherwise(one):
        return False
    is_data, is_metric = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__"), hasattr(kind, "compute")
    return not is_data and not (is_metric and hasattr(kind, "reset"))


def _is_told_otherwise(one: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    optim = torch.optim
    return isinstance(one, (torch.nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler, torch.amp.GradScaler))


def is_plain(tensor: Any) -> bool:
    """Whether its bytes are its values."""
    odd = tensor.is_sparse or tensor.is_quantized or tensor.is_meta or hasattr(tensor, "materialize")  # a lazy one
    return not (odd or sharded.is_sharded(tensor))


def tensors_of(one: Any) -> dict[str, Any]:
    """The parameters and buffers of a model, by name."""
    named = [getattr(one, kind)() for kind in ("named_parameters", "named_buffers") if hasattr(one, kind)]
    return {name: tensor for pairs in named for name, tensor in pairs if is_plain(tensor) and tensor.numel()}

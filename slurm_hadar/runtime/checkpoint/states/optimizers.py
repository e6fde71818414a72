"""Optimizers that get their state back: as it was in kind, and in the lists and dicts that they had."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

__all__ = ["is_optimizer", "load"]


def load(item: Any, state: Any, as_then: Container[int]) -> None:
    """Give ``item``, an optimizer or anything else, its state. ``as_then``: the parameters that have the precision now
    in which they were saved, by ``id``."""
    if not is_optimizer(item):
        item.load_state_dict(state)
        return
    optimizers = filter(_is_own, (item, *_within(item)))
    held = [(one, one.param_groups, list(one.param_groups), one.state) for one in optimizers]
    item.load_state_dict(state)
    for one, groups, each, own in held:
        _put_back(one, groups, each, own)
    _keep_kinds(item, state, as_then)


def _put_back(optimizer: Any, groups: list[Any], each: list[Any], state: Any) -> None:
    """Others may have its groups and its state, too, as an optimizer around it, whose learning rate a schedule sets,
    has: loading puts new ones in their places."""
    now, content = optimizer.param_groups, optimizer.state
    if now is not groups and len(now) == len(each):
        for group, new in zip(each, now, strict=True):
            if group is not new:
                group.clear()
                group.update(new)
        groups[:] = each
        optimizer.param_groups = groups
    if content is not state and type(content) is type(state):
        state.clear()
        state.update(content)
        optimizer.state = state


def _is_own(optimizer: Any) -> bool:
    """Whether it holds its groups and its state itself, and does not only show those of another."""
    return all(name in vars(optimizer) for name in ("param_groups", "state"))


def _within(optimizer: Any) -> list[Any]:
    return [one for one in vars(optimizer).values() if is_optimizer(one)]


def is_optimizer(one: Any) -> bool:
    from torch.optim import Optimizer

    return isinstance(one, Optimizer)


def _keep_kinds(optimizer: Any, saved: Mapping[str, Any], as_then: Container[int]) -> None:
    """PyTorch makes all of an optimizer's state numbers of its parameters' kind: counts become floats, and copies of
    weights in float32 those of bfloat16. Where the state is of a wrapper's own
    form, it is that of the optimizer within it."""
    if not {"state", "param_groups"} <= saved.keys():
        inner = _within(optimizer)
        theirs = [one for one in saved.values() if isinstance(one, Mapping) and "param_groups" in one]
        if len(inner) == len(theirs) == 1:
            _keep_kinds(inner[0], theirs[0], as_then)
        return
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    numbers = (number for group in saved["param_groups"] for number in group["params"])
    for parameter, number in zip(parameters, numbers, strict=False):
        if (now := optimizer.state.get(parameter)) and number in saved["state"]:
            kept = id(parameter) in as_then
            optimizer.state[parameter] = _of_kind(now, saved["state"][number], kept)


def _of_kind(now: Any, saved: Any, as_then: bool) -> Any:
    if isinstance(now, dict) and isinstance(saved, dict):
        now.update({key: _of_kind(now[key], value, as_then) for key, value in saved.items() if key in now})
        return now
    if isinstance(now, (list, tuple)) and isinstance(saved, (list, tuple)) and len(now) == len(saved):
        return type(now)(_of_kind(a, b, as_then) for a, b in zip(now, saved, strict=True))
    if not hasattr(saved, "dtype") or getattr(now, "dtype", saved.dtype) == saved.dtype:
        return now
    return saved.to(now.device) if as_then or not saved.dtype.is_floating_point else now

"""Models, optimizers and schedulers as given to ``train``: one or several, wrapped or not, to be saved by name."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.errors import CheckpointError, reason_of
from slurm_hadar.joblog import say
from slurm_hadar.runtime.batches.generators import followed
from slurm_hadar.runtime.checkpoint import files
from slurm_hadar.runtime.checkpoint.states import sharded
from slurm_hadar.runtime.checkpoint.states.optimizers import is_optimizer, load

__all__ = [
    "also_of",
    "classes_of",
    "kept_alike",
    "named",
    "order_of",
    "refill",
    "restore",
    "sent_round",
    "state_of",
    "targets_of",
    "warn_of_what_cannot_be_loaded",
    "warn_of_what_cannot_be_saved",
]

_LONGEST_REASON = 500
_WRAPPERS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # of models, by what is in them
_PLAIN = (bool, int, float, str, type(None))


def named(part: Any) -> dict[str, Any]:
    """{name: object with state_dict}, the wrappers of DDP and torch.compile taken off.

    Raises CheckpointError for a model wrapped by FSDP's first version and for a ``ZeroRedundancyOptimizer``, whose
    state only all ranks together can take.
    """
    if part is None:
        return {}
    if isinstance(part, Mapping):
        items = {str(k): v for k, v in part.items()}
    elif isinstance(part, (list, tuple)):
        items = {str(i): v for i, v in enumerate(part)}
    else:
        items = {"": part}
    return {k: _unwrap(v) for k, v in items.items()}


def also_of(also: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What has a state of its own, and what is plain data. Raises TypeError for anything else, which could not be saved
    without pickle."""
    also = {name: _Drawn(drawn) if (drawn := followed(name, one)) is not None else one for name, one in also.items()}
    with_state = {k: v for k, v in also.items() if hasattr(v, "state_dict") and hasattr(v, "load_state_dict")}
    plain = {k: v for k, v in also.items() if k not in with_state}
    for name, value in with_state.items():
        if _saves_nothing(value):
            say(
                f"WARNING: the state_dict() of also[{name!r}] ({type(value).__name__}) is empty, so nothing of it is "
                "saved; of a metric of torchmetrics it is full after metric.persistent(True)"
            )
    for name, value in plain.items():
        odd = _not_plain(value)
        if odd is not None:
            if hasattr(odd, "dataset") and hasattr(odd, "__iter__"):
                raise TypeError(
                    f"also[{name!r}] holds a {type(odd).__name__}, whose place is not kept there: give it as loader=, "
                    "or two as loader=lambda: zip(one, other), and take the batches that the loop gives"
                )
            raise TypeError(
                f"also[{name!r}] holds an object of {type(odd).__name__}: give something that has state_dict and "
                "load_state_dict, a random number generator, or numbers, texts, None, and lists and dicts of them; "
                f"tensors and arrays as state={{{name!r}: ...}}, to be read and set as run.state[{name!r}]"
            )
    return with_state, plain


class _Drawn:
    """A random number generator, as something that has a state."""

    def __init__(self, generator: Any) -> None:
        self._generator, self.of = generator, generator.of

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["state"])


def _saves_nothing(value: Any) -> bool:
    """Whether it has tensors that its ``state_dict`` leaves out, all of them."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module) or value.state_dict():
        return False
    held = (one for module in value.modules() for one in (*vars(module).values(), *module.buffers(recurse=False)))
    return any(isinstance(one, torch.Tensor) for one in held)


def _not_plain(value: Any) -> Any:
    """The first thing in it that is no plain data."""
    if isinstance(value, dict):
        return next((odd for k, v in value.items() for odd in (_not_plain(k), _not_plain(v)) if odd is not None), None)
    if isinstance(value, (list, tuple)):
        return next((odd for v in value if (odd := _not_plain(v)) is not None), None)
    return None if isinstance(value, _PLAIN) else value


def _unwrap(part: Any) -> Any:
    from torch.nn import DataParallel
    from torch.nn.parallel import DistributedDataParallel

    _refuse_fsdp1(part)
    _refuse_zero(part)
    while True:
        if isinstance(part, (DistributedDataParallel, DataParallel)):
            _WRAPPERS[part.module] = weakref.ref(part)
            part = part.module
        elif hasattr(part, "_orig_mod"):
            part = part._orig_mod  # noqa: SLF001 - torch.compile has no other name for it
        else:
            return part


def _refuse_fsdp1(part: Any) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: then nothing is wrapped by it
    modules = part.modules() if fsdp is not None and hasattr(part, "modules") else ()
    if any(isinstance(m, fsdp.FullyShardedDataParallel) for m in modules):  # type: ignore[union-attr]
        raise CheckpointError(
            "FullyShardedDataParallel (FSDP1) is not supported: use torch.distributed.fsdp.fully_shard"
        )


def warn_of_what_cannot_be_loaded(models: Mapping[str, Any]) -> None:
    """Tell of a model whose ``state_dict`` leaves out what PyTorch's own ``load_state_dict`` asks for, as of adapters
    alone: saves would go well, and no run could resume."""
    torch = sys.modules.get("torch")
    for model in models.values():
        if torch is None or getattr(type(model), "load_state_dict", None) is not torch.nn.Module.load_state_dict:
            continue
        left_out = sorted({name for name, _ in model.named_parameters()} - model.state_dict().keys())
        if left_out:
            say(
                f"WARNING: the state_dict() of {type(model).__name__} leaves out {len(left_out)} parameters "
                f"({left_out[0]}{', ...' if left_out[1:] else ''}) that its load_state_dict() asks for: no run could "
                "go on from what is saved"
            )


def warn_of_what_cannot_be_saved(
    parts: Mapping[str, dict[str, Any]], state: dict[str, Any], plain: dict[str, Any], leads: bool
) -> None:
    """Tell of it when the training begins: the first save may be that of a job which is told to end. All workers call
    this, since some objects agree with those of the others on their states."""
    forms = {kind: {name: _form_of(one) for name, one in part.items()} for kind, part in parts.items()}
    if not leads:
        return
    try:
        files.pickled({**forms, "state": state, "also": {**forms.get("also", {}), **plain}})
    except Exception as problem:  # whatever a user's object thinks of being pickled
        say(f"WARNING: no checkpoint can be written while that stays so: {reason_of(problem)}")


def _form_of(one: Any) -> Any:
    """Its state without tensors. A loader is not asked: it would begin an epoch, and so draw random numbers."""
    if hasattr(type(one), "__iter__") and not hasattr(type(one), "named_parameters"):
        return None
    try:
        return sharded.walk(one.state_dict(), lambda value, _path: 0 if hasattr(type(value), "is_cuda") else None)
    except Exception:  # it is not ready to be asked
        return None


def _refuse_zero(part: Any) -> None:
    zero = sys.modules.get("torch.distributed.optim")
    if zero is not None and isinstance(part, getattr(zero, "ZeroRedundancyOptimizer", ())):
        raise CheckpointError(
            "ZeroRedundancyOptimizer is not supported, since no worker has its whole state: use a plain optimizer "
            "under torch.distributed.fsdp.fully_shard"
        )


def sent_round(parts: Mapping[str, dict[str, Any]], world: int) -> frozenset[str]:
    """Names of the buffers that ``DistributedDataParallel`` sends round in each forward pass: the first worker's count,
    whatever the others have."""
    found = set()
    for name, model in parts.get("model", {}).items():
        wrapper = _wrapper(model, world)
        next_time = wrapper is not None and vars(wrapper).get("require_forward_param_sync", True)  # not in no_sync()
        if next_time and wrapper.broadcast_buffers:
            found |= {_path("model", name, key) for key, _ in model.named_buffers() if not _is_ignored(wrapper, key)}
    return frozenset(found)


def kept_alike(parts: Mapping[str, dict[str, Any]], world: int) -> frozenset[str]:
    """Names of the models, and how those of their optimizers' tensors begin, that ``DistributedDataParallel`` keeps
    alike but for rounding, which is another one on other GPUs."""
    found, held = set(), set()
    for name, model in parts.get("model", {}).items():
        wrapper = _wrapper(model, world)
        for key, parameter in model.named_parameters() if wrapper is not None else ():
            if not _is_ignored(wrapper, key):
                found.add(_path("model", name, key))
                held.add(id(parameter))
    for name, one in parts.get("optimizer", {}).items():
        numbered = enumerate(p for group in getattr(one, "param_groups", ()) for p in group["params"])
        found |= {_path("optimizer", name, "state", str(n)) for n, p in numbered if id(p) in held}
    return frozenset(found)


def _path(*parts: str) -> str:
    """As tensors are named by :func:`slurm_hadar.runtime.checkpoint.states.sharded.split`."""
    return ".".join(filter(None, parts))


def _wrapper(model: Any, world: int) -> Any:
    """What keeps the model alike on all of so many workers, if anything does: with a hook of its own in the place of
    the mean of gradients, or among some of the workers, it does not."""
    known = _WRAPPERS.get(model)
    wrapper = known() if known is not None else None
    if wrapper is None or vars(wrapper).get("_comm_hooks") or wrapper.process_group.size() != world:
        return None
    return wrapper


def _is_ignored(wrapper: Any, name: str) -> bool:
    return name in vars(wrapper).get("parameters_to_ignore", ())


def state_of(part: dict[str, Any]) -> dict[str, Any]:
    """By name, what each has to be saved."""
    return {name: item.state_dict() for name, item in part.items()}


def classes_of(parts: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Of everything but models, whose names the states of others may fit: what it is."""
    others = (
        (f"{kind} {name}".strip(), type(one))
        for kind, part in parts.items()
        if kind != "model"
        for name, one in part.items()
    )
    return {which: f"{its.__module__}.{its.__qualname__}" for which, its in others}


def restore(
    parts: Mapping[str, dict[str, Any]],
    saved: Mapping[str, Any],
    path: Path,
    advice: str,
    plain: dict[str, Any],
    leads: bool = True,
) -> None:
    """Give the parts, by kind and name, their states of ``saved``, and ``plain`` its content, which is the leader's;
    others may have given less.

    Raises CheckpointError with ``advice`` if what was saved at ``path`` is of another training.
    """
    try:
        as_then = _as_then(parts, saved)
        for kind, part in parts.items():
            _restore_states(part, saved.get(kind, {}), as_then)
        if "plain" in saved:  # what an older version has saved does not hold it
            _give_back(plain, saved["plain"], leads)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        # PyTorch's first line only names the model; what does not fit is in the others
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise CheckpointError(f"{path} does not fit this training: {reason}; {advice}") from error


def _restore_states(part: dict[str, Any], saved: dict[str, Any], as_then: Container[int]) -> None:
    if part.keys() != saved.keys():
        raise ValueError(f"it has states of {sorted(saved)}, and the training of {sorted(part)}")
    for name, item in part.items():
        load(item, sharded.walk(saved[name], _Living(item).distribute), as_then)


def _as_then(parts: Mapping[str, dict[str, Any]], saved: Mapping[str, Any]) -> frozenset[int]:
    """The parameters that have the precision now in which they were saved, by ``id``."""
    found = set()
    for kind, part in parts.items():
        for name, one in part.items():
            state = saved.get(kind, {}).get(name)
            for key, parameter in one.named_parameters() if hasattr(one, "named_parameters") else ():
                if isinstance(state, dict) and getattr(state.get(key), "dtype", None) == parameter.dtype:
                    found.add(id(parameter))
    return frozenset(found)


def _give_back(plain: dict[str, Any], saved: dict[str, Any], leads: bool) -> None:
    """Raises ValueError if they are not those that were saved."""
    if not leads:
        saved = {**plain, **saved}
    if plain.keys() != saved.keys() and leads:
        raise ValueError(f"also= had {sorted(saved)}, and now has {sorted(plain)}")
    refill(plain, saved)


def refill(plain: dict[str, Any], saved: dict[str, Any]) -> None:
    """Give a dict its content back, into the very lists and dicts that it has, at whatever depth."""
    for name in plain.keys() - saved.keys():
        del plain[name]
    for name, value in saved.items():
        plain[name] = _refilled(plain.get(name), value)


def _refilled(here: Any, value: Any) -> Any:
    if isinstance(here, dict) and isinstance(value, dict):
        refill(here, value)
        return here
    if isinstance(here, list) and isinstance(value, list):
        here[:] = [_refilled(here[n] if n < len(here) else None, one) for n, one in enumerate(value)]
        return here
    return value


def targets_of(parts: dict[str, dict[str, Any]]) -> sharded.TargetOf:
    """Where to read the tensors of ``{kind: {name: object}}``: what is sharded here is read by the shard."""
    living = {(kind, name): _Living(item) for kind, part in parts.items() for name, item in part.items()}

    def target_of(path: tuple[Any, ...], size: Any, dtype: Any) -> Any:
        owner = living.get(path[:2])
        return owner.target(path[2:], size, dtype) if owner is not None else None

    return target_of


def order_of(parts: dict[str, dict[str, Any]]) -> sharded.OrderOf:
    """How an optimizer's state is taken to lie in memory: as its parameters do, which may do so otherwise in the next
    run. Of all else nothing is taken for granted."""
    living = {name: _Living(item) for name, item in parts.get("optimizer", {}).items()}

    def order(path: tuple[Any, ...], size: Any) -> tuple[int, ...] | None:
        return living[path[1]].order(path[2:], size) if path[0] == "optimizer" else None

    return order


class _Living:
    """The tensors that one object has now, by their path in its state.

    An optimizer that has made no step has no state yet: by PyTorch's own numbering of its parameters, what is as large
    as the parameter is taken to be sharded like it.
    """

    def __init__(self, item: Any) -> None:
        self._item = item
        self._state: Any = None
        groups = item.param_groups if is_optimizer(item) else ()
        self._parameters = [p for group in groups for p in group["params"]]

    def target(self, path: tuple[Any, ...], size: Any, dtype: Any) -> Any:
        """An empty tensor, sharded as the present one is, or on the CPU with its order in memory; None where there is
        nothing to follow.
        """
        import torch

        like = self._sharded(path, size)
        if like is not None:
            return torch.empty_like(like, dtype=dtype, requires_grad=False)
        strides = self.order(path, size)
        return None if strides is None else torch.empty_strided(size, strides, dtype=dtype)

    def order(self, path: tuple[Any, ...], size: Any) -> tuple[int, ...] | None:
        """The strides of the present one, None: it is contiguous, or there is none.

        A fused optimizer takes its state to lie in memory as the parameter does (``channels_last``).
        """
        import torch

        live = self._find(path)
        if not isinstance(live, torch.Tensor) or torch.nn.parameter.is_lazy(live) or sharded.is_sharded(live):
            return None
        return sharded.strides_of(live) if live.shape == size else None

    def distribute(self, value: Any, path: tuple[Any, ...]) -> Any:
        """A whole tensor (of an older checkpoint, say) as this rank's shard; None where there is nothing to do."""
        import torch
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
            return None
        like = self._sharded(path, value.shape)
        if like is None:
            return None
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    def _sharded(self, path: tuple[Any, ...], size: Any) -> Any:
        from torch.distributed.tensor import DTensor

        live = self._find(path)
        return live.detach() if isinstance(live, DTensor) and live.shape == size else None

    def _find(self, path: tuple[Any, ...]) -> Any:
        import torch

        if isinstance(self._item, torch.optim.Optimizer):
            if len(path) != 3 or path[0] != "state":
                return None
            known = isinstance(path[1], int) and path[1] < len(self._parameters)
            return self._parameters[path[1]] if known else None
        if self._state is None:
            self._state = self._item.state_dict()
        found = self._state
        for key in path:
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return found

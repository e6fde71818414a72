"""The state of a training as named tensors in a safetensors file, and the consolidation of several such files.

What becomes of each kind of tensor (our definition; ``docs/hadare.md`` gives the reasons):

* weights, SGD momentum, Adam's moments and every other floating-point tensor: the mean, weighted by the steps that each
  copy made, summed in fp32 (fp64 for fp64 tensors) and rounded once to the tensor's own type;
* BatchNorm's running variance: the variance of the pooled samples, that is the mean of the variances plus the variance
  of the means; running means as above;
* whole numbers and booleans (``num_batches_tracked``) and Adam's ``step``: the largest;
* bytes (the state of a random number generator), and what is not of one shape in all copies (losses so far): that of
  the copy that made most steps;
* learning rates and schedules that follow the job: those of the last consolidation, to be advanced to the present step;
* other plain data (the user's ``state``, numbers and lists of ``also``): that of the copy that made most steps.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.checkpoint import files

__all__ = ["Outer", "Source", "consolidate", "pack", "read", "unpack", "write"]

_PLAIN = "plain"
_OUTER = "outer/"
_TENSOR = "__hadar_tensor__"


@dataclass(frozen=True, slots=True)
class Outer:
    """Nesterov momentum on the consolidated weights (DiLoCo, arXiv 2311.08105, algorithm 1): the difference between the
    last consolidation and the mean of the copies is taken as a gradient. ``lr=1, momentum=0`` is plain averaging."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not (0 < self.lr <= 2 and 0 <= self.momentum < 1):
            raise ValueError(f"outer lr={self.lr} must lie in (0, 2] and momentum={self.momentum} in [0, 1)")


@dataclass(frozen=True, slots=True)
class Source:
    """A file that goes into a consolidation, and the steps that it counts for."""

    path: Path
    steps: int


def pack(content: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Split nested dicts and lists into ({path: tensor}, the same structure with references in place of the tensors).

    The tensors are copied to host memory, so that training may go on. Raises CheckpointError for sharded tensors.
    """
    tensors: dict[str, Any] = {}
    plain = _pack(content, (), tensors)
    return tensors, plain


def _pack(value: Any, path: tuple[str, ...], tensors: dict[str, Any]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        name = "/".join(path)
        if hasattr(value, "to_local"):
            raise CheckpointError(f"{name} is sharded; copies of a forked job hold whole models (DDP or one worker)")
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {k: _pack(v, (*path, str(k)), tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [_pack(v, (*path, str(i)), tensors) for i, v in enumerate(value)])
    return value


def unpack(tensors: Mapping[str, Any], plain: Any) -> Any:
    """The structure that :func:`pack` has split."""
    if isinstance(plain, dict):
        if plain.keys() == {_TENSOR}:
            return tensors[plain[_TENSOR]]
        return {k: unpack(tensors, v) for k, v in plain.items()}
    if isinstance(plain, (list, tuple)):
        return _like(plain, [unpack(tensors, v) for v in plain])
    return plain


def _like(row: Any, entries: list[Any]) -> Any:
    """A list or tuple of the same class, which may have names for its entries."""
    return type(row)(*entries) if hasattr(row, "_fields") else type(row)(entries)


def write(path: Path, tensors: Mapping[str, Any], plain: Any, header: str = "") -> None:
    """Write a file and sync it. Raises OSError if the disk fails, CheckpointError if ``plain`` cannot be pickled."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        box = files.pickled(plain)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CheckpointError(f"the state cannot be saved: {error}") from error
    data = torch.frombuffer(bytearray(box), dtype=torch.uint8)
    try:
        save_file({**tensors, _PLAIN: data}, path, metadata={"hadar": header})
    except SafetensorError as error:  # it hides the number of the error in its text
        raise OSError(str(error).splitlines()[0]) from error
    files.sync(path)


def read(path: Path) -> tuple[dict[str, Any], Any]:
    """(tensors on the CPU, plain data). Raises CheckpointError if the file is gone or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return tensors, _plain(path, tensors.pop(_PLAIN, None))


def consolidate(sources: Sequence[Source], out: Path, base: Path | None = None, outer: Outer | None = None) -> None:
    """Write the step-weighted mean of ``sources`` to ``out``; see the module for what is done with which tensor.

    Holds one tensor of each source at a time. With ``outer``, ``base`` is the consolidation that the sources began
    from; its momentum lives under ``outer/`` in the files. A tensor that only some copies have (the optimizer's state
    of parameters without a gradient) is that of those who have it.

    Raises CheckpointError if a source cannot be read, OSError if ``out`` cannot be written, ValueError without sources.
    """
    from safetensors import SafetensorError, safe_open

    used = [s for s in sources if s.steps > 0]
    if not used:
        raise ValueError("nothing to consolidate")
    try:
        files = [safe_open(s.path, "pt") for s in used]
        old = safe_open(base, "pt") if base is not None else None
        lead = max(range(len(used)), key=lambda i: used[i].steps)
        plain = _plain(used[lead].path, files[lead].get_tensor(_PLAIN))
        mean = _Mean([set(f.keys()) for f in files], [f.get_tensor for f in files], [s.steps for s in used])
        tensors = {name: mean.of(name) for name in mean.names if name != _PLAIN and not name.startswith(_OUTER)}
        if old is not None:
            _keep_schedules(plain["content"], _plain(base or out, old.get_tensor(_PLAIN))["content"])
        if outer is not None and old is not None:
            _outer_step(tensors, set(plain.get("parameters", ())), old, outer)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"an offer or the last consolidation cannot be read: {error}") from error
    write(out, tensors, plain)


class _Mean:
    """Means over files that may not all have all tensors."""

    def __init__(self, names: list[set[str]], get: list[Callable[[str], Any]], steps: list[int]) -> None:
        self._names, self._get, self._steps = names, get, steps
        self.names = sorted(set().union(*names))

    def of(self, name: str) -> Any:
        holders = [i for i, names in enumerate(self._names) if name in names]
        values = [self._get[i](name) for i in holders]
        if _is_bytes(values[0]) or any(value.shape != values[0].shape for value in values):
            return values[max(range(len(holders)), key=lambda n: self._steps[holders[n]])]
        whole = not (values[0].is_floating_point() or values[0].is_complex())
        if whole or _is_counter(name):
            return _largest(values)
        steps = [self._steps[i] for i in holders]
        mean = _mean(values, steps)
        if name.endswith("running_var"):
            mean = mean + self._spread_of_means(name.removesuffix("running_var") + "running_mean", holders, steps)
        return mean.to(values[0].dtype)

    def _spread_of_means(self, name: str, holders: list[int], steps: list[int]) -> Any:
        if any(name not in self._names[i] for i in holders):
            return 0.0
        means = [self._get[i](name) for i in holders]
        centre = _mean(means, steps)
        return _mean([(m.to(centre.dtype) - centre) ** 2 for m in means], steps)


def _is_bytes(value: Any) -> bool:
    import torch

    return value.dtype is torch.uint8


def _is_counter(name: str) -> bool:
    """Adam and its kin keep their count of steps, which corrects the bias of the moments, as a float."""
    return name.startswith("optimizer/") and name.endswith("/step")


def _largest(values: list[Any]) -> Any:
    import torch

    return functools.reduce(torch.maximum, values)


def _kind_of_sums(of: Any) -> Any:
    """What is summed in: fp32 at least, whatever the type of the values."""
    import torch

    return torch.float32 if of.itemsize == 1 else torch.promote_types(of, torch.float32)  # PyTorch promotes no fp8


def _mean(values: list[Any], steps: list[int]) -> Any:
    kind = _kind_of_sums(values[0].dtype)
    total = sum(steps)
    mean = values[0].to(kind) * (steps[0] / total)
    for value, weight in zip(values[1:], steps[1:], strict=True):
        mean += value.to(kind) * (weight / total)
    return mean


def _keep_schedules(content: dict[str, Any], before: dict[str, Any]) -> None:
    """A copy's schedule is where that copy took the job to be; what all copies began with is exact."""
    followed = {name for name, position in before.get("clock", {}).items() if position is not None}
    for name in followed:
        content["clock"][name] = before["clock"][name]
        content["scheduler"][name] = before["scheduler"][name]
    if followed:
        for name, state in content.get("optimizer", {}).items():
            state["param_groups"] = before["optimizer"][name]["param_groups"]


def _outer_step(tensors: dict[str, Any], parameters: set[str], old: Any, outer: Outer) -> None:
    """Replace the mean of each parameter by a Nesterov step from the last consolidation, and note the momentum."""
    before = set(old.keys())
    for name in sorted(parameters & set(tensors) & before):
        kind = _kind_of_sums(tensors[name].dtype)
        start = old.get_tensor(name).to(kind)
        gradient = start - tensors[name].to(kind)
        momentum = gradient
        if _OUTER + name in before:
            momentum = old.get_tensor(_OUTER + name) * outer.momentum + gradient
        step = gradient + outer.momentum * momentum
        tensors[_OUTER + name] = momentum
        tensors[name] = (start - outer.lr * step).to(tensors[name].dtype)


def _plain(path: Path, data: Any) -> Any:
    if data is None:
        raise CheckpointError(f"{path} is not a file of a forked job")
    return files.load(path, data.numpy().tobytes())

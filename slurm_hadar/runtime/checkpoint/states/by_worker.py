"""What workers have of their own, where their states are not copies of rank 0's.

A stage of a pipeline, weights that are averaged now and then, a worker's noise: rank 0's would be in the place of all
others' after a resume. So the workers compare at each save, and who has something else writes that beside (our
definition). Rank 0's count, and are not compared, where ``DistributedDataParallel`` sends buffers round, or keeps
weights alike but for the rounding of another GPU (:mod:`slurm_hadar.runtime.checkpoint.states.parts`).
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_hadar.runtime.checkpoint.states import sharded

__all__ = ["Likeness", "likeness", "own_names", "renamed", "sums_of"]

_WORD = 8  # bytes
_CHUNK = 1 << 15  # words: what a processor has in its cache
_MULTIPLIER = 0x1E3779B97F4A7C15
_HALF = 32  # bits


@dataclass(frozen=True, slots=True)
class Likeness:
    """What tells a worker's state from another's: its form with all that is no tensor, its tensors by name, and on what
    GPU it was computed."""

    form: bytes
    tensors: Mapping[str, Any]
    gpu: str = ""


def likeness(form: Any, tensors: Mapping[str, Any], sent_round: Container[str]) -> Likeness:
    """Of a state as :func:`slurm_hadar.runtime.checkpoint.states.sharded.split` gives it. The values of tensors that
    are ``sent_round`` are not looked at."""
    found, asked = dict[str, Any](), dict[str, Any]()
    for name, tensor in tensors.items():
        if sharded.is_sharded(tensor):
            found[name] = tuple(tensor.device_mesh.mesh.reshape(-1).tolist())
            continue
        found[name] = tuple(tensor.shape), str(tensor.dtype)
        if name not in sent_round:
            asked[name] = tensor
    for name, sum_ in sums_of(asked).items():
        found[name] = *found[name], sum_
    return Likeness(_digest(form), found, _gpu())


def own_names(mine: Likeness, leaders: Likeness, rank: int, kept_alike: Container[str]) -> dict[str, str]:
    """The tensors that are not as rank 0's are, and the names under which they are written; those that are sharded over
    other workers than rank 0's are these workers' together. On another GPU than rank 0's those that are ``kept_alike``,
    or belong to what is, count as its own only where they are of another kind."""
    found = {}
    for name, one in mine.tensors.items():
        its = leaders.tensors.get(name)
        if mine.gpu != leaders.gpu and its is not None and _is_of(name, kept_alike) and its[:2] == one[:2]:
            continue
        if its != one:
            whose = f"workers {min(one)}" if all(type(part) is int for part in one) else f"worker {rank}"
            found[name] = f"{whose}: {name}"
    return found


def _is_of(name: str, kept_alike: Container[str]) -> bool:
    """An optimizer's tensors are named by the parameter, and what they are of it."""
    return name in kept_alike or name.rpartition(".")[0] in kept_alike


def _gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else ""


def renamed(form: Any, names: Mapping[str, str]) -> Any:
    """The form, with its tensors under these names."""

    def leaf(value: Any, _path: tuple[Any, ...]) -> dict[str, Any] | None:
        name = sharded.name_of(value)
        return None if name is None else {**value, sharded.MARK: names.get(name, name)}

    return sharded.walk(form, leaf)


def sums_of(tensors: Mapping[str, Any]) -> dict[str, int]:
    """A sum of each tensor's bytes that depends on their order. GPUs are waited for once."""
    import torch

    by_device: dict[Any, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        by_device.setdefault(tensor.device, {})[name] = tensor
    found: dict[str, int] = {}
    for device, held in by_device.items():
        dice = torch.Generator().manual_seed(_CHUNK)
        weights = torch.randint(-(1 << 62), 1 << 62, (_CHUNK,), generator=dice).to(device) | 1
        found |= zip(held, torch.stack([_sum(one, weights) for one in held.values()]).tolist(), strict=True)
    return found


def _sum(tensor: Any, weights: Any) -> Any:
    """Of 64 bits, over its bytes eight by eight, by random weights (multiply-shift hashing, Dietzfelbinger et al.)."""
    import torch

    data = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if data.storage_offset() % _WORD:
        data = data.clone()
    whole = data.numel() // _WORD * _WORD
    rest = data.new_zeros(_WORD)
    rest[: data.numel() - whole] = data[whole:]
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in (*data[:whole].view(torch.int64).split(_CHUNK), rest.view(torch.int64)):
        # what is in the upper bits, as signs are, would count for little else
        mixed = (part ^ (part >> _HALF)) * _MULTIPLIER
        total = total * _MULTIPLIER + ((mixed ^ (mixed >> _HALF)) * weights[: part.numel()]).sum()
    return total


def _digest(form: Any) -> bytes:
    summed = hashlib.blake2b(digest_size=16)
    _add(summed, form)
    return summed.digest()


def _add(summed: Any, value: Any) -> None:
    """Pickled as a whole, equal values would differ by which of them are one object."""
    import torch

    summed.update(type(value).__name__.encode() + b"\0")
    if isinstance(value, dict):
        for key, one in value.items():
            _add(summed, key)
            _add(summed, one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _add(summed, one)
    elif isinstance(value, (bool, int, float, str, type(None))):
        summed.update(repr(value).encode() + b"\0")
    elif hasattr(type(value), "is_cuda"):  # a tensor that stays in the form: pickled, its place in memory would count
        saved = io.BytesIO()
        torch.save(value, saved)
        summed.update(saved.getbuffer())
    else:
        summed.update(pickle.dumps(value))

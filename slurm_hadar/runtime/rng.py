"""The random number generators of a training process, captured as plain data and put back exactly."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["capture", "drawn", "restore", "restore_held", "seed"]

# the place in the Mersenne twister's numbers before the first is drawn; and in NumPy's that nobody has seeded, with the
# word that these begin with
_SEEDED, _UNSEEDED, _FIRST = 624, 623, 0x80000000


def capture(generators: Iterable[Any] = ()) -> dict[str, Any]:
    """States of Python's, NumPy's (if imported), PyTorch's CPU and CUDA generators, of all GPUs, and of ``generators``
    (:func:`slurm_hadar.runtime.batches.generators.generators_of`)."""
    import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (kind, [int(k) for k in keys], *(rest[0], rest[1], float(rest[2])))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
        if torch.cuda.device_count() > 1:  # layers of one model may be on several
            states["each_cuda"] = torch.cuda.get_rng_state_all()
    held = list(generators)
    states["generators"] = [g.get_state() for g in held]
    states["held"] = _paths(held)
    return states


def drawn() -> dict[str, str]:
    """What tells the numbers that were drawn from Python's and NumPy's generators from others; without those of which
    none were drawn since they were seeded. PyTorch's says nothing: each model is made of its numbers."""
    states: dict[str, Any] = {"random": random.getstate()[1]}
    if "numpy" in sys.modules:
        _, keys, place, *_ = sys.modules["numpy"].random.get_state()
        if (place, keys[0]) != (_UNSEEDED, _FIRST):
            states["numpy.random"] = (*keys.tolist(), place)
    return {
        name: hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()
        for name, state in states.items()
        if state[-1] != _SEEDED
    }


def restore(states: dict[str, Any], generators: Iterable[Any] = ()) -> None:
    """Put back what :func:`capture` returned; a generator that does not exist here is left out."""
    import torch

    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys), gauss))
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(tuple(states["numpy"]))
    if "cuda" in states and torch.cuda.is_available():
        for number, state in enumerate(states.get("each_cuda", ())[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, number)
        torch.cuda.set_rng_state(states["cuda"])  # the current one may be another now
    restore_held(states, generators)


def restore_held(states: dict[str, Any], generators: Iterable[Any]) -> None:
    """Put back those of ``generators`` alone."""
    import torch

    held = list(generators)
    if "held" in states:
        known = dict(zip(states["held"], states["generators"], strict=True))
        pairs = [(g, known[path]) for g, path in zip(held, _paths(held), strict=True) if path in known]
    else:  # of a version that knew PyTorch's only, by their places
        pairs = [(g, s) for g, s in zip(held, states["generators"], strict=False) if isinstance(s, torch.Tensor)]
    for generator, state in pairs:
        generator.set_state(state)


def _paths(generators: Sequence[Any]) -> list[str]:
    """Where each is held, told apart: of several loaders those of the same name."""
    seen: Counter[str] = Counter()
    found = []
    for generator in generators:
        seen[generator.path] += 1
        found.append(f"{generator.path}@{seen[generator.path]}")
    return found


def seed(base: int, number: int, generators: Iterable[Any] = (), gpus: bool = False) -> None:
    """Seed the generators that :func:`capture` captures (CUDA's only with ``gpus``) with a mixture of two numbers."""
    import torch

    mixed = int.from_bytes(hashlib.blake2b(f"{base} {number}".encode(), digest_size=7).digest(), "little")
    random.seed(mixed)
    torch.default_generator.manual_seed(mixed)
    if gpus:
        torch.cuda.manual_seed_all(mixed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(mixed % 2**32)
    for generator in generators:
        generator.manual_seed(mixed)

"""What server and workers say to each other over ZeroMQ: a header in JSON, then each tensor as a frame of its own.

Tensors are neither copied into messages nor out of them: a received array is a view of its frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slurm_hadar.serving.server.model import Tensors
from slurm_hadar.serving.tensors import DATATYPES, NAMES

__all__ = ["pack", "unpack"]


def pack(header: Mapping[str, Any], groups: Iterable[Tensors] = ()) -> list[Any]:
    """Frames of a message with some groups of tensors: one for each request or answer."""
    told: list[list[list[Any]]] = []
    frames: list[Any] = []
    for tensors in groups:
        told.append([[name, NAMES[array.dtype], list(array.shape)] for name, array in tensors.items()])
        # memoryview cannot cast an empty array, nor one of more than one dimension that is not contiguous
        frames.extend(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in tensors.values())
    return [json.dumps({**header, "tensors": told}).encode(), *frames]


def unpack(frames: Sequence[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the groups of tensors, which lie in the frames. Frames are buffers."""
    header = json.loads(bytes(frames[0]))
    rest = iter(frames[1:])
    groups = [
        {name: np.frombuffer(next(rest), DATATYPES[kind]).reshape(shape) for name, kind, shape in told}
        for told in header.pop("tensors")
    ]
    return header, groups

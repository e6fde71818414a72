"""A request that the server has accepted, and what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_hadar.serving.scheduling.request import Request

__all__ = ["Accepted", "Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets, and what became of it on the way."""

    outputs: Mapping[str, Any]
    queued_s: float
    batch: int
    ran_s: float
    worker: str


@dataclass(slots=True)
class Accepted:
    """A request that waits or runs. The request changes when it is tried again."""

    request: Request
    inputs: dict[str, Any]
    future: asyncio.Future[Answer]
    accepted_s: float
    deadline_s: float  # from then on
    size: int
    tries: int = 1

"""Gavel's names of workloads, which its traces and its throughput tables share."""

from __future__ import annotations

import re

from slurm_hadar.errors import TraceError

__all__ = ["job_type"]

_DIGITS = 9  # nobody means more, and thousands are no number for Python
_BATCH = re.compile(r"(?P<model>.+?) \(batch size (?P<batch>\d+)\)")


def job_type(text: str, where: str) -> tuple[str, int | None]:
    """``ResNet-18 (batch size 64)`` is ("resnet18", 64); ``A3C`` is ("a3c", None). Raises TraceError."""
    match = _BATCH.fullmatch(text.strip())
    if match and (len(match["batch"]) > _DIGITS or int(match["batch"]) == 0):
        raise TraceError(f"{where}: {text[:60]!r}: the batch size must be from 1 to {10**_DIGITS - 1}")
    model, batch = (match["model"], int(match["batch"])) if match else (text, None)
    return re.sub(r"[^a-z0-9]", "", model.lower()), batch

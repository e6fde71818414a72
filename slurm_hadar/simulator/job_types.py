"""Gavel's names of workloads, which its traces and its throughput tables share."""

from __future__ import annotations

import re

__all__ = ["job_type"]

_BATCH = re.compile(r"(?P<model>.+?) \(batch size (?P<batch>\d+)\)")


def job_type(text: str) -> tuple[str, int | None]:
    """``ResNet-18 (batch size 64)`` is ("resnet18", 64); ``A3C`` is ("a3c", None)."""
    match = _BATCH.fullmatch(text.strip())
    model, batch = (match["model"], int(match["batch"])) if match else (text, None)
    return re.sub(r"[^a-z0-9]", "", model.lower()), batch

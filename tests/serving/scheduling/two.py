"""Two applications of unlike run times, and requests of them."""

from __future__ import annotations

from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.request import Request

LAW = BatchLaw.linear(0.6, 16)
TWO = {"short": [0.010] * 20, "long": [0.100] * 20}


def request(number: int, application: str, deadline_s: float, model: str = "") -> Request:
    """Of one that has come at 0."""
    return Request(number, application, 0.0, deadline_s, model)

"""What workers tell of their models when they become ready: what these are, how long runs take, and so who is fast."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.request import Worker
from slurm_hadar.serving.server.model import ModelInfo

__all__ = ["ModelFacts", "alike"]

_SAME_SPEED = 0.4  # workers whose times differ by less are alike: measured on a busy host, equal ones differ too


@dataclass
class ModelFacts:
    """By the word of the first worker, whose speed is 1. ``examples``: by model, requests with their applications."""

    infos: dict[str, ModelInfo] = field(default_factory=dict)
    examples: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    _typical_s: dict[str, float] = field(default_factory=dict)

    def learn(
        self, told: Sequence[Mapping[str, Any]], groups: Iterable[dict[str, Any]], largest: int, slo_s: float
    ) -> dict[str, Setup]:
        """What the first worker has ``told``, with the inputs of its examples in ``groups``; returns what a scheduler
        is set up with. ``largest``: batch."""
        setups, rest = {}, iter(groups)
        for of in told:
            info = ModelInfo.read(of["metadata"])
            self.infos[info.name] = info
            self.examples[info.name] = [(tag, next(rest)) for tag in of["applications"]]
            law = BatchLaw.measured({int(k): s for k, s in of["batches"].items()}, largest)
            setups[info.name] = Setup(law, slo_s, of["singles"])
        self._typical_s = _typical_s(told)
        return setups

    def speed(self, told: Sequence[Mapping[str, Any]], others: Iterable[Worker]) -> float:
        """That of the worker who has ``told``, beside the first one's."""
        ratios = [self._typical_s[model] / max(seconds, 1e-9) for model, seconds in _typical_s(told).items()]
        return alike(statistics.geometric_mean(ratios), others)


def alike(speed: float, others: Iterable[Worker]) -> float:
    """That of the first worker, or of another one, where it is about as high: few speeds are told apart."""
    nearest = min((1.0, *(other.speed for other in others)), key=lambda known: abs(math.log(speed / known)))
    return nearest if abs(speed / nearest - 1.0) < _SAME_SPEED else speed


def _typical_s(told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of single runs, by model."""
    return {of["metadata"]["name"]: _mean_of_medians(of["singles"]) for of in told}


def _mean_of_medians(singles: Mapping[str, list[float]]) -> float:
    return statistics.geometric_mean(max(statistics.median(seconds), 1e-9) for seconds in singles.values())

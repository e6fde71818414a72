"""Measured speeds and the errors of estimates as values; and what several users' measurements say to others."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from slurm_hadar.messages import FASTEST_STEPS_PER_S, SLOWEST_STEPS_PER_S
from slurm_hadar.throughput.table import workload

__all__ = [
    "LEAST_USERS",
    "EstimateError",
    "Known",
    "Measurement",
    "median_of",
    "model_of",
    "order_of",
    "storable",
    "workload_key",
]

#: So many users must have measured the same before others go by it: the median of three is no single one's to choose.
LEAST_USERS = 3


def workload_key(model: str, batch: int | None, user: str = "", name: str = "", graph: str = "") -> str:
    """What measurements are filed under: ``resnet18:64`` whoever runs it, or ``user/name`` where no model is named;
    with a job graph its name beside it, since another way of cutting up the model is another speed."""
    key = workload(model, batch) if model else f"{user}/{name}"
    return f"{key} {graph}" if graph else key


@dataclass(frozen=True, slots=True)
class Measurement:
    """An averaged rate of a whole job of ``gpus`` workers on one GPU type, on one node or ``spread`` over several; over
    how many, ``nodes`` says where that was told apart (None = it was not). It is that of ``user``, or the median of
    those of several ``users``."""

    workload: str
    gpu_type: str
    gpus: int
    spread: bool
    steps_per_s: float
    samples: int
    updated_at: float
    nodes: int | None = None
    user: str = ""
    users: int = 1

    @property
    def shared(self) -> bool:
        """Whether it is the median of several users'."""
        return self.users > 1

    @property
    def pair(self) -> tuple[str, int, bool, int | None]:
        """What it was measured on."""
        return self.gpu_type, self.gpus, self.spread, self.nodes


@dataclass(frozen=True, slots=True)
class EstimateError:
    """An estimate made before anything was measured, beside what was measured since."""

    workload: str
    gpu_type: str
    gpus: int
    spread: bool
    source: str
    estimated: float
    measured: float
    user: str = ""

    @property
    def relative(self) -> float:
        """``estimated / measured - 1``: 0.5 for an estimate half again too high."""
        return self.estimated / self.measured - 1.0


@dataclass(slots=True)
class Known:
    """All that was measured of one workload: by user, and the medians of those pairs that enough users measured."""

    by_user: dict[str, list[Measurement]] = field(default_factory=dict)
    medians: list[Measurement] = field(default_factory=list)

    def of(self, user: str) -> list[Measurement]:
        """What jobs of this user go by: its own, and others' medians of what it has not measured."""
        own = self.by_user.get(user, [])
        pairs = {m.pair for m in own}
        return sorted([*own, *(m for m in self.medians if m.pair not in pairs)], key=order_of)


def storable(steps_per_s: float) -> bool:
    """Whether a training can have been measured at this rate; what is not a number cannot."""
    return SLOWEST_STEPS_PER_S <= steps_per_s <= FASTEST_STEPS_PER_S


def model_of(name: str) -> str:
    """What stands before the batch size and the graph in the name of a workload."""
    return name.partition(" ")[0].partition(":")[0]


def median_of(same: list[Measurement]) -> Measurement:
    """Of one pair, as several users measured it."""
    first = same[0]
    return Measurement(
        first.workload,
        first.gpu_type,
        first.gpus,
        first.spread,
        statistics.median(m.steps_per_s for m in same),
        sum(m.samples for m in same),
        max(m.updated_at for m in same),
        first.nodes,
        "",
        len(same),
    )


def order_of(measured: Measurement) -> tuple[str, int, int, int, str]:
    """By what it was measured on; of the same, who measured it."""
    nodes = measured.nodes or 1
    return measured.gpu_type, measured.gpus, nodes if measured.spread else 0, measured.users, measured.user

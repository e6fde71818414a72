"""Schedulers by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from slurm_hadar.serving.scheduling.orloj import Orloj
from slurm_hadar.serving.scheduling.peers import Clipper, Clockwork, Edf, LargestFeasible, Nexus
from slurm_hadar.serving.scheduling.policy import Policy, Setup
from slurm_hadar.serving.scheduling.scheduler import Scheduler

__all__ = ["Name", "scheduler"]


class Name(StrEnum):
    """``edf`` runs requests alone; ``largest``: as many as are expected to be in time, by deadline; ``clockwork``,
    ``nexus`` and ``clipper`` are simplified forms of those systems' rules."""

    ORLOJ = "orloj"
    EDF = "edf"
    CLOCKWORK = "clockwork"
    NEXUS = "nexus"
    CLIPPER = "clipper"
    LARGEST = "largest"


_KINDS: Mapping[Name, type[Policy]] = {
    Name.ORLOJ: Orloj, Name.EDF: Edf, Name.CLOCKWORK: Clockwork, Name.NEXUS: Nexus, Name.CLIPPER: Clipper,
    Name.LARGEST: LargestFeasible,
}  # fmt: skip


def scheduler(name: Name, setups: Mapping[str, Setup]) -> Scheduler:
    """With a policy of this name for each model."""
    return Scheduler({model: _KINDS[name](setup) for model, setup in setups.items()})

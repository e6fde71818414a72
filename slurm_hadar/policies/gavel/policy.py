"""Gavel's policies (OSDI 2020): target shares from a linear programme, followed in rounds."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from slurm_hadar.errors import ConfigError
from slurm_hadar.policies.base import UNKNOWN_RUNTIME_S
from slurm_hadar.policies.gavel import packed
from slurm_hadar.policies.gavel.analytic_centre import Field
from slurm_hadar.policies.gavel.lp import fair_finish, isolated_rates, max_min, max_total, proportional_rates
from slurm_hadar.policies.gavel.shares import SharePolicy, Targets

__all__ = ["GavelCost", "GavelFtf", "GavelLas", "GavelThroughput", "GavelTtd"]

# What all or several of them have is spelt out in each class, because the registry reads it from its constructor:
# ``aware``: know the speeds; false takes all types for equally fast where the job can run.
# ``packed``: where jobs may share GPUs, shares for pairs too (:mod:`slurm_hadar.policies.gavel.packed`); else who
#     shares is decided after the policy, as with all others.
# ``reset_s``: new targets at most this often (1920 s in Gavel); 0 = in every round in which jobs or GPUs came or went.
# ``unknown_runtime_s``: the run time on the best type that is assumed of a job whose steps nobody states or
#     predicts.


class _MaxMin(SharePolicy):
    """Raises the smallest ratio of a job's rate to what it demands."""

    packed: bool

    @property
    def pairs(self) -> bool:
        return self.packed

    @abc.abstractmethod
    def demand(self, targets: Targets) -> Field:
        """Positive, shape (jobs,)."""

    def shares(self, targets: Targets) -> tuple[Field, dict[str, Any]]:
        if len(targets.rows.members) > len(targets.jobs):
            return packed.max_min(targets.load, targets.rows, self.demand(targets)), {}
        return max_min(targets.load, self.demand(targets))[0], {}


@dataclass(frozen=True)
class GavelLas(_MaxMin):
    """Max-min fairness, which is Gavel's form of least attained service (its sections 3 and 4.1).

    Maximises the smallest ``gang / weight * rate / usual rate`` over the jobs, where the usual rate is that of a job
    which divides its time among the types in proportion to their GPUs. Without knowledge of speeds the rate is the
    share of time in which the job runs. Complexity: one linear programme with jobs * types variables.
    """

    name: ClassVar[str] = "gavel_las"

    aware: bool = True
    packed: bool = False
    reset_s: float = 1920.0
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def demand(self, targets: Targets) -> Field:
        load = targets.load
        usual = proportional_rates(load.rates, load.gpus) if self.aware else load.rates.max(axis=1)
        return targets.weight * usual / load.gang


@dataclass(frozen=True)
class GavelFtf(SharePolicy):
    """Finish-time fairness, the objective of Themis, as in Gavel (section 4.2).

    Minimises the largest ``rho``: the time from a job's arrival to its end under the shares, over the time that it
    takes on an equal part of the cluster. What a job has done so far counts at the speed that its equal part had at the
    time; that is what is noted from one setting of targets to the next. Complexity: about five linear programmes.
    """

    name: ClassVar[str] = "gavel_ftf"

    aware: bool = True
    reset_s: float = 1920.0
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def shares(self, targets: Targets) -> tuple[Field, dict[str, Any]]:
        alone = isolated_rates(targets.load)
        spent, noted = np.zeros(len(alone)), {}
        for row, job in enumerate(targets.jobs):
            left = float(targets.remaining[row])
            if job.job_id in targets.noted:
                spent_s, left_then, alone_then = targets.noted[job.job_id]
                spent[row] = spent_s + max(0.0, left_then - left) / alone_then
            noted[job.job_id] = [float(spent[row]), left, float(alone[row])]
        isolated = spent + targets.remaining / alone
        return fair_finish(targets.load, targets.remaining, targets.elapsed, isolated)[0], noted


@dataclass(frozen=True)
class GavelTtd(_MaxMin):
    """Minimum makespan of the jobs that are there (Gavel, section 4.2).

    The shares with which all remaining steps could be done by the earliest common time. Complexity: one linear
    programme.
    """

    name: ClassVar[str] = "gavel_ttd"

    aware: bool = True
    packed: bool = False
    reset_s: float = 1920.0
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def demand(self, targets: Targets) -> Field:
        return targets.remaining


@dataclass(frozen=True)
class GavelThroughput(SharePolicy):
    """Maximum total throughput (Gavel, section 4.2).

    Gavel adds up steps per second as they are, though a step of one model is not a step of another; so models with
    short steps go first. ``normalised`` counts each job's rate in its best rate, times its GPUs (our definition).
    Complexity: one linear programme.
    """

    name: ClassVar[str] = "gavel_throughput"

    aware: bool = True
    normalised: bool = False
    reset_s: float = 1920.0
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def shares(self, targets: Targets) -> tuple[Field, dict[str, Any]]:
        return max_total(targets.load, _worth(targets, self.normalised))[0], {}


@dataclass(frozen=True)
class GavelCost(SharePolicy):
    """Maximum total of throughput per dollar (Gavel, section 4.2, in the linear form of its implementation).

    ``prices`` are dollars per GPU-hour, ``type=price`` separated by commas; all GPU types of the cluster must be named.
    The defaults are Google Cloud's list prices of 2020. ``normalised`` as in :class:`GavelThroughput`. Complexity: one
    linear programme. A cluster with a type that has no price is a ConfigError.
    """

    name: ClassVar[str] = "gavel_cost"

    aware: bool = True
    normalised: bool = False
    prices: str = "v100=2.48,p100=1.46,k80=0.45"
    reset_s: float = 1920.0
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def __post_init__(self) -> None:
        super().__post_init__()
        _prices(self.prices)

    def shares(self, targets: Targets) -> tuple[Field, dict[str, Any]]:
        known = _prices(self.prices)
        missing = [t for t in targets.types if t not in known]
        if missing:
            what = f"no price for GPU type {', '.join(missing)}"
            raise ConfigError(f"policy {self.name}: {what}; set prices={self.prices},{missing[0]}=...")
        price = np.array([known[t] for t in targets.types])
        return max_total(targets.load, _worth(targets, self.normalised) / price)[0], {}


def _worth(targets: Targets, normalised: bool) -> Field:
    load = targets.load
    return load.rates / load.rates.max(axis=1)[:, None] * load.gang[:, None] if normalised else load.rates


def _prices(text: str) -> dict[str, float]:
    prices = {}
    for part in text.split(","):
        gpu_type, _, price = part.partition("=")
        try:
            prices[gpu_type.strip()] = float(price)
        except ValueError:
            prices[gpu_type.strip()] = math.nan
        if not (gpu_type.strip() and 0 < prices[gpu_type.strip()] < math.inf):
            raise ConfigError(f"policy gavel_cost: prices={text!r} must read like v100=2.48,p100=1.46; found {part!r}")
    return prices

"""What it is worth to run a job for one round: the utilities that turn one engine into several policies.

Hadar maximises ``sum_j U_j(f_j - a_j)``, the utility of each job's completion time, where the price of a schedule
counts every GPU in every slot that it uses. A round-based, preemptive scheduler sells one slot at a time. We therefore
divide both sides by the number of slots: **the utility per round** of a job that would complete ``t`` seconds from now
is

    u_j(t) = c_j(age_j + t) * HOUR / t

with ``c_j`` the utility that completing the job earns (or, for a cost, the marginal cost of its delay), and a payoff
is ``u_j(t)`` less the price of the gang's GPUs for one round. It has the sign of Hadar's payoff, so the same jobs are
worth running, and it is the index of the generalised c-mu rule (van Mieghem 1995), of which Smith's rule is the case
of constant ``c_j``. The amortisation, and every utility below, is our definition: the papers' own forms were not
available to us. Utilities are rates per hour, are non-negative and never increase with ``t``.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from slurm_hadar.errors import ConfigError

__all__ = ["HOUR", "OBJECTIVES", "Deadline", "Era", "Fairness", "Frontier", "Utility", "Work", "make_utility"]

HOUR = 3600.0
_LEAST_S = 1.0
_MOST_URGENT = 50.0
_PULL = 6.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a utility may know of one job.

    ``remaining_s`` and ``total_s`` are run times on the best GPU type open to the job, of what is left and of the
    whole; ``priced_s`` is the smallest product of run time and type price; ``age_s`` counts since the arrival;
    ``deadline_in_s`` is None where the job has no deadline.
    """

    workers: int
    remaining_s: float
    total_s: float
    priced_s: float
    age_s: float = 0.0
    weight: float = 1.0
    deadline_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Era:
    """What a utility may know of the whole round.

    ``contention`` is the number of GPUs wanted by active jobs over the number there are, at least 1; ``makespan_s`` a
    lower bound on the time that all remaining work will take; ``round_s`` the length of a round; ``type_prices`` what a
    GPU of each type is worth for the makespan, 1 on average; ``mean_work_s`` the mean over jobs of what is left in
    GPU-seconds at these prices.
    """

    contention: float = 1.0
    makespan_s: float = HOUR
    round_s: float = 360.0
    type_prices: Mapping[str, float] = field(default_factory=dict)
    mean_work_s: float = HOUR


class Utility(abc.ABC):
    """Utility per round of a job that would complete ``finish_s`` seconds from now."""

    name: ClassVar[str]

    @abc.abstractmethod
    def per_round(self, work: Work, era: Era, finish_s: float) -> float:
        """Non-negative, and never larger for a larger ``finish_s`` (seconds)."""


@dataclass(frozen=True)
class Frontier(Utility):
    """Average JCT, total time duration (TTD), or both at once.

    ``u = weight * HOUR / t * [(1 - frontier) + frontier * pull]``.

    * ``frontier = 0``, average JCT: ``c_j = weight``; a second of delay costs the same whoever waits. Per GPU this is
      Smith's rule. It is the value ``v_j X_jr / rem_j`` of the linear programme whose duals are the exact prices.
    * ``frontier = 1``, TTD: ``pull = 6 * (W * priced_s / mean_work_s) / (1 + 50 * (1 - remaining_s / makespan_s))``.
      The first bracket is the job's work at the type prices of the fluid makespan problem, over the mean of all jobs;
      so a GPU earns the same from every job that it suits. The denominator favours, up to fifty times, jobs whose best
      run time comes near the time that all work takes: those that would be last. Our definition; the constants were
      chosen on static traces so that 0.5 serves both ends.
    """

    name: ClassVar[str] = "jct"
    frontier: float = 0.0

    def per_round(self, work: Work, era: Era, finish_s: float) -> float:
        rate = work.weight * HOUR / max(finish_s, _LEAST_S)
        if not self.frontier:
            return rate
        return rate * (1.0 - self.frontier + self.frontier * self._pull(work, era))

    def _pull(self, work: Work, era: Era) -> float:
        criticality = min(1.0, work.remaining_s / max(era.makespan_s, _LEAST_S))
        share = work.workers * work.priced_s / max(era.mean_work_s, _LEAST_S)
        return _PULL * share / (1.0 + _MOST_URGENT * (1.0 - criticality))


@dataclass(frozen=True)
class Fairness(Utility):
    """Finish-time fairness (FTF): nobody's ``rho = JCT / T_iso`` shall be far above the others'.

    The cost of a delay is ``rho^2``, so ``c_j = weight * 2 * rho_j / T_iso`` grows with the age of the job (our
    definition, after the rho of Themis). ``T_iso`` is the run time on a 1/|J| share, taken as the best run time of the
    whole job times the contention of the cluster.
    """

    name: ClassVar[str] = "ftf"

    def per_round(self, work: Work, era: Era, finish_s: float) -> float:
        t = max(finish_s, _LEAST_S)
        isolated = max(work.total_s * era.contention, _LEAST_S)
        return work.weight * 2.0 * (work.age_s + t) / isolated * (HOUR / isolated) * (HOUR / t)


@dataclass(frozen=True)
class Deadline(Utility):
    """Deadlines: ``c_j = weight * (1 + 9 / (1 + exp((t - d) / s)))``, with ``d`` the time left until the deadline.

    The logistic form of the OASiS family of schedulers; constants are ours. A job that keeps its deadline is worth ten
    jobs without one, and one that has missed it as much as one without, so it is neither dropped nor favoured. The
    softness ``s`` is a tenth of the remaining run time, at least half a round.
    """

    name: ClassVar[str] = "deadline"

    def per_round(self, work: Work, era: Era, finish_s: float) -> float:
        t = max(finish_s, _LEAST_S)
        worth = 1.0
        if work.deadline_in_s is not None:
            softness = max(0.1 * work.remaining_s, 0.5 * era.round_s, _LEAST_S)
            lateness = min(700.0, max(-700.0, (t - work.deadline_in_s) / softness))
            worth += 9.0 / (1.0 + math.exp(lateness))
        return work.weight * worth * HOUR / t


OBJECTIVES = ("jct", "ttd", "ftf", "deadline")


def make_utility(objective: str, frontier: float) -> Utility:
    """The utility of an objective. Raises ConfigError for an unknown objective or an impossible frontier."""
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective={objective!r} is unknown; valid objectives: {', '.join(OBJECTIVES)}")
    if not 0.0 <= frontier <= 1.0:
        raise ConfigError(f"frontier={frontier} must lie between 0 (average JCT) and 1 (TTD)")
    if frontier and objective != "jct":
        raise ConfigError(f"frontier={frontier} goes only with objective=jct, not with objective={objective}")
    if objective == "ftf":
        return Fairness()
    if objective == "deadline":
        return Deadline()
    return Frontier(1.0 if objective == "ttd" else frontier)

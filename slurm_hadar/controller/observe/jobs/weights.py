"""What a job weighs in the policy: what its owner states, within what an administrator grants, and, where that is
wanted, how it stands in Slurm's own priorities or in fair share.

Everybody may write ``weight=1000`` in a comment; if it counted, everybody would have to.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_hadar.config import GuardSection
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Standing", "Weight", "standing_of", "weight_of"]

_LEAST, _MOST = 0.1, 10.0  # of what standing may multiply a weight by: nobody is starved, and nobody takes all

_Usage = Mapping[str, Mapping[str, float]]


class Weight(NamedTuple):
    """``lowered`` says why ``value`` is less than what the owner stated; empty if it is not."""

    value: float
    lowered: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How jobs stand to each other in one round. ``priority`` is the median of Slurm's in the queue, 0 = does not
    count; ``users`` and ``accounts`` have the factor of each one's lately used share."""

    priority: float = 0.0
    users: Mapping[str, float] = field(default_factory=dict)
    accounts: Mapping[str, float] = field(default_factory=dict)

    def factor(self, job: SlurmJob) -> float:
        """What the job's weight is multiplied by; 1 for one that stands as most do."""
        by_priority = job.priority / self.priority if self.priority > 0 and job.priority > 0 else 1.0
        by_share = self.users.get(job.user, 1.0) * self.accounts.get(job.account, 1.0)
        factor = min(_MOST, max(_LEAST, by_priority * by_share))
        return 1.0 if factor == 1.0 else factor  # that of most jobs, kept once


def standing_of(source: str, jobs: Iterable[SlurmJob], users: _Usage, accounts: _Usage) -> Standing:
    """By ``policy.weight_from``: ``priority``, ``fairshare`` or ``none``. ``jobs`` are those of the queue; ``users``
    and ``accounts`` what each has had lately, in GPU-seconds by GPU type."""
    if source == "none":
        return Standing()
    active = [job for job in jobs if job.state.active]
    if source == "priority":
        return Standing(priority=statistics.median([j.priority for j in active if j.priority > 0] or [0]))
    return Standing(
        users=_shares({j.user for j in active}, users), accounts=_shares({j.account for j in active}, accounts)
    )


def weight_of(stated: float | None, job: SlurmJob, guard: GuardSection, standing: Standing) -> Weight:
    """The weight of a job whose comment states ``stated``."""
    asked, most = stated or 1.0, _granted(job, guard)
    lowered = f"weight {asked:g} counts as {most:g}, the most that guard.max_weight grants it" if asked > most else ""
    factor, weight = standing.factor(job), min(asked, most)
    return Weight(weight if factor == 1.0 else weight * factor, lowered if stated is not None else "")


def _granted(job: SlurmJob, guard: GuardSection) -> float:
    """Its QOS's, else its account's, else everybody's."""
    by_account = guard.max_weight_by_account.get(job.account, guard.max_weight)
    return guard.max_weight_by_qos.get(job.qos, by_account)


def _shares(names: Iterable[str], usage: _Usage) -> dict[str, float]:
    """Twice 2^-(usage over the mean): 2 for who has had nothing, 1 for the mean, as in Slurm's classic fair share."""
    had = {name: max(0.0, sum(usage.get(name, {}).values())) for name in names}
    mean = sum(had.values()) / len(had) if had else 0.0
    return {name: 2.0 ** (1.0 - value / mean) for name, value in had.items()} if 0 < mean < math.inf else {}

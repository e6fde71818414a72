"""Tells jobs that share a GPU by turns which share of these the plan leaves them.

Only who is to have fewer than equal turns is told, over the channel that the job's agent has checked the controller by:
it has the broker give way for it. A broker lets any process of a user say that of the user's own jobs, and of nobody
else's: nobody takes another user's turns. Who is not told, or does not obey, costs the other one no more than equal
turns do. What was told lasts for :data:`ROUNDS` rounds: if the controller ends, turns are equal again. Our definition.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL

__all__ = ["ROUNDS", "TurnOrders"]

#: For how many rounds a share of the turns lasts that nobody says anew.
ROUNDS = 3


class TurnOrders:
    """Who was told to give way, and to whom."""

    def __init__(self, channel: Channel | None) -> None:
        self._channel = channel
        self._told: set[str] = set()

    def tell(self, seen: Observation, changes: Iterable[Change], round_s: float) -> None:
        """Tell all whom this round's changes leave fewer turns, and take it back from all others that were told. What
        was told is in the records of the guests; one whose host cannot be reached has equal turns."""
        told: set[str] = set()
        for change in changes:
            record = seen.records[change.job_id]
            record.turns = EQUAL
            if change.host is None or change.turns == EQUAL or not change.new:
                continue
            gives_way, other = (change.host, change.job_id) if change.turns > EQUAL else (change.job_id, change.host)
            left = min(change.turns, 1.0 - change.turns)
            if self._order(gives_way, f"job {other} is to have the turns", left, ROUNDS * round_s):
                record.turns = change.turns
                told.add(gives_way)
        for job_id in sorted(self._told - told):
            self._order(job_id, "equal turns again", EQUAL, 0.0)
        self._told = told

    def _order(self, job_id: str, why: str, share: float, for_s: float) -> bool:
        return self._channel is not None and self._channel.order(job_id, "turns", why, share=share, for_s=for_s)

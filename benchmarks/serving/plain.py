"""The reconstruction of Orloj's rules as it stands, without what our scheduler adds: what the additions are worth.

An order of requests for each batch size, by the waiting-cost score of a run in such a batch; the k best of each
order, and of these batches the one of the most expected on-time ends per expected second. docs/serving.md tells what
of it is the paper's.
"""

from __future__ import annotations

from collections import Counter

from slurm_hadar.serving.scheduling.distribution import longest_of
from slurm_hadar.serving.scheduling.orloj import WAITS
from slurm_hadar.serving.scheduling.policy import Policy, Proposal, Setup
from slurm_hadar.serving.scheduling.request import Request
from slurm_hadar.serving.scheduling.score import ScoreTable

__all__ = ["Plain"]

_ATOMS = 32  # of the distributions, for scores and batches alike


class Plain(Policy):
    """Goes by the profile alone; a decision looks at all who wait."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._known = {a: self.run_times(a).thinned(_ATOMS) for a in setup.profile}
        every = [seconds for of in setup.profile.values() for seconds in of]
        rate = len(every) / (WAITS * sum(every))
        self._scores = {
            k: {a: ScoreTable(of.scaled(setup.law.factors[k]), rate) for a, of in self._known.items()}
            for k in setup.law.sizes()
        }

    def enqueue(self, request: Request, now_s: float) -> None:
        """``queued`` is all that is kept."""

    def latest_start_s(self, request: Request) -> float:
        return request.last_s - self._known[request.application].times_s[0] / self.speeds[0]

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        best: Proposal | None = None
        for size, tables in self._scores.items():
            scored = [
                (tables[r.application].score((r.deadline_s - now_s) * speed), -number)
                for number, r in self.queued.items()
            ]
            taken = [self.queued[-number] for score, number in sorted(scored, reverse=True)[:size] if score > 0.0]
            if not taken:
                continue
            counts = Counter(r.application for r in taken)
            takes = longest_of((self._known[a], n) for a, n in counts.items())
            takes = takes.scaled(self.setup.law.factors[len(taken)] / speed)
            value = sum(takes.cdf(r.deadline_s - now_s) for r in taken) / takes.mean_s
            if best is None or value > best.value:
                best = Proposal(taken, takes.mean_s, value)
        return best

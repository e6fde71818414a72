"""Several models on several workers: which of the policies' batches starts, and where."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_hadar.serving.scheduling.policy import Policy, Proposal
from slurm_hadar.serving.scheduling.request import Batch, Refused, Request, Worker

__all__ = ["Scheduler"]


class Scheduler:
    """Around one policy for each model. The caller tells of workers, arrivals and ends, and whenever a worker is idle
    asks :meth:`choose` until it answers None."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self.policies = dict(policies)
        self._again: dict[int, Request] = {}

    def equip(self, workers: Collection[Worker]) -> None:
        """All that there are, idle or not. A model that none of them holds is left with those of before: others are to
        come."""
        for model, policy in self.policies.items():
            speeds = {worker.speed for worker in workers if worker.holds(model)}
            if speeds and speeds != set(policy.speeds):
                policy.equip(speeds)

    def arrive(self, request: Request, now_s: float) -> None:
        """A request waits from now on. Its ``number`` must never have been used before."""
        self.policies[request.model].arrive(request, now_s)

    def again(self, request: Request) -> None:
        """A request whose worker was lost. It runs by itself, before all others: its turn had come, and who of a batch
        has killed a worker is not known, but is not to kill another one for the rest."""
        self._again[request.number] = request

    def withdraw(self, request: Request) -> bool:
        """Whether it was still queued."""
        if self._again.pop(request.number, None) is not None:
            return True
        return self.policies[request.model].withdraw(request.number)

    def choose(self, now_s: float, idle: Collection[Worker]) -> Batch | None:
        """The best batch now, and its worker: of all models, and of the idle workers of each speed; of equals the
        fastest. None: nothing is to be started, or nobody is idle."""
        if (alone := self._by_itself(idle)) is not None:
            return alone
        best: tuple[Proposal, str, Worker] | None = None
        looked: set[tuple[float, str]] = set()
        for worker in sorted(idle, key=lambda w: -w.speed):
            for model, policy in self.policies.items():
                if not policy.queued or (worker.speed, model) in looked or not worker.holds(model):
                    continue
                looked.add((worker.speed, model))
                found = policy.propose(now_s, worker.speed)
                if found is not None and (best is None or found.value > best[0].value):
                    best = found, model, worker
        if best is None:
            return None
        proposal, model, worker = best
        for request in proposal.requests:
            self.policies[model].start(request)
        return Batch(model, proposal.requests, worker, proposal.expected_s)

    def _by_itself(self, idle: Collection[Worker]) -> Batch | None:
        for number, request in self._again.items():
            able = [worker for worker in idle if worker.holds(request.model)]
            if able:
                worker = max(able, key=lambda w: w.speed)
                del self._again[number]
                run_s = self.policies[request.model].run_times(request.application).mean_s
                return Batch(request.model, (request,), worker, run_s / worker.speed)
        return None

    def ended(self, batch: Batch, seconds: float, now_s: float) -> None:
        """A batch has run for so long on its worker."""
        self.policies[batch.model].observe(batch.requests, seconds * batch.worker.speed, now_s)

    def expire(self, now_s: float) -> list[Refused]:
        """Who is given up now: to be told at once."""
        late = [request for request in self._again.values() if self._last_start_s(request) < now_s]
        for request in late:
            del self._again[request.number]
        return [Refused.at(r, now_s) for r in late] + [
            refused for policy in self.policies.values() for refused in policy.expire(now_s)
        ]

    def next_expiry_s(self) -> float:
        """When :meth:`expire` next has somebody to give up, minus infinity for now; infinite where nobody waits."""
        ends = [policy.next_expiry_s() for policy in self.policies.values()]
        return min([*ends, *map(self._last_start_s, self._again.values())], default=float("inf"))

    def _last_start_s(self, request: Request) -> float:
        return self.policies[request.model].last_chance_s(request)

    def refresh(self, now_s: float) -> None:
        """Whatever is due; when nobody waits for a decision."""
        for policy in self.policies.values():
            if policy.refresh_due(now_s):
                policy.refresh(now_s)

    @property
    def queued(self) -> int:
        """Requests that wait, of all models, those that wait once more too."""
        return len(self._again) + sum(len(policy.queued) for policy in self.policies.values())

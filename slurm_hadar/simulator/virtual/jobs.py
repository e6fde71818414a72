"""A job in the virtual cluster: what it has done, what it holds and when it will be done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_hadar.model import EMPTY, Form, Job, JobState, Mix, Placement
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import TraceJob
from slurm_hadar.simulator.virtual.belief import Belief

__all__ = ["NO_CHECKPOINTS", "RESTART_S", "Terms", "VirtualJob", "form_of", "restart_cost_s"]

#: Why a job that cannot be moved keeps its place.
NO_CHECKPOINTS = "has no checkpoint support"

#: Seconds that a restart takes, per model family: measured on hardware by Sia (sia-simulator/sia.py: deepspeech2,
#: cifar10, yolov3, bert, imagenet; 30 s where it names none). ResNet-18 trains CIFAR-10 here, ResNet-50 ImageNet.
RESTART_S: Mapping[str, float] = {
    "deepspeech2": 25.0, "resnet18": 30.0, "yolov3": 45.0, "bert": 120.0, "resnet50": 250.0,
}  # fmt: skip
_RESTART_ELSE_S = 30.0


def restart_cost_s(model: str) -> float:
    """The published cost of a restart for a model of this family, else 30 s."""
    return next((cost for family, cost in RESTART_S.items() if model.startswith(family)), _RESTART_ELSE_S)


@dataclass(frozen=True, slots=True)
class Terms:
    """What starting and stopping a job takes: what a restart and the first start cost; whether it can be moved once it
    runs; and how wrong its speeds are (:class:`Belief`, drawn by ``seed``) until it reports, ``report_s`` after a start
    or with its first step, if that is later; and how many times as long it may take beside another job."""

    restart_s: float = 0.0
    start_s: float = 0.0
    movable: bool = True
    speed_error: float = 0.0
    report_s: float = 0.0
    seed: int = 0
    slow_down: float = 1.0


class VirtualJob:
    """One job's state. Times are on the virtual clock; ``done`` steps are as of the last start or stop. ``idle`` is how
    a policy sees the job while it does not run, ``template`` what it truly is. ``host`` is the job on whose GPU it is a
    guest, with ``turns`` as its share of the turns; since ``owned`` it holds GPUs that are its own. It keeps ``kept``
    of its speed, and as of ``since`` has lost ``held_up_s`` to its company; since ``booked`` its user is charged with
    the part ``charged`` of its GPUs."""

    __slots__ = (
        "_fixed", "attained_s", "belief", "booked", "busy", "by_type", "charged", "completion", "done", "finish",
        "first_start", "held", "held_s", "held_up_s", "host", "idle", "job_id", "kept", "lost_steps", "made_of",
        "moves", "owned", "placement", "preemptions", "rate", "since", "started", "starts", "template", "terms",
        "total", "trace", "turns", "workers",
    )  # fmt: skip

    def __init__(
        self, trace: TraceJob, rates: Rates, form: Form, terms: Terms, origin: float, steps_factor: float
    ) -> None:
        self.made_of = trace, rates, form, terms, origin, steps_factor
        self.trace = trace
        self.job_id = trace.job_id
        self.total = trace.steps * steps_factor
        self.terms = terms
        self.done = self.attained_s = self.held_s = self.lost_steps = 0.0
        self.placement: Placement = EMPTY
        self.workers = self.starts = self.moves = self.preemptions = 0
        self.by_type: dict[str, int] = {}
        self.busy: dict[str, float] = {}
        self.rate = self.since = self.held = self.owned = self.booked = self.finish = 0.0
        self.host: str | None = None
        self.turns, self.kept, self.held_up_s, self.charged = EQUAL, 1.0, 0.0, 1.0
        self.started: float | None = None
        self.first_start: float | None = None
        self.completion: float | None = None
        self._fixed: dict[str, Any] = {
            "job_id": trace.job_id,
            "form": form,
            "user": trace.user,
            "account": trace.account,
            "name": trace.name,
            "model": trace.model,
            "batch": trace.batch,
            "arrival": origin + trace.arrival_s,
            "total_steps": self.total,
            "speeds": rates.of(trace, trace.workers),
            "scaled": {n: rates.of(trace, n) for n in form.sizes if n != trace.workers},
            "restart_cost_s": terms.restart_s,
            "weight": trace.weight,
            "slow_down": terms.slow_down,
            "duty": {} if trace.duty == 1.0 else dict.fromkeys(rates.of(trace, trace.workers), trace.duty),
            "graph": Path(trace.graph).name if trace.graph.endswith(".toml") else trace.graph,
            "time_limit_s": trace.limit_s,
            "deadline": None if trace.deadline_s is None else origin + trace.arrival_s + trace.deadline_s,
        }
        self.template = self.idle = self._as_waiting()
        self.belief: Belief | None = None
        if terms.speed_error > 0:
            truth = {n: self.template.speeds_at(n) for n in form.gang_sizes}
            self.belief = Belief(self.job_id, truth, terms.speed_error, terms.seed)
            self._show_speeds(self.belief)

    def _as_waiting(self) -> Job:
        return Job(
            **self._fixed,
            done_steps=self.done,
            restarts=self.starts,
            attained_s=self.attained_s,
            held_up_s=self.held_up_s,
            unmovable=self.fixed,
        )

    def foresee(self, steps: float | None, between: tuple[float, float] | None = None, outlives: float = 1.0) -> None:
        """From now on a policy sees ``steps`` as a prediction (None = it knows nothing) instead of the job's steps."""
        seen = {"predicted_steps": steps, "predicted_range": between, "outlives": outlives}
        self._fixed |= {"total_steps": None, **seen}
        self.idle = self._as_waiting()

    def _show_speeds(self, belief: Belief) -> None:
        form = self.template.form
        self._fixed |= {
            "speeds": belief.at(form.workers),
            "scaled": {n: belief.at(n) for n in form.sizes if n != form.workers},
        }
        self.idle = self._as_waiting()

    @property
    def fixed(self) -> str | None:
        """Why it keeps its place once it runs, however long that is; None if it need not."""
        return None if self.terms.movable else NO_CHECKPOINTS

    @property
    def reports(self) -> float:
        """When it reports for the first time since its start; one whose speed is not known needs a step for that."""
        told = self.held + self.terms.report_s
        return told if self.belief is None else max(told, self.since)

    def measuring(self, now: float) -> str | None:
        """That it is measured before it is moved, as in the live controller; None if it is not."""
        if self.belief is None or self.belief.knows(self.by_type) or now >= self.reports:
            return None
        return f"its speed on {' and '.join(self.by_type)} is being measured"

    def _hear(self, now: float) -> None:
        if self.belief is not None and now >= self.reports and not self.belief.knows(self.by_type):
            self.belief.learn(self.by_type)
            self._show_speeds(self.belief)

    @property
    def arrival(self) -> float:
        """Epoch second of its submission."""
        return self.template.arrival

    @property
    def family(self) -> Sequence[VirtualJob]:
        """The jobs that end with it: itself, or all copies of its parent."""
        return (self,)

    def resumes(self, _now: float) -> bool:
        """Whether a start now has something to go on from, and costs a restart."""
        return self.starts > 0

    def waiting(self, _now: float) -> Job:
        """The job as a policy sees it while it does not run."""
        return self.idle

    def done_at(self, now: float) -> float:
        """Steps done by ``now``."""
        if self.started is None or now <= self.since:
            return self.done
        return min(self.total, self.done + (now - self.since) * self.rate)

    def view(self, now: float, unmovable: str | None = None) -> Job:
        """The running job as a policy sees it."""
        self._hear(now)
        return Job(
            **self._fixed,
            state=JobState.RUNNING,
            started=self.started,
            done_steps=self.done_at(now),
            placement=self.placement,
            restarts=self.starts - 1,
            unmovable=unmovable,
            host=self.host,
            turns=self.turns,
            attained_s=self.attained_s + (now - self.held) * self.workers,
            held_up_s=self.held_up_at(now),
        )

    def start(self, now: float, placement: Placement, delay_s: float) -> None:
        """Hold ``placement`` from ``now`` on, and make steps ``delay_s`` later."""
        self.placement, self.by_type, self.workers = placement, placement.by_type, placement.workers
        self.rate = self.template.rate(placement)
        self.started = self.held = self.owned = self.booked = now
        self.charged = 1.0
        self.since = now + delay_s
        self.finish = self.since + (self.total - self.done) / self.rate
        self.starts += 1
        if self.first_start is None:
            self.first_start = now

    def slow(self, now: float, kept: float) -> None:
        """From ``now`` on make steps at this share of the speed that it has alone; 0 = none, until it is told anew."""
        self.held_up_s, self.kept = self.held_up_at(now), kept
        self.done, self.since = self.done_at(now), max(self.since, now)
        self.rate = self.template.rate(self.placement) * kept
        self.finish = self.since + (self.total - self.done) / self.rate if self.rate > 0 else math.inf

    def held_up_at(self, now: float) -> float:
        """Seconds lost to its company by ``now``."""
        if self.started is None:
            return self.held_up_s
        return self.held_up_s + max(0.0, now - self.since) * (1.0 - self.kept)

    def stop(self, now: float) -> None:
        """Give up all GPUs; what was done by ``now`` is saved."""
        self.done = self.done_at(now)
        self._release(now)

    def complete(self) -> None:
        """The last step is made."""
        self.done, self.completion = self.total, self.finish
        self._release(self.finish)

    def crash(self, now: float, checkpoint_s: float) -> None:
        """The node fails: what was done since the last periodic checkpoint is lost.

        Checkpoints are written every ``checkpoint_s`` seconds of making steps since the start; 0 = nothing is lost. A
        job that cannot be moved writes none.
        """
        ran_s = max(0.0, now - self.since)
        kept_s = ran_s if checkpoint_s <= 0 else ran_s - ran_s % checkpoint_s
        if not self.terms.movable:
            kept_s = 0.0  # who could not be moved saves nothing
        reached = self.done_at(now)
        self.done = min(reached, self.done + kept_s * self.rate)
        self.lost_steps += reached - self.done
        self._release(now)

    def _release(self, now: float) -> None:
        self._hear(now)
        self.held_up_s, self.kept = self.held_up_at(now), 1.0
        span = now - self.held
        self.held_s += span
        self.attained_s += span * self.workers
        for gpu_type, count in self.by_type.items():
            self.busy[gpu_type] = self.busy.get(gpu_type, 0.0) + span * count
        self.placement, self.by_type, self.workers, self.started, self.rate = EMPTY, {}, 0, None, 0.0
        self.idle = self._as_waiting()


def form_of(trace: TraceJob, *, by_node: bool, mix: Mix | None) -> Form:
    """What placements the job allows. Without node boundaries all its GPUs are on the one node of their type."""
    wanted = mix if mix is not None else trace.mix
    if not by_node:
        return Form(trace.workers, sizes=trace.sizes)
    largest = max(trace.sizes or (trace.workers,))
    least, most = trace.nodes or (1, largest)
    return Form(trace.workers, least, most, mix=wanted, sizes=trace.sizes, types=trace.types, nodes=trace.open_to)

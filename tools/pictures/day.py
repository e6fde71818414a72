"""A day of a small cluster: the real controller, round after round, over a Slurm in memory and a clock that jumps.

What the jobs report is made up, from the published speeds; all that the journal says of it is the controller's own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from slurm_hadar.config import load
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.messages import Report
from slurm_hadar.model import JobState, Partition
from slurm_hadar.policies import registry
from slurm_hadar.slurm.state import ClusterState, SlurmJob, SlurmNode
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.throughput.table import reference

__all__ = ["BEGIN", "live_through", "stopped_clock"]

BEGIN = 1_772_388_000.0  # 1 March 2026, 18:00 UTC
ROUND_S = 360.0
RESTART_S = 60.0  # from a start to its first step
_NODES = {
    **{f"v100-{i}": ("v100", 4) for i in (1, 2, 3)},
    **{f"p100-{i}": ("p100", 4) for i in (1, 2, 3, 4)},
    **{f"k80-{i}": ("k80", 4) for i in (1, 2)},
}
_PARTITIONS = {"gpu": tuple(_NODES), "short": ("p100-4", "k80-1", "k80-2")}
_MODELS = (("resnet50", 64), ("resnet18", 128), ("lm", 20), ("transformer", 64), ("recommendation", 2048))
_USERS = ("ann", "bob", "chen", "dana", "eve")
_SETTINGS = ("controller.mode=act", f"controller.round_s={ROUND_S:g}", "jobs.ack_timeout_s=1",
             "jobs.end_timeout_s=1", "jobs.start_timeout_s=3")  # fmt: skip
_TOKEN = 64 * "a"


@dataclass
class _Training:
    """What a job of ours does: ``total`` steps, of which ``done`` are made; ``luck`` is how fast it is, against what is
    published. It fails after ``fails`` of them, if it does."""

    model: str
    batch: int
    total: float
    luck: float
    done: float = 0.0
    fails: float | None = None

    def rate(self, gpu_type: str, gpus: int) -> float:
        return self.luck * gpus * (reference().steps_per_s(self.model, self.batch, gpu_type) or 1.0)


class _Cluster(FakeSlurm):
    """Its nodes have memory, and its jobs answer when they are asked to save. Plain jobs start by themselves."""

    def __init__(self, book: ReportBook) -> None:
        super().__init__(_NODES)
        self.nodes = {n: replace(node, memory_bytes=256 << 30) for n, node in self.nodes.items()}
        self.book = book
        self.trainings: dict[str, _Training] = {}
        self._seq = 0

    def read(self) -> ClusterState:
        state = super().read()
        partitions = tuple(Partition(name, nodes) for name, nodes in _PARTITIONS.items())
        return replace(state, partitions=partitions, nodes=tuple(map(self._seen, state.nodes)))

    def _seen(self, node: SlurmNode) -> SlurmNode:
        jobs = [job for job in self.jobs.values() if job.state is JobState.RUNNING and node.name in job.nodes]
        (_, used), (_, gpus) = *node.used, *node.gpus
        state = "idle" if not jobs else "mixed" if used < gpus else "allocated"
        return replace(
            node,
            state=state if node.available else node.state,
            memory_used_bytes=sum(24 << 30 for _ in jobs),
            partitions=tuple(name for name, nodes in _PARTITIONS.items() if node.name in nodes),
        )

    def signal(self, steps: list[str], signal: str) -> None:  # type: ignore[override]  # noqa: ARG002 - all end at once
        for step in steps:
            raw_id = int(step.partition(".")[0])
            self.report(next(j.job_id for j in self.jobs.values() if j.raw_id == raw_id), "saved")

    def report(self, job_id: str, kind: str = "report") -> None:
        """What the job's agent says now."""
        job, training = self.jobs[job_id], self.trainings[job_id]
        self._seq += 1
        self.vouch(job_id, _TOKEN)
        self.book.ingest(Report(
            kind, job_id, job.restarts, self._seq, _TOKEN, time.time(), job.nodes[0], steps=int(training.done),
            total_steps=int(training.total), steps_per_s=self._rate(job), world=self._workers(job), resumable=True,
            saved_step=int(training.done), generation=job.restarts, save_s=10.0, load_s=RESTART_S / 2,
            step=f"{job.raw_id}.0",
        ))  # fmt: skip

    def _workers(self, job: SlurmJob) -> int:
        return job.gpus[0].count * len(job.nodes)

    def _rate(self, job: SlurmJob) -> float:
        return self.trainings[job.job_id].rate(_NODES[job.nodes[0]][0], self._workers(job))

    def pass_time(self, seconds: float) -> None:
        """Let the jobs that run train for so long, and end those that are done."""
        for job in list(self.jobs.values()):
            training = self.trainings.get(job.job_id)
            if job.state is not JobState.RUNNING or training is None:
                continue
            ran_s = time.time() - (job.start or 0.0)
            training.done += self._rate(job) * max(0.0, min(seconds, ran_s - RESTART_S))
            if training.done >= training.total:
                self.end(job.job_id)
            elif training.fails is not None and training.done >= training.fails:
                self.fail(job.job_id, time.time() - (job.start or 0.0))
            else:
                self.report(job.job_id)


@contextmanager
def stopped_clock(moment: list[float]) -> Iterator[None]:
    """The clock of this process shows what ``moment`` holds."""
    with patch("time.time", lambda: moment[0]), patch("time.time_ns", lambda: int(moment[0] * 1e9)):
        yield


def live_through(path: Path, hours: float = 21.0, seed: int = 7) -> float:
    """Write the journal of these hours from :data:`BEGIN` on; returns the moment at which it ends, in epoch seconds."""
    clock, rng, book = [BEGIN], random.Random(seed), ReportBook()
    journal = Journal(path)
    # to the controller, whose other clock goes on, it would be set in each round
    with stopped_clock(clock), patch("slurm_hadar.controller.safety.clock._offset_s", lambda: 0.0):
        slurm = _Cluster(book)
        policy = registry.get("hadar")
        config = load(None, [*_SETTINGS, "controller.foresee_s=0"])
        controller = steer(policy, config, Parts(slurm, journal, book))
        rounds = int(hours * 3600 / ROUND_S)
        for index in range(rounds):
            _happens(slurm, rng, index, rounds)
            controller.run_round()
            clock[0] += ROUND_S
            slurm.pass_time(ROUND_S)
        controller.reconfigure(load(None, list(_SETTINGS)), policy)  # looking ahead is needed once
        controller.run_round()
        clock[0] += 20.0
    journal.close()
    return clock[0]


def _happens(slurm: _Cluster, rng: random.Random, index: int, rounds: int) -> None:
    """What people and nodes do in this round."""
    if index < 10 or rng.random() < 0.42:
        _submit(slurm, rng, gpus=rng.choice((1, 1, 1, 2, 2, 4)), nodes=2 if rng.random() < 0.06 else 1)
    if index == 30:  # nobody asked us about this one
        job_id = slurm.submit(gpus=2, comment="", user="farid", name="notebook", num_cpus=16, partition="gpu")
        free = next((n for n in _NODES if slurm.has_room(slurm.jobs[job_id], n, time.time())), None)
        if free is not None:
            slurm.start(job_id, free)
    if index == rounds // 2:
        slurm.nodes["k80-2"] = replace(
            slurm.nodes["k80-2"], available=False, state="drained", reason="GPU 2: ECC errors"
        )
    if index == rounds - 4:
        first = _submit(slurm, rng, gpus=1, user="dana", name="sweep-lr", model=("lm", 20))
        array = slurm.jobs.pop(first)
        training = slurm.trainings.pop(first)
        for task in range(1, 25):
            job_id = f"{first}_{task}"
            slurm.jobs[job_id] = replace(array, job_id=job_id, raw_id=array.raw_id + 100_000 + task, array_id=first)
            slurm.trainings[job_id] = replace(training, total=training.total * rng.uniform(0.8, 1.2))


def _submit(
    slurm: _Cluster, rng: random.Random, gpus: int, nodes: int = 1, user: str = "", name: str = "",
    model: tuple[str, int] | None = None,
) -> str:  # fmt: skip
    model, hours = model or rng.choice(_MODELS), rng.choice((0.8, 2.0, 2.0, 4.0, 8.0))
    training = _Training(*model, total=0.0, luck=rng.uniform(0.9, 1.1))
    training.total = float(round(training.rate("v100", gpus * nodes) * 3600 * hours, -1))
    training.fails = training.total * rng.random() if rng.random() < 0.08 else None
    comment = f"hadar:model={model[0]},batch={model[1]},steps={training.total:.0f},ckpt=yes"
    job_id = slurm.submit(
        gpus=gpus, nodes=nodes, comment=comment, user=user or rng.choice(_USERS), num_cpus=6 * gpus * nodes,
        partition="short" if hours < 1.0 and nodes == 1 else "gpu",
        name=name or f"{model[0]}-{rng.choice(('base', 'aug', 'long', 'lr3', 'v2'))}",
    )  # fmt: skip
    slurm.trainings[job_id] = training
    return job_id

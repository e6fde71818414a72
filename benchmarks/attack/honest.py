"""The honest jobs of an episode: short ones that come all the time, and trainings whose result is known."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field

from benchmarks.attack.people import python_of
from benchmarks.attack.stage import Stage
from benchmarks.chaos.chain import result_of
from benchmarks.chaos.jobs import PlainJob

__all__ = ["Honest"]

HADAR = "hadar:model=resnet18,batch=64"
PLAIN = ("--gres=gpu:1", "--requeue", "--mem=100M")


@dataclass
class Honest:
    """``short`` maps a job to its owner; ``chains`` are trainings whose weights are a chain of sums."""

    stage: Stage
    rng: random.Random
    short: dict[str, str] = field(default_factory=dict)
    chains: list[PlainJob] = field(default_factory=list)
    refused: int = 0
    _number: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def ids(self) -> set[str]:
        return {*self.short, *(job.job_id for job in self.chains)}

    def submit_short(self) -> None:
        """One GPU for some seconds. It may be lost and done again, so that it can be moved."""
        user = self.rng.choice(self.stage.steered)
        seconds = self.rng.randrange(6, 14)
        comment, name = f"{HADAR},steps=1000,lose=yes", f"short{next(self._number)}"
        job = self.stage.sbatch(user, f"sleep {seconds}\n", *PLAIN, "--time=10", f"--comment={comment}", f"-J{name}")
        if job:
            self.short[job] = user
        else:
            self.refused += 1

    def submit_chain(self, steps: int) -> None:
        """A training of ``steps`` steps, where its owner can run our commands."""
        user = self.rng.choice(self.stage.steered)
        own = python_of(user)
        if own is None:
            return
        name = f"chain{len(self.chains)}"
        result = self.stage.work[user] / f"{name}.results"
        command = f"{self.stage.agent(user)} {own[0]} -m benchmarks.chaos.chain"
        script = f"trap 'exit 143' TERM\n{command} --steps {steps} --nap 0.1 --result {result} & wait $!\n"
        job = self.stage.sbatch(user, script, *PLAIN, "--time=30", f"--comment={HADAR},steps={steps}", f"-J{name}")
        said = self.stage.work[user] / f"{job}.out"
        self.chains.append(PlainJob(name, job, steps, result_of(steps), result, said, "chain"))

    def come(self, until: float, every_s: float) -> None:
        """Short jobs, one after the other, until the monotonic time ``until``."""
        while time.monotonic() < until:
            self.submit_short()
            time.sleep(every_s * self.rng.uniform(0.5, 1.5))

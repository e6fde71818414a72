"""The jobs of an episode, and what each must come to."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.chaos.chain import result_of
from benchmarks.chaos.stage import ROOT, Stage

__all__ = ["ForkedJob", "PlainJob", "submit_all"]

# A killed program is started again inside the job, as a careful user's script does; a requeue ends all of it. Slurm
# 22.05 sometimes gives a job that it starts in the first seconds after its own start GPUs that no step can have: such a
# job helps itself by going back into the queue.
SCRIPT = """#!/bin/bash
trap 'exit 143' TERM
for try in $(seq 40); do
    hadar-srun -- {command} --result {result} && exit 0
    code=$?
    [ $code = 143 ] && exit 143  # this run is over
    echo "try $try ended with $code"
    sleep 1 & wait $!
    [ $((try % 6)) = 0 ] && scontrol requeue $SLURM_JOB_ID && sleep 30
done
exit $code
"""


@dataclass
class PlainJob:
    """A job whose result is known beforehand, bit by bit."""

    name: str
    job_id: str
    steps: int
    expected: str
    result: Path
    said: Path
    kind: str

    def ends(self) -> list[dict[str, Any]]:
        """What the job's program said each time it came to its end."""
        if not self.result.exists():
            return []
        return [json.loads(line) for line in self.result.read_text().splitlines()]


@dataclass
class ForkedJob:
    """A HadarE job: its copies share the steps. Its weights depend on which copy made which step, so what is promised
    is the number of steps, and that one copy ends the script."""

    job_id: str
    steps: int
    copies: int
    room: Path
    result: Path
    said: list[Path] = field(default_factory=list)

    def ends(self) -> list[dict[str, Any]]:
        if not self.result.exists():
            return []
        return [json.loads(line) for line in self.result.read_text().splitlines()]


def submit_all(
    stage: Stage, seed: int, chains: int, trainings: int, copies: int, nap_s: float
) -> tuple[list[PlainJob], list[ForkedJob]]:
    """Submit the episode's jobs, sizes drawn from its seed."""
    rng = random.Random(seed)
    plain = [_chain(stage, f"chain{i}", rng, nap_s) for i in range(chains)]
    plain += [_training(stage, f"torch{i}", rng) for i in range(trainings)]
    return plain, [_forked(stage, copies, rng)] if copies else []


def _chain(stage: Stage, name: str, rng: random.Random, nap_s: float) -> PlainJob:
    steps = rng.randrange(350, 800)
    command = f"{sys.executable} -m benchmarks.chaos.chain --steps {steps} --nap {nap_s}"
    return _plain(stage, name, steps, result_of(steps), command, rng.choice((1, 1, 2)), "chain")


def _training(stage: Stage, name: str, rng: random.Random) -> PlainJob:
    steps, seed = rng.choice((300, 400)), rng.randrange(3)
    command = f"{sys.executable} -m benchmarks.chaos.training --steps {steps} --seed {seed} --nap 0.08"
    return _plain(stage, name, steps, _weights_of(steps, seed), command, 1, "torch")


def _plain(stage: Stage, name: str, steps: int, expected: str, command: str, gpus: int, kind: str) -> PlainJob:
    result, said = stage.out / f"{name}.results", stage.out / f"{name}.out"
    comment = f"hadar:model=resnet18,batch=64,steps={steps}"
    job_id = _sbatch(stage, name, said, comment, SCRIPT.format(command=command, result=result), f"--gres=gpu:{gpus}")
    return PlainJob(name, job_id, steps, expected, result, said, kind)


def _forked(stage: Stage, copies: int, rng: random.Random) -> ForkedJob:
    steps = rng.choice((900, 1300))
    result = stage.out / "forked.results"
    command = f"{sys.executable} -m benchmarks.chaos.training --steps {steps} --seed 1 --nap 0.03"
    comment = f"hadar:fork=auto,model=resnet18,batch=64,steps={steps},period=2s"
    script = SCRIPT.format(command=command, result=result)
    job_id = _sbatch(
        stage, "forked", stage.out / "forked-%a.out", comment, script, f"--array=0-{copies - 1}", "--gres=gpu:1"
    )
    said = [stage.out / f"forked-{i}.out" for i in range(copies)]
    return ForkedJob(job_id, steps, copies, stage.work / ".hadar" / job_id, result, said)


def _sbatch(stage: Stage, name: str, said: Path, comment: str, script: str, *options: str) -> str:
    argv = ["sbatch", "--parsable", "--requeue", "--open-mode=append", f"--job-name={name}", f"--chdir={stage.work}",
            f"--output={said}", f"--comment={comment}", "--cpus-per-task=1", "--mem=100M", *options]  # fmt: skip
    return stage.cluster.run(argv, input=script, env=stage.environment(), cwd=stage.work).stdout.strip()


@cache
def _weights_of(steps: int, seed: int) -> str:
    """What the undisturbed training gives: run here, without Slurm and controller."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        command = [sys.executable, "-m", "benchmarks.chaos.training", "--steps", str(steps), "--seed", str(seed)]
        subprocess.run([*command, "--result", str(result)], check=True, capture_output=True, cwd=ROOT, timeout=300)
        return str(json.loads(result.read_text())["weights"])

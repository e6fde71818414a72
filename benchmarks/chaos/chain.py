"""A training without PyTorch whose result tells whether each step was made exactly once, and in order.

    hadar-srun -- python -m benchmarks.chaos.chain --steps 400 --nap 0.1 --result FILE

It goes through the training API's own loop: saves on request and by itself, resumes, pauses. Its "weights" are a chain
of SHA-256 sums, one per step, so a step that is left out, made twice or out of order changes the result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.chaos.result import note_end
from benchmarks.fidelity.worker import NoData, OneForAll, StepFile
from slurm_hadar import messages
from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.checkpoint.listing import Checkpoint
from slurm_hadar.runtime.checkpoint.trigger import SaveEvery
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.run import Run
from slurm_hadar.runtime.spec import TrainingSpec

__all__ = ["link_of", "result_of"]

SAVE_EVERY_S = 3.0


class ChainFile(StepFile):
    """A checkpoint file for each run of the job: a run whose node is cut off may go on writing its own, but the next
    run never reads it again."""

    def __init__(self, directory: Path, generation: int, link: Link) -> None:
        super().__init__(directory, generation, 1, link)
        self._directory = directory / "chains"
        self._file = self._directory / f"{generation:04d}.json"

    def resume(self, _parts: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]] | None:
        self._directory.mkdir(exist_ok=True)
        files = sorted(self._directory.glob("*.json"))
        if not files:
            return None
        content = json.loads(files[-1].read_text())
        self.saved_step = content["state"]["step"]
        fresh = self._file.with_suffix(".claim")
        try:  # from now on the older run's file is not read any more
            fresh.write_text(json.dumps(content))
            fresh.replace(self._file)
        except OSError as error:
            raise CheckpointError(f"cannot claim {self._file}: {error.strerror}") from None
        return Checkpoint(content["generation"], content["state"]["step"], files[-1]), content

    def save(self, step: int, parts: dict[str, Any], plain: dict[str, Any], random_states: None, wait: bool) -> None:
        try:
            super().save(step, parts, plain, random_states, wait)
        except OSError as error:
            raise CheckpointError(f"cannot write {self._file}: {error.strerror}") from None


def link_of(before: str, step: int) -> str:
    """The chain after one more step."""
    return hashlib.sha256(f"{before}/{step}".encode()).hexdigest()


def result_of(steps: int) -> str:
    """What an undisturbed run of so many steps gives."""
    chain = ""
    for step in range(steps):
        chain = link_of(chain, step)
    return chain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--nap", type=float, required=True, help="seconds that a step takes")
    parser.add_argument("--hurry", type=Path, help="a file: once it is there, steps take no time any more")
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    directory = messages.job_dir(os.environ)
    if directory is None:
        raise SystemExit("chain: not inside a Slurm job")
    gang: Any = OneForAll(1)
    link = Link(gang, resumable=True)
    saver: Any = ChainFile(directory, messages.restart_count(os.environ), link)
    data: Any = NoData()
    spec = TrainingSpec({}, args.steps, gang, data, {"chain": ""}, {})
    run = Run(spec, SaveEvery(SAVE_EVERY_S), link, saver)
    for _ in run:
        if args.hurry is None or not args.hurry.exists():
            time.sleep(args.nap)
        run.state["chain"] = link_of(run.state["chain"], run.step)
    note_end(args.result, run.step, run.state["chain"])


if __name__ == "__main__":
    main()

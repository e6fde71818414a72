"""A training without PyTorch, light enough for many at once on a small machine.

    hadar-srun -N1 -n1 -- python -m benchmarks.fidelity.worker --steps 600 --workers 2 --load 2 --notes FILE

It goes through the training API's own loop (:class:`slurm_hadar.runtime.training.Run`): steps at the emulated pace,
progress for the agent, saves on request, pauses, resuming. Only what a model would bring is left out: a step computes
nothing, a checkpoint holds the step alone, the time to load a model is slept. One process stands for the whole gang.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_hadar import messages
from slurm_hadar.runtime.checkpoint import Checkpoint
from slurm_hadar.runtime.training import Run

SAVE_EVERY_S = 600.0


class OneForAll:
    """A gang whose workers always agree, since they are one."""

    rank, leads = 0, True

    def __init__(self, world: int) -> None:
        self.world = world

    def agree(self, values: tuple[int, ...]) -> tuple[int, ...]:
        return values

    def share(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.world

    def leave_together(self) -> None:
        """Nobody else is there."""


class NoData:
    """Batches of nothing."""

    epoch = 0

    def next(self) -> None:
        return None

    def position(self) -> dict[str, int]:
        return {"epoch": 0, "index": 0}

    def random_states(self) -> None:
        return None

    def restore(self, position: dict[str, int], states: Any) -> None:
        """There is nothing to go back to."""


class StepFile:
    """The newest checkpoint in one JSON file of the job's directory."""

    def __init__(self, directory: Path, generation: int) -> None:
        self.generation = generation
        self._file = directory / "stand-in.json"

    def claim(self) -> None:
        """The run before is over: Slurm starts a job anew only then."""

    def good(self) -> Iterator[Checkpoint]:
        if self._file.exists():
            content = json.loads(self._file.read_text())
            yield Checkpoint(content["generation"], content["state"]["step"], self._file)

    def load(self, found: Checkpoint) -> dict[str, Any]:
        return dict(json.loads(found.path.read_text()))

    def save(self, step: int, parts: dict[str, Any], world: int) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps({"generation": self.generation, **parts}))
        fresh.replace(self._file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="of the whole job")
    parser.add_argument("--workers", type=int, required=True, help="how many GPUs' worth of workers this stands for")
    parser.add_argument("--load", type=float, default=0.0, help="seconds that loading the model shall take")
    parser.add_argument(
        "--notes", type=Path, required=True, help="file that is told when this starts and when its steps begin"
    )
    args = parser.parse_args()

    _note(args.notes, f"worker {time.time()}")
    time.sleep(args.load)
    directory, batch = messages.job_dir(os.environ), os.environ.get("HADAR_BATCH", "")
    if directory is None:
        raise SystemExit("worker: not inside a Slurm job")
    store = StepFile(directory, messages.restart_count(os.environ))
    workload = (os.environ.get("HADAR_MODEL"), int(batch) if batch else None)
    run = Run({}, args.steps, OneForAll(args.workers), NoData(), {}, SAVE_EVERY_S, None, store, workload, None)
    _note(args.notes, f"steps {time.time()} {run.step}")
    for _ in run:
        pass


def _note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()

"""A training without PyTorch, light enough for many at once on a small machine.

    hadar-srun -N1 -n1 -- python -m benchmarks.fidelity.worker --steps 600 --workers 2 --load 2 --notes FILE

It goes through the training API's own loop (:class:`slurm_hadar.runtime.run.Run`): steps at the emulated pace,
progress for the agent, saves on request, pauses, resuming. Only what a model would bring is left out: a step computes
nothing, a checkpoint holds the step alone, the time to load a model is slept. One process stands for the whole gang.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from slurm_hadar import messages
from slurm_hadar.runtime import emulation
from slurm_hadar.runtime.checkpoint.listing import Checkpoint
from slurm_hadar.runtime.checkpoint.trigger import SaveEvery
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.run import Run
from slurm_hadar.runtime.spec import TrainingSpec

SAVE_EVERY_S = 600.0


class OneForAll:
    """A gang whose workers always agree, since they are one."""

    rank, leads = 0, True

    def __init__(self, world: int) -> None:
        self.world = world

    def steps_until_look(self, every_s: float, per_step_s: float) -> int:
        return 1

    def agree(self, decision: Any) -> Any:
        return decision

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def leave_together(self) -> None:
        """Nobody else is there."""


class NoData:
    """Batches of nothing."""

    epoch = 0
    made_of = None, None
    batch_size = None
    drawn_from = ()
    source = None

    def next(self, within: bool = False) -> None:
        return None

    def position(self) -> dict[str, int]:
        return {"epoch": 0, "index": 0}

    def random_states(self) -> None:
        return None

    def restore(self, position: dict[str, int], states: Any) -> None:
        """There is nothing to go back to."""


class StepFile:
    """The newest checkpoint in one JSON file of the job's directory; stands in for the training API's ``Saver``."""

    def __init__(self, directory: Path, generation: int, workers: int, link: Link) -> None:
        self.saved_step: int | None = None
        self._generation, self._workers, self._link = generation, workers, link
        self._file = directory / "stand-in.json"

    def resume(self, parts: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]] | None:
        """No claim: the run before is over, since Slurm starts a job anew only then."""
        if not self._file.exists():
            return None
        content = json.loads(self._file.read_text())
        self.saved_step = content["state"]["step"]
        return Checkpoint(content["generation"], content["state"]["step"], self._file), content

    def save(self, step: int, parts: dict[str, Any], plain: dict[str, Any], random_states: None, wait: bool) -> None:
        began = time.monotonic()
        fresh = self._file.with_suffix(".new")
        content = {"generation": self._generation, "state": plain, "ranks": [random_states] * self._workers}
        fresh.write_text(json.dumps(content))
        fresh.replace(self._file)
        self.saved_step = step
        self._link.saved(step, self._generation, time.monotonic() - began)

    def begins(self, over: bool) -> None:
        """There is one training in the process."""

    def ended(self) -> None:
        """There is nothing to remember."""

    def wait_written(self) -> None:
        """Nothing is written beside the steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="of the whole job")
    parser.add_argument("--workers", type=int, required=True, help="how many GPUs' worth of workers this stands for")
    parser.add_argument("--load", type=float, default=0.0, help="seconds that loading the model shall take")
    parser.add_argument("--nap", type=float, default=0.0, help="seconds that each step takes beside its pace")
    parser.add_argument(
        "--notes", type=Path, required=True, help="file that is told when this starts and when its steps begin"
    )
    args = parser.parse_args()

    _note(args.notes, f"worker {time.time()}")
    time.sleep(args.load)
    directory, batch = messages.job_dir(os.environ), os.environ.get("HADAR_BATCH", "")
    if directory is None:
        raise SystemExit("worker: not inside a Slurm job")
    pace = emulation.pace_here(args.workers, os.environ.get("HADAR_MODEL"), int(batch) if batch else None, None)
    gang: Any = OneForAll(args.workers)
    link = Link(gang, resumable=True)
    saver: Any = StepFile(directory, messages.restart_count(os.environ), args.workers, link)
    data: Any = NoData()
    spec = TrainingSpec({}, args.steps, gang, data, {}, {}, pace=pace)
    run = Run(spec, SaveEvery(SAVE_EVERY_S), link, saver)
    _note(args.notes, f"steps {time.time()} {run.step}")
    for _ in run:
        time.sleep(args.nap)


def _note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()

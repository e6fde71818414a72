"""Which jobs the demo runs: three families, gangs of 1, 2 and 4, arriving over time, more than fit at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FASTEST_STEPS_PER_S", "JOBS", "NODES", "DemoJob"]

NODES = "v100:1x4,p100:1x4,k80:1x4"
FASTEST_STEPS_PER_S = 10.0


@dataclass(frozen=True)
class DemoJob:
    """``script`` of examples/ for ``steps`` steps on ``workers`` GPUs, submitted ``arrival_s`` after the start.

    ``model`` and ``batch`` name the row of the throughput table whose speeds the job feels on this cluster.
    """

    name: str
    script: str
    model: str
    batch: int
    workers: int
    steps: int
    arrival_s: float

    @property
    def comment(self) -> str:
        return f"hadar:model={self.model},batch={self.batch},steps={self.steps},nodes=1"


def _job(name: str, family: str, workers: int, steps: int, arrival_s: float) -> DemoJob:
    script, model, batch = {
        "cnn": ("cnn.py", "resnet18", 128),
        "lm": ("charlm.py", "lm", 80),
        "rec": ("recommender.py", "recommendation", 2048),
    }[family]
    return DemoJob(name, script, model, batch, workers, steps, arrival_s)


# A morning's queue: in no order that would favour a scheduler, 22 GPUs' worth of jobs for 12 GPUs.
JOBS = (
    _job("lm-a", "lm", 1, 240, 0.0),
    _job("cnn-a", "cnn", 2, 210, 1.0),
    _job("rec-a", "rec", 1, 390, 2.0),
    _job("cnn-b", "cnn", 1, 270, 3.0),
    _job("lm-b", "lm", 4, 150, 4.0),
    _job("rec-b", "rec", 1, 290, 5.0),
    _job("cnn-c", "cnn", 1, 210, 6.0),
    _job("lm-c", "lm", 2, 180, 8.0),
    _job("cnn-d", "cnn", 4, 140, 10.0),
    _job("rec-c", "rec", 1, 340, 12.0),
    _job("lm-d", "lm", 1, 200, 14.0),
    _job("cnn-e", "cnn", 2, 170, 18.0),
    _job("rec-d", "rec", 1, 250, 22.0),
)

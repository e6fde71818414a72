"""Which jobs the demo runs: three families, gangs of 1, 2 and 4, arriving over time, more than fit at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JOBS", "NODES", "DemoJob"]

NODES = "v100:1x4,p100:1x4,k80:1x4"


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


JOBS = (
    _job("lm-a", "lm", 1, 260, 0.0),
    _job("cnn-a", "cnn", 4, 240, 0.5),
    _job("rec-a", "rec", 1, 420, 1.0),
    _job("lm-b", "lm", 2, 240, 1.5),
    _job("cnn-b", "cnn", 2, 260, 2.0),
    _job("rec-b", "rec", 1, 300, 3.0),
    _job("cnn-c", "cnn", 1, 220, 5.0),
    _job("lm-c", "lm", 4, 160, 8.0),
    _job("cnn-d", "cnn", 1, 260, 12.0),
    _job("rec-c", "rec", 1, 360, 16.0),
    _job("cnn-e", "cnn", 2, 200, 20.0),
    _job("lm-d", "lm", 1, 200, 26.0),
)

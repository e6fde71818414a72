"""What happened in one run: sampled from Slurm while it lasts, completed from the jobs' own output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from examples.demo.jobs import DemoJob
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import ClusterState, SlurmJob

__all__ = ["JobTrack", "RunRecord", "final_words", "percentile"]


@dataclass
class Stint:
    """One stay of a job on its nodes, in seconds since the start of the run."""

    nodes: list[str]
    start_s: float
    end_s: float
    over: bool = False


@dataclass
class JobTrack:
    """One job over the run. ``submit_s``, ``end_s`` in seconds since the start; ``result`` is its last line;
    ``start_s``: from its last start to its first step, where a controller was told."""

    name: str
    job_id: str
    workers: int
    steps: int
    submit_s: float
    end_s: float | None = None
    state: str = "pending"
    stints: list[Stint] = field(default_factory=list)
    result: dict[str, object] = field(default_factory=dict)
    moves: int = 0
    lost_steps: float = 0.0
    start_s: float | None = None

    @property
    def jct_s(self) -> float:
        return (self.end_s or 0.0) - self.submit_s


@dataclass
class RunRecord:
    """One run of all jobs: ``nodes`` maps node to (GPU type, count)."""

    policy: str
    nodes: dict[str, tuple[str, int]]
    jobs: dict[str, JobTrack] = field(default_factory=dict)

    def see(self, state: ClusterState, now_s: float) -> None:
        """Take in one reading of Slurm."""
        for job in state.jobs:
            track = self.jobs.get(job.job_id)
            if track is not None and track.end_s is None:
                _see(track, job, now_s)

    @property
    def done(self) -> bool:
        return bool(self.jobs) and all(t.end_s is not None for t in self.jobs.values())

    @property
    def ttd_s(self) -> float:
        """From the first submission to the last end."""
        return max(t.end_s or 0.0 for t in self.jobs.values()) - min(t.submit_s for t in self.jobs.values())

    @property
    def utilisation(self) -> float:
        """Share of all GPU-seconds until the last end in which a job held the GPU."""
        busy = sum((s.end_s - s.start_s) * t.workers for t in self.jobs.values() for s in t.stints)
        return busy / (self.ttd_s * sum(n for _, n in self.nodes.values()))

    def summary(self) -> dict[str, float]:
        times = sorted(t.jct_s for t in self.jobs.values())
        return {
            "avg_jct_s": sum(times) / len(times),
            "p95_jct_s": percentile(times, 0.95),
            "ttd_s": self.ttd_s,
            "gru": self.utilisation,
            "moves": sum(t.moves for t in self.jobs.values()),
            "lost_steps": sum(t.lost_steps for t in self.jobs.values()),
        }

    def as_dict(self) -> dict[str, object]:
        return {
            "policy": self.policy,
            "nodes": self.nodes,
            "summary": self.summary(),
            "jobs": [asdict(t) for t in self.jobs.values()],
        }


def _see(track: JobTrack, job: SlurmJob, now_s: float) -> None:
    """Lengthen the stay the job is in, or begin a new one; a look at a job that does not run ends its stay."""
    track.state = str(job.state)
    last = track.stints[-1] if track.stints and not track.stints[-1].over else None
    if job.state is JobState.RUNNING and (last is None or last.nodes != list(job.nodes) or job.restarts > track.moves):
        if last is not None:
            last.over = True
        track.stints.append(Stint(list(job.nodes), now_s, now_s))
    elif last is not None:
        last.end_s = now_s
        last.over = job.state is not JobState.RUNNING
    track.moves = max(track.moves, job.restarts)
    if not job.state.active:
        track.end_s = now_s


def percentile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation between the closest ranks."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def final_words(path: Path) -> dict[str, object]:
    """The last line of a job's output that says it is done; empty if there is none."""
    if not path.exists():
        return {}
    for line in reversed(path.read_text(errors="replace").splitlines()):
        if line.startswith('{"done"'):
            return dict(json.loads(line))
    return {}


def make_track(job: DemoJob, job_id: str, now_s: float) -> JobTrack:
    return JobTrack(job.name, job_id, job.workers, job.steps, now_s)

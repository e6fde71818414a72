"""What a simulation of one GPU came to."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_hadar.sharing.simulation.trace import NS
from slurm_hadar.sharing.turns import Policy

__all__ = ["JobTimes", "ShareResult"]


@dataclass(slots=True)
class JobTimes:
    """When a job arrived, first had a turn and ended, in nanoseconds."""

    job_id: str
    arrival_ns: int
    first_start_ns: int | None = None
    completion_ns: int | None = None

    @property
    def jct_s(self) -> float:
        """Of a job that has ended."""
        assert self.completion_ns is not None
        return (self.completion_ns - self.arrival_ns) / NS

    @property
    def queueing_s(self) -> float:
        """From arrival to first turn."""
        assert self.first_start_ns is not None
        return (self.first_start_ns - self.arrival_ns) / NS


@dataclass(frozen=True)
class ShareResult:
    """``peak_bytes`` is the most that was reserved, ``lanes_max`` the most lanes at a time, ``switches`` how often a
    lane's turn passed to another job, ``violations`` the events after which the condition on memory did not hold."""

    policy: Policy
    jobs: int
    makespan_ns: int
    times: tuple[JobTimes, ...]
    peak_bytes: int
    lanes_max: int
    switches: int
    violations: int

    def summary(self) -> dict[str, Any]:
        """As ``hadar share simulate --json`` writes it. The makespan is from the first arrival to the last end."""
        jcts = [job.jct_s for job in self.times]
        return {
            "policy": str(self.policy),
            "jobs": self.jobs,
            "makespan_s": self.makespan_ns / NS,
            "avg_jct_s": float(np.mean(jcts)),
            "p95_jct_s": float(np.percentile(jcts, 95)),
            "avg_queueing_s": float(np.mean([job.queueing_s for job in self.times])),
            "peak_bytes": self.peak_bytes,
            "lanes_max": self.lanes_max,
            "switches": self.switches,
            "violations": self.violations,
        }

    def jobs_csv(self) -> str:
        """A line for each job, in order of arrival."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("job_id", "arrival_s", "first_start_s", "completion_s", "jct_s"))
        for job in self.times:
            assert job.first_start_ns is not None and job.completion_ns is not None
            ends = (job.arrival_ns / NS, job.first_start_ns / NS, job.completion_ns / NS)
            writer.writerow((job.job_id, *ends, job.jct_s))
        return out.getvalue()

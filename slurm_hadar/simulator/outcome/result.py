"""What a simulation gives: one object that can be summed up, written out and sent between processes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slurm_hadar.simulator.outcome.metrics import JobRow, busy_seconds, percentile
from slurm_hadar.simulator.virtual.cluster import Interval

if TYPE_CHECKING:
    import pandas

__all__ = ["ClusterShape", "RoundRow", "Setting", "SimResult"]

_CSV = ("job_id", "arrival_s", "first_start_s", "completion_s", "jct_s", "restarts", "moves", "queueing_s", "gpus",
        "model", "batch", "user", "account", "isolated_s", "rho", "counted")  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundRow:
    """The cluster right after one round: jobs that are active, those that run, GPUs busy per type."""

    time_s: float
    active: int
    running: int
    busy: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The cluster: what was asked for as ``type:nodesxGPUs,...``, GPUs per type, and nodes in all."""

    spec: str
    gpus: Mapping[str, int]
    nodes: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What was simulated: a policy with its parameters, on a trace and a cluster. ``round_s``: length of a round."""

    policy: str
    params: Mapping[str, Any]
    seed: int
    trace: str
    model: str
    round_s: float
    cluster: ClusterShape


@dataclass(frozen=True)
class SimResult:
    """One policy on one trace.

    ``decide_s`` is the CPU time of each decision. ``end_s`` is when the simulation ended on the trace's clock.
    ``unfinished`` maps jobs to the reason why they were not done. ``sharing`` says, where GPUs were given to two jobs,
    how (``share``, ``slow_down``), how often a job became another's guest (``pairs``), and for how many seconds GPUs
    had two or more (``shared_gpu_s``) and, where any had, more than two (``crowded_gpu_s``). ``bounds`` has the lower
    bounds that were asked for.
    """

    setting: Setting
    jobs: tuple[JobRow, ...]
    rounds: tuple[RoundRow, ...]
    intervals: tuple[Interval, ...]
    decide_s: tuple[float, ...]
    end_s: float
    unfinished: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)
    sharing: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def counted(self) -> tuple[JobRow, ...]:
        """The jobs that are measured and were done."""
        return tuple(j for j in self.jobs if j.counted and j.completion_s is not None)

    def summary(self) -> dict[str, Any]:
        """The keys of ``hadar simulate --json``; None where nothing was done that could be measured."""
        setting, done = self.setting, self.counted
        jcts = [j.jct_s for j in done if j.jct_s is not None]
        rhos = [j.rho for j in done if j.rho is not None]
        return {
            "policy": setting.policy,
            "params": dict(setting.params),
            "seed": setting.seed,
            "cluster": setting.cluster.spec,
            "model": setting.model,
            "trace": setting.trace,
            "round_s": setting.round_s,
            "jobs": len(done),
            "avg_jct_s": _mean(jcts),
            "p50_jct_s": percentile(jcts, 0.5),
            "p95_jct_s": percentile(jcts, 0.95),
            "p99_jct_s": percentile(jcts, 0.99),
            "max_jct_s": max(jcts, default=None),
            "ttd_s": self._ttd_s(),
            **self._utilisation(),
            "avg_queueing_s": _mean([j.queueing_s for j in done if j.queueing_s is not None]),
            "ftf_mean": _mean(rhos),
            "ftf_max": max(rhos, default=None),
            "rounds": len(self.rounds),
            **self._changes(),
            "deadlines_missed": self._late(),
            "decide_total_s": sum(self.decide_s),
            "decide_mean_s": _mean(self.decide_s) or 0.0,
            "decide_max_s": max(self.decide_s, default=0.0),
            "lower_bound_ttd_s": self.bounds.get("ttd_s"),
            "lower_bound_avg_jct_s": self.bounds.get("avg_jct_s"),
            "unfinished": dict(self.unfinished),
            "assumptions": list(self.assumptions),
            **({"sharing": dict(self.sharing)} if self.sharing else {}),
        }

    def _changes(self) -> dict[str, Any]:
        """How often jobs were started again and moved, and what failures cost them."""
        done = self.counted
        return {
            "restarts": sum(j.restarts for j in done),
            "moves": sum(j.moves for j in done),
            "moves_per_job": _mean([float(j.moves) for j in done]),
            "restarts_per_job": _mean([float(j.restarts) for j in done]),
            "lost_steps": sum(j.lost_steps for j in done),
        }

    def _ttd_s(self) -> float | None:
        done = self.counted
        if not done:
            return None
        return max(j.completion_s for j in done if j.completion_s is not None) - min(j.arrival_s for j in done)

    def _utilisation(self) -> dict[str, Any]:
        """Over the time in which there were jobs: idle gaps between arrivals are nobody's to use."""
        span_s, cluster = self._active_s(), self.setting.cluster
        by_type, node_s = busy_seconds(self.intervals)
        if span_s <= 0:
            return {"gru": None, "cru": None, "utilisation": dict.fromkeys(cluster.gpus)}
        return {
            "gru": sum(by_type.values()) / (sum(cluster.gpus.values()) * span_s),
            "cru": node_s / (cluster.nodes * span_s),
            "utilisation": {t: by_type.get(t, 0.0) / (n * span_s) for t, n in cluster.gpus.items()},
        }

    def _active_s(self) -> float:
        """The time from first arrival to end, less the spans in which no job was there."""
        spans = sorted(
            (j.arrival_s, self.end_s if j.completion_s is None else j.completion_s)
            for j in self.jobs
            if j.arrival_s < self.end_s and j.job_id not in self._refused
        )
        total, reached = 0.0, -float("inf")
        for start, end in spans:
            if end > reached:
                total += end - max(start, reached)
                reached = end
        return total

    @property
    def _refused(self) -> frozenset[str]:
        """Jobs that no policy was shown, since they fit nowhere."""
        return frozenset(j.job_id for j in self.jobs if j.job_id in self.unfinished and j.first_start_s is None)

    def _late(self) -> int:
        """The virtual clock counts epoch seconds, as numbers 2e-6 s apart at worst: who ends just in time is not late
        by that."""
        return sum(1 for j in self.counted if j.deadline_s is not None and (j.jct_s or 0.0) > j.deadline_s + 1e-5)

    def jobs_csv(self) -> str:
        """One line per measured job, with a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CSV)
        for values in self._rows():
            writer.writerow(["" if v is None else v for v in values])
        return text.getvalue()

    def frame(self) -> pandas.DataFrame:
        """The same as a table for notebooks, by job id; times in seconds. Needs pandas (slurm_hadar[simulator])."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(_CSV)).set_index("job_id")

    def _rows(self) -> list[list[Any]]:
        return [[getattr(job, name) for name in _CSV] for job in self.jobs if job.counted]


def _mean(values: Any) -> float | None:
    return sum(values) / len(values) if len(values) else None

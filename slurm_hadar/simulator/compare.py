"""Several policies on one trace: simulated side by side in processes of their own, and put together in one document.

The document is plain data (:func:`document`), so that pictures and pages are made from it and from a file of it alike.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Any

from slurm_hadar.errors import ConfigError, HadarError, TraceError
from slurm_hadar.policies import registry
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.processes import CONTEXT, pool
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.traces.model import Trace
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["KIND", "Comparison", "Contender", "compare", "document", "read_contenders"]

KIND = "slurm_hadar comparison"
_TELL_EVERY_S = 0.2
_JOB_FIELDS = ("job_id", "model", "gpus", "arrival_s", "first_start_s", "completion_s", "jct_s", "queueing_s", "rho",
               "restarts", "moves", "user", "account", "counted")  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """A policy with its parameters; ``label`` is how the user wrote it: ``hadar:frontier=0.5``."""

    name: str
    params: Mapping[str, str]

    @property
    def label(self) -> str:
        return ":".join([self.name, *(f"{k}={v}" for k, v in self.params.items())])


@dataclass
class Comparison:
    """What came of it, in the order of the contenders: results by label, one line for each policy that failed, and the
    lower bounds if they were asked for, or why there are none (``unbounded``)."""

    results: dict[str, SimResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    unbounded: str = ""


def read_contenders(text: str) -> list[Contender]:
    """``a,b:key=value:key=value`` as policies. Raises ConfigError for an unknown policy or parameter, or one named
    twice."""
    found: dict[str, Contender] = {}
    for part in text.split(","):
        name, *settings = part.strip().split(":")
        params = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or not key:
                raise ConfigError(f"policy {part.strip()!r}: {setting!r} must read key=value, as in hadar:frontier=0.5")
            params[key] = value
        registry.get(name, **params)
        contender = Contender(name, params)
        if contender.label in found:
            raise ConfigError(f"policy {contender.label} stands twice")
        found[contender.label] = contender
    return list(found.values())


def compare(
    trace: Trace,
    contenders: Sequence[Contender],
    options: SimOptions,
    table: ReferenceTable,
    processes: int,
    on_progress: Callable[[str, int, int], None] | None = None,
    bounds: bool = False,
) -> Comparison:
    """Simulate ``trace`` under each contender, at most ``processes`` at a time, and solve for lower bounds beside them.

    ``on_progress`` is told (label, measured jobs done, measured jobs). A policy that fails does not stop the others.
    """
    told = CONTEXT.Queue() if on_progress is not None else None
    outcome = Comparison()
    with pool(processes, _begin, told) as workers:
        running = {workers.submit(_one, c, trace, options, table): c.label for c in contenders}
        solving = workers.submit(bounds_of, trace, options, table) if bounds else None
        _follow(running, told, on_progress, outcome)
        try:
            outcome.bounds = solving.result() if solving else {}
        except TraceError as error:
            outcome.unbounded = str(error)
    order = [c.label for c in contenders]
    done = [label for label in order if label in outcome.results]
    outcome.results = {label: replace(outcome.results[label], bounds=outcome.bounds) for label in done}
    return outcome


def _follow(
    running: Mapping[Future[SimResult], str],
    told: Any,
    on_progress: Callable[[str, int, int], None] | None,
    outcome: Comparison,
) -> None:
    left = set(running)
    while left:
        done, left = wait(left, timeout=_TELL_EVERY_S)
        while on_progress is not None:
            try:
                on_progress(*told.get_nowait())
            except Empty:
                break
        for future in done:
            label = running[future]
            try:
                result = outcome.results[label] = future.result()
            except HadarError as error:
                outcome.failed[label] = str(error)
            else:
                if on_progress is not None:
                    on_progress(label, len(result.counted), len(result.counted))


_told: Any = None


def _begin(told: Any) -> None:
    global _told  # a queue can be handed to a worker only when it starts
    _told = told
    if told is not None:
        told.cancel_join_thread()  # words that nobody reads any more must not keep a worker from ending


def _one(contender: Contender, trace: Trace, options: SimOptions, table: ReferenceTable) -> SimResult:
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _TELL_EVERY_S:
            last = now
            _told.put((contender.label, done, total))

    policy = registry.get(contender.name, **contender.params)
    return simulate(trace, policy, options, table, contender.params, tell if _told is not None else None)


def document(comparison: Comparison, command: str, created: float, assumptions: Iterable[str] = ()) -> dict[str, Any]:
    """Everything that pictures and pages need, as plain data for JSON.

    ``command`` is what was typed, ``created`` epoch seconds. Per policy: the summary of ``hadar simulate --json``, its
    ``label``, ``job_rows`` (fields in ``job_fields``) and ``intervals`` (job, node, GPU type, GPUs, start, end; seconds
    on the trace's clock). Raises ConfigError if no policy came to an end.
    """
    if not comparison.results:
        raise ConfigError("; ".join(f"{label}: {why}" for label, why in comparison.failed.items()))
    *_, last = comparison.results.values()  # not what happened, which was no simulation
    setting, cluster = last.setting, last.setting.cluster
    lines = dict.fromkeys([*assumptions, *(line for r in comparison.results.values() for line in r.assumptions)])
    return {
        "kind": KIND,
        "version": 1,
        "command": command,
        "created": dt.datetime.fromtimestamp(created, dt.UTC).isoformat(timespec="seconds"),
        "trace": setting.trace,
        "cluster": cluster.spec,
        "model": setting.model,
        "round_s": setting.round_s,
        "seed": setting.seed,
        "gpus": dict(cluster.gpus),
        "nodes": cluster.nodes,
        "bounds": dict(comparison.bounds),
        "assumptions": list(lines),
        "failed": dict(comparison.failed),
        "job_fields": list(_JOB_FIELDS),
        "policies": [_policy(label, result) for label, result in comparison.results.items()],
    }


def _policy(label: str, result: SimResult) -> dict[str, Any]:
    return {
        **result.summary(),
        "label": label,
        "job_rows": [[getattr(job, name) for name in _JOB_FIELDS] for job in result.jobs],
        "intervals": [
            [i.job_id, i.node, i.gpu_type, i.count, round(i.start_s, 1), round(i.end_s, 1)] for i in result.intervals
        ],
    }

"""In the private cluster there are no GPUs: there, and only there, steps are slowed to the emulated speed.

``hadar-cluster.json`` beside slurm.conf says so::

    {"version": 1, "cluster": NAME, "nodes": {"v100-1": {"v100": 4}},
     "speeds": {"resnet18:64": {"v100": {"1": {"one_node": 20.0}, "2": {"one_node": 18.0, "spread": 12.0}}}},
     "default": {"v100": 1.0, "k80": 0.2}, "fastest_steps_per_s": 20.0, "batch_exponent": 0.6}

``speeds`` are steps per second of the whole synchronous job, by workload, GPU type, number of workers, placement.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime.tasks import nodelist

__all__ = ["CLUSTER_FILE", "Pace", "emulated_steps_per_s", "find_cluster", "pace_here"]

CLUSTER_FILE = "hadar-cluster.json"


def find_cluster(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The description of the private cluster that this process runs in, or None anywhere else.

    All three must hold: the file stands beside ``$SLURM_CONF``, it names ``$SLURM_CLUSTER_NAME``, and
    ``$SLURMD_NODENAME`` is one of its nodes. So a file left behind, or copied to a real cluster, slows nothing down.
    """
    if not environ.get("SLURM_CONF"):
        return None
    path = Path(environ["SLURM_CONF"]).parent / CLUSTER_FILE
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        say(f"{path} cannot be read, steps run unpaced: {error}")
        return None
    if not isinstance(content, dict) or content.get("version") != 1:
        return None
    named = content.get("cluster") == environ.get("SLURM_CLUSTER_NAME")
    return content if named and environ.get("SLURMD_NODENAME") in content.get("nodes", {}) else None


def emulated_steps_per_s(
    cluster: Mapping[str, Any],
    node_name: str,
    workers: int,
    spread: bool,
    model: str | None,
    batch: int | None,
    worker_batch: int | None = None,
) -> float:
    """Rate that a worker on ``node_name`` keeps up with: that of a gang of ``workers`` of its GPU type.

    ``spread``: the gang is on several nodes. On a node of several types a worker counts as of the slowest. Workers of
    unlike types really wait for each other, in their collectives, so a gang goes at the rate of its slowest type.
    ``batch`` names the workload; where a worker's batch is another now (``worker_batch``: an elastic gang that shares
    its global batch), the rate goes with the batch to the power of minus ``batch_exponent``. A number of workers that
    is not listed goes by the next smaller one that is. A workload that is not listed goes at ``fastest_steps_per_s``
    times the type's ``default``. Our definition.
    """
    types = cluster["nodes"].get(node_name, {})
    rates = [_rate(cluster, t, workers, spread, model, batch) for t in types]
    rate = min(rates, default=float(cluster["fastest_steps_per_s"]))
    if batch and worker_batch:
        rate *= (batch / worker_batch) ** float(cluster.get("batch_exponent", 0.0))
    return rate


def _rate(
    cluster: Mapping[str, Any], gpu_type: str, workers: int, spread: bool, model: str | None, batch: int | None
) -> float:
    speeds = cluster["speeds"]
    known = speeds.get(f"{model}:{batch}") or speeds.get(model) or {}
    by_workers = known.get(gpu_type)
    if not by_workers:
        return float(cluster["fastest_steps_per_s"]) * float(cluster["default"].get(gpu_type, 1.0))
    listed = sorted(int(w) for w in by_workers)
    nearest = max((w for w in listed if w <= workers), default=listed[0])
    places = by_workers[str(nearest)]
    place = "spread" if spread and "spread" in places else "one_node"
    return float(places[place] if place in places else next(iter(places.values())))


class Pace:
    """Keeps a loop to ``steps_per_s`` by a schedule, not by equal sleeps: short delays do not add up.

    What was lost is not caught up, except for one step's time. ``exponent``: a step's time goes with the batch to the
    power of it.
    """

    def __init__(self, steps_per_s: float, exponent: float = 0.0) -> None:
        self.period_s = 1.0 / steps_per_s
        self._exponent = exponent
        self._paused: float | None = None
        self.restart()

    def restart(self) -> None:
        """Begin the schedule anew, after a save or a pause."""
        self._ended = time.monotonic()
        if self._paused is not None:
            self._paused = self._ended

    def wait(self, load: float = 1.0) -> None:
        """Sleep until the present step's time is over; its batch is ``load`` times the one that the rate is for."""
        period = self.period_s * load**self._exponent
        now = time.monotonic()
        due = self._ended + period
        if now < due:
            time.sleep(due - now)
        self._ended = max(due, now - period)

    def pause(self) -> None:
        """The worker waits for others from now on: its time stands still."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """The worker goes on."""
        if self._paused is not None:
            self._ended += time.monotonic() - self._paused
            self._paused = None


def pace_here(workers: int, model: str | None, batch: int | None, worker_batch: int | None = None) -> Pace | None:
    """The pace for this process, or None outside a private cluster."""
    cluster = find_cluster(os.environ)
    if cluster is None:
        return None
    spread = len(nodelist.expand(os.environ.get("SLURM_JOB_NODELIST", ""))) > 1
    node = os.environ["SLURMD_NODENAME"]
    try:
        rate = emulated_steps_per_s(cluster, node, workers, spread, model, batch, worker_batch)
        return Pace(rate, float(cluster.get("batch_exponent", 0.0)))
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        # a file of another version, say: the private cluster is then of less use, but its jobs run
        say(f"{CLUSTER_FILE} is not understood, steps run unpaced: {error!r}")
        return None

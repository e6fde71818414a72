"""What the private cluster's GPUs pretend to be worth: ``hadar-cluster.json`` beside its slurm.conf.

The training API reads the file inside a job and paces its steps by it, so that a cluster of symlinks to /dev/null shows
the speeds of real GPUs. Our definition, from the published table (:mod:`slurm_hadar.throughput.table`):

* each workload is scaled by one factor, so that its fastest single-GPU rate becomes ``fastest_steps_per_s``;
* a gang never steps faster than one GPU of its type, since at a fixed batch per worker a synchronous step has the same
  work plus communication; the few published figures that say otherwise are noise and are clamped;
* nor does a gang spread over nodes step faster than one on a single node.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_hadar.cluster.spec import VirtualNode
from slurm_hadar.throughput.inference import BATCH_EXPONENT
from slurm_hadar.throughput.table import ReferenceTable, reference, workload

__all__ = ["FILE", "default_factors", "document", "speeds", "write"]

FILE = "hadar-cluster.json"
Speeds = dict[str, dict[str, dict[str, dict[str, float]]]]


def speeds(table: ReferenceTable, fastest_steps_per_s: float) -> Speeds:
    """{workload: {GPU type: {"gpus": {"one_node": steps/s, "spread": steps/s}}}} for all the table knows."""
    found: Speeds = {}
    for model in table.models:
        for batch in table.batches(model):
            single = {t: r for t in table.gpu_types if (r := table.steps_per_s(model, batch, t)) is not None}
            if single:
                scale = fastest_steps_per_s / max(single.values())
                found[workload(model, batch)] = {t: _by_gpus(table, model, batch, t, scale) for t in single}
    return found


def _by_gpus(
    table: ReferenceTable, model: str, batch: int | None, gpu_type: str, scale: float
) -> dict[str, dict[str, float]]:
    counts = sorted({r.gpus for r in table.rows if (r.model, r.batch, r.gpu_type) == (model, batch, gpu_type)})
    most = table.steps_per_s(model, batch, gpu_type) or 0.0
    found: dict[str, dict[str, float]] = {}
    for gpus in counts:
        one_node = min(most, table.steps_per_s(model, batch, gpu_type, gpus) or most)
        rates = {"one_node": round(one_node * scale, 6)}
        spread = table.steps_per_s(model, batch, gpu_type, gpus, spread=True)
        if spread is not None:
            rates["spread"] = round(min(one_node, spread) * scale, 6)
        found[str(gpus)] = rates
    return found


def default_factors(table: ReferenceTable, gpu_types: Sequence[str]) -> dict[str, float]:
    """Speed of each type relative to the fastest known, for models the table lacks: the median over workloads.

    Types the table does not know count as 1.0: nothing is known that would slow them.
    """
    ratios: dict[str, list[float]] = {}
    for model in table.models:
        for batch in table.batches(model):
            single = {t: r for t in table.gpu_types if (r := table.steps_per_s(model, batch, t)) is not None}
            for name, rate in single.items():
                ratios.setdefault(name, []).append(rate / max(single.values()))
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    best = max(medians.values(), default=1.0)
    return {name: round(medians.get(name, best) / best, 6) for name in gpu_types}


def document(
    cluster_name: str, nodes: Sequence[VirtualNode], fastest_steps_per_s: float, table: ReferenceTable
) -> dict[str, Any]:
    """The file's content. ``cluster`` must equal a job's SLURM_CLUSTER_NAME for the file to count."""
    types = tuple(dict.fromkeys(t for node in nodes for t in node.gpus))
    everything = speeds(table, fastest_steps_per_s)
    return {
        "version": 1,
        "cluster": cluster_name,
        "created": time.time(),
        "fastest_steps_per_s": fastest_steps_per_s,
        "batch_exponent": BATCH_EXPONENT,
        "nodes": {node.name: dict(node.gpus) for node in nodes},
        "speeds": {w: {t: by for t, by in by_type.items() if t in types} for w, by_type in everything.items()},
        "default": default_factors(table, types),
    }


def write(
    folder: Path,
    cluster_name: str,
    nodes: Sequence[VirtualNode],
    fastest_steps_per_s: float,
    table: ReferenceTable | None = None,
) -> Mapping[str, Any]:
    """Write the file into ``folder`` (that of slurm.conf) and return its content."""
    content = document(cluster_name, nodes, fastest_steps_per_s, table or reference())
    path = folder / FILE
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    path.chmod(0o644)
    return content

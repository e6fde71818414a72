"""Workloads of the throughput table that traces without models can be given."""

from __future__ import annotations

import statistics

from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["REFERENCE_TYPE", "gang_workloads"]

REFERENCE_TYPE = "v100"


def gang_workloads(table: ReferenceTable) -> dict[tuple[str, int | None], float]:
    """Workloads with published rates of gangs on a V100, each with its mean rate spread over nodes over that on one:
    the lower, the more it communicates. In order of name and batch; empty if the table has none."""
    found = {}
    for model, batch in sorted({(r.model, r.batch) for r in table.rows}, key=lambda w: (w[0], w[1] or 0)):
        ratios = []
        for gpus in (2, 4, 8):
            near = table.steps_per_s(model, batch, REFERENCE_TYPE, gpus)
            far = table.steps_per_s(model, batch, REFERENCE_TYPE, gpus, spread=True)
            if near and far:
                ratios.append(far / near)
        if ratios and table.steps_per_s(model, batch, REFERENCE_TYPE):
            found[model, batch] = statistics.fmean(ratios)
    return found

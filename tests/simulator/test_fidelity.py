"""One trace on a real Slurm under the real controller, and in the simulator: the same completion times."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fidelity.compare import Costs, figures, trace_as_run, virtual
from benchmarks.fidelity.real import run_for_real
from benchmarks.fidelity.scene import RESTART_S, config_toml, emulated_table
from slurm_hadar.simulator.traces import Trace, TraceJob

pytestmark = pytest.mark.slurm

NODES = "v100:1x4,k80:1x4"
# Some 3 % on a quiet machine. A simulator that knows neither costs nor what Slurm does by itself is 28 % off.
BOUND = 0.2
# (model, batch, GPUs, seconds on V100s, arrival): most arrive, and are started by Slurm, at the begin of a 5 s round
JOBS = (
    ("transformer", 16, 1, 14.0, 0.5), ("lm", 80, 1, 18.0, 1.0), ("resnet18", 128, 2, 12.0, 5.6),
    ("lm", 80, 1, 12.0, 6.1), ("transformer", 16, 2, 15.0, 10.6), ("resnet18", 128, 1, 10.0, 11.1),
    ("transformer", 16, 1, 12.0, 15.6),
)  # fmt: skip


def trace() -> Trace:
    table, jobs = emulated_table(), []
    for number, (model, batch, gpus, run_s, arrival_s) in enumerate(JOBS):
        steps = round(run_s * table.steps_per_s(model, batch, "v100", gpus))
        jobs.append(TraceJob(f"j{number}", arrival_s, model, batch, gpus, float(steps), nodes=(1, 1)))
    return Trace("seven jobs", "csv", tuple(jobs))


def test_the_simulator_foretells_a_real_cluster(short_tmp: Path) -> None:
    """Seven jobs of some twenty seconds that are started by Slurm, moved by the controller, and made to wait."""
    config = short_tmp / "config.toml"
    config.write_text(config_toml(round_s=5.0, event_round_s=0.0, min_run_s=3.0))

    run = run_for_real(trace(), "hadar", config, short_tmp / "real", longest_s=240.0, nodes=NODES, load_s=0.5)
    costs = Costs.measured(run, RESTART_S)
    result = virtual(trace_as_run(trace(), run), "hadar", NODES, config, costs, emulated_table())
    found = figures(run, result, costs)

    assert found["jobs"] == len(JOBS) and found["real_moves"] > 0
    assert found["mean_error"] < BOUND, found
    assert found["sim_avg_jct_s"] == pytest.approx(found["real_avg_jct_s"], rel=BOUND)

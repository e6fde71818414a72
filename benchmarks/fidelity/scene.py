"""What is run: jobs, GPUs, speeds, and the settings that the live controller and the simulator share."""

from __future__ import annotations

import random
from collections.abc import Iterable

from slurm_hadar.cluster.emulation import speeds
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import ReferenceTable, Row, reference

__all__ = ["FASTEST_STEPS_PER_S", "LOAD_S", "NODES", "RESTART_S", "config_toml", "draw", "emulated_table", "table_csv"]

RESTART_S = 3.5  # what policies suppose that a move costs, on both sides
NODES = "v100:2x4,p100:2x4,k80:2x4"
FASTEST_STEPS_PER_S = 40.0
LOAD_S = 2.0
# ratios of 1 : 0.86 : 0.49, 1 : 0.75 : 0.21 and 1 : 0.65 : 0.10 on V100, P100 and K80
FAMILIES = (("transformer", 16), ("lm", 80), ("resnet18", 128))
GANGS, GANG_WEIGHTS = (1, 2, 4), (0.6, 0.25, 0.15)

_CONFIG = """\
[controller]
mode = "act"
round_s = {round_s:g}
event_round_s = {event_round_s:g}

[guard]
min_run_s = {min_run_s:g}

[jobs]
ack_timeout_s = 15
start_timeout_s = 4
"""


def draw(jobs: int, over_s: float, seed: int, run_s: tuple[float, float] = (30.0, 120.0)) -> Trace:
    """Jobs of three families that arrive at random times within ``over_s`` seconds and take ``run_s`` seconds, drawn
    uniformly, on V100s."""
    rng = random.Random(seed)
    table = emulated_table()
    arrivals = sorted(round(rng.uniform(0.5, over_s), 1) for _ in range(jobs))
    drawn = []
    for index, arrival_s in enumerate(arrivals):
        model, batch = FAMILIES[index % len(FAMILIES)]
        (gpus,) = rng.choices(GANGS, GANG_WEIGHTS)
        rate = table.steps_per_s(model, batch, "v100", gpus) or FASTEST_STEPS_PER_S
        steps = round(rng.uniform(*run_s) * rate)
        drawn.append(TraceJob(f"j{index:02d}", arrival_s, model, batch, gpus, float(steps), nodes=(1, 1)))
    return Trace(f"{jobs} jobs, seed {seed}", "csv", tuple(drawn))


def emulated_table() -> ReferenceTable:
    """What the private cluster's GPUs are worth, as the throughput table of a simulation."""
    rows = []
    for workload, by_type in speeds(reference(), FASTEST_STEPS_PER_S).items():
        model, _, batch = workload.partition(":")
        for gpu_type, by_gpus in by_type.items():
            for gpus, places in by_gpus.items():
                for place, rate in places.items():
                    rows.append(Row(model, int(batch) if batch else None, int(gpus), gpu_type, place == "spread", rate,
                                    "emulated"))  # fmt: skip
    return ReferenceTable(rows)


def table_csv(table: ReferenceTable, models: Iterable[str]) -> str:
    """The table's rows of these models in the format that ``hadar simulate --throughputs`` reads."""
    wanted = {*models}
    lines = ["model,batch,gpus,gpu_type,placement,steps_per_s,source"]
    for row in table.rows:
        if row.model in wanted:
            place = "spread" if row.spread else "one_node"
            lines.append(f"{row.model},{row.batch or ''},{row.gpus},{row.gpu_type},{place},{row.steps_per_s},emulated")
    return "\n".join(lines) + "\n"


def config_toml(round_s: float, event_round_s: float, min_run_s: float) -> str:
    """The controller's configuration file, which ``hadar simulate --config`` reads as well."""
    return _CONFIG.format(round_s=round_s, event_round_s=event_round_s, min_run_s=min_run_s)

"""The same jobs on a Slurm (in memory) and on the virtual cluster are decided alike: it is the same loop."""

from __future__ import annotations

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.policies import registry
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.testing.fake_slurm import FakeSlurm

WORK = [("resnet18", 64, 1, 200000), ("lm", 20, 2, 90000), ("transformer", 64, 4, 70000), ("resnet50", 64, 2, 30000),
        ("recommendation", 2048, 1, 50000), ("resnet18", 128, 4, 800000), ("lm", 80, 1, 900000)]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("movable", "comment"), [(True, ",ckpt=yes"), (False, "")])
@pytest.mark.parametrize(
    ("policy", "params"),
    [("fifo", {}), ("hadar", {}), pytest.param("hadar", {"patience_s": 36000.0}, marks=pytest.mark.thorough)],
)
def test_slurm_and_the_simulator_agree_on_who_starts_where(
    policy: str, params: dict[str, float], movable: bool, comment: str
) -> None:
    slurm = FakeSlurm({"k80-1": ("k80", 4), "v100-1": ("v100", 4)})
    jobs = []
    for model, batch, gpus, steps in WORK:
        job_id = slurm.submit(gpus=gpus, comment=f"hadar:model={model},batch={batch},steps={steps}{comment}")
        terms = {"nodes": (1, 1), "restart_s": 30.0, "movable": movable}
        jobs.append(TraceJob(job_id, 0.0, model, batch, gpus, float(steps), **terms))
    config = load(None, ["controller.mode=act", f"policy.name={policy}"])

    live = steer(registry.get(policy, **params), config, Parts(slurm, Journal(":memory:"))).run_round()
    virtual = simulate(
        Trace("t", "csv", tuple(jobs)), registry.get(policy, **params), SimOptions("k80:1x4,v100:1x4", max_rounds=1)
    )

    started = {c.job_id: c.new for c in live.changes if c.kind == "start"}
    held = {(i.job_id, i.node, i.gpu_type, i.count) for i in virtual.intervals}
    assert held == {(job, node, t, n) for job, place in started.items() for node, t, n in place.items()}
    assert len(started) >= 2

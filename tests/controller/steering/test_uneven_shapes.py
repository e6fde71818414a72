"""Jobs whose owners asked for a number of GPUs that no equal share of their nodes comes to."""

from __future__ import annotations

from dataclasses import replace

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering import writes
from slurm_hadar.slurm.state import GpuRequest
from slurm_hadar.testing.fake_slurm import FakeSlurm


def test_a_job_put_off_loses_no_gpu_that_its_nodes_do_not_share_equally() -> None:
    """``--gpus=3 --nodes=2`` with ``nodes=1-2``, last placed on one node: one GPU on each of two would be too few."""
    slurm = FakeSlurm({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = slurm.submit(gpus=3, comment="hadar: nodes=1-2")
    placed = replace(slurm.jobs[job], gpus=(GpuRequest("node", (("", 3),)),))
    record = JobRecord(job, workers=3, nodes=2, tasks=2, cpus=2, steered=True)
    for write in (writes.defer(placed, record, 60.0), writes.give_back(placed, record), writes.free(placed, record)):
        assert "TresPerNode" not in dict(write.fields) and ("NodeList", "") in write.fields

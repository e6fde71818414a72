"""Jobs that wait under limits of Slurm."""

from __future__ import annotations

from dataclasses import replace

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.slurm.state import (
    SlurmJob,
)
from slurm_hadar.testing.fake_slurm import FakeSlurm

FAKE = FakeSlurm({"v100-1": ("v100", 4)})
RECORD = JobRecord("1", workers=2, nodes=1, tasks=1, cpus=4)


def job(**fields: object) -> SlurmJob:
    """Two GPUs and four CPUs of eve's, under QOS small."""
    made = FAKE.jobs[FAKE.submit(2)]
    given = {"user": "eve", "uid": 1001, "qos": "small", "account": "lab", "num_cpus": 4, "memory_bytes": 4 << 30}
    return replace(made, **{**given, **fields})

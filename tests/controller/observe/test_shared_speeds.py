"""What jobs with shards of a GPU report of their speeds, and beside whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_hadar.throughput.profiles import ProfileStore
from tests.controller.scripted import report


def test_speeds_are_filed_by_company_and_belief(bench: Callable[..., Any]) -> None:
    """Company of other users, on other nodes, of jobs that are not there, or of several jobs counts for nothing."""
    b = bench({"v100-1": ("v100", 2), "v100-2": ("v100", 2)})
    ours, mate, afar, foreign = (
        b.slurm.submit(comment=f"hadar:model=m{n},batch=8", gpus=0, shares="shard:1", user=user)
        for n, user in enumerate(("alice", "alice", "alice", "bob"))
    )
    for job in (ours, mate, foreign):
        b.slurm.start(job, "v100-1")
    b.slurm.start(afar, "v100-2")
    for company, rate in (("", 8.0), (mate, 5.0), (afar, 1.0), (foreign, 1.0), ("999", 1.0), (f"{mate}+{afar}", 1.0)):
        report(b, ours, steps=10, steps_per_s=rate, beside=company)
    report(b, mate, steps=10, steps_per_s=2.0)  # whose company is not known

    b.controller.run_round()

    told = ProfileStore(b.journal.connection).everything()
    assert [(p.workload, p.beside, p.gpu_type, p.user, p.steps_per_s, p.keeps) for p in told] == [
        ("m0:8", "", "v100", "alice", 8.0, 1.0),
        ("m0:8", "m1:8", "v100", "alice", 5.0, 0.625),
    ]

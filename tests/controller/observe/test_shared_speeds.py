"""What jobs with shards of a GPU report of their speeds, and beside whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_hadar.throughput.profiles import ProfileStore
from tests.controller.scripted import report


def test_speeds_are_filed_by_company_and_belief(bench: Callable[..., Any]) -> None:
    """Company of other users, on other nodes, or of jobs that are not there counts for nothing."""
    b = bench({"v100-1": ("v100", 2), "v100-2": ("v100", 2)})
    ours, mate, afar, foreign = (
        b.slurm.submit(comment=f"hadar:model=m{n},batch=8", gpus=0, shares="shard:1", user=user)
        for n, user in enumerate(("alice", "alice", "alice", "bob"))
    )
    for job in (ours, mate, foreign):
        b.slurm.start(job, "v100-1")
    b.slurm.start(afar, "v100-2")
    several = (f"{mate}+{afar}", 1.0), (f"{mate}+{foreign}", 1.0), (f"{mate}+999", 1.0)
    for company, rate in (("", 8.0), (mate, 5.0), (afar, 1.0), (foreign, 1.0), ("999", 1.0), *several):
        report(b, ours, steps=10, steps_per_s=rate, beside=company)
    report(b, mate, steps=10, steps_per_s=2.0)  # whose company is not known

    b.controller.run_round()

    told = ProfileStore(b.journal.connection).everything()
    assert [(p.workload, p.beside, p.gpu_type, p.user, p.steps_per_s, p.keeps) for p in told] == [
        ("m0:8", "", "v100", "alice", 8.0, 1.0),
        ("m0:8", "m1:8", "v100", "alice", 5.0, 0.625),
    ]


def test_a_company_of_several_is_filed_as_one(bench: Callable[..., Any]) -> None:
    """In whatever order they are named; and the speed in it is not that of a pair."""
    b = bench({"v100-1": ("v100", 2)})
    jobs = [
        b.slurm.submit(comment=f"hadar:model=m{n},batch=8", gpus=0, shares="shard:1", user="alice") for n in range(3)
    ]
    for job in jobs:
        b.slurm.start(job, "v100-1")
    report(b, jobs[0], steps=10, steps_per_s=8.0, beside="", iter_s=0.025, duty=0.2)
    for company in (f"{jobs[1]}+{jobs[2]}", f"{jobs[2]}+{jobs[1]}"):
        report(b, jobs[0], steps=10, steps_per_s=6.0, beside=company, iter_s=0.025, duty=0.2)

    b.controller.run_round()

    store = ProfileStore(b.journal.connection)
    assert store.companies() == {"alice": {("m0:8", ("m1:8", "m2:8"), "v100"): 0.75}}
    assert store.mean_pairings() == {} and store.duties() == {("alice", "m0:8"): {"v100": 0.2}}

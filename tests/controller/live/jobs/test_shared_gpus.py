"""Jobs with shards on a real Slurm: each on the GPU that is meant, which Slurm cannot be told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.policies import registry
from slurm_hadar.slurm.tres import gpu_numbers

pytestmark = pytest.mark.slurm
LONG = "hadar:model=resnet50,batch=32,steps=2000000,ckpt=yes,lease=60"
SHORT = "hadar:model=resnet18,batch=32,steps=20000,ckpt=yes,lease=60"


@pytest.fixture
def shared(make_cluster: Callable[..., Any], make_live: Callable[[Any], Any]) -> Any:
    """A node with two GPUs in four shards each."""
    return make_live(make_cluster(nodes="v100:1x2", shards=4))


def part(live: Any, job: str) -> tuple[int, int]:
    """Number of the GPU and shards of it; of a job that waits -1 and 0."""
    # shard:2(IDX:0) up to 22.05, shard:2(2/4,0/4) later
    found = re.search(r" Nodes=\S+ CPU_IDs=\S+ Mem=\d+ GRES=(shard:(?:[a-z]\w*:)?(\d+)\S+)", live.show(job))
    if not found:
        return -1, 0
    return min(gpu_numbers(found[1], "shard") or {-1}), int(found[2])


def test_hosts_guests_and_whole_gpus_in_one_queue(shared: Any, poll: Any) -> None:
    """Two long jobs get a GPU each, where Slurm would put both on the first; a short one joins one of them, one that
    shares with nobody waits, and so does one for a whole GPU, until both get one when the others have ended."""

    def submit(comment: str, gres: str) -> str:
        return str(shared.submit(f"--gres={gres}", "--begin=now+60", comment=comment))

    controller = shared.controller(policy=registry.get("fifo"))
    hosts = [submit(LONG, "shard:1") for _ in range(2)]
    result = controller.run_round()
    assert (result.record.starts, result.record.failed) == (2, 0)
    assert sorted(part(shared, job) for job in hosts) == [(0, 2), (1, 3)]

    guest, proud, whole = submit(SHORT, "shard:1"), submit(SHORT + ",share=no", "shard:1"), submit(SHORT, "gpu:1")
    result = controller.run_round()
    assert (result.record.starts, result.record.failed) == (1, 0)
    number, _ = part(shared, guest)
    assert {shared.state_of(job) for job in (proud, whole)} == {"PENDING"}

    controller.run_round()
    lines = {line["job_id"]: line for line in json.loads(shared.hadar("queue", "--json").stdout)}
    host = next(job for job in hosts if part(shared, job)[0] == number)
    assert lines[guest]["shares"] == {"gpu": number, "with": [host], "keeps": 0.5, "known_by": "turns"}
    assert {lines[job]["tier"] for job in (proud, whole)} <= {"waits-for-capacity", "waits-by-policy"}

    shared.cluster.run(["scancel", *hosts, guest])
    poll(lambda: {j.job_id for j in shared.backend.read_jobs() if j.state.active} == {proud, whole}, 60)
    result = controller.run_round()
    assert result.record.failed == 0
    assert part(shared, proud) in {(0, 4), (1, 4)} and shared.state_of(whole) == "RUNNING"


def test_a_packed_policy_chooses_the_pair_itself(
    make_cluster: Callable[..., Any], make_live: Callable[[Any], Any]
) -> None:
    """Two jobs that do more together than by turns, by what is published of them, have the only GPU at once."""
    live = make_live(make_cluster(nodes="v100:1x1", shards=4))
    policy = registry.get("gavel_las", packed=True)
    jobs = [str(live.submit("--gres=shard:1", "--begin=now+60", comment=told)) for told in (LONG, SHORT)]
    for _ in range(2):
        result = live.controller("jobs.shared_gpus=beside", policy=policy).run_round()
        assert result.record.failed == 0
    assert sum(part(live, job)[1] for job in jobs) == 4 and {part(live, job)[0] for job in jobs} == {0}

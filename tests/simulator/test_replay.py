"""The past in the terms of a simulation: which cluster it was, and what came of the jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.model import Mix
from slurm_hadar.policies import get
from slurm_hadar.simulator.nodes import cluster_nodes
from slurm_hadar.simulator.replay import (
    HAPPENED,
    deviations,
    of_the_done,
    past,
    site_of_accounting,
    site_of_slurm,
    spec_type,
)
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import read_text
from slurm_hadar.slurm.accounting import parse_accounting
from slurm_hadar.slurm.state import SlurmNode
from slurm_hadar.throughput.table import reference

DATA = Path(__file__).parent / "data"
HEAD = "JobID|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES|NodeList|JobName|Comment"
ROWS = (
    "1|ann|lab|COMPLETED|1000|1000|4600|3600|cpu=8,gres/gpu=4,gres/gpu:v100=4|gpu01|train|hadar:model=resnet18,batch=64",
    "2|bob|lab|COMPLETED|1000|4600|8200|3600|cpu=8,gres/gpu=2,gres/gpu:v100=2|gpu01|train|",
    "3|bob|lab|FAILED|1600|1600|3400|1800|cpu=2,gres/gpu=2,gres/gpu:k80=2|old[1-2]|x|",
    "4|bob|lab|COMPLETED|1600|4600|5200|600|cpu=2,gres/gpu=2,gres/gpu:v100=2|gpu01|x|",
    "5|bob|lab|CANCELLED|1700|Unknown|1800|0||None assigned|x|",
)


def read(rows: Any = ROWS) -> Any:
    text = "\n".join([HEAD, *rows]) + "\n"
    return parse_accounting(text, "site"), read_text(text, "site", reference(), "sacct")


def test_the_cluster_that_jobs_show() -> None:
    """As many GPUs on a node as were ever held there at once, and the simulated node for each real one."""
    site = site_of_accounting(*read())

    assert site.spec == "k80:2x1,v100:1x4"
    assert site.names == {"old1": "k80-1", "old2": "k80-2", "gpu01": "v100-1"}
    assert set(site.names.values()) == {n.name for n in cluster_nodes(site.spec)}
    assert "ever held at once" in site.assumptions[0]


def test_the_cluster_that_slurm_has() -> None:
    """Groups by type and size, names of GRES made fit; nodes of several types are left out and said so."""
    nodes = [
        SlurmNode("a2", (("A100-SXM4", 4),)),
        SlurmNode("a1", (("A100-SXM4", 8),), partitions=("gpu",)),
        SlurmNode("cpu"),
        SlurmNode("mix", (("k80", 1), ("t4", 1))),
    ]
    site = site_of_slurm(nodes)

    assert site.spec == "a100_sxm4:1x8,a100_sxm4:1x4" and site.names == {"a1": "a100_sxm4-1", "a2": "a100_sxm4-2"}
    assert {n.name: sum(n.gpus.values()) for n in cluster_nodes(site.spec)} == {"a100_sxm4-1": 8, "a100_sxm4-2": 4}
    assert site.partitions == {"gpu": {"a100_sxm4-1"}}
    assert site.assumptions[1] == "1 nodes that have several GPU types are left out"
    with pytest.raises(TraceError, match="--cluster"):
        site_of_slurm(nodes[2:])


@pytest.mark.parametrize(("name", "plain"), [("v100", "v100"), ("H100 NVL", "h100_nvl"), ("3090", "t3090"), ("", "t")])
def test_names_of_types(name: str, plain: str) -> None:
    """Whatever GRES calls it, --cluster can."""
    assert spec_type(name) == plain


def test_what_happened() -> None:
    """Times by hand: JCT from submission to end, queueing what is not running, GPU time on what the site has."""
    records, trace = read()
    happened = past(records, trace, site_of_accounting(records, trace))
    summary = happened.summary()

    assert summary["jobs"] == 4 and summary["ttd_s"] == 7200.0
    assert summary["avg_jct_s"] == pytest.approx((3600 + 7200 + 1800 + 3600) / 4)
    assert summary["avg_queueing_s"] == pytest.approx((0 + 3600 + 0 + 3000) / 4)
    held = 4 * 3600 + 2 * 3600 + 2 * 1800 + 2 * 600
    assert summary["gru"] == pytest.approx(held / (6 * 7200))
    assert {(i.node, i.count) for i in happened.intervals} == {("v100-1", 4), ("v100-1", 2), ("k80-1", 1), ("k80-2", 1)}


def test_what_happened_is_of_the_jobs_that_are_measured() -> None:
    """As the policies' figures are; else the two are of other jobs."""
    records, trace = read()
    site = site_of_accounting(records, trace)
    happened = past(records, trace, site, (1, 3)).summary()
    again = simulate(trace, get("slurm"), SimOptions(site.spec, measure=(1, 3)), reference()).summary()

    assert happened["jobs"] == again["jobs"] == 2
    assert happened["avg_jct_s"] == pytest.approx((7200 + 1800) / 2)
    told = deviations([happened | {"label": HAPPENED}, again | {"label": "slurm"}])
    assert "left jobs undone" not in told[0]


def test_a_job_that_ran_several_times_held_what_each_run_had() -> None:
    """Not all of its time on the GPUs of its last run, which others had then."""
    rows = [
        "1|ann|a|REQUEUED|1000|1000|37000|36000|gres/gpu=4,gres/gpu:v100=4|n1|x|",
        "1|ann|a|COMPLETED|37000|73000|76600|3600|gres/gpu=4,gres/gpu:k80=4|n2|x|",
        "2|bob|b|COMPLETED|1000|37000|73000|36000|gres/gpu=4,gres/gpu:v100=4|n1|y|",
    ]
    records, trace = read(rows)
    site = site_of_accounting(records, trace)
    happened = past(records, trace, site)

    assert site.spec == "k80:1x4,v100:1x4"
    assert {j.job_id: j.gpu_s for j in happened.jobs} == {"1": {"v100": 144000, "k80": 14400}, "2": {"v100": 144000}}
    assert sorted((i.job_id, i.start_s, i.end_s) for i in happened.intervals) == [
        ("1", 0, 36000), ("1", 72000, 75600), ("2", 36000, 72000),
    ]  # fmt: skip


def test_accounting_without_nodes() -> None:
    """There is nothing to guess the cluster from."""
    rows = [row.replace("|gpu01|", "||").replace("|old[1-2]|", "||") for row in ROWS]
    with pytest.raises(TraceError, match="names no nodes"):
        site_of_accounting(*read(rows))


ASKED = HEAD + "|Partition|TimelimitRaw|ReqTRES"


def site_of(rows: Any) -> Any:
    text = "\n".join([ASKED, *rows]) + "\n"
    records = parse_accounting(text, "site")
    trace = read_text(text, "site", reference(), "sacct")
    site = site_of_accounting(records, trace)
    return records, site.bound(trace), site


def test_jobs_are_bound_to_what_they_asked_for() -> None:
    """The type only where one was asked for, the partition's nodes, as many nodes as asked, and the time limit."""
    _, trace, site = site_of(
        [
            ROWS[0] + "|a|60|cpu=8,gres/gpu:v100=4,gres/gpu=4,node=1",
            ROWS[1] + "|a|UNLIMITED|cpu=8,gres/gpu=2,node=1",
            ROWS[2] + "|b|Partition_Limit|cpu=8,gres/gpu=2,node=2",
            ROWS[3] + "|a|10|cpu=8,gres/gpu=2,node=1",
        ]
    )
    first, second, third, fourth = trace.jobs

    assert [j.types for j in trace.jobs] == [frozenset({"v100"}), None, None, None]
    assert [j.limit_s for j in trace.jobs] == [3600.0, float("inf"), None, 600.0]
    assert first.open_to == fourth.open_to == {"v100-1"} and third.open_to == {"k80-1", "k80-2"}
    assert (first.nodes, third.nodes) == ((1, 1), (2, 2)) and second.partition == "a"
    assert site.partitions == {"a": {"v100-1"}, "b": {"k80-1", "k80-2"}}
    assert "1 of 4 jobs asked for a GPU type, and are bound to it under every policy" in trace.assumptions


def test_accounting_that_does_not_tell_what_was_asked() -> None:
    """Nothing is bound, and it is said what that costs."""
    records, trace = read()
    bound = site_of_accounting(records, trace).bound(trace)

    assert all(j.types is None and j.open_to is None and j.limit_s is None for j in bound.jobs)
    assert "makes its backfill a poor guess" in bound.assumptions[-1]


def test_a_gang_takes_as_long_again_where_it_was() -> None:
    """On two nodes it was slower than on one, and of several types it had the pace of the slowest."""
    row = "1|ann|lab|COMPLETED|1000|1000|4600|3600|gres/gpu=8,gres/gpu:{}|{}|x||a|90|gres/gpu=8,node=2"
    for types, nodes, spec, mix in (
        ("v100=8", "gpu[1-2]", "v100:2x4", Mix.NEVER),
        ("v100=4,gres/gpu:k80=4", "gpu1,old1", "k80:1x4,v100:1x4", Mix.GATED),
    ):
        text = f"{ASKED}\n{row.format(types, nodes)}\n"
        trace = read_text(text, "site", reference(), "sacct")

        result = simulate(trace, get("slurm"), SimOptions(spec))

        assert trace.jobs[0].mix is mix and result.jobs[0].jct_s == pytest.approx(3600.0)


def figures(jct_s: float, wait_s: float, policy: str = "slurm", label: str = "") -> dict[str, Any]:
    return {"policy": policy, "label": label or policy, "avg_jct_s": jct_s, "avg_queueing_s": wait_s}


def test_how_far_a_replay_can_be_trusted() -> None:
    """What happened against policy slurm: by how much, and plainly where that is more than 15 %."""
    past = figures(1000.0, 200.0, HAPPENED)

    near, compare_to = deviations([past, figures(1100.0, 180.0, label="slurm:depth=5"), figures(1.0, 0.0, "hadar")])
    assert "average JCT 18.3 min against 16.7 min (+10 %), average wait 3.00 min against 3.33 min (-10 %)" in near
    assert near.endswith("Both are within 15 %.") and "against slurm:depth=5 rather" in compare_to
    far, _ = deviations([past, figures(1100.0, 100.0)])
    assert "(-50 %). It differs by more than 15 % in the average wait: on this site" in far
    nothing, _ = deviations([figures(1000.0, 0.0, HAPPENED), figures(1000.0, 5.0)])
    assert nothing.endswith("(+0 %). It is within 15 %.")
    assert "next to none happened" in deviations([figures(1000.0, 0.0, HAPPENED), figures(1500.0, 500.0)])[0]
    assert "not known without policy slurm" in deviations([past, figures(1.0, 1.0, "hadar")])[0]
    assert deviations([figures(1.0, 1.0), figures(1.0, 1.0, "hadar")]) == []


def test_what_happened_is_of_the_jobs_that_are_simulated() -> None:
    """A job that no policy can run counts in no average; one that policy slurm alone left undone makes it no
    baseline."""
    records, trace = read()
    site = site_of_accounting(records, trace)
    happened = past(records, trace, site)
    small = simulate(trace, get("slurm"), SimOptions("v100:1x2,k80:2x1"))
    assert list(small.unfinished) == ["1"]

    less = of_the_done(happened, [small, small])
    assert less.summary()["jobs"] == small.summary()["jobs"] == 3 and less.assumptions[-1].startswith("1 jobs that")
    assert less.summary()["avg_jct_s"] == pytest.approx((7200 + 1800 + 3600) / 3)
    whole = simulate(trace, get("fifo"), SimOptions(site.spec))
    assert of_the_done(happened, [small, whole]) is happened
    said = [{**happened.summary(), "label": HAPPENED}, {**small.summary(), "label": "slurm"}]
    assert deviations(said) == [
        "How far this can be trusted is not known: policy slurm left jobs undone that Slurm did."
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["backfill_two_types.txt", "backfill_one_type.txt"])
def test_policy_slurm_does_again_what_a_real_slurm_did(name: str) -> None:
    """The accounting of a real slurmctld 22.05 with stock sched/backfill: what happened is met within 15 %, and by
    first come, first served without backfill it is not."""
    text = (DATA / name).read_text()
    records, trace = parse_accounting(text, name), read_text(text, name, reference(), "sacct")
    site = site_of_accounting(records, trace)
    bound = site.bound(trace)
    happened = past(records, bound, site).summary()

    found = {
        policy: simulate(bound, get(policy), SimOptions(site.spec, round_s=20.0)).summary()
        for policy in ("slurm", "fifo")
    }

    assert happened["avg_queueing_s"] > 0.3 * happened["avg_jct_s"], "a queue that waits for nothing proves nothing"
    for key in ("avg_jct_s", "avg_queueing_s"):
        assert found["slurm"][key] == pytest.approx(happened[key], rel=0.15)
        assert found["fifo"][key] > 1.4 * happened[key]
    assert deviations([{**happened, "label": HAPPENED}, {**found["slurm"], "label": "slurm"}])[0].endswith("15 %.")

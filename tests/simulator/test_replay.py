"""The past in the terms of a simulation: which cluster it was, and what came of the jobs."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.replay import past, site_of_accounting, site_of_slurm, spec_type
from slurm_hadar.simulator.run import cluster_nodes
from slurm_hadar.simulator.traces import read_text
from slurm_hadar.slurm.accounting import parse_accounting
from slurm_hadar.slurm.state import SlurmNode
from slurm_hadar.throughput.table import reference

HEAD = "JobID|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES|NodeList|JobName|Comment"
ROWS = (
    "1|ann|lab|COMPLETED|1000|1000|4600|3600|cpu=8,gres/gpu=4,gres/gpu:v100=4|gpu01|train|hadar:model=resnet18,batch=64",
    "2|bob|lab|COMPLETED|1000|4600|8200|3600|cpu=8,gres/gpu=2,gres/gpu:v100=2|gpu01|train|",
    "3|bob|lab|FAILED|1600|1600|3400|1800|cpu=2,gres/gpu=2,gres/gpu:k80=2|old[1-2]|x|",
    "4|bob|lab|COMPLETED|1600|4600|5200|600|cpu=2,gres/gpu=2,gres/gpu:v100=2|gpu01|x|",
    "5|bob|lab|CANCELLED|1700|Unknown|1800|0||None assigned|x|",
)


def read(rows=ROWS):
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
    nodes = [SlurmNode("a2", (("A100-SXM4", 4),)), SlurmNode("a1", (("A100-SXM4", 8),)), SlurmNode("cpu"),
             SlurmNode("mix", (("k80", 1), ("t4", 1)))]  # fmt: skip
    site = site_of_slurm(nodes)

    assert site.spec == "a100_sxm4:1x8,a100_sxm4:1x4" and site.names == {"a1": "a100_sxm4-1", "a2": "a100_sxm4-2"}
    assert {n.name: sum(n.gpus.values()) for n in cluster_nodes(site.spec)} == {"a100_sxm4-1": 8, "a100_sxm4-2": 4}
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


def test_accounting_without_nodes() -> None:
    """There is nothing to guess the cluster from."""
    rows = [row.replace("|gpu01|", "||").replace("|old[1-2]|", "||") for row in ROWS]
    with pytest.raises(TraceError, match="names no nodes"):
        site_of_accounting(*read(rows))

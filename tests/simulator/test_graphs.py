"""Jobs with graphs in the simulator: the column, and that what policies see is what really happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.graphs.network import Network
from slurm_hadar.policies import get
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.traces import read_text, read_trace, table_csv
from slurm_hadar.throughput.table import reference

HEAD = "job_id,arrival_s,gpus,steps,steps_per_s:v100,graph,nodes\n"
HEAVY = "[[stage]]\ncompute_s = 0.01\nparameter_bytes = 4e8\nreplicas = 4\n"
TOGETHER, SPREAD = 0.01 + 6e8 / 100e9, 0.01 + 6e8 / 12.5e9


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(HEAVY)
    (tmp_path / "t.csv").write_text(HEAD + "a,0,4,3600,1,mine.toml,1-4\nb,0,4,3600,1,,\nc,0,4,100,1,vgg16,\n")
    return tmp_path / "t.csv"


def test_the_column(heavy: Path) -> None:
    """A file is relative to the trace, and named by its whole path; what is written is read back."""
    trace = read_trace(str(heavy), reference())
    assert [j.graph for j in trace.jobs] == [str(heavy.parent / "mine.toml"), "", "vgg16"]
    assert read_text(table_csv.write(trace), "elsewhere.csv", reference()).jobs == trace.jobs


@pytest.mark.parametrize(
    ("graph", "gpus", "why"),
    [
        ("none.toml", "4", "there is no such file"),
        ("gpt9", "4", "no graph is known for model 'gpt9'"),
        ("gpt2/pp3", "4", "takes a multiple of 3 GPUs, the job has 4"),
        ("gpt2/pp4", "2-8", "takes a multiple of 4 GPUs, the job has 2"),
    ],
)
def test_a_graph_that_cannot_be_is_refused_by_line(graph: str, gpus: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"t\.csv:2: ") as refused:
        read_text(HEAD + f"a,0,{gpus},1,1,{graph},\n", str(tmp_path / "t.csv"), reference())
    assert why in str(refused.value)


def test_a_spread_job_takes_as_long_as_its_graph_says(heavy: Path, scripted: Any) -> None:
    """On one node, on two by hand, and on two with the links of the options; the bounds never say more."""
    trace = read_trace(str(heavy), reference())
    cluster = "v100:3x4"
    for where, network, slower in (
        ({"v100-1": {"v100": 4}}, Network(), 1.0),
        ({"v100-1": {"v100": 2}, "v100-2": {"v100": 2}}, Network(), SPREAD / TOGETHER),
        ({"v100-1": {"v100": 2}, "v100-2": {"v100": 2}}, Network(outside=1e9), (0.01 + 0.6) / TOGETHER),
    ):
        policy = scripted({"a": where, "b": {"v100-3": {"v100": 4}}})
        options = SimOptions(cluster=cluster, network=network, restart_s=0.0, round_s=7200.0, measure=(0, 1))
        result = simulate(trace, policy, options)
        row = next(row for row in result.jobs if row.job_id == "a")
        assert row.jct_s == pytest.approx(3600.0 * slower)
        assert policy.seen[0].job["a"].graph == "mine.toml"
        assert bounds_of(trace, options)["ttd_s"] <= row.jct_s + 1e-6


@pytest.mark.parametrize("policy", ["hadar", "asrpt"])
def test_policies_put_a_heavy_job_together(policy: str, tmp_path: Path) -> None:
    """Two jobs of three GPUs leave one GPU on each of two nodes, for an hour. A heavy job of two GPUs waits for one of
    them to end, a light one starts at once."""
    busy = "".join(f"{i},0,3,3600,1,,1\n" for i in (1, 2))
    pair = HEAVY.replace("replicas = 4", "replicas = 2")
    for graph, begins in ((pair, 3600.0), (pair.replace("4e8", "4e3"), 360.0)):
        (tmp_path / "mine.toml").write_text(graph)
        text = HEAD + busy + "late,10,2,7200,1,mine.toml,1-2\n"
        trace = read_text(text, str(tmp_path / "t.csv"), reference())
        options = SimOptions(cluster="v100:2x4", network=Network(outside=1e8), restart_s=30.0)
        result = simulate(trace, get(policy), options)
        late = next(row for row in result.jobs if row.job_id == "late")
        assert late.first_start_s == pytest.approx(begins)
        assert late.jct_s == pytest.approx(begins - 10.0 + 7200.0, rel=0.01)


def test_gavels_model_has_no_nodes_to_be_spread_over(heavy: Path) -> None:
    """One big node per type: the graph says nothing there."""
    trace = read_trace(str(heavy), reference())
    seen = simulate(trace, get("fifo"), SimOptions(cluster="v100:3x4", model="gavel"))
    assert all(row.jct_s is not None for row in seen.jobs)

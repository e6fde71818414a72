"""Elastic gangs: what is read of tables and traces, and the page of what the runs gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.elastic import page
from benchmarks.elastic.data import CLUSTER, Peer, read_peers, read_trace
from benchmarks.elastic.play import play
from slurm_hadar.simulator.nodes import cluster_nodes, gpus_by_type
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.throughput.table import reference

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One application, made up: 1000 steps, and what it takes alone."""
    (tmp_path / "job_types.csv").write_text("application,progress_total,restart_s\nnet,1000,20\n")
    alone = ["t4,1,1000", "t4,8,200", "a100,1,500", "a100,8,100", "a100,16,50", "quad,1,10"]
    (tmp_path / "isolated_runtimes.csv").write_text(
        "application,gpu,gpus,runtime_s\n" + "".join(f"net,{row}\n" for row in alone)
    )
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "small.csv").write_text("name,time,application\nnet-0,7,net\nnet-1,8,net\n")
    jobs = tmp_path / "results" / "jobs"
    jobs.mkdir(parents=True)
    head = "avg_jct_h,p50_jct_h,p99_jct_h,makespan_h,gpu_h_per_job,restart_gpu_h_per_job,restarts_per_job"
    rows = ["small,sia,base,0.5,0.5,1,2,3,0.1,4", "small,sia,other_solver,9,9,9,9,9,9,9", "else,sia,base,9,9,9,9,9,9,9"]
    (tmp_path / "results" / "runs.csv").write_text("\n".join([f"trace,policy,variant,{head}", *rows]))
    (jobs / "small_sia.csv").write_text("application,jct_s,restarts\nnet,100,1\nnet,200,2\n")
    return tmp_path


def test_a_job_takes_as_long_as_was_measured(data: Path) -> None:
    """With every number of GPUs, on as few nodes as hold them; types that the cluster lacks are left out."""
    job = read_trace(data, "small").jobs[0]
    gpus = gpus_by_type(cluster_nodes(CLUSTER))
    rates = Rates(reference(), gpus)
    room = {t: max(n.gpus.get(t, 0) for n in cluster_nodes(CLUSTER)) for t in gpus}

    took = {(t, n): job.steps / speed.on(-(-n // room[t])) for n in job.sizes for t, speed in rates.of(job, n).items()}

    measured = {("t4", 1): 1000, ("t4", 8): 200, ("a100", 1): 500, ("a100", 8): 100, ("a100", 16): 50}
    assert took == pytest.approx(measured)
    assert job.sizes == (1, 8, 16) and (job.start_s, job.restart_s) == (20.0, 20.0)


def test_a_run_and_the_peer_that_it_is_held_against(data: Path) -> None:
    """FIFO gives each job a T4 in the first round after it has come; the peer's figures are those of the trace."""
    run, (peer,) = play(data, "small", "fifo"), read_peers(data, "small")

    assert (run["restarts"], run["gpu_h"]) == (0, pytest.approx((1000 + 20) / 3600, abs=1e-4))
    assert run["restart_gpu_h"] == pytest.approx(20 / 3600, abs=1e-4)
    assert run["gpu_h"] < run["avg_jct_h"] <= run["p99_jct_h"] < run["makespan_h"] < 0.31
    assert (peer.label, peer.restarts, peer.by_application) == ("sia", 4.0, {"net": (150.0, 1.5)})


def test_goals_are_judged_by_what_was_measured(tmp_path: Path) -> None:
    """Against Sia that knows all speeds where that was run; runs of other policies stay in the file."""
    run = {"trace": "t", "avg_jct_h": 0.96, "p50_jct_h": 1.0, "p99_jct_h": 2.0, "makespan_h": 10.0, "gpu_h": 1.0}
    run |= {"restart_gpu_h": 0.1, "restarts": 5.0, "by_application": {"net": [10.0, 1.0]}}
    sia = Peer("t", "sia", 1.2, 1.0, 2.0, 10.0, 1.0, 0.1, 4.0, {})
    known = Peer("t", "sia, all speeds known", 1.0, 1.0, 2.0, 10.0, 1.0, 0.1, 3.0, {})

    page.write(page.Book([run | {"policy": "hadar"}], [sia, known]), tmp_path)
    page.write(page.Book([run | {"policy": "fifo"}], [sia, known]), tmp_path)

    text = (tmp_path / "elastic.md").read_text()
    assert "| t | 0.960, missed by 1.1% | 0.800 | 1.00 | 1.000, reached | 1.250, missed by 25.0% |" in text
    assert "| t | `fifo` | 0.960 |" in text


def test_the_page_is_current(tmp_path: Path) -> None:
    """docs/results/elastic.md is what elastic.json gives."""
    page.publish(page.read(RESULTS / "elastic.json"), tmp_path)

    assert (tmp_path / "elastic.md").read_text() == (RESULTS / "elastic.md").read_text()
    assert json.loads((RESULTS / "elastic.json").read_text())["runs"]

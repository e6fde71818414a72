"""Ranks by the job's graph: what srun and torchrun's workers are told, and when the graph is left aside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.network import Links, Network
from slurm_hadar.runtime.bandwidth import Figures, Worker, section
from slurm_hadar.runtime.launch.srun_options import values, without
from slurm_hadar.runtime.rank import RANKS, read_ranks, take_rank, write_ranks
from slurm_hadar.runtime.tasks.rankmap import lay_out, read_allocation
from tests.runtime.live.test_graphs import GRAPH

ROOT = Path(__file__).resolve().parents[3]
SHOWN = (
    "JobId=77 JobName=x NumNodes=2 JOB_GRES=gpu:v100:8 Nodes=n[1-2] CPU_IDs=0-3,6 Mem=200 GRES=gpu:v100:4(IDX:0-3) "
    "MinCPUsNode=1"
)
UNEVEN = (
    "JobId=77 JOB_GRES=gpu:6 Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:v100:4(IDX:0,2-4) "
    "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)"
)


class Slurm:
    """Answers scontrol, and notes what it was asked."""

    def __init__(self, shown: str | None = SHOWN, topology: str = "") -> None:
        self.asked: list[list[str]] = []
        self._shown, self._topology = shown, topology

    def __call__(self, command: list[str]) -> str | None:
        self.asked.append(command)
        return self._topology if command[1:] == ["show", "topology"] else self._shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "uneven.toml").write_text(GRAPH)
    return tmp_path


def laid_out(folder: Path, *options: str, value: str = "uneven.toml", shown: str | None = SHOWN, **env: str) -> Any:
    environ = {"SLURM_JOB_ID": "77", "HADAR_CHANNEL": str(folder / "hadar-channel.json"), **env}
    return lay_out(list(options), environ, value, folder, folder / "job", Slurm(shown))


def test_one_task_per_gpu_gets_a_host_file(folder: Path) -> None:
    """Its lines are the nodes of the ranks; rank 0's is where the workers meet."""
    for options in (["-n", "8"], ["-N", "2", "-n8"], ["--ntasks=8"], ["-N2", "--ntasks-per-node=4"]):
        layout = laid_out(folder, *options)
        variables = dict(layout.variables)
        assert layout.trouble == "" and layout.options[-1] == "--distribution=arbitrary"
        assert Path(variables["SLURM_HOSTFILE"]).read_text().split() == ["n2", *["n1"] * 4, *["n2"] * 3]
        assert layout.first == "n2" and variables[RANKS] == "n1:1-4;n2:0,5-7"
        assert ("-n" in layout.options) == ("--ntasks-per-node=4" in options)


def test_one_task_per_node_is_told_the_ranks(folder: Path) -> None:
    """No host file, and no option: torchrun's workers take theirs from the variable."""
    layout = laid_out(folder, "-N", "2", "-n", "2")
    assert (layout.options, layout.first, dict(layout.variables)) == ((), "", {RANKS: "n1:1-4;n2:0,5-7"})
    assert not (folder / "job").exists()


@pytest.mark.parametrize(
    ("options", "environ", "why"),
    [
        (["-n8", "-m", "cyclic"], {}, "--distribution has an order of its own"),
        (["-n8", "--nodelist=n1"], {}, "--nodelist has an order of its own"),
        (["-n8", "-F", "file"], {}, "--nodefile has an order of its own"),
        (["-n8"], {"SLURM_HOSTFILE": "x"}, "SLURM_HOSTFILE has an order of its own"),
        (["-n8"], {"SLURM_HET_SIZE": "2"}, "a heterogeneous job has an order of its own"),
        (["-n3"], {}, "the step has 3 tasks, neither one for each of its 2 nodes nor one for each of its 8 GPUs"),
        (["-n", "$N"], {}, "the step has too few nodes, neither"),
        (["-N1", "-n1"], {}, "the step has too few nodes"),
    ],
)
def test_what_the_user_orders_stands(folder: Path, options: list[str], environ: dict[str, str], why: str) -> None:
    """One reason, and nothing is added."""
    layout = laid_out(folder, *options, **environ)
    assert layout.trouble.startswith(why) and not layout.options and not layout.variables


@pytest.mark.parametrize(
    ("value", "shown", "why"),
    [
        ("none.toml", SHOWN, "there is no such file"),
        ("gpt9/pp2", SHOWN, "no graph is known for model 'gpt9'"),
        ("gpt2/pp3", SHOWN, "takes a multiple of 3 GPUs, the job has 8"),
        ("gpt2/tp8", SHOWN, "its tensor-parallel groups do not fit on the GPUs it has (n1: 4, n2: 4)"),
        ("uneven.toml", "JobId=77", "Slurm does not tell which GPUs"),
        ("uneven.toml", None, "Slurm does not tell which GPUs"),
    ],
)
def test_a_map_that_cannot_be_made_is_one_reason(folder: Path, value: str, shown: str | None, why: str) -> None:
    layout = laid_out(folder, "-n8", value=value, shown=shown)
    assert why in layout.trouble and "\n" not in layout.trouble
    assert not layout.options and not layout.variables


def test_the_gpus_that_the_job_has_on_each_node_count(folder: Path) -> None:
    """Four and two: the host file has as many lines for each node."""
    assert read_allocation(UNEVEN) == ({"n1": 4, "n2": 2}, {"n1": "v100", "n2": ""})
    layout = laid_out(folder, "-n6", value="gpt2/pp6", shown=UNEVEN)
    hosts = Path(dict(layout.variables)["SLURM_HOSTFILE"]).read_text().split()
    assert sorted(hosts) == ["n1"] * 4 + ["n2"] * 2


def test_the_links_that_the_controller_has_left_count(folder: Path) -> None:
    """On a faster NIC than what is inside, replicas lie apart; a broken file is one reason."""
    graph = """micro_batches = 4
    [[stage]]
    compute_s = 1e-3
    parameter_bytes = 1e9
    replicas = 2
    activation_bytes = 1e8
    [[stage]]
    compute_s = 1e-3
    parameter_bytes = 1e9
    replicas = 2
    """
    (folder / "pipe.toml").write_text(graph)
    shown = SHOWN.replace("gpu:v100:4(IDX:0-3)", "gpu:v100:2(IDX:0-1)").replace("gpu:v100:8", "gpu:v100:4")
    assert dict(laid_out(folder, "-n4", value="pipe.toml", shown=shown).variables)[RANKS] == "n1:0-1;n2:2-3"
    network = Network(types={"v100": Links(inside=1e9, outside=None)}, outside=1e12)
    (folder / Network.FILE).write_text(network.to_json())
    ranks = read_ranks(dict(laid_out(folder, "-n4", value="pipe.toml", shown=shown).variables)[RANKS])
    assert len(ranks["n1"]) == 2 and ranks["n1"] != [0, 1]
    (folder / Network.FILE).write_text("{}")
    assert "start the controller again" in laid_out(folder, "-n4", value="pipe.toml", shown=shown).trouble


def test_switches_are_asked_for_where_they_can_matter(folder: Path) -> None:
    """With three nodes, not with two."""
    for nodes, calls in (("n[1-2]", 1), ("n[1-3]", 2)):
        asks = Slurm(SHOWN.replace("n[1-2]", nodes), "SwitchName=s0 Nodes=n1\nSwitchName=s1 Nodes=n[2-3]")
        environ = {"SLURM_JOB_ID": "77", "HADAR_CHANNEL": str(folder / "x")}
        assert lay_out(["-n", str(4 * calls + 4)], environ, "gpt2", folder, folder, asks).trouble == ""
        assert len(asks.asked) == calls


links = st.builds(Links, st.none() | st.floats(1, 1e15), st.none() | st.floats(1, 1e15))
names = st.dictionaries(st.text(max_size=8), links, max_size=3)


@given(st.floats(1, 1e15), names, names, st.floats(1, 64), st.dictionaries(st.text(max_size=8), st.floats(1, 1e15)))
def test_a_network_is_read_back(inside: float, types: Any, nodes: Any, oversubscription: float, uplinks: Any) -> None:
    made = Network(inside, 1e9, types, nodes, oversubscription, uplinks)
    assert Network.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "speed": 3, "types": {}, "nodes": {}}']
)
def test_a_broken_network_is_one_line(text: str) -> None:
    with pytest.raises(GraphError, match=r"hadar-network.json cannot be used .*; start the controller again"):
        Network.from_json(text)


# The worker's side


@given(st.integers(1, 4), st.integers(1, 8), st.randoms(use_true_random=False))
def test_ranks_are_read_back(nodes: int, each: int, random: Any) -> None:
    """Whatever lies where."""
    ranks = list(range(nodes * each))
    random.shuffle(ranks)
    order = {f"n{i}": sorted(ranks[i * each : (i + 1) * each]) for i in range(nodes)}
    assert read_ranks(write_ranks(order.items())) == order


def worker(**environ: str) -> dict[str, str]:
    return {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "SLURMD_NODENAME": "n2",
        RANKS: "n1:1-4;n2:0,5-7",
        **environ,
    }


def test_a_worker_takes_its_rank() -> None:
    """The i-th worker of a node has the i-th of its ranks."""
    environ = worker()
    assert take_rank(environ) is None and environ["RANK"] == "6"
    environ = worker(LOCAL_RANK="0")
    assert take_rank(environ) is None and environ["RANK"] == "0"


def test_without_a_graph_nothing_changes() -> None:
    for environ in (worker(HADAR_RANKS=""), {RANKS: "n1:0"}):
        before = dict(environ)
        assert take_rank(environ) is None and environ == before


def test_another_number_of_workers_keeps_torchruns_order() -> None:
    """All of them see it, so all of them agree."""
    environ = worker(WORLD_SIZE="4", LOCAL_WORLD_SIZE="2")
    assert take_rank(environ) == "4 workers where the graph has 8; ranks stay as torchrun numbers them"
    assert environ["RANK"] == "6"


def test_workers_that_would_not_agree_stop() -> None:
    """Three of eight on a node with four GPUs: two workers would have the same rank."""
    with pytest.raises(ValueError, match="3 workers on node n2 where the job has 4 GPUs; start torchrun with"):
        take_rank(worker(LOCAL_WORLD_SIZE="3"))


def test_the_script_runs_as_if_started_itself(tmp_path: Path) -> None:
    """Its arguments, its folder on the path, its name, its exit code; as a script or as a module."""
    (tmp_path / "beside.py").write_text("x = 5\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, beside\nprint(os.environ['RANK'], sys.argv[1:], beside.x, __name__)\nsys.exit(3)\n"
    )
    env = {**os.environ, **worker(LOCAL_RANK="1"), "PYTHONPATH": str(ROOT)}
    for arguments, cwd in (([str(script)], "/"), (["-m", "train"], str(tmp_path))):
        command = [sys.executable, "-m", "slurm_hadar.runtime.rank", *arguments, "--lr", "1"]
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.returncode) == ("5 ['--lr', '1'] 5 __main__\n", 3), done.stderr


# srun's options


def test_options_are_read_as_srun_reads_them() -> None:
    words = ["-lN2", "-n", "8", "--ntasks-per-node", "4", "--exclusive", "-K", "--mem=5", "-t5", "-m", "block"]
    assert list(values(words)) == [
        ("l", ""),
        ("nodes", "2"),
        ("ntasks", "8"),
        ("ntasks-per-node", "4"),
        ("exclusive", ""),
        ("K", ""),
        ("mem", "5"),
        ("t", "5"),
        ("distribution", "block"),
    ]
    assert without(words, ["ntasks-per-node", "mem"]) == ["-lN2", "-n", "8", "--exclusive", "-K", "-t5", "-m", "block"]
    assert without(["-N", "2", "-N2", "--nodes=2", "--nodes", "2", "-n", "8"], ["nodes"]) == ["-n", "8"]


# What the bandwidth job prints


def test_the_section_names_what_was_measured() -> None:
    workers = [Worker(i, f"n{i // 2}", "v100") for i in range(4)]
    both = section([Figures("v100", 1.005e11, 9e10, 1.2e10, 1.1e10)], workers, "NCCL, 256 MiB, median of 10")
    assert both.splitlines() == [
        "# ring all-reduce by NCCL, 256 MiB, median of 10; 4 workers on 2 nodes",
        '[network.types."v100"]',
        "inside_bytes_s = 100e9  # point to point 90e9",
        "outside_bytes_s = 12e9  # point to point 11e9",
    ]
    assert "[network]\noutside_bytes_s = 5e+07" in section([Figures("", None, None, 5e7, None)], workers, "gloo")
    assert "nothing to measure" in section([Figures("v100")], workers[:1], "gloo")

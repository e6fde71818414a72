"""Ranks by the job's graph: what srun and torchrun's workers are told, and when the graph is left aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.graphs.network import Links, Network
from slurm_hadar.runtime.rank import RANKS, read_ranks
from slurm_hadar.runtime.tasks.rankmap import lay_out, read_allocation
from tests.runtime.live.test_graphs import GRAPH

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

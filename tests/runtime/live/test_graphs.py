"""Jobs with a graph on a real Slurm: every rank is where the graph's map has it, by srun and by torchrun."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.graphs.files import graph_of, read_graph
from slurm_hadar.graphs.mapping import map_graph
from slurm_hadar.graphs.topology import Topology

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 300

# The four replicas of the second stage belong together, which no order of the ranks by node gives.
GRAPH = """
[[stage]]
compute_s = 0.01
parameter_bytes = 1e6
activation_bytes = 1e6
[[stage]]
compute_s = 0.01
parameter_bytes = 1e9
replicas = 4
activation_bytes = 1e6
[[stage]]
compute_s = 0.01
parameter_bytes = 1e6
replicas = 3
"""
#: In the first run they meet, too.
WHO = """
import os
run, rank = os.environ.get("SLURM_RESTART_COUNT", "0"), int(os.environ["RANK"])
if run == "0":
    import torch.distributed as dist
    dist.init_process_group("gloo")
    assert dist.get_rank() == rank
    dist.barrier()
    dist.destroy_process_group()
print(f"torchrun {run} {rank} {os.environ['SLURMD_NODENAME']} {os.environ['LOCAL_RANK']}\\n", end="", flush=True)
"""
#: By default as many tasks as the job asks for, which is one per GPU.
SCRIPT = """#!/bin/bash
hadar-srun -- bash -c 'echo "srun ${SLURM_RESTART_COUNT:-0} $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID"'
hadar-srun --ntasks-per-node=1 -- bash -c 'exec torchrun --nnodes=$SLURM_JOB_NUM_NODES --node-rank=$SLURM_PROCID \\
    --nproc-per-node=$SLURM_GPUS_ON_NODE \\
    --master-addr=$HADAR_MASTER_ADDR --master-port=$HADAR_MASTER_PORT -m slurm_hadar.runtime.rank who.py'
hadar-srun -n 8 -m block -- bash -c 'echo "own ${SLURM_RESTART_COUNT:-0} $SLURM_PROCID $SLURMD_NODENAME"'
echo "waits ${SLURM_RESTART_COUNT:-0}"
while [ ! -e go ]; do sleep 0.2; done
"""

Who = dict[int, tuple[str, int]]


class Job:
    """One job of 2 nodes with 4 GPUs each, and what it says of itself."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        python = Path(sys.executable).parent
        env = {**cluster.env, "PATH": f"{ROOT / 'wrappers'}:{python}:{cluster.env['PATH']}"}
        env |= {"HADAR_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        (directory / "uneven.toml").write_text(GRAPH)
        (directory / "who.py").write_text(WHO)
        (directory / "job.sbatch").write_text(SCRIPT)
        options = ["--nodes=2", "--gres=gpu:4", "--ntasks-per-node=4", "--mem=400M", "--requeue", "--open-mode=append"]
        argv = [
            "sbatch",
            "--parsable",
            *options,
            "--output=log",
            "--nodelist=v100-1,v100-2",
            "--comment=hadar:graph=uneven.toml",
            "job.sbatch",
        ]
        self.id = cluster.run(argv, env=env, cwd=directory).stdout.strip()

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    @property
    def state(self) -> str:
        return self.cluster.run(["squeue", "-h", "-t", "all", "-j", self.id, "-o", "%T"]).stdout.strip()

    def by_srun(self, run: int) -> Who:
        return self._said("srun", run)

    def by_torchrun(self, run: int) -> Who:
        return self._said("torchrun", run)

    def _said(self, who: str, run: int) -> Who:
        found = re.findall(rf"^{who} {run} (\d+) (\S+) (\d+)$", self.log, re.MULTILINE)
        return {int(rank): (node, int(local)) for rank, node, local in found}


def test_the_bandwidth_job_prints_a_section_of_the_configuration(
    make_cluster: Callable[..., Any], short_tmp: Path, poll: Callable[..., Any]
) -> None:
    """The template as it stands, with small messages: what it prints is loaded, and has both rates of the type."""
    cluster = make_cluster("v100:2x2")
    text = (ROOT / "sbatch_templates" / "bandwidth.sbatch").read_text()
    assert "--mebibytes 256 --repeat 10" in text
    (short_tmp / "job.sbatch").write_text(text.replace("--mebibytes 256 --repeat 10", "--mebibytes 1 --repeat 2"))
    python = Path(sys.executable).parent
    env = {**cluster.env, "PATH": f"{ROOT / 'wrappers'}:{python}:{cluster.env['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"HADAR_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    argv = ["sbatch", "--parsable", "--gres=gpu:2", "--mem=400M", "--cpus-per-task=1", "--output=log", "job.sbatch"]
    job = cluster.run(argv, env=env, cwd=short_tmp).stdout.strip()

    def over() -> bool:
        shown = cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()
        return shown not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

    poll(over, deadline_s=DEADLINE_S)
    log = (short_tmp / "log").read_text()
    assert "# ring all-reduce by gloo, 1 MiB, median of 2; 4 workers on 2 nodes" in log, log
    # among what PyTorch says of whichever worker ends last
    section = re.findall(r"^(?:#.*|\[network.*\]|\w+ = .*)$", log[log.index("# ring all-reduce") :], re.M)
    (short_tmp / "hadar.toml").write_text("\n".join(section))
    measured = load(short_tmp / "hadar.toml").network.types["v100"]
    assert measured.inside_bytes_s and measured.outside_bytes_s, log


def expected(directory: Path, *nodes: str) -> Who:
    """The map's answer: local numbers ascend with the ranks of a node."""
    mapped = map_graph(read_graph(directory / "uneven.toml"), Topology.of(dict.fromkeys(nodes, 4)))
    assert mapped is not None
    return {rank: (node, i) for node, ranks in mapped.order for i, rank in enumerate(sorted(ranks))}


def test_ranks_are_where_the_graph_has_them(
    make_cluster: Callable[..., Any], short_tmp: Path, poll: Callable[..., Any]
) -> None:
    """On the nodes it was submitted to, and after a requeue on others; not where the user orders the tasks."""
    cluster = make_cluster("v100:3x4")
    job = Job(cluster, short_tmp)
    by_node = {rank: ("v100-1" if rank < 4 else "v100-2", rank % 4) for rank in range(8)}

    poll(lambda: "waits 0" in job.log, deadline_s=DEADLINE_S)
    placed = expected(short_tmp, "v100-1", "v100-2")
    assert placed[0][0] == "v100-2"  # not where torchrun's store is
    assert placed != by_node and {placed[r][0] for r in (1, 2, 3, 4)} != {placed[r][0] for r in (0, 5, 6, 7)}
    assert job.by_srun(0) == placed, job.log
    assert job.by_torchrun(0) == placed, job.log
    assert "hadar: ranks are placed by srun, not by the job's graph: --distribution has an order of its own" in job.log
    own = re.findall(r"^own 0 (\d+) (\S+)$", job.log, re.MULTILINE)
    assert {int(rank): node for rank, node in own} == {rank: node for rank, (node, _) in by_node.items()}

    cluster.run(["scontrol", "requeue", job.id])
    poll(lambda: job.state == "PENDING", deadline_s=DEADLINE_S)
    cluster.run(["scontrol", "update", f"JobId={job.id}", "NodeList=v100-2,v100-3", "StartTime=now+2"])
    poll(lambda: "waits 1" in job.log, deadline_s=DEADLINE_S)
    moved = expected(short_tmp, "v100-2", "v100-3")
    assert job.by_srun(1) == moved, job.log
    assert job.by_torchrun(1) == moved, job.log

    (short_tmp / "go").touch()
    poll(lambda: job.state == "COMPLETED", deadline_s=DEADLINE_S)


def test_an_uneven_job_has_as_many_ranks_as_gpus_on_each_node(
    make_cluster: Callable[..., Any], short_tmp: Path, poll: Callable[..., Any]
) -> None:
    """Four GPUs on one node and two on the other, where srun by itself starts five tasks and one."""
    cluster = make_cluster("v100:2x4")
    script = "#!/bin/bash\nhadar-srun -n 6 -- bash -c 'echo \"srun 0 $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID\"'\n"
    (short_tmp / "job.sbatch").write_text(script)
    env = {**cluster.env, "PATH": f"{ROOT / 'wrappers'}:{cluster.env['PATH']}", "HADAR_PYTHON": sys.executable}
    argv = [
        "sbatch",
        "--parsable",
        "--gpus=6",
        "--nodes=2",
        "-n6",
        "--mem=100M",
        "--output=log",
        "--comment=hadar:graph=gpt2/pp6",
        "job.sbatch",
    ]
    cluster.run(argv, env=env, cwd=short_tmp)
    log = short_tmp / "log"
    poll(lambda: log.exists() and log.read_text().count("srun 0") == 6, deadline_s=DEADLINE_S)
    mapped = map_graph(graph_of("gpt2/pp6", 6), Topology.of({"v100-1": 4, "v100-2": 2}))
    assert mapped is not None and sorted(len(ranks) for _, ranks in mapped.order) == [2, 4]
    found = re.findall(r"^srun 0 (\d+) (\S+) (\d+)$", log.read_text(), re.MULTILINE)
    assert {int(rank): node for rank, node, _ in found} == dict(enumerate(mapped.hosts))

"""A private cluster comes up, works, and leaves nothing behind, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, down, find, processes, up
from slurm_hadar.errors import ClusterError

pytestmark = pytest.mark.slurm
REPOSITORY = Path(__file__).resolve().parents[2]


def _submit(cluster: PrivateCluster, script: str, *options: str) -> str:
    argv = ["sbatch", "--parsable", "-o", f"{cluster.directory}/log/job-%j.out", *options]
    return cluster.run(argv, input="#!/bin/bash\n" + script).stdout.strip()


def _state(cluster: PrivateCluster, job: str) -> str:
    return cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()


def _output(cluster: PrivateCluster, job: str) -> str:
    path = cluster.directory / "log" / f"job-{job}.out"
    return path.read_text() if path.exists() else ""


def test_shared_cluster_runs_a_job_with_gpus(slurm_cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """A job sees as many GPUs as it asked for and the cluster it runs in."""
    job = _submit(slurm_cluster, 'echo "$CUDA_VISIBLE_DEVICES $SLURM_CLUSTER_NAME $SLURM_CONF"', "--gres=gpu:v100:2")

    poll(lambda: _state(slurm_cluster, job) == "COMPLETED")

    said = poll(lambda: _output(slurm_cluster, job))
    assert said.split() == ["0,1", slurm_cluster.cluster_name, str(slurm_cluster.conf)]


def test_node_states_count_gpus_in_use(slurm_cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """GPUs in use are counted by type, and nodes carry their type as a feature."""
    job = _submit(slurm_cluster, "sleep 60", "--gres=gpu:3", "--constraint=k80")
    poll(lambda: _state(slurm_cluster, job) == "RUNNING")

    used = {s.name: s.gpus_used for s in slurm_cluster.node_states() if s.gpus_used.get("k80")}

    assert used == {"k80-1": {"k80": 3}} or used == {"k80-2": {"k80": 3}}
    slurm_cluster.run(["scancel", job])


def test_srun_spans_unlike_nodes(slurm_cluster: PrivateCluster) -> None:
    """A step over nodes of two types starts a task on each."""
    argv = ["srun", "-N2", "-n2", "-w", "v100-1,p100-1", "--gres=gpu:1", "/usr/bin/env"]

    said = slurm_cluster.run(argv).stdout

    nodes = {line.partition("=")[2] for line in said.splitlines() if line.startswith("SLURMD_NODENAME=")}
    assert nodes == {"v100-1", "p100-1"}


def test_mixed_node_and_partitions(make_cluster: Callable[..., PrivateCluster]) -> None:
    """A node may hold two types, and --partitions gives one partition per type."""
    cluster = make_cluster("v100+k80:1x2,k80:1x1", partitions=True)

    (mixed, plain) = cluster.node_states()
    sinfo = cluster.run(["sinfo", "-h", "-o", "%R %N"]).stdout

    assert (mixed.name, mixed.gpus) == ("v100-k80-1", {"v100": 2, "k80": 2})
    assert (plain.name, plain.gpus) == ("k80-1", {"k80": 1})
    assert {line.split()[0] for line in sinfo.splitlines()} == {"all", "v100", "k80"}


def test_second_up_is_refused_and_two_clusters_stand_side_by_side(
    make_cluster: Callable[..., PrivateCluster],
) -> None:
    """The same folder is refused in one line; another folder gets ports of its own."""
    first = make_cluster("v100:1x1")
    second = make_cluster("v100:1x1", name="other")

    with pytest.raises(ClusterError, match="already runs") as refused:
        up(ClusterSpec(nodes="v100:1x1", directory=first.directory))

    assert "\n" not in str(refused.value)
    assert not set(first.ports.values()) & set(second.ports.values())
    assert first.controller_up() and second.controller_up()


def test_clusters_started_at_the_same_time_do_not_clash(short_tmp: Path) -> None:
    """Three starts at once, by three processes, all succeed."""
    code = """
        import sys
        from pathlib import Path
        from slurm_hadar.cluster import ClusterSpec, up
        up(ClusterSpec(nodes="v100:2x1", directory=Path(sys.argv[1])))
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    starts = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(short_tmp / n)], env=environment)
        for n in "abc"
    ]

    codes = [start.wait(timeout=120) for start in starts]

    try:
        assert codes == [0, 0, 0]
        ports = [port for n in "abc" for port in find(directory=short_tmp / n).ports.values()]
        assert len(ports) == len(set(ports)) == 9
        assert all(find(directory=short_tmp / n).controller_up() for n in "abc")
    finally:
        for n in "abc":
            down(directory=short_tmp / n)


def test_exception_inside_the_context_takes_the_cluster_down(short_tmp: Path) -> None:
    """Leaving by an exception leaves no process and no folder."""
    with pytest.raises(RuntimeError, match="mine"), up(ClusterSpec(nodes="v100:1x1", directory=short_tmp / "c")):
        raise RuntimeError("mine")

    assert not (short_tmp / "c").exists()
    assert processes.of_cluster(short_tmp / "c") == []


def test_down_ends_jobs_that_fled_or_ignore_sigterm(
    make_cluster: Callable[..., PrivateCluster], poll: Callable[..., str]
) -> None:
    """Neither a session of its own, nor ignoring SIGTERM, nor a clean environment keeps a job's process alive."""
    cluster = make_cluster("v100:1x1")
    job = _submit(cluster, "trap '' TERM\n/usr/bin/setsid /bin/sleep 987654 &\n/bin/sleep 987654", "--export=NONE")
    poll(lambda: sum(p.argv[-1:] == ("987654",) for p in cluster.processes()) == 2)
    everything = cluster.processes()
    assert _state(cluster, job) == "RUNNING"

    cluster.down()

    assert not [p for p in everything if processes.alive(p)]
    assert not cluster.directory.exists()


def test_down_ends_a_job_whose_daemons_all_crashed(
    make_cluster: Callable[..., PrivateCluster], poll: Callable[..., str]
) -> None:
    """With every daemon and slurmstepd killed, the job's own process is still found."""
    cluster = make_cluster("v100:1x1")
    _submit(cluster, "exec sleep 987653")
    poll(lambda: any(p.argv[-1:] == ("987653",) for p in cluster.processes()))
    everything = cluster.processes()
    for process in everything:
        if process.name.startswith("slurm") and process.name != "slurm_script":
            processes.send(process, signal.SIGKILL)
    poll(lambda: [p.name for p in cluster.processes()] == ["sleep"])

    down(directory=cluster.directory)

    assert not [p for p in everything if processes.alive(p)]


@pytest.mark.parametrize("told", [True, False])
def test_down_ends_a_daemon_that_was_started_again_by_hand(
    make_cluster: Callable[..., PrivateCluster], poll: Callable[..., str], told: bool
) -> None:
    """As an administrator does who has changed slurm.conf: by its option, or by the environment."""
    cluster = make_cluster("v100:1x1")
    (first,) = [p for p in processes.of_cluster(cluster.directory) if p.name == "slurmctld"]
    processes.send(first, signal.SIGKILL)
    poll(lambda: not processes.alive(first))
    environ = {key: value for key, value in os.environ.items() if key not in ("SLURM_CONF", processes.MARK)}
    argv = [first.argv[0], *(("-f", str(cluster.conf)) if told else ())]
    environ |= {} if told else {"SLURM_CONF": str(cluster.conf)}
    subprocess.run(argv, env=environ, check=True)
    poll(lambda: "UP" in cluster.run(["scontrol", "ping"], check=False).stdout)

    cluster.down()

    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, str(cluster.conf))]


def _mentions(file: Path, text: str) -> bool:
    try:
        return file.parent.joinpath("comm").read_text().startswith("slurm") and (
            text in file.read_text() or text in file.with_name("environ").read_text(errors="replace")
        )
    except OSError:
        return False


def test_a_shell_that_only_exported_slurm_conf_survives_down(make_cluster: Callable[..., PrivateCluster]) -> None:
    """``down`` does not end the user's own programs."""
    cluster = make_cluster("v100:1x1")
    bystander = subprocess.Popen(["sleep", "987652"], env=cluster.env)
    try:
        cluster.down()

        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("after_s", [0.05, 0.15, 0.3, 0.5, 0.7, 1.0])
def test_up_killed_at_any_moment_is_cleared(short_tmp: Path, after_s: float) -> None:
    """After SIGKILL of the starting process, the next ``up`` works and ``down`` leaves nothing."""
    directory = short_tmp / "c"
    code = (
        "import sys; from pathlib import Path; from slurm_hadar.cluster import ClusterSpec, up\n"
        "print('go', flush=True); up(ClusterSpec(nodes='v100:3x1', directory=Path(sys.argv[1])))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        try:
            starter.wait(timeout=after_s)
        except subprocess.TimeoutExpired:
            starter.kill()

    try:
        cluster = up(ClusterSpec(nodes="v100:1x1", directory=directory))
    except ClusterError as error:  # it was killed after the cluster was complete
        assert "a cluster already runs" in str(error)
        down(directory=directory)
        cluster = up(ClusterSpec(nodes="v100:1x1", directory=directory))
    try:
        assert [s.state for s in cluster.node_states()] == ["IDLE"]
        assert len([p for p in cluster.processes() if p.name == "slurmd"]) == 1
    finally:
        cluster.down()
    assert processes.of_cluster(directory) == []


def test_slurmctld_crash_and_return(make_cluster: Callable[..., PrivateCluster], poll: Callable[..., str]) -> None:
    """slurmctld can be killed and started again by another handle; jobs go on."""
    cluster = make_cluster("v100:1x1")
    job = _submit(cluster, "sleep 60")
    poll(lambda: _state(cluster, job) == "RUNNING")
    cluster.stop_slurmctld()
    other = find(directory=cluster.directory)
    assert other.daemon("slurmctld") is None

    other.start_slurmctld()
    other.kill_slurmctld()
    other.start_slurmctld()

    poll(lambda: _state(cluster, job) == "RUNNING")


def test_slurmd_crash_and_return(make_cluster: Callable[..., PrivateCluster], poll: Callable[..., str]) -> None:
    """A killed slurmd makes its node stop answering; started again, the node is idle."""
    cluster = make_cluster("v100:2x1", extra_conf=("SlurmdTimeout=2",))

    cluster.stop_slurmd("v100-2")
    poll(lambda: "DOWN" in cluster.node_states()[1].state, 60)
    cluster.start_slurmd("v100-2")

    cluster.wait_idle(60)
    with pytest.raises(ClusterError, match="no node 'x'; nodes: v100-1, v100-2"):
        cluster.stop_slurmd("x")

"""What every backend must do, on a real Slurm: read everything, write exactly, fail clearly and in time."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.errors import SlurmError, SlurmUnavailable
from slurm_hadar.graphs.topology import parse_switches
from slurm_hadar.model import JobState
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.state import Fittings, GpuRequest, PartitionTerms, SlurmJob, Write
from tests.slurm.conftest import HERE, problem_of
from tests.slurm.jobs import Poll, in_state, read, shape, submit, untyped

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def odd() -> Iterator[PrivateCluster]:
    """A cluster with two GPU types on one node, whose nodes and daemons may be broken."""
    folder = Path(tempfile.mkdtemp(prefix="hdr-", dir="/tmp"))
    spec = ClusterSpec(nodes="v100+k80:1x2,p100:2x2", name="odd", directory=folder / "c", partitions=True)
    try:
        with up(spec) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------- reading


def test_pyslurm_keeps_the_contract_too(slurm_cluster: PrivateCluster) -> None:
    """Says in one line why the contract was not run with pyslurm, where it was not."""
    if problem := problem_of(slurm_cluster):
        pytest.skip(f"the contract ran with the commands only: {problem}")
    assert "pyslurm" in HERE


def test_identity(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """The version that answers, the cluster's name, and what tells it from another of that name."""
    assert backend.version() == slurm_cluster.run(["sinfo", "--version"]).stdout.split()[1]
    assert backend.cluster_name() == slurm_cluster.cluster_name
    name, host, port = backend.identity().split()
    assert (name, port) == (slurm_cluster.cluster_name, str(slurm_cluster.ports["slurmctld"])) and host


def test_switches(make: Callable[..., Backend], slurm_cluster: PrivateCluster, odd: PrivateCluster) -> None:
    """A Slurm that was told of none says nothing; one that was says which nodes are below which switch."""
    assert make(slurm_cluster.env).topology() == ""
    odd.conf.with_name("topology.conf").write_text(
        "SwitchName=s0 Nodes=p100-1\nSwitchName=s1 Nodes=p100-2,v100-k80-1\nSwitchName=top Switches=s0,s1\n"
    )
    conf = odd.conf.read_text()
    odd.stop_slurmctld()
    odd.conf.write_text(f"{conf}TopologyPlugin=topology/tree\n")
    try:
        odd.start_slurmctld()
        switches = parse_switches(make(odd.env).topology())
    finally:
        odd.stop_slurmctld()
        odd.conf.write_text(conf)
        odd.start_slurmctld()
    assert {switch: set(nodes) for switch, nodes in switches.items()} == {
        "s0": {"p100-1"},
        "s1": {"p100-2", "v100-k80-1"},
        "top": {"p100-1", "p100-2", "v100-k80-1"},
    }
    odd.wait_idle(60)


def test_an_empty_cluster(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """Nodes with their GPUs, nothing used, the default partition over all, no active job."""
    state = backend.read()

    assert [j for j in state.jobs if j.state.active] == []
    assert {n.name: dict(n.gpus) for n in state.nodes} == {n.name: dict(n.gpus) for n in slurm_cluster.nodes}
    assert all(n.available and not n.used and n.state == "idle" and n.partitions == ("all",) for n in state.nodes)
    assert {n.features for n in state.nodes} == {("v100",), ("p100",), ("k80",)}
    (partition,) = state.partitions
    assert (partition.name, partition.max_time_s, partition.up) == ("all", None, True)
    assert set(partition.nodes) == {n.name for n in slurm_cluster.nodes}
    assert abs(state.time - time.time()) < 60 and state.read_s > 0


SHAPES: dict[str, tuple[Sequence[str], dict[str, object]]] = {
    "plain": (["--gres=gpu:2"], {"gpus": untyped(2), "num_nodes": 1, "requeue": True, "batch": True, "restarts": 0}),
    "no gpus": ([], {"gpus": ()}),
    "gpus of the job": (["--gpus=4", "-N1-2"], {"gpus": untyped(4, "job"), "num_nodes": 1, "max_nodes": 2}),
    "gpus of a task": (["--gpus-per-task=1", "-n2"], {"gpus": untyped(1, "task"), "num_tasks": 2}),
    # 24.11 and 26.05 show both in one: cpu=2,gres/gpu=1
    "gpus and cpus of a task": (
        ["--gpus-per-task=1", "--cpus-per-task=2", "-n2"],
        {"gpus": untyped(1, "task"), "num_tasks": 2, "num_cpus": 4},
    ),
    "typed of a task": (["--gpus-per-task=v100:1", "-n2"], {"gpus": (GpuRequest("task", (("v100", 1),)),)}),
    "both": (["--gpus-per-node=2", "--gpus=4", "-N2"], {"gpus": (*untyped(4, "job"), *untyped(2))}),
    "typed": (["--gres=gpu:v100:2"], {"gpus": (GpuRequest("node", (("v100", 2),)),)}),
    "typed of the job": (["--gpus=k80:3"], {"gpus": (GpuRequest("job", (("k80", 3),)),)}),
    "two nodes": (["--gres=gpu:2", "-N2", "-n4"], {"num_nodes": 2, "max_nodes": 2, "num_tasks": 4, "num_cpus": 4}),
    "tasks": (["--gres=gpu:1", "-n4"], {"num_nodes": 1, "max_nodes": 1, "num_tasks": 4}),
    "tasks of a node": (
        ["--gres=gpu:2", "-N2", "--ntasks-per-node=2"],
        {"num_tasks": 4, "tasks_per_node": 2, "tasks_per_socket": 0},
    ),
    "tasks of a socket": (
        ["--gres=gpu:2", "-n2", "--ntasks-per-socket=2"],
        {"num_tasks": 2, "tasks_per_node": 0, "tasks_per_socket": 2},
    ),
    "below one switch": (["--gres=gpu:2", "-N2", "--switches=1"], {"num_nodes": 2, "switches": 1}),
    "by name": (["-N2", "-w", "v100-1,v100-2"], {"req_nodes": ("v100-1", "v100-2")}),
    "constraint": (["-C", "v100|k80", "--gres=gpu:1"], {"features": "v100|k80"}),
    "time limit": (["-t", "1-02:03:00"], {"time_limit_s": 93780.0}),
    "no requeue": (["--no-requeue", "--gres=gpu:1"], {"requeue": False}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_job_as_it_was_asked_for(name: str, backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """Each way of asking is read as what it is; here of jobs that their user holds."""
    options, expected = SHAPES[name]
    job = submit(slurm_cluster, "--hold", *options)

    found = read(backend)[job]

    assert {k: getattr(found, k) for k in expected} == expected
    assert (found.state, found.held, found.reason) == (JobState.PENDING, True, "JobHeldUser")
    assert (found.user, found.partition, found.work_dir) == (slurm_cluster.user, "all", "/tmp")
    assert (found.array_id, found.het_id, found.nodes, found.start) == (None, None, (), None)
    assert found.submit is not None and abs(found.submit - time.time()) < 60


def test_nobody_moves_another_to_another_gpu(
    make: Callable[..., Backend], make_cluster: Callable[..., PrivateCluster], poll: Poll
) -> None:
    """By a line in a job's name that looks like what Slurm says of another's."""
    cluster = make_cluster(nodes="v100:1x2", shards=4)
    backend = make(cluster.env)
    other = submit(cluster, "--gres=shard:1", "-J", "other")
    forged = "JobName=other Nodes=v100-1 CPU_IDs=0 Mem=0 GRES=shard:v100:1(IDX:1)"
    eve = submit(cluster, "--gres=shard:1", "-J", f"eve\nJobId={other} {forged}\nx", "--comment", forged)
    poll(in_state(backend, other, JobState.RUNNING))
    poll(in_state(backend, eve, JobState.RUNNING))

    assert {j.job_id: j.gpu_number for j in backend.read().jobs} == {other: 0, eve: 0}


def test_the_nodes_that_one_task_excludes(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """As its owner may say after a failure there; the others of its array are not kept from these, nor it from
    theirs."""
    array = submit(slurm_cluster, "--hold", "--gres=gpu:1", "-a", "1-4%2", "-x", "k80-2")
    for task, excluded in ((2, "v100-1"), (3, "")):
        slurm_cluster.run(["scontrol", "update", f"JobId={array}_{task}", f"ExcNodeList={excluded}"])

    found = {j.job_id: (j.exc_nodes, j.throttle) for j in backend.read().jobs if j.array_id == array}

    assert found == {f"{array}_{task}": (nodes, 2) for task, nodes in
                     ((1, ("k80-2",)), (2, ("v100-1",)), (3, ()), (4, ("k80-2",)))}  # fmt: skip


def test_arrays(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """Waiting tasks are jobs of their own, whether Slurm keeps them in one record or has split them off."""
    array = submit(slurm_cluster, "--hold", "--gres=gpu:1", "-a", "1,3-5%2")
    tasks = {f"{array}_{i}" for i in (1, 3, 4, 5)}
    pending = {i: j for i, j in read(backend).items() if j.array_id == array}
    assert set(pending) == tasks and all(j.gpus == untyped(1) and j.held for j in pending.values())

    def throttles() -> set[int | None]:
        return {j.throttle for j in backend.read().jobs if j.array_id == array}

    assert throttles() == {2}

    slurm_cluster.run(["scontrol", "update", f"JobId={array}_4", "NodeList=k80-1"])
    assert throttles() == {2}
    for task in (1, 3, 5):
        slurm_cluster.run(["scontrol", "update", f"JobId={array}_{task}", "NodeList=k80-1"])
    assert throttles() == {2}, "squeue shows it no more"
    slurm_cluster.run(["scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=3"])
    assert throttles() == {3}
    slurm_cluster.run(["scontrol", "release", f"{array}_4"])

    running = poll(in_state(backend, f"{array}_4", JobState.RUNNING))
    assert (running.nodes, running.array_id) == (("k80-1",), array) and str(running.raw_id) != array
    assert {i for i, j in read(backend).items() if j.array_id == array and j.held} == tasks - {f"{array}_4"}


def test_which_jobs_are_new(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """By their numbers, whatever the queue's length: without those that are over, the tasks that an array starts, and
    jobs that say nothing."""
    array = submit(slurm_cluster, "--array=1-2", "--comment=hadar:model=old", "--hold")
    first = backend.next_job_id()
    assert first == int(array) + 1
    slurm_cluster.run(["scontrol", "release", array])
    poll(lambda: {t.state for t in backend.read_jobs() if t.array_id == array} == {JobState.RUNNING})
    over = submit(slurm_cluster, "--comment=hadar:model=over", "--hold")
    backend.cancel([over])
    submit(slurm_cluster, "--comment=hadar:model=lm", "--begin=now+1hour")
    submit(slurm_cluster, "--comment=another JobState=PENDING Comment=hadar:")
    silent = submit(slurm_cluster, "-J", "odd name", "--hold")

    end = backend.next_job_id()

    assert end is not None and end > int(silent)
    assert backend.comments_since(first, end) == ("hadar:model=lm", "another")


def test_how_many_gpus_are_in_use(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """As a whole read has it, without the queue."""
    assert set(backend.gpus_in_use().values()) == {0}
    job = submit(slurm_cluster, "--gres=gpu:1", "-N2")
    running = poll(in_state(backend, job, JobState.RUNNING))
    held = {node.name: sum(count for _, count in node.used) for node in backend.read().nodes}
    assert backend.gpus_in_use() == held and {name for name, count in held.items() if count} == set(running.nodes)
    backend.cancel([job])
    poll(lambda: not any(backend.gpus_in_use().values()))


def test_heterogeneous_jobs(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """Each component is one record, named as scontrol wants it, that says whose component it is."""
    job = submit(slurm_cluster, "--hold", "--gres=gpu:1", ":", "--gres=gpu:2")

    found = read(backend)

    assert found[f"{job}+0"].gpus == untyped(1) and found[f"{job}+1"].gpus == untyped(2)
    assert {found[f"{job}+{i}"].het_id for i in (0, 1)} == {job} and job not in found


def test_reasons_to_wait(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """A begin time, a dependency and a lack of GPUs are told apart."""
    runs = submit(slurm_cluster, "--gres=gpu:4", "-N6")
    poll(in_state(backend, runs, JobState.RUNNING))
    begin = submit(slurm_cluster, "--gres=gpu:1", "--begin=now+500")
    after = submit(slurm_cluster, "--gres=gpu:1", f"--dependency=afterok:{runs}")
    full = submit(slurm_cluster, "--gres=gpu:1")

    poll(lambda: read(backend)[full].reason in ("Resources", "Priority"))
    found = read(backend)
    assert found[begin].reason == "BeginTime" and 400 < found[begin].eligible - time.time() < 510
    assert found[after].reason == "Dependency" and found[after].dependency.startswith(f"afterok:{runs}")
    assert not any(found[j].held for j in (begin, after, full))
    assert found[runs].gpus == untyped(4) and len(found[runs].nodes) == 6


def test_states_after_the_end(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """Done, failed, cancelled and suspended."""
    done, failed = submit(slurm_cluster, script="true"), submit(slurm_cluster, script="false")
    gone, asleep = submit(slurm_cluster, "--hold"), submit(slurm_cluster)
    slurm_cluster.run(["scancel", gone])
    poll(in_state(backend, asleep, JobState.RUNNING))
    slurm_cluster.run(["scontrol", "suspend", asleep])

    for job, state in ((done, JobState.DONE), (failed, JobState.FAILED), (gone, JobState.FAILED)):
        assert not poll(in_state(backend, job, state)).held
    assert poll(in_state(backend, asleep, JobState.SUSPENDED)).state.active


TEXTS = ["two  words ", "it's \"quoted\" 100%s\\n", "two\nlines\r\nand\ttabs", "\x1f\x1e\x01 control", "grüße \u2028 ü",
         "hadar:model=x,\x1fRUNNING\x1f\n123|456\x1f", "x" * 900]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: repr(t)[:24])
def test_whatever_users_write(text: str, backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """Names, comments and accounts with quotes, line ends and separators are read back and disturb no other record."""
    before = submit(slurm_cluster, "--hold", "--comment=hadar:model=before")
    job = submit(
        slurm_cluster, "--hold", "--gres=gpu:1", f"--comment={text}", f"--job-name={text}", f"--account={text}"
    )
    after = submit(slurm_cluster, "--hold", "--comment=hadar:model=after")

    found = read(backend)

    assert (found[job].comment, found[job].name) == (text, text)
    assert (found[job].state, found[job].gpus) == (JobState.PENDING, untyped(1))
    assert [found[j].comment for j in (before, after)] == ["hadar:model=before", "hadar:model=after"]


def test_bytes_that_are_no_text(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """A name that is not UTF-8 costs the name, not the reading."""
    job = submit(slurm_cluster, "--hold", "--gres=gpu:1", os.fsdecode(b"--job-name=a\xff\xfeb"), "--comment=hadar:")

    found = read(backend)[job]

    assert found.comment == "hadar:" and "\ufffd" in found.name
    slurm_cluster.run(["scontrol", "update", f"JobId={job}", "JobName=text"])


def test_nodes(make: Callable[..., Backend], odd: PrivateCluster, poll: Poll) -> None:
    """Used GPUs by type, also of two types on one node; drained and down nodes with their reason; partitions."""
    backend = make(odd.env)
    job = submit(odd, "-w", "v100-k80-1", "--gres=gpu:k80:1,gpu:v100:2")
    wide = submit(odd, "-p", "p100", "-N1", "--gres=gpu:1", "-w", "p100-1")
    for one in (job, wide):
        poll(in_state(backend, one, JobState.RUNNING))
    odd.run(["scontrol", "update", "NodeName=p100-1", "State=DRAIN", "Reason=broken fan, row 3"])
    odd.run(["scontrol", "update", "NodeName=p100-2", "State=DOWN", "Reason=gone"])
    odd.run(["scontrol", "update", "PartitionName=k80", "MaxTime=90", "State=DOWN"])

    state = backend.read()

    node = {n.name: n for n in state.nodes}
    assert node["v100-k80-1"].gpus == (("k80", 2), ("v100", 2))
    assert node["v100-k80-1"].used == (("k80", 1), ("v100", 2)) and node["v100-k80-1"].available
    assert (node["p100-1"].available, node["p100-1"].reason) == (False, "broken fan, row 3")
    assert node["p100-1"].used == (("p100", 1),)
    assert (node["p100-2"].available, node["p100-2"].reason, node["p100-2"].used) == (False, "gone", ())
    parts = {p.name: p for p in state.partitions}
    assert {n: (set(p.nodes), p.max_time_s, p.up) for n, p in parts.items() if n != "all"} == {
        "k80": ({"v100-k80-1"}, 5400.0, False),
        "v100": ({"v100-k80-1"}, None, True),
        "p100": ({"p100-1", "p100-2"}, None, True),
    }
    odd.run(["scancel", job, wide])
    odd.run(["scontrol", "update", "NodeName=p100-1,p100-2", "State=RESUME"])
    odd.run(["scontrol", "update", "PartitionName=k80", "MaxTime=UNLIMITED", "State=UP"])
    poll(lambda: all(n.state == "idle" and n.available for n in backend.read().nodes))


def test_reads_what_the_commands_show(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """Field by field what the commands say, for all jobs of this cluster's life so far; of those that are over not
    what they asked of their nodes, which places nobody any more."""
    asked = {"gpus", "asks", "cpus_per_gpu", "by_user", "mcs", "tasks_per_node", "tasks_per_socket", "switches"}
    asked |= {"exc_nodes", "throttle", "num_nodes", "max_nodes", "num_tasks", "num_cpus"}
    for options, _ in SHAPES.values():
        submit(slurm_cluster, "--hold", *options)

    ours, theirs = backend.read(), CliBackend(env=slurm_cluster.env).read()

    for one, other in zip(sorted(ours.jobs, key=_id), sorted(theirs.jobs, key=_id), strict=True):
        same = {f.name for f in fields(one)} - (set() if one.state.active else asked)
        if other.num_nodes < other.max_nodes:  # of a range pyslurm shows what Slurm has reckoned with
            same.discard("num_nodes")
        assert {f: getattr(one, f) for f in same} == {f: getattr(other, f) for f in same}
    assert (ours.nodes, ours.partitions) == (theirs.nodes, theirs.partitions)


def _id(job: SlurmJob) -> tuple[int, str]:
    return job.raw_id, job.job_id


# ---------------------------------------------------------------------------------------------------------- failing


def test_slurmctld_away(make: Callable[..., Backend], odd: PrivateCluster) -> None:
    """Every call ends in time with SlurmUnavailable, and works again when slurmctld is back."""
    backend = make(odd.env, timeout_s=2.0, retries=0)
    backend.read()
    odd.kill_slurmctld()
    began = time.monotonic()
    try:
        for call in (
            backend.read,
            backend.read_jobs,
            lambda: make(odd.env, timeout_s=2.0, retries=0).cluster_name(),
            lambda: backend.write([Write("update", ("1",), (("StartTime", "now"),))]),
            lambda: backend.signal(["1.0"], "USR2"),
            lambda: backend.cancel(["1"]),
        ):
            with pytest.raises(SlurmUnavailable):
                call()
        assert time.monotonic() - began < 60
    finally:
        odd.start_slurmctld()
    assert len(make(odd.env).read().nodes) == 3


def test_commands_missing(make: Callable[..., Backend], slurm_cluster: PrivateCluster, short_tmp: Path) -> None:
    """Not on PATH: one line that names the command and what to install."""
    backend = make({**slurm_cluster.env, "PATH": str(short_tmp)})

    for call in (backend.version, lambda: backend.write([Write("release", ("1",))])):
        with pytest.raises(SlurmError, match="scontrol is not on PATH: install Slurm's client commands"):
            call()


def test_what_jobs_ask_and_partitions_allow(make: Callable[..., Backend], odd: PrivateCluster, poll: Poll) -> None:
    """CPUs by GPUs, disk, threads; the terms of a partition, whose default shows once Slurm has tried a job."""
    backend = make(odd.env)
    name = backend.read().partitions[0].name
    node = backend.read().partitions[0].nodes[0]
    assert backend.read().bounds.partitions[name] == PartitionTerms(min_nodes=0)
    terms = ("MaxNodes=3", "MinNodes=1", "MaxCPUsPerNode=4", "JobDefaults=DefCpuPerGPU=2")
    odd.run(["scontrol", "update", f"PartitionName={name}", *terms], check=True)
    asking = submit(odd, "--hold", "-p", name, "--gres=gpu:1", "--cpus-per-gpu=3", "--threads-per-core=1")
    counting, plain = (submit(odd, "-p", name, "-w", node, "--gres=gpu:1", *more) for more in (["-c1"], []))
    poll(in_state(backend, plain, JobState.RUNNING))

    state = backend.read()

    jobs = {j.job_id: j for j in state.jobs}
    assert state.bounds.partitions[name] == PartitionTerms(1, 3, 4, 2)
    assert (jobs[asking].cpus_per_gpu, jobs[asking].asks) == (3, Fittings(threads=1))
    assert (jobs[counting].cpus_per_gpu, jobs[plain].cpus_per_gpu, jobs[plain].num_cpus) == (0, 2, 2)
    assert all(n.has.threads >= 1 and n.has.sockets >= 1 and n.has.gres == () for n in state.nodes)
    odd.run(["scancel", asking, counting, plain])
    usual = ("MaxNodes=UNLIMITED", "MinNodes=0", "MaxCPUsPerNode=UNLIMITED", "JobDefaults=DefCpuPerGPU=0")
    odd.run(["scontrol", "update", f"PartitionName={name}", *usual], check=False)


def test_reservations_of_nodes(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """Maintenance is open to those who name it; a magnetic one is told as such."""
    made = {"mnt": ("v100-1", "maint"), "mag": ("k80-1", "magnetic")}
    for name, (node, flag) in made.items():
        options = (f"ReservationName={name}", "StartTime=now", "Duration=60", f"Nodes={node}", f"Flags={flag}")
        slurm_cluster.run(["scontrol", "create", "reservation", *options, "Users=root"], check=True)
    try:
        node = poll(lambda: next((n for n in backend.read().nodes if n.maintenance), None))
        assert (node.name, node.available) == ("v100-1", False)
        asked = ("--reservation=mnt", "--gres=gpu:1"), ("-H", "--gres=gpu:1", "-t5"), ("-H", "--gres=gpu:1")
        jobs = [submit(slurm_cluster, *options) for options in asked]
        ends = int(backend.version().split(".")[0]) >= 26  # who ends before the reservation does, then
        for job, place in zip(jobs, ("v100-1", "k80-1", "k80-2" if ends else "k80-1"), strict=True):
            backend.write([Write("update", (job,), shape(1, place)), Write("release", (job,))])
            poll(in_state(backend, job, JobState.RUNNING))
        found = {n.name: n for n in backend.read().nodes}["v100-1"]
        assert found.available and found.maintenance and found.state != "idle"
        told = {r.name: (r.magnetic, r.outlasts) for r in backend.read().bounds.reservations}
        assert told == {"mnt": (False, ends), "mag": (True, ends)}
        assert [read(backend)[job].reservation == "mag" for job in jobs] == [False, True, not ends]
    finally:
        backend.cancel(list(read(backend)))
        for name in made:
            poll(lambda name=name: not slurm_cluster.run(
                ["scontrol", "delete", f"ReservationName={name}"], check=False).returncode)  # fmt: skip

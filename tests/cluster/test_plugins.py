"""job_submit.lua and the TaskProlog inside a running Slurm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_hadar import comment
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.errors import ClusterError, CommentError

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateCluster]:
    """Two nodes with both plugins."""
    folder = Path(tempfile.mkdtemp(prefix="hdr-", dir="/tmp"))
    folder.chmod(0o755)  # other users submit, too
    try:
        with up(ClusterSpec(nodes="v100:1x4,k80:1x4", name="plugins", directory=folder / "c", plugins=True)) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit(cluster: PrivateCluster, script: str, *options: str) -> str:
    return _submit_in(cluster, [], script, *options)


def _submit_in(cluster: PrivateCluster, step: list[str], script: str, *options: str) -> str:
    argv = [*step, "sbatch", "--parsable", "-o", f"{cluster.directory}/log/job-%j.out", *options]
    return cluster.run(argv, input="#!/bin/bash\n" + script).stdout.strip()


def _show(cluster: PrivateCluster, job: str) -> dict[str, str]:
    shown = cluster.run(["scontrol", "-o", "show", "job", job]).stdout.replace("=gres:gpu", "=gres/gpu")  # up to 22.05
    return dict(re.findall(r"(\S+?)=(\S*)", shown))


def _wait_output(cluster: PrivateCluster, job: str, poll: Callable[..., str]) -> dict[str, str]:
    poll(lambda: _show(cluster, job)["JobState"] == "COMPLETED")
    text = (cluster.directory / "log" / f"job-{job}.out").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_typed_job_is_made_steerable_and_moves(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """A job that asked for v100 runs on k80, twice as many tasks' counts put right, when it is placed there."""
    script = "/usr/bin/env\nsrun /bin/sh -c 'echo task=$SLURM_PROCID/$SLURM_NTASKS/$SLURMD_NODENAME'"
    options = ["--gpus=v100:2", "-N1", "-n1", "--hold", "--comment=hadar:model=resnet18"]
    job = _submit(cluster, script, *options)
    shown = _show(cluster, job)
    assert shown["TresPerNode"] == "gres/gpu:2" and "TresPerJob" not in shown
    assert shown["Comment"] == "hadar:model=resnet18,prefer=v100"
    assert shown["Requeue"] == "1"

    place = f"update JobId={job} TresPerNode=gres:gpu:3 NumNodes=2-2 NumTasks=2 NumCPUs=2 NodeList=v100-1,k80-1"
    cluster.run(["scontrol"], input=f"{place} StartTime=now\nrelease {job}\n")

    said = _wait_output(cluster, job, poll)
    assert said["HADAR_MANAGED"] == "1" and "SLURM_GPUS" not in said
    assert said["SLURM_NTASKS"] == "2" and said["SLURM_GPUS_ON_NODE"] == "3"
    text = (cluster.directory / "log" / f"job-{job}.out").read_text()
    assert {"task=0/2/k80-1", "task=1/2/v100-1"} == set(re.findall(r"task=\S+", text))


def test_a_job_submitted_from_a_step_is_no_task_of_it(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """As from a shell of srun --pty: its task counts follow its place all the same."""
    job = _submit_in(cluster, ["srun", "-n1"], "/usr/bin/env", "--gpus=1", "-N1", "-n1", "--hold", "--comment=hadar:")
    place = f"update JobId={job} TresPerNode=gres:gpu:1 NumNodes=2-2 NumTasks=2 NumCPUs=2 NodeList=v100-1,k80-1"
    cluster.run(["scontrol"], input=f"{place} StartTime=now\nrelease {job}\n")

    said = _wait_output(cluster, job, poll)

    assert said["SLURM_NTASKS"] == "2" and "SLURM_GPUS" not in said


def test_a_job_of_its_own_node_starts_no_task_for_each_cpu(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """Where sbatch was called in a job with a task, whose number it has passed on."""
    script = "/usr/bin/env\necho tasks=$(srun /bin/hostname | wc -l)"
    job = _submit_in(cluster, ["srun", "-n1"], script, "--gres=gpu:1", "--exclusive", "--comment=hadar:")

    said = _wait_output(cluster, job, poll)

    assert said["tasks"] == "1" and "SLURM_NTASKS" not in said and "HADAR_NO_TASKS" not in said


def test_gpus_for_each_task_are_had_of_another_type(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """With as many GPUs, and srun in the script asks for no type either."""
    options = ["--gpus-per-task=v100:2", "-n1", "--hold", "--comment=hadar:"]
    job = _submit(cluster, "srun /bin/sh -c 'echo gpus=$CUDA_VISIBLE_DEVICES'", *options)
    assert _show(cluster, job)["Comment"] == "hadar:prefer=v100"
    cluster.run(["scontrol"], input=f"update JobId={job} NodeList=k80-1 StartTime=now\nrelease {job}\n")

    assert _wait_output(cluster, job, poll)["gpus"] == "0,1"


def test_a_site_s_own_script_loads_ours(cluster: PrivateCluster) -> None:
    """As docs/admin.md has it: ours acts first, the site's rules see what it has made of the job, also of a change."""
    page = (ROOT / "docs/admin.md").read_text()
    text = page.partition("```lua\n")[2].partition("```")[0]
    script, ours = cluster.conf.with_name("job_submit.lua"), cluster.conf.with_name("hadar.lua")
    before = script.read_text()
    rules = "if (job.tres_per_node or ''):find('gpu:') and job.time_limit == 77 then return slurm.ERROR end\n"
    script.rename(ours)
    try:
        script.write_text(text.replace("/etc/slurm/hadar.lua", str(ours)).replace("    -- your own rules\n", rules))
        taken = _submit(cluster, "true", "--hold", "--gres=gpu:v100:2", "--comment=hadar:")
        assert _show(cluster, taken)["TresPerNode"] == "gres/gpu:2"
        for options in (["-t77", "--gres=gpu:v100:1", "--comment=hadar:"], ["--comment=hadar:modle=x"]):
            with pytest.raises(ClusterError):
                _submit(cluster, "true", "--hold", *options)
        with pytest.raises(ClusterError):
            cluster.run(["scontrol", "update", f"JobId={taken}", "Comment=hadar:modle=x"])
        cluster.run(["scontrol", "update", f"JobId={taken}", "Comment=hadar:batch=7"])
        assert _show(cluster, taken)["Comment"] == "hadar:batch=7"
    finally:
        ours.unlink()
        script.write_text(before)


def test_channel_file_reaches_the_batch_script_and_its_tasks(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """HADAR_CHANNEL is set where the controller left its file beside slurm.conf."""
    channel = cluster.conf.with_name("hadar-channel.json")
    channel.write_text("{}")
    try:
        job = _submit(cluster, "srun /usr/bin/env", "--gres=gpu:1", "--comment=hadar:")
        assert _wait_output(cluster, job, poll)["HADAR_CHANNEL"] == str(channel)
    finally:
        channel.unlink()


def test_plain_job_is_untouched(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """A job without the comment keeps its typed request, its counts and its nodelist."""
    job = _submit(cluster, "/usr/bin/env", "--gpus=v100:2", "-n2", "-w", "v100-1", "--comment=mine")

    shown, said = _show(cluster, job), _wait_output(cluster, job, poll)

    assert (shown["TresPerJob"], shown["Comment"], shown["ReqNodeList"]) == ("gres/gpu:v100:2", "mine", "v100-1")
    assert said["SLURM_GPUS"] == "v100:2" and said["SLURM_NTASKS"] == "2"
    assert "HADAR_MANAGED" not in said


@pytest.mark.parametrize(
    "body",
    ["modle=x", "model=", "batch=0", "batch=2,batch=3", "nodes=4-1", "deadline=2026-11-20", "types=v100+", "model=a b"],
)
def test_broken_comments_are_refused_to_the_user_as_python_does(cluster: PrivateCluster, body: str) -> None:
    """sbatch shows the reason of the refusal, and it is the reason the Python reader gives."""
    with pytest.raises(CommentError) as ours:
        comment.parse(f"hadar:{body}")

    done = cluster.run(["sbatch", f"--comment=hadar:{body}", "--wrap", "true"], check=False)

    assert done.returncode != 0
    assert str(ours.value).replace("'", "") in done.stderr.replace("'", "")


@pytest.mark.parametrize("body", ["", "batch=64,steps=1000", "deadline=2030-01-01T00:00+00:00", "weight=0.5,lose=yes"])
def test_good_comments_pass(cluster: PrivateCluster, body: str) -> None:
    """What Python reads, Slurm takes, and leaves as it was where no type was asked for."""
    job = _submit(cluster, "true", "--hold", "--gres=gpu:1", f"--comment=hadar:{body}")

    assert cluster.run(["squeue", "-h", "-j", job, "-o", "%k"]).stdout.strip() == f"hadar:{body}"
    cluster.run(["scancel", job])


def test_nodelist_and_srun(cluster: PrivateCluster) -> None:
    """-w is refused with advice, passes with pin=yes; an srun with a broken comment is refused, a good one runs."""
    with pytest.raises(ClusterError, match="submission failed"):
        _submit(cluster, "true", "-w", "v100-1", "--comment=hadar:")
    said = cluster.run(["sbatch", "-w", "v100-1", "--comment=hadar:", "--wrap", "true"], check=False).stderr
    assert "add pin=yes" in said
    pinned = _submit(cluster, "true", "--hold", "-w", "v100-1", "--gpus=v100:1", "--comment=hadar:pin=yes")
    assert _show(cluster, pinned)["TresPerJob"] == "gres/gpu:v100:1"
    cluster.run(["scancel", pinned])

    with pytest.raises(ClusterError):
        cluster.run(["srun", "--comment=hadar:x", "true"])
    assert cluster.run(["srun", "--comment=hadar:batch=2", "--gres=gpu:v100:1", "echo", "ran"]).stdout == "ran\n"


def test_updates_pass_unless_they_break_the_comment(cluster: PrivateCluster) -> None:
    """The controller's and the owner's updates pass; a comment that cannot be read does not replace a good one."""
    job = _submit(cluster, "true", "--hold", "--gres=gpu:1", "--comment=hadar:model=m")
    for change in ("StartTime=now+600", "NodeList=k80-1", "NodeList=", "Comment=hadar:model=m,batch=7"):
        cluster.run(["scontrol", "update", f"JobId={job}", *change.split()])

    with pytest.raises(ClusterError):
        cluster.run(["scontrol", "update", f"JobId={job}", "Comment=hadar:nope"])

    assert _show(cluster, job)["Comment"] == "hadar:model=m,batch=7"
    assert "unknown key 'nope'" in (cluster.directory / "log" / "slurmctld.log").read_text()
    cluster.run(["scancel", job])


def test_requeued_job_appends_its_output(cluster: PrivateCluster, poll: Callable[..., str]) -> None:
    """A moved job's output is not cut, though the script cannot set the open mode."""
    job = _submit(
        cluster, 'echo "run=$SLURM_RESTART_COUNT"\n[ -n "$SLURM_RESTART_COUNT" ] || exit 99', "--comment=hadar:"
    )
    poll(lambda: _show(cluster, job)["Restarts"] == "1" and _show(cluster, job)["JobState"] == "PENDING")

    cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2"])

    poll(lambda: _show(cluster, job)["JobState"] == "COMPLETED", 60)
    text = (cluster.directory / "log" / f"job-{job}.out").read_text()
    assert text.split() == ["run=", "run=1"]


def test_what_the_scheduler_writes_is_no_users(cluster: PrivateCluster) -> None:
    """lease= and asked= are refused at submission; a user's update may leave them as they are, and no more."""
    for note in ("lease=10", "asked=2/1/16/16", "asked=2/1/16/16/" + "0" * 32):
        said = cluster.run(["sbatch", f"--comment=hadar:{note}", "--wrap", "true"], check=False).stderr
        assert "is for the scheduler to write; leave it out" in said
    job = _submit(cluster, "true", "--hold", "--gres=gpu:1", "--comment=hadar:")
    cluster.run(["scontrol", "update", f"JobId={job}", "Comment=hadar:lease=10"])  # as root

    cluster.run(["scontrol", "update", f"JobId={job}", "Comment=hadar:lease=10,steps=5"])

    assert _show(cluster, job)["Comment"] == "hadar:lease=10,steps=5"
    cluster.run(["scancel", job])


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="only root can become another user")
def test_updates_of_a_user(cluster: PrivateCluster) -> None:
    """Of one without rights, on a job of their own."""

    def as_nobody(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        become = ["runuser", "-u", "nobody", "--", "env", f"SLURM_CONF={cluster.conf}"]
        command = [*become, cluster.install.program(name), *arguments]
        return subprocess.run(command, env=cluster.env, cwd="/", capture_output=True, text=True, check=False)

    done = as_nobody("sbatch", "--parsable", "--hold", "--gres=gpu:1", "--comment=hadar:", "-o/dev/null", "--wrap=true")
    job = done.stdout.strip()
    cluster.run(["scontrol", "update", f"JobId={job}", "Comment=hadar:lease=10,asked=1/1/1/1"])  # as root

    for text, taken in (
        ("hadar:lease=10,asked=1/1/1/1,steps=5", True),
        ("hadar:lease=99,asked=1/1/1/1", False),
        ("hadar:lease=10,asked=2/1/16/16", False),
        ("hadar:key=0123456789abcdef", True),
        ("hadar:lease=10", False),
    ):
        assert (as_nobody("scontrol", "update", f"JobId={job}", f"Comment={text}").returncode == 0) is taken, text
    assert _show(cluster, job)["Comment"] == "hadar:key=0123456789abcdef"
    cluster.run(["scancel", job])


@pytest.mark.parametrize("text", [" " * 30_000, " " * 120_000, "," * 120_000, "model=" + "a" * 120_000])
def test_a_long_comment_holds_nobody_up(cluster: PrivateCluster, text: str) -> None:
    """It is refused for its length, and others submit meanwhile."""
    began = time.monotonic()
    said = cluster.run(["sbatch", f"--comment=hadar:{text}", "--wrap", "true"], check=False).stderr
    job = _submit(cluster, "true", "--hold", "--comment=hadar:")

    assert "bytes; at most 2048 are read" in said and time.monotonic() - began < 2.0
    cluster.run(["scancel", job])


def test_a_gpu_type_that_is_nowhere_is_told_of(cluster: PrivateCluster) -> None:
    """slurmctld finds the types in its own slurm.conf."""
    options = ["sbatch", "--hold", "--gres=gpu:1", "--output=/dev/null", "--wrap", "true"]
    said = cluster.run([*options, "--comment=hadar:types=h100"]).stderr
    assert "no node here has GPU type h100, so this job waits until one has; there are: k80, v100" in said
    assert "no node here" not in cluster.run([*options, "--comment=hadar:types=k80"]).stderr

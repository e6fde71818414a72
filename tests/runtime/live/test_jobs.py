"""The job side in jobs of a real Slurm: templates, requeue, the published key, what the log says."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import comment, messages

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
TEMPLATES = ROOT / "sbatch_templates"
DEADLINE_S = 180


class Jobs:
    """Submits scripts to a cluster from a directory of their own."""

    def __init__(self, cluster: Any, directory: Path, poll: Callable[..., Any]) -> None:
        self.cluster, self.directory, self.poll = cluster, directory, poll
        python = Path(sys.executable).parent
        self.env = {**cluster.env, "PATH": f"{ROOT / 'wrappers'}:{python}:{cluster.env['PATH']}"}
        self.env |= {"HADAR_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}

    def submit(self, template: str, command: str, *options: str) -> str:
        """Submit a template with its ``train.py`` replaced by the command of a test, on whatever the node has."""
        text = (TEMPLATES / template).read_text()
        assert "train.py" in text
        text = text.replace("python train.py", f"python {command}").replace("train.py", command)
        script = self.directory / template
        script.write_text(text)
        argv = ["sbatch", "--parsable", "--mem=100M", "--cpus-per-task=1", *options, str(script)]
        done = self.cluster.run(argv, env=self.env, cwd=self.directory)
        return done.stdout.strip().split(";")[0]

    def state(self, job: str) -> str:
        return self.cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], check=False).stdout.strip()

    def wait(self, job: str, *states: str) -> None:
        self.poll(lambda: self.state(job) in states, deadline_s=DEADLINE_S)

    def log(self, job: str) -> str:
        path = self.directory / f"my-training-{job}.log"
        return path.read_text() if path.exists() else ""

    def finish(self, job: str) -> dict[str, Any]:
        """Wait for the job's end; the last line it printed."""
        self.poll(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), deadline_s=DEADLINE_S)
        assert self.state(job) == "COMPLETED", self.log(job)
        return json.loads([line for line in self.log(job).splitlines() if line.startswith("{")][-1])


@pytest.fixture
def jobs(slurm_cluster: Any, short_tmp: Path, poll: Callable[..., Any]) -> Jobs:
    return Jobs(slurm_cluster, short_tmp, poll)


def test_plain_srun_where_there_is_no_controller(jobs: Jobs) -> None:
    """Without a channel the command runs as under srun: same arguments, same exit code, no agent in between."""
    job = jobs.submit("single_gpu.sbatch", "-c 'import os; print(dict(os.environ)); raise SystemExit(9)'")
    jobs.wait(job, "FAILED")
    log = jobs.log(job)
    assert "HADAR_RUN_DIR" not in log
    assert f"'HADAR_JOB_DIR': '{jobs.directory}/.hadar/{job}'" in log
    shown = jobs.cluster.run(["scontrol", "show", "job", job]).stdout
    assert "ExitCode=9:0" in shown


@pytest.mark.parametrize(("export", "seed"), [("SEED=7,PATH,HADAR_PYTHON", "7"), ("NONE", "")])
def test_what_is_left_out_at_submission_is_not_what_hadar_srun_says(jobs: Jobs, export: str, seed: str) -> None:
    """Slurm keeps to ``--export`` in each step of the job; where workers meet gets there all the same."""
    wrapper = ROOT / "wrappers/hadar-srun"
    said = 'echo "$HADAR_JOB_DIR $HADAR_MASTER_PORT $PYTHONHASHSEED <$SEED>"'
    script = f"#!/bin/bash\nexport HADAR_PYTHON={sys.executable} HADAR_JOB_DIR=$PWD/own HADAR_MASTER_PORT=4711\n"
    script += f"{wrapper} -- /bin/sh -c '{said}'\n"
    argv = ["sbatch", "--parsable", "--wait", "--gres=gpu:1", f"--export={export}", "-o", "out"]
    jobs.cluster.run(argv, input=script, env={**jobs.env, "HADAR_PYTHON": sys.executable}, cwd=jobs.directory)

    assert (jobs.directory / "out").read_text() == f"{jobs.directory}/own 4711 0 <{seed}>\n"


def test_a_requeued_job_resumes_on_another_node(jobs: Jobs) -> None:
    """Requeued and placed on another GPU type, the job goes on from its checkpoint and ends as if never moved."""
    arguments = f"{EXAMPLES}/recommender.py --steps 120 --batch 16"
    expected = jobs.finish(jobs.submit("single_gpu.sbatch", arguments, "--nodelist=v100-1", "--comment=hadar:"))
    job = jobs.submit("single_gpu.sbatch", arguments, "--nodelist=v100-1", "--comment=hadar:model=none,batch=16")
    jobs.poll(lambda: _usr2(jobs, job), deadline_s=DEADLINE_S)
    checkpoints = jobs.directory / ".hadar" / job / messages.CHECKPOINTS_DIR
    jobs.poll(lambda: list(checkpoints.glob("gen-0-*")), deadline_s=DEADLINE_S)
    jobs.cluster.run(["scontrol", "requeue", job])
    jobs.wait(job, "PENDING")
    jobs.cluster.run(["scontrol", "update", f"JobId={job}", "NodeList=p100-1", "StartTime=now+2"])
    assert jobs.finish(job) == expected
    assert re.search(r"hadar: restart 1 on p100-1: resuming from step \d+", jobs.log(job))
    assert "hadar: resumed from gen-0-step-" in jobs.log(job)


def test_a_step_that_is_told_to_end_saves(jobs: Jobs) -> None:
    """By timeout, or by a kill in the batch script: srun itself kills its tasks at once."""
    training = f"hadar-srun -- python {EXAMPLES}/recommender.py --steps 100000 --batch 16 --log-every 1 --log"
    until = "until [ -s {0} ]; do sleep 0.2; done"  # a busy machine may be long in coming to the first step
    script = "\n".join(
        [
            "#!/bin/bash",
            f"timeout 1h {training} first & p=$!; {until.format('first')}",
            "kill -ALRM $p; wait $p; echo by timeout $?",  # by which it tells itself that the hour is over
            f"{training} second & p=$!; {until.format('second')}",
            "kill $p; wait $p; echo by kill $?\n",
        ]
    )
    argv = ["sbatch", "--parsable", "--gres=gpu:1", "--mem=100M", "--comment=hadar:", "-o", "my-training-%j.log"]
    job = jobs.cluster.run(argv, input=script, env=jobs.env, cwd=jobs.directory).stdout.strip()
    jobs.wait(job, "COMPLETED")
    log = jobs.log(job)
    assert len(re.findall(r"told to end \(SIGTERM\); step \d+ is saved", log)) == 2, log
    assert "by timeout 124" in log and "by kill 143" in log, log


def _usr2(jobs: Jobs, job: str) -> bool:
    """Send the checkpoint signal once the training has said where it is, which is when it can take it."""
    catches = subprocess.run(
        ["pgrep", "-f", "recommender.py --steps 120"], capture_output=True, text=True
    ).stdout.split()
    for pid in catches:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if not re.search(r"^Name:\s*python", status):  # srun, which 26.05 lets catch it too, is there before the task
            continue
        caught = int(re.search(r"SigCgt:\s*([0-9a-f]+)", status)[1], 16)
        if caught >> (12 - 1) & 1 and jobs.state(job) == "RUNNING":
            jobs.cluster.run(["scancel", "--signal=USR2", job])
            return True
    return False


@pytest.mark.parametrize(
    ("template", "options", "script"),
    [
        pytest.param("multi_gpu_one_node.sbatch", ["--gres=gpu:2"], "cnn.py", marks=pytest.mark.thorough),
        ("multi_node_ddp.sbatch", ["--gres=gpu:1", "--nodes=2"], "cnn.py"),
        ("balanced.sbatch", ["--gres=gpu:1"], "cnn.py"),
        pytest.param("lightning.sbatch", ["--gres=gpu:1"], "cnn_lightning.py", marks=pytest.mark.thorough),
        pytest.param("huggingface.sbatch", ["--gres=gpu:1"], "cnn_huggingface.py", marks=pytest.mark.thorough),
    ],
)
def test_gangs_train(jobs: Jobs, template: str, options: list[str], script: str) -> None:
    """torchrun's workers find each other on one node and across nodes; each template starts its script. That two
    workers of the libraries work together is tested without Slurm."""
    job = jobs.submit(template, f"{EXAMPLES}/{script} --steps 30", *options, "--comment=hadar:")
    result = jobs.finish(job)
    assert result["done"] is True
    assert "SLURM_NTASKS" not in jobs.log(job)


def test_a_pipeline_trains(jobs: Jobs) -> None:
    """The template, with the graph of a known model: each worker gets its rank, and the script is none the wiser."""
    options = ["--gres=gpu:1", "--nodes=2", "--comment=hadar:graph=resnet18"]
    job = jobs.submit("pipeline.sbatch", f"{EXAMPLES}/cnn.py --steps 12", *options)
    assert jobs.finish(job)["done"] is True
    assert "ranks are placed by srun" not in jobs.log(job)


def test_another_shape_than_was_asked_for(jobs: Jobs) -> None:
    """A job submitted for 2 nodes with 1 GPU each and placed on 1 node with 2 runs as what it was given."""
    arguments = f"{EXAMPLES}/cnn.py --steps 12"
    job = jobs.submit(
        "multi_node_ddp.sbatch", arguments, "--gres=gpu:1", "--nodes=2", "--ntasks-per-node=1", "--begin=now+1hour"
    )
    update = ["TresPerNode=gres:gpu:2", "NumNodes=1-1", "NumTasks=1", "NumCPUs=1", "NodeList=p100-1", "StartTime=now"]
    jobs.cluster.run(["scontrol", "update", f"JobId={job}", *update])
    two = jobs.finish(job)
    expected = jobs.finish(jobs.submit("multi_gpu_one_node.sbatch", arguments, "--gres=gpu:2"))
    assert two == expected


TASKS = """#!/bin/bash
say='echo "$SLURM_PROCID/$SLURM_NTASKS $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
[ -n "$SLURM_RESTART_COUNT" ] || srun bash -c "$say" | sort > srun
hadar-srun -- bash -c "$say" | sort > hadar-srun-${SLURM_RESTART_COUNT:-0}
"""
#: sbatch's options, and of how many tasks on each of the nodes that the job has then.
ASKED = {
    "on one node": (["--ntasks-per-node=4", "--gres=gpu:4"], [4]),
    "on each": (["-N2", "--ntasks-per-node=2", "--gres=gpu:2"], [2, 2]),
    "unevenly": (["-N2", "-n3", "--gres=gpu:1"], [2, 1]),
    "per GPU": (["--gpus=2", "--ntasks-per-gpu=1"], [2]),
    "none": (["-N2", "--exclusive", "--gres=gpu:2"], [1, 1]),  # whose SLURM_TASKS_PER_NODE counts CPUs
}


def test_as_many_tasks_as_plain_srun_starts(jobs: Jobs) -> None:
    """Whatever was asked for, and however; each sees the same GPUs."""
    for name, (options, counts) in ASKED.items():
        folder = jobs.directory / name.replace(" ", "-")
        folder.mkdir()
        job = submit_tasks(jobs, folder, "--wait", *options)
        assert jobs.state(job) == "COMPLETED", name
        said = (folder / "hadar-srun-0").read_text()
        assert said == (folder / "srun").read_text(), name
        nodes = [line.split()[1] for line in said.splitlines()]
        assert sorted((nodes.count(node) for node in set(nodes)), reverse=True) == counts, said


def test_after_a_change_of_size_there_are_as_many_tasks_as_there_are_now(jobs: Jobs) -> None:
    """One task per GPU stays that: the numbers of the submission are of two."""
    job = submit_tasks(jobs, jobs.directory, "--hold", "-n2", "--gres=gpu:2")
    update = ["TresPerNode=gres:gpu:4", "NumNodes=1-1", "NumTasks=4", "NumCPUs=4", "NodeList=p100-1"]
    jobs.cluster.run(["scontrol", "update", f"JobId={job}", *update])
    jobs.cluster.run(["scontrol", "release", job])
    jobs.wait(job, "COMPLETED")
    said = (jobs.directory / "hadar-srun-0").read_text().splitlines()
    assert [line.split()[0] for line in said] == ["0/4", "1/4", "2/4", "3/4"]


def submit_tasks(jobs: Jobs, folder: Path, *options: str) -> str:
    (folder / "job.sbatch").write_text(TASKS)
    argv = ["sbatch", "--parsable", "--mem=100M", "--output=log", "--requeue", *options, "job.sbatch"]
    return str(jobs.cluster.run(argv, env=jobs.env, cwd=folder).stdout.split()[0])


def test_an_unmodified_script_is_measured_through_the_channel(jobs: Jobs, listener: Any) -> None:
    """With a controller: the key is in the comment, the reports carry its token, and the rate is the script's."""
    jobs.env["HADAR_CHANNEL"] = str(listener.channel)
    job = jobs.submit("unmodified_script.sbatch", f"{EXAMPLES}/plain.py --steps 20000")
    jobs.wait(job, "COMPLETED")
    assert "done: loss" in jobs.log(job)
    jobs.poll(lambda: listener.of_kind("bye"), deadline_s=DEADLINE_S)
    bye = listener.of_kind("bye")[0]
    assert (bye.job, bye.steps, bye.exit_code, bye.resumable) == (job, 20000, 0, False)
    assert any(r.steps_per_s for r in listener.reports)
    shown = jobs.cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%k"]).stdout.strip()
    parsed = comment.parse(shown)
    assert (parsed.model, parsed.batch, parsed.key) == ("resnet18", 128, messages.token_fingerprint(bye.token))


def test_a_job_with_tasks_per_gpu_is_heard(jobs: Jobs, listener: Any) -> None:
    """Slurm 24.11 takes no change of its comment that does not tell how many tasks it has."""
    jobs.env["HADAR_CHANNEL"] = str(listener.channel)
    job = jobs.submit(
        "unmodified_script.sbatch", "-c 'import time; time.sleep(3)'", "--gres=gpu:2", "--ntasks-per-gpu=1"
    )
    jobs.wait(job, "COMPLETED")
    jobs.poll(lambda: listener.of_kind("bye"), deadline_s=DEADLINE_S)
    shown = jobs.cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%k"]).stdout.strip()
    assert comment.parse(shown).key == messages.token_fingerprint(listener.of_kind("bye")[0].token)
    assert "scontrol failed" not in jobs.log(job)


def test_array_tasks_are_told_apart(jobs: Jobs, listener: Any) -> None:
    """Each task of an array has its own id, directory, token and key."""
    jobs.env["HADAR_CHANNEL"] = str(listener.channel)
    job = jobs.submit("unmodified_script.sbatch", "-c 'import time; time.sleep(3)'", "--array=0-1")
    jobs.poll(lambda: len(listener.of_kind("bye")) == 2, deadline_s=DEADLINE_S)
    byes = {r.job: r.token for r in listener.of_kind("bye")}
    assert set(byes) == {f"{job}_0", f"{job}_1"}
    assert len(set(byes.values())) == 2
    for task, token in byes.items():
        shown = jobs.cluster.run(["squeue", "-h", "-t", "all", "-j", task, "-o", "%k"]).stdout.strip()
        assert comment.parse(shown).key == messages.token_fingerprint(token)


def test_a_save_by_the_controllers_signal(jobs: Jobs, listener: Any) -> None:
    """scancel --signal=USR2 reaches the agent, and the training saves; the job lives on."""
    jobs.env["HADAR_CHANNEL"] = str(listener.channel)
    job = jobs.submit("multi_node_ddp.sbatch", f"{EXAMPLES}/recommender.py --steps 100000", "--gres=gpu:1", "--nodes=2")
    jobs.poll(lambda: any((r.steps or 0) > 3 for r in listener.reports), deadline_s=DEADLINE_S)
    jobs.cluster.run(["scancel", "--signal=USR2", job])
    jobs.poll(lambda: listener.of_kind("saved"), deadline_s=DEADLINE_S)
    saved = listener.of_kind("saved")[0]
    assert (saved.world, saved.resumable) == (2, True)
    assert jobs.state(job) == "RUNNING"
    jobs.cluster.run(["scancel", job])
    jobs.wait(job, "CANCELLED")


def test_steps_are_paced_to_the_emulated_speed(jobs: Jobs, listener: Any) -> None:
    """In the private cluster a training goes at the speed of the GPU type that it is on."""
    jobs.env["HADAR_CHANNEL"] = str(listener.channel)
    cluster = json.loads((Path(jobs.env["SLURM_CONF"]).parent / "hadar-cluster.json").read_text())
    rate = cluster["speeds"]["resnet18:128"]["k80"]["1"]["one_node"]
    jobs.submit("single_gpu.sbatch", f"{EXAMPLES}/recommender.py --steps 30", "--nodelist=k80-1")
    jobs.poll(lambda: listener.of_kind("bye"), deadline_s=DEADLINE_S)
    rates = [r.steps_per_s for r in listener.reports if r.steps_per_s is not None]
    assert rates
    assert 0.5 * rate < rates[-1] < 1.15 * rate


def test_a_signal_arrives_once(jobs: Jobs, listener: Any) -> None:
    """Slurm here signals the whole tree of a task; the agent does not pass the signal on a second time."""
    jobs.env["HADAR_CHANNEL"] = str(listener.channel)
    handler = "signal.signal(10, lambda *a: print(chr(43), flush=True))"
    body = f"import signal, time; {handler}; print(chr(42), flush=True); time.sleep(600)"
    job = jobs.submit("unmodified_script.sbatch", f'-c "{body}"')
    jobs.poll(lambda: "*" in jobs.log(job), deadline_s=DEADLINE_S)
    for count in (1, 2, 3):
        jobs.cluster.run(["scancel", "--signal=USR1", job])
        jobs.poll(lambda count=count: jobs.log(job).count("+") >= count, deadline_s=DEADLINE_S)
    jobs.cluster.run(["scancel", job])
    jobs.wait(job, "CANCELLED")
    assert jobs.log(job).count("+") == 3


def test_a_script_whose_node_was_lost_starts_nothing(
    make_cluster: Callable[..., Any], short_tmp: Path, poll: Callable[..., Any]
) -> None:
    """It goes on there, since no slurmd ends it, while the job is to run elsewhere, in the directory that it has."""
    jobs = Jobs(make_cluster("v100:2x1"), short_tmp, poll)
    script = (
        "#!/bin/bash\n[ $SLURM_RESTART_COUNT ] && exec sleep 600\n"
        "hadar-srun -- true\nuntil [ -e go ]; do sleep 0.2; done\n"
        "hadar-srun -- touch started; echo $? > code\n"
    )
    argv = ["sbatch", "--parsable", "--requeue", "--gres=gpu:1", "--comment=hadar:"]
    job = jobs.cluster.run(argv, input=script, env=jobs.env, cwd=short_tmp).stdout.strip()
    own = short_tmp / ".hadar" / job / "owner"
    poll(own.exists, 60)
    node = jobs.cluster.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    jobs.cluster.stop_slurmd(node, kill=True)
    jobs.cluster.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost"])
    poll(lambda: "Restarts=1" in jobs.cluster.run(["scontrol", "show", "job", job]).stdout, 60)

    (short_tmp / "go").touch()

    poll(lambda: (short_tmp / "code").exists() and (short_tmp / "code").read_text(), 60)
    assert (short_tmp / "code").read_text() == "143\n" and not (short_tmp / "started").exists()
    assert [p.name for p in (short_tmp / ".hadar").iterdir()] == [job]

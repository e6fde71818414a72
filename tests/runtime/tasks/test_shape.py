"""How many tasks a step has: what plain srun was seen to start in the same job on Slurm 22.05."""

from __future__ import annotations

import pytest

from slurm_hadar.runtime.tasks.shape import STALE, of_workers, settle


def job(nodes: int = 1, per_node: str = "1", **more: object) -> dict[str, str]:
    """The environment of a batch script."""
    return {"SLURM_JOB_NUM_NODES": str(nodes), "SLURM_TASKS_PER_NODE": per_node} | {
        f"SLURM_{name}": str(value) for name, value in more.items()
    }


@pytest.mark.parametrize(
    ("environ", "shown", "tasks"),
    [
        (job(1, "4", NTASKS=4, NPROCS=4, NTASKS_PER_NODE=4), 4, 4),
        (job(1, "4", NPROCS=4), 4, 4),
        (job(2, "2(x2)", NTASKS=4, NTASKS_PER_NODE=2), 4, 4),
        (job(2, "2,1", NTASKS=3), 3, 3),
        (job(3, "2(x2),1", NTASKS=5), None, 5),  # slurmctld does not answer
        (job(1, "2", NTASKS=2, NTASKS_PER_SOCKET=2), 2, 2),
        (job(1, "2", NTASKS=2, NTASKS_PER_GPU=1, GPUS_ON_NODE=2), 2, 2),
        (job(1, "4", NTASKS=4, OVERCOMMIT=1), 4, 4),
        (job(3, "2(x3)", NTASKS=5, NTASKS_PER_NODE=2), 6, 5),  # Slurm counts one more than were asked for
        # nobody asked for tasks: SLURM_TASKS_PER_NODE counts CPUs of nodes given whole, or by --cpus-per-gpu
        (job(2, "32(x2)"), 2, 2),
        (job(1, "8", CPUS_PER_GPU=2), 1, 1),
        (job(1, "32", NTASKS=1), 1, 1),  # left over from the job that has submitted this one
        # the controller has moved it since
        (job(1, "4", NTASKS=2), 4, 4),
        (job(2, "2(x2)", NTASKS=2, NTASKS_PER_NODE=2), 4, 4),
        (job(1, "2", NTASKS=4, NTASKS_PER_NODE=2), 2, 2),
        (job(1, "1", NTASKS=3), 3, 1),  # in a step of one task of a job of three
        (job(1, "many", NTASKS=3), 3, 3),
        (job(2, "many", NTASKS=3), None, 3),
    ],
)
def test_as_many_tasks_as_plain_srun_starts(environ: dict[str, str], shown: int | None, tasks: int) -> None:
    """Those of the allocation where tasks were asked for, else one on each node."""
    nodes = environ["SLURM_JOB_NUM_NODES"]
    assert settle([], environ, shown) == ["-N", nodes, "-n", str(tasks)]
    assert not {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS"} & environ.keys()


@pytest.mark.parametrize(
    ("options", "added"),
    [
        (["-n4"], []),
        (["--ntasks=1", "-N1"], []),
        (["-lN2", "-n", "8"], []),
        (["--ntasks-per-node", "2"], []),
        (["--het-group=0"], []),
        (["-N", "2"], ["-n", "4"]),
        (["--nodes=1"], ["-n", "2"]),  # as many on each node as the job has
        (["-N1-2"], []),
        (["--label", "-t5"], ["-N", "2", "-n", "4"]),
    ],
)
def test_what_the_user_says_of_tasks_stands(options: list[str], added: list[str]) -> None:
    """Of nodes alone: as many tasks as belong to so many of the job's."""
    environ = job(2, "2(x2)", NTASKS=4, NTASKS_PER_NODE=2, GPUS=4)
    assert settle(options, environ, 4) == added
    assert not environ.keys() & set(STALE)


def test_on_fewer_nodes_of_an_uneven_job_srun_chooses() -> None:
    """Three tasks on two nodes do not say how many one of the nodes is to have."""
    assert settle(["-N1"], job(2, "2,1", NTASKS=3), 3) == []


def test_outside_of_a_job_nothing_is_added() -> None:
    """srun then asks for an allocation of its own."""
    assert settle([], {"SLURM_NTASKS": "4"}, None) == []


def test_each_task_sees_the_gpus_that_plain_srun_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """--ntasks-per-gpu and --gpus-per-task bind tasks to GPUs, also where those have become more. Where a task per node
    has come of one per GPU, srun would refuse, and that is said."""
    for name in ("NTASKS_PER_GPU", "GPUS_PER_TASK"):
        environ = job(1, "4", NTASKS=2, GPUS=2, GPUS_ON_NODE=4, **{name: 1})
        settle([], environ, 4)
        assert environ[f"SLURM_{name}"] == "1" and "SLURM_GPUS" not in environ
        own = job(1, "4", NTASKS=4, GPUS_ON_NODE=4, **{name: 1})
        settle(["-n1"], own, 4)
        assert f"SLURM_{name}" not in own
    assert capsys.readouterr().err == ""
    resized = job(1, "1", NTASKS=1, NTASKS_PER_GPU=1, GPUS_ON_NODE=4)
    assert settle([], resized, 1) == ["-N", "1", "-n", "1"] and "SLURM_NTASKS_PER_GPU" not in resized
    assert "one task on each node, though --ntasks-per-gpu was asked for" in capsys.readouterr().err


def test_several_torchruns_on_a_node_are_told_of() -> None:
    """Each would start the workers of all GPUs of the node; one on each node is what was wanted before."""
    options = ["-N", "2", "-n", "8"]
    for words in (["torchrun", "train.py"], ["bash", "-c", "exec torchrun --nnodes=2 t.py"], ["accelerate", "launch"]):
        assert "for one on each node: hadar-srun --ntasks-per-node=1" in str(of_workers(options, words))
        assert of_workers(["-N", "2", "-n", "2"], words) is None and of_workers(["--ntasks-per-node=1"], words) is None
    assert of_workers(options, ["python", "train.py"]) is None

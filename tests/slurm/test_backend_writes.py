"""What every backend writes to Slurm, on a private cluster."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.model import JobState
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import Write
from tests.slurm.jobs import Poll, held, in_state, read, shape, submit, untyped

pytestmark = pytest.mark.slurm


# ---------------------------------------------------------------------------------------------------------- writing


def test_a_lease(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """One comma list, array tasks included, defers all of them; an unknown job is reported and stops nothing."""
    one, array = submit(slurm_cluster, "--begin=now+99"), submit(slurm_cluster, "--begin=now+99", "-a", "1-3")
    jobs = (one, f"{array}_1", f"{array}_3")

    results = backend.write([Write("update", (*jobs, "99999"), (("StartTime", "now+500"),))])

    assert {r.job_id: r.error for r in results} == {**dict.fromkeys(jobs), "99999": "Invalid job id specified"}
    found = read(backend)
    assert all(400 < found[j].eligible - time.time() < 510 and not found[j].held for j in jobs)
    assert found[f"{array}_2"].eligible - time.time() < 110


@pytest.mark.parametrize("request_", ["--gres=gpu:2", "--gpus=2"])
def test_places_and_shapes(request_: str, backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """1 node x 2 GPUs, then 2 x 1, then 1 x 2 elsewhere, whichever way the job had asked; each time exactly that."""
    job = submit(slurm_cluster, request_, "--begin=now+500")
    first = (("TresPerJob", ""),) if request_.startswith("--gpus") else ()

    for turn, (gpus, nodes) in enumerate([(2, ["k80-1"]), (1, ["p100-1", "v100-2"]), (2, ["v100-1"])]):
        fields_ = (*first, *shape(gpus, *nodes, start="now+2" if turn else "now"))
        assert [r.error for r in backend.write([Write("update", (job,), fields_)])] == [None]
        found = poll(in_state(backend, job, JobState.RUNNING))
        assert set(found.nodes) == set(nodes) and found.restarts == turn
        assert found.gpus == untyped(gpus) and found.num_nodes == len(nodes)
        assert held(slurm_cluster, job) == dict.fromkeys(nodes, gpus)
        used = {n.name: dict(n.used) for n in backend.read().nodes if n.used}
        assert used == {n: {n.split("-")[0]: gpus} for n in nodes}
        first = ()
        backend.write([Write("requeue", (job,))])
        poll(in_state(backend, job, JobState.PENDING))


def test_requeue(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """A requeued job waits for a begin time of Slurm's; one that has ended already is not started anew."""
    job, over = submit(slurm_cluster, "--gres=gpu:1"), submit(slurm_cluster, script="true")
    before = poll(in_state(backend, job, JobState.RUNNING))
    poll(in_state(backend, over, JobState.DONE))

    results = backend.write([Write("requeue", (job, over))])

    assert [r.error for r in results] == [None, None]
    poll(lambda: read(backend)[job].reason == "BeginTime")
    found = read(backend)[job]
    assert (found.state, found.restarts, found.nodes) == (JobState.PENDING, 1, ())
    assert 60 < found.eligible - time.time() < 130 and found.submit >= before.submit
    assert read(backend)[over].state is JobState.DONE


def test_a_restart(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """A job that failed goes back into the queue; a requeue is for jobs that are not over, and leaves it alone."""
    job = submit(slurm_cluster, script="exit 3")
    over = poll(in_state(backend, job, JobState.FAILED))
    assert (over.state_text, over.restarts) == ("FAILED", 0) and 0 <= over.end - over.start < 30
    backend.write([Write("requeue", (job,))])
    assert read(backend)[job].state is JobState.FAILED

    (result,) = backend.write([Write("restart", (job,))])

    assert result.error is None
    assert poll(in_state(backend, job, JobState.PENDING)).restarts == 1


def test_refusals_name_their_job(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """What Slurm does not do is reported for the job it is about; all the rest of the batch is done."""
    good, bad = (submit(slurm_cluster, "--gres=gpu:1", "--begin=now+500") for _ in range(2))
    fixed = submit(slurm_cluster, "--no-requeue")
    poll(in_state(backend, fixed, JobState.RUNNING))
    batch = [
        Write("update", (bad,), shape(1, "nowhere-1")),
        Write("update", ("99998",), shape(1, "k80-1")),
        Write("requeue", (fixed,)),
        Write("update", (good,), shape(1, "k80-1")),
    ]

    results = backend.write(batch)

    assert [(r.job_id, r.write) for r in results] == [(w.job_ids[0], w) for w in batch]
    assert [r.error for r in results] == [
        "Invalid node name specified",
        "Invalid job id specified",
        "Requested operation is presently disabled",
        None,
    ]
    assert poll(in_state(backend, good, JobState.RUNNING)).nodes == ("k80-1",)
    assert read(backend)[fixed].state is JobState.RUNNING and read(backend)[bad].req_nodes == ()


def test_a_batch_is_one_process_and_keeps_its_order(
    make: Callable[..., Backend], slurm_cluster: PrivateCluster, short_tmp: Path
) -> None:
    """A hundred writes cost one start of scontrol; of two about one job the later counts."""
    real = shutil.which("scontrol", path=slurm_cluster.env["PATH"])
    shim = short_tmp / "scontrol"
    shim.write_text(f'#!/bin/sh\necho "$@" >> {short_tmp}/calls\nexec {real} "$@"\n')
    shim.chmod(0o755)
    backend = make({**slurm_cluster.env, "PATH": f"{short_tmp}:{slurm_cluster.env['PATH']}"})
    jobs = [submit(slurm_cluster, "--hold") for _ in range(3)]

    batch = [Write("update", (jobs[i % 3],), (("StartTime", f"now+{1000 - i}"),)) for i in range(99)]
    results = backend.write([*batch, Write("release", tuple(jobs))])

    assert [r.error for r in results] == [None] * 102
    assert (short_tmp / "calls").read_text() == "\n"
    found = read(backend)
    assert all(850 < found[j].eligible - time.time() < 905 and not found[j].held for j in jobs)


def test_a_long_list(backend: Backend, slurm_cluster: PrivateCluster) -> None:
    """A lease of more jobs than fit into a line of scontrol's reaches the last of them."""
    job = submit(slurm_cluster, "--begin=now+99")
    unknown = tuple(str(70000 + i) for i in range(900))

    results = backend.write([Write("update", (*unknown, job), (("StartTime", "now+500"),))])

    # some unknown ids Slurm passes over in silence: those whose hash is that of an array's
    assert {r.error for r in results[:900]} >= {"Invalid job id specified"} and results[-1].error is None
    assert read(backend)[job].eligible - time.time() > 400


def test_a_signal_to_steps(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll, short_tmp: Path) -> None:
    """It reaches the named step; one that does not exist is no error."""
    said = short_tmp / "said"
    task = f"trap 'echo heard > {said}; exit 0' USR2; touch {short_tmp}/up; while :; do sleep 0.1; done"
    job = submit(slurm_cluster, script=f'srun bash -c "{task}"')
    poll(lambda: (short_tmp / "up").exists())

    backend.signal([f"{job}.0", "99997.0"], "USR2")

    poll(said.exists)
    poll(in_state(backend, job, JobState.DONE))


def test_jobs_are_cancelled(backend: Backend, slurm_cluster: PrivateCluster, poll: Poll) -> None:
    """Running, waiting, a task of an array; a job that is not there is no error."""
    runs = submit(slurm_cluster, script="sleep 600")
    array = submit(slurm_cluster, "--array=0-1", "--begin=now+600", script="true")
    poll(in_state(backend, runs, JobState.RUNNING))

    backend.cancel([runs, f"{array}_1", "99997"])

    poll(in_state(backend, runs, JobState.FAILED))
    # Slurm forgets a task that never ran at once, where it was not a record of its own yet
    poll(lambda: (task := read(backend).get(f"{array}_1")) is None or not task.state.active)
    assert read(backend)[f"{array}_0"].state is JobState.PENDING

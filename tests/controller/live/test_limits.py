"""A controller on a real Slurm with limits: they are never worked around, and what they block costs nobody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.controller.journal import Purpose
from slurm_hadar.errors import ClusterError
from slurm_hadar.policies import registry
from slurm_hadar.slurm.state import WriteResult
from tests.controller.live.test_faults import after_reading, rounds_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="only root can become another user"),
]
OWNER = "daemon"  # not nobody, whose name newer releases of Slurm refuse
PLAIN = "hadar:model=resnet18,batch=64,ckpt=yes"
LIMITS = (
    ("add", "qos", "cpus", "set", "MaxTRESPerUser=cpu=2", "flags=DenyOnLimit"),
    ("add", "qos", "pair", "set", "MaxTRESPerJob=gres/gpu=2"),
    ("add", "qos", "one", "set", "MaxJobsPU=1"),
    ("add", "qos", "two", "set", "MaxJobsPU=2"),
    ("add", "account", "lab"),
    *(("add", "user", user, "account=lab", "QOS=normal,cpus,pair,one") for user in ("root", OWNER)),
    ("modify", "user", "root", "set", "defaultaccount=lab"),
)
QUICK = ("controller.round_s=2", "jobs.start_timeout_s=3", "jobs.end_timeout_s=30")


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., PrivateCluster]) -> PrivateCluster:
    extra = ("AccountingStorageEnforce=associations,limits,qos", "Licenses=tool:1")
    made = make_module_cluster("v100:2x2,k80:1x2", accounting=True, kill_wait_s=2, extra_conf=extra)
    for words in LIMITS:
        made.run(["sacctmgr", "-i", *words], check=True)
    with made.conf.open("a") as conf:  # Slurm has to know the QOS
        conf.write("PartitionName=of-two Nodes=v100-[1-2],k80-1 QOS=two State=UP\n")
    made.run(["scontrol", "reconfigure"], check=True)
    return made


@pytest.fixture
def live(
    cluster: PrivateCluster, make_live: Callable[[PrivateCluster], Any], empty: Callable[..., Any], poll: Any
) -> Iterator[Any]:
    """Jobs and controllers on the cluster of these tests, which has nothing in its queue."""
    yield make_live(empty(cluster))
    cluster.run(["scancel", "-u", "root"])
    delete = ["scontrol", "delete", "ReservationName=later"]  # refused while a job of it is ending
    poll(
        lambda: (
            (done := cluster.run(delete, check=False)).returncode == 0
            or "does not exist" in done.stderr
            or "is invalid" in done.stderr
        )
    )


def full(live: Any, poll: Any, *nodes: str) -> list[str]:
    """Jobs that have all GPUs of these nodes, or of all, and are not steered."""
    names = nodes or [n.name for n in live.cluster.nodes]
    jobs = [live.submit("--gres=gpu:2", "-w", name, comment="", script="sleep 900") for name in names]
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in jobs))
    return jobs


def leave(live: Any, poll: Any, *jobs: str) -> None:
    """Cancel jobs and wait until their GPUs are free."""
    live.cluster.run(["scancel", *jobs])
    poll(lambda: not any(live.gpus(j) for j in jobs) and all(live.state_of(j) == "CANCELLED" for j in jobs))


def seen(live: Any, job: str) -> Any:
    return next(j for j in live.backend.read_jobs() if j.job_id == job)


def why(live: Any, job: str) -> str:
    """What ``hadar queue`` says of the job."""
    return next(line.why for line in queue_view(live.backend, live.config())[0] if line.job_id == job)


def submit_as(live: Any, user: str, comment: str, *options: str) -> str:
    argv = ["runuser", "-u", user, "--", live.cluster.install.program("sbatch"), "--parsable", "--requeue",
            f"--chdir={live.work}", "--output=%j.out", f"--comment={comment}", *options]  # fmt: skip
    return live.cluster.run(argv, input="#!/bin/bash\nsleep 900\n", cwd=live.work, check=True).stdout.strip()


@pytest.mark.parametrize("mac", ["", "/" + "0123456789abcdef" * 2])
def test_a_forged_note_gives_nobody_more_than_the_limit(live: Any, poll: Any, mac: str) -> None:
    """asked= with the user's own hand, once with a seal of their own making: neither the controller nor release, which
    may do what QOS refuses to the owner, gives the job that shape."""
    blockers = full(live, poll)
    forged = f"{PLAIN},asked=2/1/16/16{mac}"
    job = submit_as(live, OWNER, forged, "--gres=gpu:1", "--qos=cpus", "-w", "v100-1")
    controller = live.controller(*QUICK)
    controller.run_round()
    if not mac:  # else the node list may be that of another host's controller, and is forgotten
        assert "asks for nodes by name" in why(live, job)
    with pytest.raises(ClusterError, match="QOS"):
        submit_as(live, OWNER, forged, "--gres=gpu:1", "--qos=cpus", "-c", "16")

    without = ["scontrol", "update", f"JobId={job}", "ReqNodeList="]
    live.cluster.run(["runuser", "-u", OWNER, "--", *without], check=True)
    live.place(**{f"j{job}": {"v100-2": 1}})
    leave(live, poll, *blockers)
    rounds_until(controller, lambda: live.holds(job, {"v100-2": 1}), poll, 40)
    assert seen(live, job).num_cpus == 1


def test_release_believes_no_forged_note(live: Any, poll: Any) -> None:
    """Without a journal the comment is all that release has."""
    full(live, poll)
    jobs = [
        submit_as(live, OWNER, f"{PLAIN},asked=2/1/16/16{mac}", "--gres=gpu:1", "--qos=cpus", "-w", "v100-1")
        for mac in ("", "/" + "0" * 32)
    ]

    done = live.hadar("release")

    assert done.returncode == 0, done.stderr
    for job in jobs:
        found = seen(live, job)
        assert (found.num_cpus, found.num_tasks, found.gpus[0].count) == (1, 1, 1)


def test_an_elastic_job_grows_no_further_than_its_limits(live: Any, poll: Any) -> None:
    """gpus=1-4 under a QOS of two GPUs for each job, and with two CPUs for each task under one of two CPUs for each
    user; the same job without limits grows to four."""
    blockers = full(live, poll)
    elastic = f"{PLAIN},steps=1000000,gpus=1-4,nodes=1-2"
    pair, cpus, free = (
        live.submit("--gres=gpu:1", *options, comment=elastic)
        for options in (["--qos=pair"], ["-c2", "--qos=cpus"], [])
    )
    controller = live.controller(*QUICK)
    forms = {j.job_id: j.form for j in controller.run_round().seen.snapshot.jobs}
    assert [forms[j].gang_sizes for j in (pair, cpus, free)] == [(1, 2), (1,), (1, 2, 4)]

    live.cluster.run(["scancel", cpus])
    leave(live, poll, *blockers)
    live.place(**{f"j{pair}": {"k80-1": 2}, f"j{free}": {"v100-1": 2, "v100-2": 2}})
    rounds_until(controller, lambda: live.holds(free, {"v100-1": 2, "v100-2": 2}), poll, 40)
    assert live.holds(pair, {"k80-1": 2})
    forms = {j.job_id: j.form for j in controller.run_round().seen.snapshot.jobs}
    assert [forms[j].gang_sizes for j in (pair, free)] == [(1, 2), (1, 2, 4)], "as before it grew"


def test_cpus_that_belong_to_gpus_go_with_them(live: Any, poll: Any) -> None:
    """With twice the GPUs twice the CPUs, and as many as its owner asked for once it is released."""
    blockers = full(live, poll)
    job = live.submit("--gres=gpu:1", "--cpus-per-gpu=2", comment=f"{PLAIN},gpus=1-2")
    poll(lambda: live.field(job, "Reason") == "Resources")
    live.place(**{f"j{job}": {"v100-1": 2}})
    controller = live.controller(*QUICK)
    leave(live, poll, *blockers)
    rounds_until(controller, lambda: live.holds(job, {"v100-1": 2}), poll, 40)
    assert seen(live, job).num_cpus == 4

    live.cluster.run(["scontrol", "requeue", job], check=True)
    poll(lambda: live.state_of(job) == "PENDING")
    assert live.hadar("release").returncode == 0
    poll(lambda: live.start_again(job), 60)
    assert (seen(live, job).num_cpus, seen(live, job).gpus[0].count) == (2, 1)


BLOCKED = {
    "licence": (["--licenses=tool:1"], ["--licenses=tool:1"], "licences tool are free"),
    "throttle": (["--array=0-3%1"], [], "1 task of array "),
    "jobs of a user": (["--qos=one"], ["--qos=one"], "QOS one for each user is reached: 1 jobs at once"),
    "reservation": (["--reservation=later", "--time=30"], None, "its reservation later begins at "),
}


@pytest.mark.parametrize("kind", BLOCKED)
def test_what_is_blocked_costs_others_nothing(live: Any, poll: Any, kind: str) -> None:
    """Four that Slurm will not start come first; those after them start in the round after their GPUs came free.
    When what blocks is gone the next of the four starts where it may."""
    options, filler, words = BLOCKED[kind]
    blockers = full(live, poll, "v100-1", "v100-2")
    types = "" if kind == "reservation" else ",types=v100"
    held = []
    if filler is not None:  # it has what the others wait for
        held = [live.submit("--gres=gpu:1", "-w", "k80-1", *filler, comment="", script="sleep 900")]
        poll(lambda: live.state_of(held[0]) == "RUNNING")
    else:
        later = ["ReservationName=later", "Users=root", "Nodes=k80-1", "StartTime=now+1hour", "Duration=60"]
        live.cluster.run(["scontrol", "create", "reservation", *later], check=True)
    count = 1 if kind == "throttle" else 4
    blocked = [live.submit("--gres=gpu:1", *options, comment=PLAIN + types, script="sleep 900") for _ in range(count)]
    # which Slurm, too, will not start elsewhere before the first round
    after = ["--gres=gpu:1", "--time=10", "-C", "v100"]
    others = [live.submit(*after, comment=f"{PLAIN},types=v100") for _ in range(2 if kind == "throttle" else 3)]
    controller = live.controller(*QUICK, policy=registry.get("fifo"))
    rounds = [controller.run_round()]
    leave(live, poll, *blockers)

    rounds += [controller.run_round() for _ in range(2)]

    assert {live.state_of(job) for job in others} == {"RUNNING"}, live.cluster.run(["squeue"]).stdout
    tasks = [j.job_id for j in live.backend.read_jobs() if (j.array_id or j.job_id) in blocked]
    waiting = [j for j in tasks if live.state_of(j) == "PENDING"]
    assert len(waiting) == (4 if kind != "throttle" else 3)
    rounds_until(controller, lambda: words in why(live, waiting[0]), poll, 40)  # Slurm gives its reasons when it looks
    if kind == "reservation":
        tried = {w.job_id for r in rounds for w in r.outcome.log if w.purpose is Purpose.PLACE}
        assert not tried.intersection(blocked), "nothing is tried before its reservation begins"
        live.cluster.run(["scontrol", "update", "ReservationName=later", "StartTime=now"], check=True)
    else:
        leave(live, poll, *held, *(set(tasks) - set(waiting)))

    rounds_until(controller, lambda: any(live.state_of(j) == "RUNNING" for j in waiting), poll, 40)

    (started,) = [j for j in waiting if live.state_of(j) == "RUNNING"] if kind != "reservation" else waiting[:1]
    assert set(live.gpus(started)) <= ({"k80-1"} if kind == "reservation" else {"v100-1", "v100-2"})


def test_a_task_of_a_throttled_array_follows_the_last(live: Any, poll: Any) -> None:
    """In the next round, though no record of the array shows its throttle any more, and Slurm's reason stands."""
    array = live.submit("--gres=gpu:1", "--array=0-9%2", comment=PLAIN, script="sleep 900")
    controller = live.controller(*QUICK, policy=registry.get("fifo"))

    def running() -> list[str]:
        jobs = [j for j in live.backend.read_jobs() if j.array_id == array]
        return [j.job_id for j in jobs if live.state_of(j.job_id) == "RUNNING"]

    rounds_until(controller, lambda: len(running()) == 2, poll, 40)
    for _ in range(3):
        before = running()
        leave(live, poll, *before)
        result = controller.run_round()
        assert len(running()) == 2, (before, result.outcome.log)
    assert {j.throttle for j in live.backend.read().jobs if j.array_id == array} == {2}


def test_a_partition_that_goes_inactive_costs_nobody_anything(live: Any, poll: Any) -> None:
    """Slurm refuses to change the jobs that wait in it, and has put them off all the same. None counts as failed, none
    is put off again, and all run when it is up."""
    fillers = full(live, poll)
    jobs = [live.submit("--gres=gpu:1", comment=PLAIN) for _ in range(4)]
    controller = live.controller(*QUICK, "guard.max_failed_writes=3", policy=registry.get("fifo"))
    name = seen(live, jobs[0]).partition
    state = ["scontrol", "update", f"PartitionName={name}"]
    try:
        after_reading(live, lambda: live.cluster.run([*state, "State=INACTIVE"], check=True))
        first = controller.run_round()
        later = [controller.run_round() for _ in range(2)]
    finally:
        live.cluster.run([*state, "State=UP"], check=True)

    assert [(r.record.failed, r.record.note) for r in (first, *later)] == [(0, "")] * 3, first.outcome.log
    assert not [w for r in later for w in r.outcome.log if w.purpose is Purpose.LEASE]
    leave(live, poll, *fillers)
    rounds_until(controller, lambda: all(live.state_of(j) == "RUNNING" for j in jobs), poll, 40)


def test_nodes_that_slurm_keeps_for_another_job_are_not_tried(live: Any, poll: Any) -> None:
    """A job that is left to Slurm is to start on two nodes, of which one is free: Slurm keeps both whole. What does not
    end before is placed elsewhere or waits, and is told why; what does runs there."""
    others = full(live, poll, "v100-2", "k80-1")  # lest Slurm start the steered jobs before a round is
    blocker = live.submit("--gres=gpu:2", "--time=30", "-w", "v100-1", comment="", script="sleep 900")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    pair = live.submit("--gres=gpu:1", "-N2", "-C", "v100", "--time=10", comment="", script="sleep 900")
    long_ = [live.submit("--gres=gpu:1", comment=f"{PLAIN},types=v100") for _ in range(2)]
    short = live.submit("--gres=gpu:1", "--time=5", comment=f"{PLAIN},types=v100")
    either = live.submit("--gres=gpu:1", comment=PLAIN)
    assert live.controller("controller.round_s=60").run_round().record.leases == 4
    leave(live, poll, *others)
    poll(lambda: seen(live, pair).sched_nodes == ("v100-1", "v100-2"))
    controller = live.controller(*QUICK, policy=registry.get("fifo"))

    rounds = []

    def both_run() -> bool:
        rounds.append(controller.run_round())
        return live.holds(short, {"v100-2": 1}) and live.holds(either, {"k80-1": 1})

    poll(both_run, 60.0, 0.3)
    tried = {w.job_id for r in rounds for w in r.outcome.log if w.purpose is Purpose.PLACE}
    assert tried == {short, either}
    assert f"Slurm keeps v100-1,v100-2 for job {pair}, planned for" in why(live, long_[0])

    leave(live, poll, blocker, pair)
    rounds_until(controller, lambda: all(live.state_of(j) == "RUNNING" for j in long_), poll, 40)


def test_a_scancel_storm_is_no_failure(live: Any, poll: Any) -> None:
    """An array of thirty cancelled between reading and writing: nothing counts as failed, and the next round acts."""
    full(live, poll)
    array = live.submit("--gres=gpu:1", "--array=0-29", comment=PLAIN)
    other = live.submit("--gres=gpu:1")
    controller = live.controller("guard.max_failed_writes=3")
    after_reading(live, lambda: live.cluster.run(["scancel", array], check=True))

    result = controller.run_round()

    assert (result.record.failed, result.record.note) == (0, ""), result.outcome.log
    assert result.record.leases == 31
    live.cluster.run(["scontrol", "update", f"JobId={other}", "StartTime=now"], check=True)
    result = controller.run_round()
    assert (result.record.leases, result.record.note) == (1, "")


def test_acting_stops_for_a_while_after_real_refusals(live: Any, poll: Any) -> None:
    """Slurm refuses what it is asked for: too often in a row, and nothing is written for a round; then it is tried
    again."""
    full(live, poll)
    jobs = [live.submit("--gres=gpu:1") for _ in range(3)]
    controller = live.controller("guard.max_failed_writes=3", "controller.round_s=3")
    write = live.backend.write
    live.backend.write = lambda batch: [
        WriteResult(r.job_id, w, r.error) for w in batch for r in write([replace(w, fields=(("Partition", "no"),))])
    ]
    first = controller.run_round()
    live.backend.write = write

    assert first.record.failed == 3, first.outcome.log
    second = controller.run_round()
    assert "acts again in" in second.record.note and not second.outcome.log
    poll(lambda: (r := controller.run_round()).record.leases == len(jobs) and not r.record.note, 10, 0.5)


def test_a_partition_with_a_qos_of_its_own(live: Any, poll: Any) -> None:
    """Its limit holds, as for jobs that are not steered, and not the smaller one of the job's QOS."""
    plain = [live.submit("--gres=gpu:1", "-p", "of-two", "-q", "one", comment="", script="sleep 900") for _ in "123"]
    poll(lambda: sorted(live.state_of(j) for j in plain) == ["PENDING", "RUNNING", "RUNNING"])
    leave(live, poll, *plain)
    blockers = full(live, poll)
    jobs = [live.submit("--gres=gpu:1", "-p", "of-two", "-q", "one", comment=PLAIN) for _ in "123"]
    controller = live.controller(*QUICK, policy=registry.get("hadar"))
    assert controller.run_round().record.leases == 3
    leave(live, poll, *blockers)

    rounds_until(controller, lambda: sorted(live.state_of(j) for j in jobs) == ["PENDING", "RUNNING", "RUNNING"], poll)

    waiting = next(j for j in jobs if live.state_of(j) == "PENDING")
    poll(lambda: controller.run_round().record.failed == 0)
    why = next(line.why for line in queue_view(live.backend, live.config())[0] if line.job_id == waiting)
    assert why == "the limit of QOS two for each user is reached: 2 jobs at once"


def test_what_a_users_association_may_run_is_known_beforehand(live: Any, poll: Any) -> None:
    """``MaxJobs``: nobody is placed beyond it, in vain, and it is said why."""
    live.cluster.run(["sacctmgr", "-i", "modify", "user", "root", "set", "MaxJobs=1"], check=True)
    try:
        poll(lambda: any(limit.what == "jobs" and limit.most == 1 for limit in live.backend.read().bounds.limits))
        runs, waits = live.submit("--gres=gpu:1", script="sleep 900"), live.submit("--gres=gpu:1")
        poll(lambda: live.state_of(runs) == "RUNNING")

        record = live.controller(*QUICK, policy=registry.get("fifo")).run_round().record

        assert (record.starts, record.failed) == (0, 0)
        assert why(live, waits) == "the limit of user root in account lab is reached: 1 jobs at once"
    finally:
        live.cluster.run(["sacctmgr", "-i", "modify", "user", "root", "set", "MaxJobs=-1"], check=True)

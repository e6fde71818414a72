"""What owners and administrators say to Slurm about a job that is steered: they win, and nothing undoes it."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.controller.journal import WriteOutcome
from slurm_hadar.policies import registry
from tests.controller.conftest import SAVES
from tests.controller.live.test_faults import after_reading, rounds_until

pytestmark = pytest.mark.slurm
NODES = "v100:2x2,k80:1x2"
QUICK = ("jobs.start_timeout_s=3", "jobs.end_timeout_s=30")


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., PrivateCluster]) -> PrivateCluster:
    return make_module_cluster(NODES, partitions=True, kill_wait_s=2)


@pytest.fixture
def live(cluster: PrivateCluster, make_live: Callable[[PrivateCluster], Any], empty: Callable[..., Any]) -> Any:
    """Jobs and controllers on the cluster of these tests, which has nothing in its queue."""
    return make_live(empty(cluster))


def runs(live: Any, job: str) -> bool:
    return bool(live.state_of(job) == "RUNNING")


def full(live: Any, poll: Any) -> str:
    """A job that has all GPUs, and is not steered."""
    job = live.submit("--gres=gpu:2", "-N3", comment="", script="sleep 900")
    poll(lambda: live.state_of(job) == "RUNNING")
    return job


def take_all_again(live: Any, poll: Any, then: Callable[[], object] = lambda: None) -> None:
    """Another job has all GPUs before what the next round decides is written: what it places waits."""

    def taken() -> None:
        full(live, poll)
        then()

    after_reading(live, taken)


def seen(live: Any, job: str) -> Any:
    return next(j for j in live.backend.read_jobs() if j.job_id == job)


def why(live: Any, job: str) -> str:
    """What ``hadar queue`` says of the job."""
    return next(line.why for line in queue_view(live.backend, live.config())[0] if line.job_id == job)


def leave(live: Any, poll: Any, job: str) -> None:
    """Cancel a job and wait until its GPUs are free."""
    live.cluster.run(["scancel", job])
    poll(lambda: live.state_of(job) == "CANCELLED" and not live.gpus(job))


def test_a_begin_time_set_while_leased_stays(live: Any, poll: Any) -> None:
    """Later rounds leave the moment as it is and say so; once it has passed the job is steered again."""
    blocker = full(live, poll)
    job = live.submit("--gres=gpu:1")
    controller = live.controller(*QUICK)
    assert controller.run_round().record.leases == 1
    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+300"], check=True)
    wanted = seen(live, job).eligible

    for _ in range(3):
        result = controller.run_round()
        assert seen(live, job).eligible == wanted and not result.outcome.log
    assert why(live, job) == live.journal.wait(job)["why"] == "has a begin time of its own"

    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+4"], check=True)
    assert controller.run_round().seen.snapshot.job[job].pinned == "has a begin time of its own"
    poll(lambda: seen(live, job).eligible <= time.time())
    assert controller.run_round().record.leases == 1
    leave(live, poll, blocker)
    live.place(**{f"j{job}": {"k80-1": 1}})
    assert controller.run_round().record.failed == 0 and live.holds(job, {"k80-1": 1})


def test_tasks_per_gpu_stay_what_they_were(live: Any, poll: Any) -> None:
    """Put off and placed the job has as many as before, of which a change that does not tell them takes some on 24.11;
    its owner has asked for nothing else."""
    blocker = full(live, poll)
    job = live.submit("--gres=gpu:2", "--ntasks-per-gpu=2")
    controller = live.controller(*QUICK)
    assert controller.run_round().record.leases == 1 and seen(live, job).num_tasks == 4
    leave(live, poll, blocker)
    live.place(**{f"j{job}": {"k80-1": 2}})

    assert controller.run_round().record.failed == 0 and live.holds(job, {"k80-1": 2})
    assert live.field(job, "NumTasks") == "4" and "has changed" not in live.hadar("history", job).stdout


@pytest.mark.parametrize(
    ("asked", "first", "then"),
    [
        (("-n2",), {"k80-1": 2}, {"v100-1": 2}),
        (("-n2", "--cpus-per-task=2"), {"k80-1": 2}, {"v100-1": 2}),
        (("-N2", "--ntasks-per-node=2"), {"k80-1": 2, "v100-1": 2}, {"v100-1": 2, "v100-2": 2}),
    ],
)
def test_gpus_of_tasks_are_placed_and_moved(
    live: Any, poll: Any, asked: tuple[str, ...], first: dict[str, int], then: dict[str, int]
) -> None:
    """What a job asks for per task stays as it is: it gets nodes, and no other size."""
    blocker = full(live, poll)
    job = live.submit("--gpus-per-task=1", *asked, comment=SAVES + ",gpus=1-8,mix=gated")
    controller = live.controller(*QUICK)
    assert controller.run_round().record.leases == 1
    leave(live, poll, blocker)
    live.place(**{f"j{job}": first})
    assert controller.run_round().record.failed == 0 and live.holds(job, first)
    for _ in range(3):
        live.place(**{f"j{job}": then})
        assert controller.run_round().record.failed == 0
    assert live.holds(job, then)
    asked_for = live.field(job, "TresPerTask").removeprefix("cpu=2,")
    assert asked_for in ("gres:gpu:1", "gres/gpu=1")  # 22.05; 24.11 and 26.05, with the CPUs before it
    assert "has changed" not in live.hadar("history", job).stdout


def test_a_begin_time_set_after_a_stop_stays(live: Any, poll: Any) -> None:
    """Slurm itself puts off what it has requeued; what is set after the controller's lease is somebody's word."""
    job = live.submit("--gres=gpu:1")
    poll(lambda: live.state_of(job) == "RUNNING")
    controller = live.controller(*QUICK)
    assert controller.run_round().record.preemptions == 1 and live.field(job, "Restarts") == "1"
    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+100"], check=True)
    wanted = seen(live, job).eligible

    for _ in range(2):
        controller.run_round()

    assert (seen(live, job).eligible, why(live, job)) == (wanted, "has a begin time of its own")


@pytest.mark.parametrize(("hold", "reason"), [("hold", "JobHeldAdmin"), ("uhold", "JobHeldUser")])
def test_a_hold_of_a_leased_or_placed_job_stays(live: Any, poll: Any, hold: str, reason: str) -> None:
    """Whoever holds it: it is not released, gets every node back, and is steered again when its holder releases it."""
    blocker = full(live, poll)
    leased, placed = (live.submit("--gres=gpu:1") for _ in range(2))
    controller = live.controller(*QUICK)
    controller.run_round()
    leave(live, poll, blocker)
    live.place(**{f"j{placed}": {"v100-1": 1}})
    take_all_again(live, poll)
    controller.run_round()
    assert seen(live, placed).req_nodes == ("v100-1",)
    live.cluster.run(["scontrol", hold, f"{leased},{placed}"], check=True)

    for _ in range(3):
        controller.run_round()
        assert all(seen(live, j).held and seen(live, j).reason == reason for j in (leased, placed))
    assert seen(live, placed).req_nodes == ()
    assert [why(live, j) for j in (leased, placed)] == [f"is held ({reason})"] * 2

    live.cluster.run(["scontrol", "release", f"{leased},{placed}"], check=True)
    live.place()
    assert controller.run_round().record.steered == 2


@pytest.mark.parametrize("hold", ["hold", "uhold"])
@pytest.mark.parametrize("moment", ["before the write", "after the write"])
def test_a_hold_while_a_start_is_verified_stays(live: Any, poll: Any, hold: str, moment: str) -> None:
    """Held just before or just after it was placed: the node list is taken back, the hold is not."""
    blocker = full(live, poll)
    job = live.submit("--gres=gpu:1")
    controller = live.controller(*QUICK)
    controller.run_round()
    leave(live, poll, blocker)
    live.place(**{f"j{job}": {"v100-1": 1}})

    def held() -> None:
        live.cluster.run(["scontrol", hold, job], check=True)

    if moment == "before the write":
        take_all_again(live, poll, held)
    else:
        take_all_again(live, poll)
        after_writing(live, held)

    for _ in range(2):
        controller.run_round()
        assert (seen(live, job).held, seen(live, job).req_nodes) == (True, ())
    commands = [e["command"] for e in live.journal.history(job) if "command" in e]
    assert not any(c.startswith("release") for c in commands)


def after_writing(live: Any, action: Callable[[], object]) -> None:
    """Let something happen once, after the next write that places a job."""
    write = live.backend.write

    def write_then_act(batch: Any) -> Any:
        results = write(batch)
        if any(name == "NodeList" and value for w in batch for name, value in w.fields):
            live.backend.write = write
            action()
        return results

    live.backend.write = write_then_act


def test_slurms_own_hold_for_what_was_asked_of_it_is_released(live: Any, poll: Any) -> None:
    """Its owner excludes the node that it is placed on: Slurm holds the job for good, and that is our doing."""
    blocker = full(live, poll)
    job = live.submit("--gres=gpu:2")
    controller = live.controller(*QUICK)
    controller.run_round()
    leave(live, poll, blocker)
    live.place(**{f"j{job}": {"v100-1": 2}})
    exclude = ["scontrol", "update", f"JobId={job}", "ExcNodeList=v100-1"]
    after_reading(live, lambda: live.cluster.run(exclude, check=True))

    result = controller.run_round()

    assert any(w.command == f"release {job}" and not w.detail for w in result.outcome.log), result.outcome.log
    assert not seen(live, job).held and seen(live, job).req_nodes == ()
    live.place(**{f"j{job}": {"v100-2": 2}})
    controller.run_round()
    assert live.holds(job, {"v100-2": 2})


def test_begin_dependency_and_what_slurm_requeues_are_left_alone(live: Any, poll: Any) -> None:
    """A begin time and a dependency of the owner's, a job that was requeued and held: none of them is touched."""
    before = live.submit("--gres=gpu:1", comment="")
    begin = live.submit("--gres=gpu:1", "--begin=now+900")
    after = live.submit("--gres=gpu:1", f"--dependency=afterok:{before}")
    requeued = live.submit("--gres=gpu:1")
    poll(lambda: live.state_of(requeued) == live.state_of(before) == "RUNNING")
    controller = live.controller(*QUICK)
    (node,) = live.gpus(requeued)
    live.place(**{f"j{requeued}": {node: 1}})
    controller.run_round()
    live.cluster.run(["scontrol", "requeuehold", requeued], check=True)
    poll(lambda: live.state_of(requeued) in ("PENDING", "REQUEUE_HOLD"))
    was = {j: live.as_submitted(j) for j in (begin, after)}

    for _ in range(2):
        controller.run_round()

    assert {j: live.as_submitted(j) for j in was} == was
    assert seen(live, requeued).held and seen(live, requeued).req_nodes == ()
    said = {j: why(live, j) for j in (begin, after, requeued)}
    assert said[begin] == "has a begin time of its own"
    assert said[after].startswith("waits for its dependency afterok:")
    assert re.fullmatch(r"is held \(job requeued in held state\)", said[requeued]), said
    live.cluster.run(["scontrol", "release", requeued], check=True)
    other = "k80-1" if node != "k80-1" else "v100-1"  # a node on which others have ended it is avoided for a while
    live.place(**{f"j{requeued}": {other: 1}})
    rounds_until(controller, lambda: live.holds(requeued, {other: 1}), poll, 30)


def test_a_suspended_job_keeps_its_gpus(live: Any, poll: Any) -> None:
    """It is left alone, nobody is placed on its GPUs, and it is steered again when it is resumed."""
    job = live.submit("--gres=gpu:2")
    poll(lambda: live.state_of(job) == "RUNNING")
    (node,) = live.gpus(job)
    live.cluster.run(["scontrol", "suspend", job], check=True)
    live.place(**{f"j{job}": {"k80-1": 2}})
    controller = live.controller(*QUICK)

    result = controller.run_round()

    assert (live.state_of(job), why(live, job)) == ("SUSPENDED", "is suspended")
    assert result.seen.snapshot.node[node].taken and not result.outcome.log
    live.cluster.run(["scontrol", "resume", job], check=True)
    poll(lambda: live.state_of(job) == "RUNNING")
    target = "k80-1" if node != "k80-1" else "v100-1"
    live.place(**{f"j{job}": {target: 2}})
    assert controller.run_round().record.failed == 0 and live.holds(job, {target: 2})


def test_nodes_and_whole_nodes_as_asked_for(live: Any, poll: Any) -> None:
    """-N 2 stays on two nodes, --exclusive gets a node for itself, and nothing else is placed there."""
    blocker = full(live, poll)
    two = live.submit("--gres=gpu:1", "-N2")
    alone = live.submit("--gres=gpu:1", "--exclusive")
    other = live.submit("--gres=gpu:1")
    controller = live.controller(*QUICK, policy=registry.get("fifo"))
    controller.run_round()
    leave(live, poll, blocker)

    rounds_until(controller, lambda: all(live.state_of(j) == "RUNNING" for j in (two, alone)), poll)

    assert live.holds(two, {"v100-1": 1, "v100-2": 1}) and set(live.gpus(alone)) == {"k80-1"}
    rounds_until(controller, lambda: live.state_of(other) == "RUNNING", poll)
    assert set(live.gpus(other)) < {"v100-1", "v100-2"}


def test_who_has_a_whole_node_gives_way_to_a_gang(live: Any, poll: Any) -> None:
    """Slurm gives --exclusive jobs all GPUs of their nodes; the gang needs more of two than the jobs there train on."""
    long, short = (f"hadar:model=resnet18,batch=64,steps={steps},lose=yes" for steps in (90_000_000, 100))
    alone = [live.submit("--gres=gpu:1", "--exclusive", comment=long) for _ in range(3)]
    poll(lambda: all(live.state_of(job) == "RUNNING" for job in alone))
    gang = live.submit("--gres=gpu:2", "-N2", comment=short)
    controller = live.controller(*QUICK, policy=registry.get("srtf"))

    snapshot = controller.run_round().seen.snapshot

    assert all(n.steerable_gpus == n.gpus for n in snapshot.nodes)
    assert {(snapshot.job[j].placement.workers, snapshot.job[j].held.workers) for j in alone} == {(1, 2)}
    rounds_until(controller, lambda: live.state_of(gang) == "RUNNING", poll)
    assert sorted(len(gpus) for _, gpus in live.gpus(gang).values()) == [2, 2]
    assert [live.state_of(j) for j in alone].count("RUNNING") == 1


def test_the_least_mode_of_all_partitions_counts(live: Any, poll: Any) -> None:
    """A job that waits in two partitions, one of them in mode observe, is not touched; when Slurm has started it, it is
    in one of them, whose mode counts."""
    blockers = [live.submit("--gres=gpu:2", "-p", p, "-N", n, comment="") for p, n in (("v100", "2"), ("k80", "1"))]
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in blockers))
    both, one = (live.submit("--gres=gpu:1", "-p", p) for p in ("v100,k80", "v100"))
    before = live.as_submitted(both)
    controller = live.controller(*QUICK, "partitions.k80.mode=observe")

    assert {w.job_id for w in controller.run_round().outcome.log} == {one}

    assert live.as_submitted(both) == before
    assert live.journal.wait(both)["why"] == "partition v100,k80 is in mode observe"
    leave(live, poll, blockers[0])
    poll(lambda: live.state_of(both) == "RUNNING", 60)
    other = "v100-2" if "v100-1" in live.gpus(both) else "v100-1"
    live.place(**{f"j{both}": {other: 1}})
    controller.run_round()
    assert live.holds(both, {other: 1})


def test_what_an_owner_changes_of_a_waiting_job_is_what_it_gets(live: Any, poll: Any) -> None:
    """Also where the controller has seen, and put off, the job before."""
    blocker = full(live, poll)
    job = live.submit("--gres=gpu:1")
    controller = live.controller(*QUICK)
    assert controller.run_round().record.leases == 1
    shape = ["TresPerNode=gres:gpu:2", "NumNodes=2-2", "NumTasks=2", "NumCPUs=2"]
    live.cluster.run(["scontrol", "update", f"JobId={job}", *shape], check=True)
    form = controller.run_round().seen.snapshot.job[job].form
    assert (form.workers, form.min_nodes) == (4, 2)

    leave(live, poll, blocker)
    live.place(**{f"j{job}": {"v100-1": 2, "v100-2": 2}})

    assert controller.run_round().record.failed == 0 and live.holds(job, {"v100-1": 2, "v100-2": 2})


def test_who_starts_meanwhile_keeps_its_tasks(live: Any, poll: Any) -> None:
    """Slurm has started a job on two nodes since it was looked at; to be told of one node would shrink it there, and
    end its task on the other."""
    blocker = full(live, poll)
    job = live.submit("--gres=gpu:1", "-N2", comment=SAVES + ",gpus=1-2,nodes=1-2", script="srun sleep 900")
    read = live.backend.read

    def read_before_it_started() -> Any:
        state = read()
        leave(live, poll, blocker)
        poll(lambda: live.state_of(job) == "RUNNING" and f"{job}.0" in live.cluster.run(["squeue", "-s"]).stdout)
        live.place(**{f"j{job}": {live.field(job, "BatchHost"): 2}})  # to others it could not shrink
        free = tuple(replace(n, used=(), cpus_used=0, state="idle", whole=frozenset()) for n in state.nodes)
        return replace(state, nodes=free, jobs=tuple(j for j in state.jobs if j.job_id != blocker))

    live.backend.read = read_before_it_started
    result = live.controller(*QUICK).run_round()
    live.backend.read = read

    assert [w.outcome for w in result.outcome.log] == [WriteOutcome.OVERTAKEN] and result.record.failed == 0
    assert len(live.gpus(job)) == 2 and live.state_of(job) == "RUNNING"
    assert f"{job}.0" in live.cluster.run(["squeue", "-s"]).stdout


def test_what_only_slurm_has_room_for_starts(live: Any, poll: Any) -> None:
    """On unlike nodes, within a deadline, on so many nodes as there are: none of it is put off on an empty cluster."""
    asked = {"on unlike nodes": ["--gres=gpu:1", "-N3"], "a deadline": ["--gres=gpu:1", "--deadline=now+3600", "-t10"]}
    asked["a range"] = ["--gres=gpu:1", "-N1-2"]
    controller = live.controller(*QUICK, policy=registry.get("hadar"))
    for options in asked.values():
        job = live.submit(*options)
        controller.run_round()
        rounds_until(controller, functools.partial(runs, live, job), poll)
        assert live.field(job, "Restarts") == "0"
        leave(live, poll, job)


def test_a_range_of_nodes_that_slurm_has_reckoned_with(live: Any, poll: Any) -> None:
    """Where it waits, Slurm shows the most nodes alone; it is a range still, and starts on what falls free."""
    others = [live.submit("--gres=gpu:2", comment="") for _ in live.cluster.nodes]
    poll(lambda: all(live.state_of(other) == "RUNNING" for other in others))
    job = live.submit("--gpus-per-node=2", "-N1-2")
    poll(lambda: "NumNodes=2-2" in live.cluster.run(["scontrol", "show", "job", job]).stdout)
    controller = live.controller(*QUICK, policy=registry.get("hadar"))
    controller.run_round()
    live.cluster.run(["scancel", others[0]])
    rounds_until(controller, functools.partial(runs, live, job), poll)
    assert live.field(job, "Restarts") == "0"

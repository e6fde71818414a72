"""Whole rounds on a real Slurm: what the controller does to jobs, read back from Slurm's own mouth."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from slurm_hadar.controller.act import context
from slurm_hadar.controller.answers.view import queue_view

pytestmark = pytest.mark.slurm
SAVES = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes"


def eligible_in(live: Any, job: str) -> float:
    """Seconds until Slurm may start the job."""
    found = next(j for j in live.backend.read_jobs() if j.job_id == job)
    return (found.eligible or 0) - time.time()


def test_start_lease_preempt_and_move(live: Any, poll: Any) -> None:
    """A job is started where planned, others wait; then it is moved to other GPUs, then stopped for another."""
    blocker = live.submit("--gres=gpu:4", "-N6", comment="")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    one, two, three = (live.submit("--gres=gpu:2") for _ in range(3))
    controller = live.controller()
    result = controller.run_round()

    assert (result.record.leases, result.record.failed) == (3, 0)
    assert all(live.state_of(j) == "PENDING" and 30 < eligible_in(live, j) <= 61 for j in (one, two, three))

    live.cluster.run(["scancel", blocker])
    live.place(**{f"j{one}": {"k80-1": 2}})
    poll(lambda: not live.gpus(blocker))
    result = controller.run_round()

    assert live.holds(one, {"k80-1": 2}) and (result.record.starts, result.record.failed) == (1, 0)
    assert all(live.state_of(j) == "PENDING" for j in (two, three))

    live.place(**{f"j{one}": {"p100-1": 2}, f"j{two}": {"k80-1": 2}})
    result = controller.run_round()

    assert (result.record.moves, result.record.starts, result.record.failed) == (1, 1, 0)
    assert live.holds(one, {"p100-1": 2}) and live.holds(two, {"k80-1": 2})
    assert live.field(one, "Restarts") == "1"

    live.place(**{f"j{three}": {"k80-1": 2}})
    result = controller.run_round()

    assert (result.record.preemptions, result.record.starts, result.record.failed) == (2, 1, 0)
    assert live.holds(three, {"k80-1": 2})
    for job in (one, two):
        assert live.state_of(job) == "PENDING" and 30 < eligible_in(live, job) <= 61
        assert live.field(job, "ReqNodeList") == "(null)" and int(live.field(job, "Priority")) > 0


FORMS = {
    "four": (["--gres=gpu:4"], "nodes=1-4", [(1, 4), (2, 2), (4, 1)]),
    "two of the job": (["--gpus=2"], "nodes=1-2", [(1, 2), (2, 1)]),
    "one on each of two": (["--gres=gpu:1", "-N2", "-n2"], "nodes=1-2", [(2, 1), (1, 2)]),
    "a task of an array": (["--gres=gpu:2", "-a", "5"], "nodes=1-2", [(1, 2), (2, 1)]),
}
ROUNDS, SEED = 20, 20260


@pytest.mark.thorough
def test_random_placements(live: Any, poll: Any) -> None:
    """Jobs of four forms are thrown about for 20 rounds: each holds exactly what was planned, on GPUs of its own."""
    rng = random.Random(SEED)
    comment = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes,mix=gated,"
    jobs = {}
    for options, nodes, shapes in FORMS.values():
        job = live.submit("--hold", *options, comment=comment + nodes)
        jobs[job + ("_5" if "-a" in options else "")] = shapes
    live.cluster.run(["scontrol"], input="".join(f"release {j}\n" for j in jobs))
    controller = live.controller()
    live.place()
    # Slurm may have begun to start them: Slurm then refuses what is said of waiting jobs, and the next round stops them
    poll(lambda: not controller.run_round().record.failed and all(live.state_of(j) == "PENDING" for j in jobs), 120)

    for number in range(ROUNDS):
        planned = _random_plan(rng, live, jobs)
        live.place(**{f"j{job}": where for job, where in planned.items()})
        result = controller.run_round()

        assert result.record.note == "" and result.record.failed == 0, (number, planned, result.outcome.log)
        taken: set[tuple[str, int]] = set()
        for job in jobs:
            held = live.gpus(job)
            assert {n: len(i) for n, (_, i) in held.items()} == planned.get(job, {}), (number, job, live.show(job))
            ours = {(n, i) for n, (_, indices) in held.items() for i in indices}
            assert not ours & taken
            taken |= ours

    live.cluster.run(["scancel", *jobs])


def _random_plan(rng: random.Random, live: Any, jobs: dict[str, list[tuple[int, int]]]) -> dict[str, dict[str, int]]:
    """Random placements that fit together; about every fifth job waits."""
    free = {n.name: sum(n.gpus.values()) for n in live.cluster.nodes}
    plan: dict[str, dict[str, int]] = {}
    for job in rng.sample(sorted(jobs), len(jobs)):
        count, each = rng.choice(jobs[job])
        room = [n for n, left in free.items() if left >= each]
        if len(room) < count or rng.random() < 0.2:
            continue
        plan[job] = dict.fromkeys(sorted(rng.sample(room, count)), each)
        for node in plan[job]:
            free[node] -= each
    return plan


ALONE = {
    "typed": (["--gres=gpu:v100:2"], "asks for GPU type v100, which Slurm cannot change; ask for --gres=gpu:2"),
    "no requeue": (["--gres=gpu:1", "--no-requeue"], "--no-requeue; submit with --requeue"),
    "by name": (["--gres=gpu:1", "-w", "k80-1"], "asks for nodes by name (-w)"),
    "broken comment": (["--gres=gpu:1", "--comment=hadar:modle=x"], "unknown key 'modle' in the hadar: comment"),
    "not ours": (["--gres=gpu:1", "--comment=my own"], "has no hadar: comment"),
    "pinned": (["--gres=gpu:1", "--comment=hadar:pin=yes"], "pin=yes in its comment"),
    "heterogeneous": (["--gres=gpu:1", ":", "--gres=gpu:1"], "is a component of a heterogeneous job"),
    "held": (["--gres=gpu:1", "--hold"], "is held (JobHeldUser)"),
    "later": (["--gres=gpu:1", "--begin=now+900"], "has a begin time of its own"),
    "no gpus": (["--exclusive"], "asks for no GPUs"),  # so that it waits, too
    "two ways": (["--gpus=2", "--gpus-per-node=2"], "asks for GPUs in more than one way"),
    "per task": (["--gpus-per-task=1", "-n4", "-N2"], "may spread its tasks unevenly; ask for --ntasks-per-node, too"),
    "constraint": (["--gres=gpu:1", "-N2", "-C", "[v100*1&k80*1]"], "has a --constraint that cannot be followed"),
}


def test_jobs_that_cannot_be_steered_are_left_alone(live: Any) -> None:
    """Pinned with a reason that its owner understands, and not a word of theirs changed; the others are steered."""
    full = live.submit("--gres=gpu:4", "-N6", comment="")
    jobs = {live.submit("--exclude=p100-1", *options): why for options, why in ALONE.values()}
    after = live.submit("--gres=gpu:1", f"--dependency=afterok:{full}")
    jobs[after] = f"waits for its dependency afterok:{full}"
    ours = live.submit("--gres=gpu:1")
    controller = live.controller()
    before = {job: live.as_submitted(job) for job in jobs}

    live.place(**{f"j{job}": {"v100-1": 1} for job in jobs})
    result = controller.run_round()

    assert {job: live.as_submitted(job) for job in jobs} == before
    assert {w.job_id for w in result.outcome.log} == {ours} and result.record.steered == 1
    lines = {line.job_id.removesuffix("+0"): line for line in queue_view(live.backend, live.config())[0]}
    for job, why in jobs.items():
        assert lines[job].tier == "pinned" and why in lines[job].why
        assert why in live.journal.wait(job if job in lines and "+" not in lines[job].job_id else f"{job}+0")["why"]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_other_modes_write_nothing(live: Any, mode: str, poll: Any) -> None:
    """Reads, decides, records; and Slurm shows every job as before."""
    running, waiting = live.submit("--gres=gpu:2"), live.submit("--gres=gpu:4", "-N6", comment=SAVES + ",mix=gated")
    jobs = (running, waiting, live.submit("--gres=gpu:v100:1", "--hold"))
    poll(lambda: live.state_of(running) == "RUNNING")
    controller = live.controller(f"controller.mode={mode}")
    controller.run_round()
    before = [live.as_submitted(job) for job in jobs]

    live.place(**{f"j{waiting}": dict.fromkeys((n.name for n in live.cluster.nodes), 4)})
    result = controller.run_round()

    assert [live.as_submitted(job) for job in jobs] == before
    assert (result.record.preemptions, result.record.starts, result.record.writes) == (1, 1, 0), result
    assert result.seen.snapshot.job[running].placement


def test_jobs_start_by_themselves_when_the_controller_is_gone(live: Any, monkeypatch: Any, poll: Any) -> None:
    """Nobody renews the leases: all deferred jobs, also stopped ones, become eligible and Slurm starts them."""
    monkeypatch.setattr(context, "LEAST_LEASE_S", 4.0)
    jobs = [live.submit("--gres=gpu:1", "--begin=now+0") for _ in range(3)]
    controller = live.controller("controller.round_s=1")
    live.place(**{f"j{jobs[0]}": {"v100-1": 1}})
    controller.run_round()
    live.place()
    result = controller.run_round()
    assert result.record.preemptions >= 1 and all(live.state_of(j) == "PENDING" for j in jobs)

    # Slurm looks at begin times that have passed with its next event, or within its sched_interval of a minute
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in jobs), 150)

    live.finish()
    poll(lambda: all(live.state_of(j) == "COMPLETED" for j in jobs), 60)


def test_a_job_that_ends_while_it_is_to_be_moved_is_not_run_again(live: Any, poll: Any) -> None:
    """Completed between reading and writing: it stays completed."""
    job = live.submit("--gres=gpu:1")
    poll(lambda: live.gpus(job))  # Slurm starts it, where it likes
    (node,) = live.gpus(job)
    controller = live.controller()
    live.place(**{f"j{job}": {node: 1}})
    controller.run_round()
    read = live.backend.read

    def read_and_end() -> Any:
        state = read()
        live.finish()
        poll(lambda: live.state_of(job) == "COMPLETED")
        return state

    live.backend.read = read_and_end
    live.place(**{f"j{job}": {"k80-1" if node != "k80-1" else "v100-1": 1}})
    result = controller.run_round()

    assert (live.state_of(job), live.field(job, "Restarts")) == ("COMPLETED", "0")
    assert result.record.failed == 0

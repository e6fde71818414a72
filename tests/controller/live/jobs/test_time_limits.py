"""Real trainings that come to their time limit, that save late, and that never save, on a real Slurm."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.chain import result_of
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.policies import registry
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.table import reference
from tests.controller.live.test_faults import rounds_until

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[4]
QUICK = ("controller.round_s=2", "jobs.start_timeout_s=10", "jobs.end_timeout_s=30")


def environment() -> dict[str, str]:
    """What a user's shell has: our Python, hadar-srun, and the package."""
    path = os.pathsep.join([str(ROOT / "wrappers"), str(Path(sys.executable).parent), os.environ["PATH"]])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    python = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {**clean, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": python}


def train(live: Any, name: str, steps: int, nap_s: float, *options: str, comment: str = "") -> str:
    """A training whose result tells whether each step was made once and in order."""
    command = f"-m benchmarks.chaos.chain --steps {steps} --nap {nap_s} --result {live.work / name} --hurry hurry"
    return live.submit(
        "--gres=gpu:1",
        *options,
        comment=f"hadar:model=resnet18,batch=64,steps={steps}{comment}",
        script=f'hadar-srun -- "{sys.executable}" {command}\n',
        env=environment(),
    )


def ended_with(live: Any, name: str) -> list[Any]:
    return [json.loads(line) for line in (live.work / name).read_text().splitlines()]


def makes_steps(live: Any, poll: Any, job: str, steps: int = 1) -> None:
    """Wait until the present run of the job has reported so many."""
    restarts = int(live.field(job, "Restarts"))
    poll(
        lambda: (
            (n := live.news(job))
            and n.report.restart == restarts
            and n.report.resumable
            and (n.report.steps or 0) >= steps
        ),
        60,
    )


def node_of(live: Any, job: str) -> str:
    (node,) = live.gpus(job)
    return node


def other_than(node: str) -> str:
    return "k80-1" if node != "k80-1" else "v100-1"


def why(live: Any, job: str) -> str:
    return next(line.why for line in queue_view(live.backend, live.config())[0] if line.job_id == job)


def test_who_never_saves_holds_up_nobody(live: Any, poll: Any) -> None:
    """It says that it can save, and does not: rounds take a second or two, others are moved meanwhile, and it loses its
    word with the reason for growing times."""
    silent, good = train(live, "silent", 1000, 3600), train(live, "good", 100_000, 0.05)
    controller = live.controller(*QUICK, "jobs.ack_timeout_s=6", channel=True)
    makes_steps(live, poll, silent, 0)
    makes_steps(live, poll, good)
    stays, target = node_of(live, silent), other_than(node_of(live, good))
    live.place(**{f"j{silent}": {"v100-2": 1}, f"j{good}": {target: 1}})
    longest, began = 0.0, time.monotonic()

    def given_up() -> bool:
        nonlocal longest
        round_began = time.monotonic()
        result = controller.run_round()
        if not result.record.moves:  # a move itself takes the time to stop and start the job
            longest = max(longest, time.monotonic() - round_began)
        return bool(result.seen.records[silent].unsaved)

    poll(given_up, 60, 0.3)

    assert longest < 4 and time.monotonic() - began >= 6
    assert live.holds(good, {target: 1}) and live.holds(silent, {stays: 1})
    unmovable = controller.run_round().seen.snapshot.job[silent].unmovable
    assert unmovable.startswith("did not save within jobs.ack_timeout_s when it was asked to, though it says")
    assert controller.run_round().record.moves == 0 and live.field(silent, "Restarts") == "0"


def test_who_saves_late_is_moved_then(live: Any, poll: Any) -> None:
    """Each of its steps takes three seconds, and it saves between two: it is stopped when it has saved, and no step is
    made twice."""
    steps = 16  # two of them tell its speed, and then it is moved
    job = train(live, "late", steps, 3)
    controller = live.controller(*QUICK, "jobs.ack_timeout_s=20", channel=True)
    makes_steps(live, poll, job)
    target = other_than(node_of(live, job))
    live.place(**{f"j{job}": {target: 1}})
    results = []

    def moved() -> bool:
        began = time.monotonic()
        results.append((controller.run_round(), time.monotonic() - began))
        return bool(results[-1][0].record.moves)

    poll(moved, 60, 0.1)

    assert live.holds(job, {target: 1})
    assert all(took < 4 for result, took in results[:-1])
    saved = results[-1][0].seen.records[job]
    assert saved.saved_step == saved.steps and saved.unsaved == 0
    (live.work / "hurry").touch()
    poll(lambda: live.state_of(job) == "COMPLETED", 90)
    assert ended_with(live, "late")[-1]["steps"] == steps, ended_with(live, "late")


def blocker(live: Any, poll: Any, *nodes: str) -> str:
    job = live.submit("--gres=gpu:4", "-N", str(len(nodes)), "-w", ",".join(nodes), comment="", script="sleep 900")
    poll(lambda: live.state_of(job) == "RUNNING")
    return job


def test_a_job_is_placed_where_it_is_done_in_time(live: Any, poll: Any) -> None:
    """What is left fits into its minute on a V100 or P100 and not on a K80: it waits while the K80s are free."""
    fast, slow = (blocker(live, poll, f"{t}-1", f"{t}-2") for t in ("v100", "k80"))
    middle = blocker(live, poll, "p100-1", "p100-2")
    rates = Estimator(reference()).speeds("resnet18", 64, 1, ("v100", "k80"))
    steps = int(30 * rates["v100"].steps_per_s)
    assert steps / rates["k80"].steps_per_s > 70
    job = live.submit("--gres=gpu:1", "--time=1", comment=f"hadar:model=resnet18,batch=64,steps={steps}")
    controller = live.controller(*QUICK, policy=registry.get("fifo"))
    controller.run_round()
    live.cluster.run(["scancel", slow])
    poll(lambda: not live.gpus(slow))

    for _ in range(3):
        assert controller.run_round().seen.snapshot.job[job].form.types == frozenset({"v100", "p100"})
        assert live.state_of(job) == "PENDING"
    live.cluster.run(["scancel", fast, middle])
    rounds_until(controller, lambda: live.state_of(job) == "RUNNING", poll, 40)

    assert not node_of(live, job).startswith("k80")


def test_at_its_limit_a_job_goes_on_or_is_saved(live: Any, poll: Any) -> None:
    """With requeue_on_timeout it saves and goes on in another run, to the very end; without, it saves and its limit is
    its end."""
    steps = 220
    controller = live.controller(*QUICK, "jobs.limit_grace_s=45", "guard.min_run_s=3600", channel=True)
    on = train(live, "on", steps, 0.1, "--time=1", comment=",requeue_on_timeout=yes")
    over = train(live, "over", 100_000, 0.1, "--time=1")
    makes_steps(live, poll, on)
    makes_steps(live, poll, over)
    live.place(**{f"j{job}": {node_of(live, job): 1} for job in (on, over)})

    rounds_until(controller, lambda: live.field(on, "Restarts") == "1", poll, 60)
    asked = live.journal.load_jobs()[over].limit_asked
    rounds_until(controller, lambda: (live.news(over).saved_at or 0) >= asked, poll, 10)
    rounds_until(controller, lambda: live.state_of(on) == "COMPLETED", poll, 60)

    (end,) = ended_with(live, "on")
    assert (end["steps"], end["weights"]) == (steps, result_of(steps))
    assert end["run"] != "0"  # a slow machine may need another one for the rest
    commands = [e["command"] for e in live.journal.history(on) if "command" in e]
    assert f"requeue {on}" in commands and live.field(over, "Restarts") == "0"
    live.cluster.run(["scontrol", "update", f"JobId={over}", "EndTime=now+1"], check=True)
    poll(lambda: live.state_of(over) == "TIMEOUT", 90)


def test_max_time_lowers_the_limit_and_never_raises_it(live: Any, poll: Any) -> None:
    """Of ten minutes two are left where the owner says so; one minute stays one."""
    full = blocker(live, poll, *(n.name for n in live.cluster.nodes))
    lowered = live.submit("--gres=gpu:1", "--time=10", comment="hadar:model=resnet18,batch=64,max_time=2m")
    kept = live.submit("--gres=gpu:1", "--time=1", comment="hadar:model=resnet18,batch=64,max_time=5m")
    controller = live.controller(*QUICK)
    controller.run_round()
    live.cluster.run(["scancel", full])
    poll(lambda: not live.gpus(full))
    live.place(**{f"j{lowered}": {"v100-1": 1}, f"j{kept}": {"k80-1": 1}})

    rounds_until(controller, lambda: live.gpus(lowered) and live.gpus(kept), poll, 40)

    assert [live.field(j, "TimeLimit") for j in (lowered, kept)] == ["00:02:00", "00:01:00"]

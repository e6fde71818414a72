"""Real trainings moved by a real controller between GPU types and nodes: results as if nothing had happened."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.controller.agents.channel_file import announce
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.messages import ChannelInfo
from slurm_hadar.model import MOST_RAISED
from slurm_hadar.throughput.store import ThroughputStore

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 240.0
ONE = 'hadar-srun -- python "{script}" {arguments}\n'
GANG = (
    "hadar-srun -- bash -c 'exec torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=$SLURM_GPUS_ON_NODE "
    "--node-rank=$SLURM_PROCID --master-addr=$HADAR_MASTER_ADDR --master-port=$HADAR_MASTER_PORT "
    '-- "{script}" {arguments}\'\n'
)


def environment(**more: str) -> dict[str, str]:
    """What a user's shell has: our Python, hadar-srun, and the package."""
    path = os.pathsep.join([str(ROOT / "wrappers"), str(Path(sys.executable).parent), os.environ["PATH"]])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    return {**clean, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": _python_path(), "OMP_NUM_THREADS": "1",
            **more}  # fmt: skip


def _python_path() -> str:
    return os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)


def comment(steps: int, *more: str) -> str:
    return ",".join([f"hadar:model=resnet18,batch=64,steps={steps}", *more])


def move_until(controller: Any, live: Any, poll: Any, told: dict[str, dict[str, int]]) -> list[Any]:
    """Rounds until every job is where it is told to be; returns their outcomes."""
    live.place(**{f"j{job}": where for job, where in told.items()})
    outcomes = []

    def moved() -> bool:
        outcomes.append(controller.run_round())
        return all(live.holds(job, where) for job, where in told.items())

    poll(moved, DEADLINE_S, 0.5)
    return outcomes


def goes_on(live: Any, job: str, poll: Any) -> None:
    """Wait until the job's agent has reported steps of the present run, and their speed."""
    restarts = int(live.field(job, "Restarts"))

    def steps() -> bool:
        assert live.state_of(job) not in ("COMPLETED", "FAILED"), "it was over before it could be moved"
        news = live.news(job)
        report = news.report if news is not None else None
        ahead = report is not None and (report.steps or 0) > (report.saved_step or 0)
        return bool(report and report.restart == restarts and ahead and report.steps_per_s)

    poll(steps, DEADLINE_S, 0.2)


def result_of(live: Any, job: str, log: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The training's last words, and its losses by step."""
    words = [line for line in (live.work / f"{job}.out").read_text().splitlines() if line.startswith('{"done"')]
    assert len(words) == 1, (live.work / f"{job}.out").read_text()
    return json.loads(words[0]), [json.loads(line) for line in log.read_text().splitlines()]


def undisturbed(command: list[str], log: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same training without Slurm, controller and moves: before the job is submitted, which else could be over by
    the time that it is to be moved."""
    done = subprocess.run(
        [*command, f"--log={log}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        cwd=log.parent,
        timeout=DEADLINE_S,
    )
    words = [line for line in done.stdout.splitlines() if line.startswith('{"done"')]
    return json.loads(words[0]), [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.thorough
def test_moved_three_times_between_gpu_types_is_bit_identical(live: Any, poll: Any) -> None:
    """One worker, moved over all types: the same weights and losses, step by step, as the undisturbed run."""
    steps, script = 220, EXAMPLES / "charlm.py"
    log = live.work / "moved.jsonl"
    arguments = f"--steps={steps} --seed=3 --log-every=1 --log={log}"
    controller = live.controller(channel=True)
    training = ONE.format(script=script, arguments=arguments)
    expected = undisturbed(
        [sys.executable, str(script), f"--steps={steps}", "--seed=3", "--log-every=1"], live.work / "undisturbed.jsonl"
    )
    job = live.submit("--gres=gpu:1", comment=comment(steps), script=training, env=environment())
    for node in ("p100-2", "k80-1", "v100-1"):
        goes_on(live, job, poll)
        if node == "v100-1":
            live.hurry()
        result = move_until(controller, live, poll, {job: {node: 1}})[-1]
        assert (result.record.moves, result.record.failed) == (1, 0), result.outcome.log
    poll(lambda: live.state_of(job) == "COMPLETED", DEADLINE_S)

    assert live.field(job, "Restarts") == "3"
    assert result_of(live, job, log) == expected
    text = (live.work / f"{job}.out").read_text()
    assert text.count("hadar: resumed from") == 3 and text.count(": resuming from step") == 3
    controller.run_round()
    record = live.journal.job(job)
    assert record.moves == 3 and record.total_steps == steps and record.ended is not None
    types = {m.gpu_type for m in ThroughputStore(live.journal.connection).of("resnet18:64", getpass.getuser())}
    assert {"k80", "p100"} <= types


def test_a_gang_moved_to_other_nodes_is_bit_identical(live: Any, poll: Any) -> None:
    """Two workers under torchrun: both on one node, then on two nodes, then on one of another type."""
    steps, script = 150, EXAMPLES / "charlm.py"
    log = live.work / "moved.jsonl"
    arguments = f"--steps={steps} --seed=5 --log-every=1 --log={log}"
    controller = live.controller(channel=True)
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node=2", "--standalone", "--"]
    expected = undisturbed(
        [*torchrun, str(script), f"--steps={steps}", "--seed=5", "--log-every=1"], live.work / "undisturbed.jsonl"
    )
    job = live.submit(
        "--gres=gpu:2",
        "--time=60",
        comment=comment(steps, "nodes=1-2"),
        script=GANG.format(script=script, arguments=arguments),
        env=environment(),
    )
    for where in ({"p100-1": 1, "p100-2": 1}, {"v100-1": 2}):
        goes_on(live, job, poll)
        if where == {"v100-1": 2}:
            live.hurry()
        result = move_until(controller, live, poll, {job: where})[-1]
        assert (result.record.moves, result.record.failed) == (1, 0), result.outcome.log
    poll(lambda: live.state_of(job) == "COMPLETED", DEADLINE_S)

    assert result_of(live, job, log) == expected
    assert live.field(job, "Restarts") == "2"


@pytest.mark.parametrize("library", [pytest.param("lightning", marks=pytest.mark.thorough), "huggingface"])
def test_a_library_training_is_moved_by_its_callback(live: Any, poll: Any, library: str) -> None:
    """PyTorch Lightning and Hugging Face's Trainer, with one line in the script: measured, asked to save, moved,
    resumed; the same weights and losses, step by step, as the undisturbed run."""
    steps, script = 200, EXAMPLES / f"cnn_{library}.py"
    log = live.work / "moved.jsonl"
    arguments = f"--steps={steps} --seed=3 --log-every=1 --log={log}"
    controller = live.controller(channel=True)
    expected = undisturbed(
        [sys.executable, str(script), f"--steps={steps}", "--seed=3", "--log-every=1"], live.work / "undisturbed.jsonl"
    )
    job = live.submit(
        "--gres=gpu:1", comment=comment(steps), script=ONE.format(script=script, arguments=arguments), env=environment()
    )
    goes_on(live, job, poll)
    live.hurry()
    result = move_until(controller, live, poll, {job: {"p100-2": 1}})[-1]
    assert (result.record.moves, result.record.failed) == (1, 0), result.outcome.log
    poll(lambda: live.state_of(job) == "COMPLETED", DEADLINE_S)

    assert live.field(job, "Restarts") == "1"
    assert result_of(live, job, log) == expected
    controller.run_round()
    record = live.journal.job(job)
    assert (record.moves, record.total_steps, record.saved_step) == (1, steps, steps)


STUBBORN = """
import time, torch, slurm_hadar
layer = torch.nn.Linear(2, 1)
for step in slurm_hadar.train(layer, torch.optim.SGD(layer.parameters(), lr=0.1), total_steps=1000):
    if step == 5: time.sleep(10_000)
"""


def test_what_cannot_be_saved_is_not_moved(live: Any, poll: Any) -> None:
    """A training without checkpoint support is measured and stays, unless its owner lets it start over; one that does
    not answer the request to save stays too, after a bounded wait."""
    (live.work / "stubborn.py").write_text(STUBBORN)
    plain = ONE.format(script=EXAMPLES / "plain.py", arguments="--steps=100000000")
    fixed = live.submit("--gres=gpu:1", comment=comment(1000), script=plain, env=environment())
    loser = live.submit("--gres=gpu:1", comment=comment(1000, "lose=yes"), script=plain, env=environment())
    silent = live.submit(
        "--gres=gpu:1", comment=comment(1000), script=ONE.format(script="stubborn.py", arguments=""), env=environment()
    )
    controller = live.controller("jobs.ack_timeout_s=2", channel=True)
    for job in (fixed, loser):
        goes_on(live, job, poll)
    poll(lambda: (news := live.news(silent)) and news.report.resumable and (news.report.steps or 0) >= 5, DEADLINE_S)
    before = {job: live.field(job, "NodeList") for job in (fixed, silent)}

    result = move_until(controller, live, poll, {loser: {"v100-2": 1}})[-1]
    live.place(**{f"j{j}": {"v100-1": 1} for j in (fixed, silent)}, **{f"j{loser}": {"v100-2": 1}})
    result = controller.run_round()

    why = {c.job_id: c.why for c in result.changes}
    assert why[silent] == "put off: no checkpoint within jobs.ack_timeout_s = 2" and result.record.moves == 0
    assert result.seen.snapshot.job[fixed].unmovable.startswith("has no checkpoint support")
    assert {job: live.field(job, "NodeList") for job in before} == before
    assert [live.field(j, "Restarts") for j in (fixed, silent, loser)] == ["0", "0", "1"]
    assert result.seen.records[fixed].steps_per_s > 0
    assert "nothing is saved" not in (live.work / f"{fixed}.out").read_text()  # it was not even asked


def test_without_a_channel_the_spool_file_and_the_signal_serve(live: Any, poll: Any, short_tmp: Path) -> None:
    """Jobs of which no message arrives, since the controller does not listen or their channel file leads nowhere, are
    measured, saved, moved and resumed all the same, whatever directory they were submitted from."""
    steps, script, jobs = 260, EXAMPLES / "cnn.py", {}
    for name, info in {"off": ChannelInfo("", ""), "nowhere": ChannelInfo("tcp://127.0.0.1:1", "a" * 40)}.items():
        channel, log = short_tmp / f"{name}.json", live.work / f"{name}.jsonl"
        announce(channel, info)
        arguments = f"--steps={steps} --seed=7 --log-every=1 --log={log}"
        job = live.submit(
            "--gres=gpu:1",
            comment=comment(steps),
            script=ONE.format(script=script, arguments=arguments),
            env=environment(HADAR_CHANNEL=str(channel)),
            cwd=short_tmp,
        )
        jobs[job] = log
    poll(lambda: all(live.state_of(job) == "RUNNING" for job in jobs))
    live.place(**{f"j{job}": {live.field(job, "NodeList"): 1} for job in jobs})
    controller = live.controller()

    def known() -> bool:
        records = controller.run_round().seen.records
        return all(records[job].resumable and records[job].steps_per_s for job in jobs)

    poll(known, DEADLINE_S, 0.5)
    live.hurry()
    outcomes = move_until(controller, live, poll, dict(zip(jobs, ({"v100-1": 1}, {"v100-2": 1}), strict=True)))
    poll(lambda: all(live.state_of(job) == "COMPLETED" for job in jobs), DEADLINE_S)

    assert sum(o.record.failed for o in outcomes) == 0 and sum(o.record.moves for o in outcomes) == 2
    expected = undisturbed(
        [sys.executable, str(script), f"--steps={steps}", "--seed=7", "--log-every=1"], live.work / "undisturbed.jsonl"
    )
    for job, log in jobs.items():
        assert result_of(live, job, log) == expected and live.field(job, "Restarts") == "1"
    controller.run_round()
    assert all(live.journal.job(job).saved_step == steps for job in jobs)
    assert {m.gpu_type for m in ThroughputStore(live.journal.connection).of("resnet18:64", getpass.getuser())} >= {
        "k80"
    }


ELASTIC = """
import json, os, sys, torch, slurm_hadar
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(64, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(data, batch_size=1, sampler=torch.utils.data.DistributedSampler(data, seed=3))
steps = int(sys.argv[1])
run = slurm_hadar.train(model, optimizer, total_steps=steps, loader=loader, global_batch=8, state={"seen": []})
for (x,) in run:
    optimizer.zero_grad(); (model(x) - x).square().mean().backward(); optimizer.step()
    run.state["seen"].append([dist.get_world_size(), len(x)])
if dist.get_rank() == 0: print(json.dumps({"done": run.step, "seen": run.state["seen"]}), flush=True)
"""


def test_who_says_how_many_tasks_are_on_a_node_keeps_its_size(live: Any, poll: Any) -> None:
    """A size that Slurm would refuse, or give with other tasks, is none of its sizes. A job whose tasks can follow its
    GPUs is placed with as many of both."""
    comment = "hadar:model=resnet18,batch=64,ckpt=yes,gpus=2-4"
    asked = {"--ntasks-per-node=2": (2,), "--ntasks-per-socket=2": (2,), "--ntasks-per-core=1": (2, 4)}
    jobs = {option: live.submit("--gres=gpu:2", "-n2", option, comment=comment) for option in asked}
    poll(lambda: all(live.state_of(job) == "RUNNING" for job in jobs.values()))
    fixed, follows = list(jobs.values())[:2], jobs["--ntasks-per-core=1"]
    stays = {f"j{job}": dict.fromkeys(live.gpus(job), 2) for job in fixed}
    live.place(**stays, **{f"j{follows}": {"v100-2": 4}})
    result = live.controller().run_round()

    assert result.record.failed == 0, result.outcome.log
    forms = {option: result.seen.snapshot.job[job].form.gang_sizes for option, job in jobs.items()}
    assert forms == asked and [live.field(job, "Restarts") for job in fixed] == ["0", "0"]
    assert live.holds(follows, {"v100-2": 4}) and live.field(follows, "NumTasks") == "4"


def test_an_elastic_gang_is_started_and_moved_in_other_sizes(live: Any, poll: Any) -> None:
    """Asked for one GPU and let have up to two: started with two, moved to one of another type, ended with two. Every
    step has the same number of samples, as many steps are made as were to be made."""
    steps = 320
    (live.work / "elastic.py").write_text(ELASTIC)
    script = GANG.format(script="elastic.py", arguments=str(steps))
    blocker = live.submit("--gres=gpu:4", "-N6", comment="")  # so that Slurm does not start it by itself
    job = live.submit(
        "--gres=gpu:1", comment=f"hadar:model=resnet18,batch=8,steps={steps},gpus=1-2", script=script, env=environment()
    )
    controller = live.controller(channel=True)
    controller.run_round()
    live.cluster.run(["scancel", blocker])
    poll(lambda: not live.gpus(blocker))
    for where in ({"v100-1": 2}, {"p100-1": 1}, {"p100-1": 2}):
        outcomes = move_until(controller, live, poll, {job: where})
        assert sum(o.record.failed for o in outcomes) == 0, outcomes[-1].outcome.log
        goes_on(live, job, poll)
    seen = controller.run_round().seen.snapshot.job[job]
    poll(lambda: live.state_of(job) == "COMPLETED", DEADLINE_S)

    assert seen.form.gang_sizes == (1, 2) and seen.placement.by_type == {"p100": 2} and seen.restarts == 2
    (words,) = [line for line in (live.work / f"{job}.out").read_text().splitlines() if line.startswith('{"done"')]
    result = json.loads(words)
    worlds = [world for world, _ in result["seen"]]
    assert result["done"] == steps == len(worlds) and {tuple(s) for s in result["seen"]} == {(2, 4), (1, 8)}
    assert (worlds[0], worlds[-1]) == (2, 2) and 1 in worlds
    measured, user = ThroughputStore(live.journal.connection), getpass.getuser()
    assert {m.gpus for m in measured.of("resnet18:4", user)} == {2}
    assert {m.gpus for m in measured.of("resnet18:8", user)} == {1}


EVER_MORE = """
import torch, slurm_hadar
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for number in range(200):
    for step in slurm_hadar.train(layer, optimizer, total_steps=4, name=f"t{number}"):
        pass
"""


def test_ever_new_trainings_do_not_make_a_job_nearly_done(live: Any, poll: Any) -> None:
    """Each is believed to be the last until they are too many: then its history and explain say so, and a controller
    that was started since knows it."""
    live.pace(v100=2.0)
    script = live.work / "ever_more.py"
    script.write_text(EVER_MORE)
    controller = live.controller(channel=True)
    training = ONE.format(script=script, arguments="")
    job = live.submit("--gres=gpu:1", comment=comment(4), script=training, env=environment())
    live.place(**{f"j{job}": {"v100-1": 1}})
    seen: list[Any] = []

    def outrun() -> bool:
        seen.append(controller.run_round().seen.snapshot.job[job])
        return seen[-1].raised > MOST_RAISED

    poll(outrun, DEADLINE_S, 0.5)
    live.book = ReportBook()
    after = live.controller().run_round().seen.snapshot.job[job]
    told = [e["why"] for e in live.journal.history(job) if e.get("event") == "raised"]
    explained = live.hadar("explain", job).stdout
    live.cluster.run(["scancel", job])

    # where the machine is busy, to begin each takes so long that by its speed the job must have made all steps before
    in_time = [one for one in seen if one.running and one.reckoned_steps <= 2.0 * one.total_steps]
    believed = [one for one in in_time if 0 < one.raised <= MOST_RAISED]
    assert all(one.expected_remaining_steps <= 4 for one in believed)
    assert after.overrun and after.expected_remaining_steps > 10
    assert len(told) == 1 and "its stated total was raised 10 times" in told[0]
    assert "size         not known: its stated total was raised 10 times, taken to be" in explained

"""Jobs of a real Slurm that have shards of one GPU, or one GPU for several commands: the templates, end to end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.queries import status_of
from slurm_hadar.sharing.broker.wire import credentials

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 180
#: Knows nothing of turns; writes when an iteration's forward pass began and when its step had ended.
SCRIPT = """
import os, sys, time, torch
torch.set_num_threads(1)
log = open(sys.argv[1] + "." + sys.argv[2], "a", buffering=1)
class Clock(torch.nn.Module):
    def forward(self, x):
        log.write(f"{time.monotonic_ns()} ")
        return x
model = torch.nn.Sequential(Clock(), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=.01)
optimizer.register_step_post_hook(lambda *_: log.write(f"{time.monotonic_ns()}\\n"))
iterations = 0
while iterations < 300 or not os.path.exists(sys.argv[1] + ".enough"):
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(0.002)
    optimizer.step()
    iterations += 1
print("trained", iterations)
"""


class _Shared:
    """A cluster of one GPU in four shards, and where its jobs' brokers are."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "job.py").write_text(SCRIPT)
        path = f"{ROOT / 'wrappers'}:{Path(sys.executable).parent}:{cluster.env['PATH']}"
        self.env = {**cluster.env, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        self.env["HADAR_SHARE_DIR"] = str(folder / "share")

    def submit(self, template: str, changes: dict[str, str], *options: str) -> str:
        text = (ROOT / "sbatch_templates" / template).read_text()
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        script = self.folder / template
        script.write_text(text)
        words = ["sbatch", "--parsable", "--mem=100M", "--cpus-per-task=1", *options, str(script)]
        return str(self.cluster.run(words, env=self.env, cwd=self.folder).stdout.strip())

    def state(self, job: str) -> str:
        return str(self.cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip())

    def log(self, job: str) -> str:
        return (self.folder / f"my-training-{job}.log").read_text()

    def turns(self, name: str) -> list[tuple[int, int]]:
        path = self.folder / f"turns.{name}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(begin), int(end)) for begin, end in (line.split() for line in lines if line.count(" ") == 1)]

    def broker(self) -> dict[str, Any] | None:
        for path in (self.folder / "share").glob("*gpu0"):
            try:
                return status_of(path)
            except ChannelError:  # it is changing hands
                return None
        return None

    def kill_broker(self) -> None:
        (path,) = (self.folder / "share").glob("*gpu0")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(path))
            os.kill(credentials(sock)[0], signal.SIGKILL)


@pytest.fixture
def shared(make_cluster: Callable[..., Any], short_tmp: Path) -> _Shared:
    return _Shared(make_cluster(nodes="v100:1x1", shards=4), short_tmp)


def test_the_controller_learns_what_jobs_keep_beside_each_other(shared: _Shared, poll: Any) -> None:
    """From what they report, and from whom their broker says that they have turns with; alone once the other ends."""
    turns, names = shared.folder / "turns", "ab"

    def hadar(*words: str) -> Any:
        return shared.cluster.run([sys.executable, "-m", "slurm_hadar.cli.main", *words], env=shared.env)

    hadar("run", "--once")  # jobs that start before any controller has been there report to nobody
    for n in names:
        comment = f"--comment=hadar:model=m{n},batch=4"
        memory = f"HADAR_SHARE_PERSISTENT=600M hadar-srun -- python {shared.folder}/job.py {turns} {n}"
        shared.submit("share.sbatch", {"hadar-srun -- python train.py": memory}, comment)

    def known() -> set[tuple[str, str]]:
        hadar("run", "--once")
        return {(p["workload"], p["beside"]) for p in json.loads(hadar("speeds", "--json").stdout)["shared"]}

    poll(lambda: {("ma:4", "mb:4"), ("mb:4", "ma:4")} <= known(), deadline_s=DEADLINE_S)
    needs = {n["workload"]: n for n in json.loads(hadar("speeds", "--json").stdout)["needs"]}
    assert needs["ma:4"]["iter_s"] > 0.002 and needs["ma:4"]["persistent_bytes"] == 600_000_000  # as declared: no GPU
    told = hadar("speeds").stdout
    assert "KEEPS" in told and "mb:4" in told
    (shared.folder / "turns.enough").touch()


#: Needs the GPU for a small part of its time: loads its data for ten times as long as it computes.
SMALL = SCRIPT.replace("    iterations += 1\n", "    time.sleep(0.03)\n    iterations += 1\n")


def test_three_small_jobs_are_put_on_one_gpu_and_each_keeps_its_speed(shared: _Shared, poll: Any) -> None:
    """Once the controller has learned from the first of them how small a part of its time such a job needs a GPU. Of
    one it is not known: that is learned in company."""
    turns, names, of = shared.folder / "turns", "abc", dict[str, str]()
    (shared.folder / "job.py").write_text(SMALL)

    def hadar(*words: str) -> Any:
        return shared.cluster.run([sys.executable, "-m", "slurm_hadar.cli.main", *words], env=shared.env)

    def submit(name: str, *options: str, model: str = "small") -> None:
        comment = f"--comment=hadar:model={model},batch=4,steps=1000000,lease=300"
        told = {"hadar-srun -- python train.py": f"hadar-srun -- python {shared.folder}/job.py {turns} {name}"}
        of[name] = shared.submit("share.sbatch", told, comment, *options)

    def duty(model: str) -> float:
        hadar("run", "--once", "--mode", "act")
        needs = json.loads(hadar("speeds", "--json").stdout)["needs"]
        return next((n["duty"] for n in needs if n["workload"] == f"{model}:4" and n["duty"] is not None), 1.0)

    def per_s(name: str, since: int) -> float:
        later = shared.turns(name)[since:]
        return (len(later) - 1) * 1e9 / (later[-1][0] - later[0][0])

    def all_run() -> bool:
        hadar("run", "--once", "--mode", "act")
        return {shared.state(of[n]) for n in names} == {"RUNNING"}

    hadar("run", "--once")  # jobs that start before any controller has been there report to nobody
    submit("a")
    poll(lambda: len(shared.turns("a")) > 200, deadline_s=DEADLINE_S)  # PyTorch may take minutes to load
    poll(lambda: duty("small") < 0.3, deadline_s=DEADLINE_S)
    alone = per_s("a", 100)
    submit("b", "--begin=now+300")
    submit("c", "--begin=now+300", model="unknown")
    poll(all_run, deadline_s=DEADLINE_S)
    hadar("run", "--once", "--mode", "act")
    told = {line["job_id"]: line["shares"] for line in json.loads(hadar("queue", "--json").stdout)}
    had = {n: len(shared.turns(n)) for n in names}
    poll(lambda: all(len(shared.turns(n)) > had[n] + 50 for n in names), deadline_s=DEADLINE_S)  # they have begun
    since = {n: len(shared.turns(n)) for n in names}
    poll(lambda: all(len(shared.turns(n)) > since[n] + 150 for n in names), deadline_s=DEADLINE_S)
    together = {n: per_s(n, since[n]) for n in names}
    poll(lambda: duty("unknown") < 0.3, deadline_s=DEADLINE_S)  # of one that was never alone
    session = shared.broker()
    (shared.folder / "turns.enough").touch()
    poll(lambda: all(shared.state(of[n]) not in ("RUNNING", "COMPLETING") for n in names), DEADLINE_S)

    assert session is not None and len(session["sessions"]) == 3
    for name in names:
        shares = told[of[name]]
        assert shares["gpu"] == 0 and sorted(shares["with"]) == sorted(of[n] for n in names if n != name)
        assert shares["keeps"] > 0.6 and shares["known_by"] in ("duties", "measured")
    assert min(together.values()) > 0.6 * alone, (alone, together)
    assert {shared.state(of[n]) for n in names} == {"COMPLETED"}


def test_two_jobs_with_shards_of_a_gpu_take_turns_whoever_serves_their_broker(shared: _Shared, poll: Any) -> None:
    """Unmodified scripts under hadar-srun; the broker is killed in between, and goes with the last job."""
    turns = shared.folder / "turns"
    jobs = {n: shared.submit("share.sbatch", {"train.py": f"{shared.folder}/job.py {turns} {n}"}) for n in "ab"}
    labels = sorted(f"job {job} my-training" for job in jobs.values())

    def both() -> bool:
        told = shared.broker()
        return told is not None and sorted(one["label"] for one in told["sessions"]) == labels

    poll(both, deadline_s=DEADLINE_S)
    since = {name: len(shared.turns(name)) for name in jobs}
    poll(lambda: all(len(shared.turns(n)) > since[n] + 50 for n in jobs), deadline_s=DEADLINE_S)
    calm = {name: shared.turns(name)[since[name] : since[name] + 50] for name in jobs}
    shared.kill_broker()
    poll(both, deadline_s=DEADLINE_S)
    since = {name: len(shared.turns(name)) for name in jobs}
    poll(lambda: all(len(shared.turns(n)) > since[n] + 50 for n in jobs), deadline_s=DEADLINE_S)
    (shared.folder / "turns.enough").touch()
    poll(lambda: all(shared.state(job) not in ("RUNNING", "COMPLETING") for job in jobs.values()), DEADLINE_S)

    assert [shared.state(job) for job in jobs.values()] == ["COMPLETED", "COMPLETED"]
    for job in jobs.values():
        assert re.search(r"(?m)^trained \d+$", shared.log(job)) and "as if" not in shared.log(job)
    merged = sorted((begin, end, name) for name, own in calm.items() for begin, end in own)
    assert all(begin >= end for (_, end, _), (begin, _, _) in pairwise(merged)), "two turns at a time"
    assert sum(a[2] != b[2] for a, b in pairwise(merged)) > 20
    assert not list((shared.folder / "share").glob("*gpu0"))


def test_a_job_of_salloc_takes_turns_as_one_of_sbatch_does(shared: _Shared) -> None:
    """Its hadar-srun runs outside of the allocation's nodes, without a comment and without a controller."""
    words = ["salloc", "-Q", "--gres=shard:1", "--mem=100M", "hadar-srun", "--", "sh", "-c", "echo $HADAR_SHARE"]
    told = shared.cluster.run(words, env=shared.env)

    assert Path(told.stdout.strip()).parent == shared.folder / "share", told.stderr


def test_a_gpu_of_which_a_job_has_a_shard_is_no_free_gpu(shared: _Shared, poll: Any) -> None:
    sleeper = ["sbatch", "--parsable", "--requeue", "--mem=100M", "-o", "/dev/null", "--comment=hadar:"]
    part = shared.cluster.run([*sleeper, "--gres=shard:1", "--wrap", "sleep 300"], env=shared.env).stdout.strip()
    poll(lambda: shared.state(part) == "RUNNING", deadline_s=DEADLINE_S)
    whole = shared.cluster.run([*sleeper, "--gres=gpu:1", "--wrap", "sleep 300"], env=shared.env).stdout.strip()
    hadar = [sys.executable, "-m", "slurm_hadar.cli.main"]
    run = shared.cluster.run([*hadar, "run", "--once", "--mode", "act"], env=shared.env)
    explained = shared.cluster.run([*hadar, "explain", part], env=shared.env).stdout

    assert " 0 start" in run.stderr and shared.state(whole) == "PENDING"
    assert explained.startswith(f"job {part} runs.") and re.search(r"^  shares +GPU 0 alone$", explained, re.MULTILINE)


def test_several_commands_share_the_gpu_of_one_job(shared: _Shared, poll: Any) -> None:
    turns = shared.folder / "turns"
    (shared.folder / "turns.enough").touch()
    script = f"python {shared.folder}/job.py {turns}"
    job = shared.submit(
        "share_run.sbatch", {"python train.py --lr 0.1": f"{script} a", "python train.py --lr 0.01": f"{script} b"}
    )
    poll(lambda: shared.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), DEADLINE_S)

    assert shared.state(job) == "COMPLETED", shared.log(job)
    assert shared.log(job).count(" ended with 0 after ") == 2 and shared.log(job).count(": 300 turns, ") == 2


@pytest.mark.thorough
def test_a_short_job_has_the_turns_at_once_and_they_are_equal_again_when_the_controller_is_gone(
    shared: _Shared, poll: Any
) -> None:
    """The long one cannot be moved; it waits in memory, and neither of them is requeued."""
    turns, names = shared.folder / "turns", "ab"
    act = ["--mode", "act", "--policy", "srtf", "--round", "4"]
    hadar, state = [sys.executable, "-m", "slurm_hadar.cli.main"], ["--set", f"controller.state_dir={shared.folder}"]
    log = (shared.folder / "controller.log").open("w")
    controller = subprocess.Popen([*hadar, "run", *act, *state], env=shared.env, stdout=log, stderr=log)

    def start(name: str, steps: int) -> str:
        told = f"hadar-srun -- python {shared.folder}/job.py {turns} {name}"
        comment = f"--comment=hadar:model=resnet18,batch=32,steps={steps},share=100"
        return shared.submit("share.sbatch", {"hadar-srun -- python train.py": told}, comment)

    def later(name: str, number: int) -> dict[str, int]:
        """How many turns both have while this one has so many."""
        had = {n: len(shared.turns(n)) for n in names}
        poll(lambda: len(shared.turns(name)) >= had[name] + number, DEADLINE_S)
        return {n: len(shared.turns(n)) - had[n] for n in names}

    def gives_way() -> list[float | None]:
        told = shared.broker()
        return sorted([one["gives_way"] for one in told["sessions"]], key=str) if told else []

    try:
        poll(
            lambda: "round 1 " in (shared.folder / "controller.log").read_text(), DEADLINE_S
        )  # who starts before is mute
        host = start("a", 10**9)
        poll(lambda: len(shared.turns("a")) > 300, DEADLINE_S)
        guest = start("b", 20_000)
        poll(lambda: 0.0 in gives_way() and len(shared.turns("b")) > 20, DEADLINE_S)
        ahead = later("b", 200)
        queue, status = [*hadar, "queue", "--json", *state], [*hadar, "share", "status"]
        poll(lambda: '"turns": 1.0' in shared.cluster.run(queue, env=shared.env).stdout, DEADLINE_S)
        lines = json.loads(shared.cluster.run(queue, env=shared.env).stdout)
        told = {line["job_id"]: line["shares"]["turns"] for line in lines}
        poll(lambda: "gives way: 0 %" in shared.cluster.run(status, env=shared.env).stdout, DEADLINE_S)
    finally:
        controller.kill()  # without a word
        controller.wait()
        log.close()
    poll(lambda: gives_way() == [None, None], DEADLINE_S)
    equal = later("b", 200)
    (shared.folder / "turns.enough").touch()
    poll(lambda: all(shared.state(job) not in ("RUNNING", "COMPLETING") for job in (host, guest)), DEADLINE_S)

    assert ahead["a"] < 0.2 * ahead["b"], (ahead, equal)
    assert 0.5 * equal["b"] < equal["a"] < 2 * equal["b"], (ahead, equal)
    assert [shared.state(job) for job in (host, guest)] == ["COMPLETED", "COMPLETED"]
    assert told == {host: 0.0, guest: 1.0}

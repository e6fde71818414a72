"""A full house: 500 agents that report every second, 10,000 pending jobs, one controller on a real private Slurm.

    python -m benchmarks.costs.load [--agents 500] [--jobs 10000] [--seconds 120] [--json F]

60 nodes with 240 GPUs are full; the rest waits. The agents are real ZeroMQ clients with CURVE keys, in two processes.
Prints how long the controller takes to answer a message (from a hello to its welcome, measured by the agents while
all of them report), its memory, its rounds, and the calls that slurmctld had from it in each round.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import secrets
import signal
import statistics
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import click
import zmq

from benchmarks.costs.round import NODES, fill, submit
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.cluster.daemon import controller_beside
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import ChannelInfo, Report, encode, token_fingerprint

SENDERS = 2
HELLO_EVERY = 5  # of an agent's messages, one asks for an answer
SETTINGS = (
    "controller.round_s=30", "controller.event_round_s=0", "guard.max_preemptions=50", "slurm.backend=cli",
    "slurm.timeout_s=120", "predict.retrain_s=0",
)  # fmt: skip


def agents(info: ChannelInfo, tokens: dict[str, str], seconds: float, answers: Queue[list[float]]) -> None:
    """An agent for each job of ``tokens`` in one process: it reports once a second, and says hello now and then."""
    jobs = list(tokens)
    keys, context = zmq.curve_keypair(), zmq.Context()
    poller, sockets = zmq.Poller(), []
    for _ in jobs:
        one = context.socket(zmq.DEALER)
        one.curve_publickey, one.curve_secretkey = keys
        one.curve_serverkey = info.public_key.encode()
        one.setsockopt(zmq.LINGER, 0)
        one.connect(info.address)
        poller.register(one, zmq.POLLIN)
        sockets.append(one)
    asked: dict[Any, float] = {}
    lags: list[float] = []
    began = time.monotonic()
    due = [began + number / len(jobs) for number in range(len(jobs))]
    turns = [0] * len(jobs)
    while (now := time.monotonic()) - began < seconds:
        number = min(range(len(jobs)), key=due.__getitem__)
        if due[number] <= now:
            hello, job = turns[number] % HELLO_EVERY == 0, jobs[number]
            report = Report(
                "hello" if hello else "report",
                job,
                0,
                time.time_ns() // 1000,
                tokens[job],
                time.time(),
                "node",
                steps=turns[number] * 10,
                total_steps=10**6,
                steps_per_s=10.0,
                world=1,
                resumable=True,
            )
            if hello:
                asked[sockets[number]] = now
            sockets[number].send(encode(report), zmq.NOBLOCK)
            due[number] += 1.0
            turns[number] += 1
        for one, _ in poller.poll(max(0, int(1000 * (min(due) - time.monotonic())))):
            one.recv()
            if one in asked:
                lags.append(time.monotonic() - asked.pop(one))
    # who was never answered counts with the time it has waited
    lags += [time.monotonic() - moment for moment in asked.values() if time.monotonic() - moment > 5.0]
    answers.put(lags)
    for one in sockets:
        one.close()


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory now and at its highest."""
    text = Path(f"/proc/{pid}/status").read_text()
    now, peak = (int(re.findall(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[0]) for name in ("VmRSS", "VmHWM"))
    return round(now / 1024, 1), round(peak / 1024, 1)


def calls(cluster: PrivateCluster) -> dict[str, int]:
    """How often slurmctld was asked what, since it was started."""
    text = cluster.run(["sdiag"]).stdout
    part = text[text.index("statistics by message type") : text.index("statistics by user")]
    return {name: int(count) for name, count in re.findall(r"(REQUEST_\w+)\s*\(\s*\d+\)\s*count:(\d+)", part)}


def channel_of(cluster: PrivateCluster, deadline_s: float = 120.0) -> ChannelInfo:
    """What the controller has announced, as soon as it has."""
    file = cluster.conf.with_name("hadar-channel.json")
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            return ChannelInfo.from_json(file.read_bytes())
        except (OSError, ChannelError):
            time.sleep(0.1)
    raise SystemExit("the controller has not announced its channel")


def jobs_to_speak_for(cluster: PrivateCluster, count: int) -> dict[str, str]:
    """Jobs to speak for, running ones first, and their comments."""
    text = cluster.run(["squeue", "-h", "-r", "-t", "R,PD", "-S", "-t,i", "-o", "%F_%K|%A|%t|%k"]).stdout
    rows = [line.split("|") for line in text.splitlines()]
    rows.sort(key=lambda row: row[2] != "R")
    return {array if "N/A" not in array else job: comment for array, job, _, comment in rows[:count]}


def tokens_of(cluster: PrivateCluster, comments: dict[str, str]) -> dict[str, str]:
    """A report token for each job, named in its comment as hadar-srun does."""
    tokens = {job: secrets.token_hex(32) for job in comments}
    lines = (
        f"update JobId={job} Comment={comments[job]},key={token_fingerprint(token)}\n" for job, token in tokens.items()
    )
    cluster.run(["scontrol"], input="".join(lines))
    return tokens


def measure(cluster: PrivateCluster, folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Start controller and agents, and look at both until the agents are done."""
    tokens = tokens_of(cluster, jobs_to_speak_for(cluster, count))
    state = folder / "state"
    state.mkdir()
    # spawned: the parts of this process are not theirs
    context = multiprocessing.get_context("spawn")
    answers: Queue[list[float]] = context.Queue()
    with controller_beside(cluster.env, state, settings=SETTINGS) as process:
        info = channel_of(cluster)
        idle = memory_mib(process.pid)
        halves = [dict(list(tokens.items())[i::SENDERS]) for i in range(SENDERS)]
        senders = [context.Process(target=agents, args=(info, half, seconds, answers)) for half in halves]
        for sender in senders:
            sender.start()
        samples, before, began = [], calls(cluster), time.monotonic()
        while any(sender.is_alive() for sender in senders) and answers.qsize() < SENDERS:
            samples.append(memory_mib(process.pid))
            time.sleep(1.0)
        lags = sorted(lag for _ in senders for lag in answers.get(timeout=60))
        took_s = time.monotonic() - began
        after, peak = calls(cluster), memory_mib(process.pid)[1]
        for sender in senders:
            sender.join(30)
        process.send_signal(signal.SIGTERM)
        process.wait(600)
    log = (state / "controller.log").read_text()
    asked_of_slurm = {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}
    return {
        "agents": len(tokens),
        "seconds": round(took_s, 1),
        "answers": len(lags),
        "lag_median_ms": _ms(lags, 0.5),
        "lag_p99_ms": _ms(lags, 0.99),
        "lag_max_ms": _ms(lags, 1.0),
        "rss_start_mib": idle[0],
        "rss_median_mib": statistics.median(s[0] for s in samples),
        "rss_peak_mib": peak,
        "rounds": _rounds(log),
        "calls": asked_of_slurm,
    }


def _ms(ordered: list[float], share: float) -> float:
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def _rounds(log: str) -> list[dict[str, float]]:
    """Each round as the controller's log tells it."""
    pattern = (
        r"round \d+ \(act.*?: (\d+) jobs.*?; (\d+) start, (\d+) move, (\d+) stop, (\d+) leases, (\d+) failed; "
        r"read ([\d.]+) s, decide ([\d.]+) s, act ([\d.]+) s, verify ([\d.]+) s"
    )
    names = ("jobs", "starts", "moves", "stops", "leases", "failed", "read_s", "decide_s", "act_s", "verify_s")
    return [dict(zip(names, map(float, found), strict=True)) for found in re.findall(pattern, log)]


@click.command()
@click.option("--agents", "count", default=500, show_default=True)
@click.option("--jobs", default=10_000, show_default=True, help="Pending jobs.")
@click.option("--seconds", default=120.0, show_default=True, help="How long the agents report.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(count: int, jobs: int, seconds: float, report: Path | None) -> None:
    """Measure a controller in a full house."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    conf = ("MaxArraySize=1001", "MaxJobCount=30000")
    with tempfile.TemporaryDirectory(prefix="hlo-", dir="/tmp") as name:
        folder = Path(name)
        with up(ClusterSpec(name="load", nodes=NODES, directory=folder / "c", extra_conf=conf)) as cluster:
            fill(cluster)
            submit(cluster, jobs, 0)
            result = {"pending": jobs, "nodes": 60, "gpus": 240, **measure(cluster, folder, count, seconds)}
    text = json.dumps(result, indent=1)
    click.echo(text)
    if report is not None:
        report.write_text(text + "\n")
    sys.exit(0 if result["rounds"] else 1)


if __name__ == "__main__":
    main()

"""Samples that are written here rather than captured, and what takes more than one line to do with an input."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

from slurm_hadar.controller.journal import Decision, JobRecord, Journal, RoundRecord, WriteOutcome, WriteRecord
from slurm_hadar.controller.record.recorder import JournalRecorder
from slurm_hadar.messages import ChannelInfo, Order, Report, encode
from slurm_hadar.model import Placement
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.survey import survey
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

COMMENTS = (
    b"hadar:model=resnet18,batch=128,steps=200000",
    b"hadar:model=lm,batch=20,gpus=2-8,nodes=1-4,mix=balanced,types=v100+p100,prefer=v100,weight=2.5,ckpt=yes,lose=no",
    b"hadar:fork=auto,model=resnet18,batch=64,steps=900,period=30s,restart=12,key=0123456789abcdef",
    b"hadar:graph=gpt2-xl/pp4/dp2/tp2/mb8,deadline=2026-12-01T12:00+00:00,asked=4/2/2/8",
    b"hadar:deadline=6h,pin=no,lease=10,gpus=2+4+8",
)
CONFIG = b"""[slurm]
backend = "cli"
timeout_s = 30.0
retries = 2

[controller]
mode = "act"
round_s = 360
users = ["ann", "bob"]
state_dir = "/var/lib/slurm-hadar"

[partitions.gpu]
mode = "observe"

[policy]
name = "hadar"
params = { objective = "jct", frontier = 0.5 }

[guard]
max_preemptions = 20
exempt_users = ["root"]

[channel]
bind = "tcp://*:*"

[network]
inside_bytes_s = 3e10
[network.types.v100]
inside_bytes_s = 1.3e11
[network.uplinks]
leaf1 = 2.5e9
"""
OVERRIDES = (
    b"controller.round_s=30", b'controller.users=["ann"]', b"policy.params.frontier=0.5", b"partitions.gpu.mode=act",
    b"slurm.backend=cli", b"guard.exempt_users=ann,bob",
)  # fmt: skip
GRES = (b"gpu:v100:4(S:0-1),gpu:k80:2", b"gpu:v100:2(IDX:0,2)", b"gpu:4", b"(null)")
REQUESTS = (b"gres:gpu:4", b"gres/gpu:v100=2,gres/gpu:p100=1", b"gpu", b"gpu:v100:2,shard:3")
TIMES = (b"2-03:04:05", b"10:00", b"UNLIMITED", b"1-0", b"30", b"01:02:03")
NODE_LISTS = (b"v100-[1-2,4],p100-1", b"a[1-2]b[0-1]", b"node007", b"n[001-010]")
SWITCHES = (
    b"SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3]\nSwitchName=s2 Level=1 Switches=s[0-1]\n"
    b"SwitchName=s1 Nodes=tux[4-7]\n",
    b"# none\n",
)
DRAWN = (b"philly:jobs=12,seed=3", b"recurring:jobs=20,seed=1,scripts=4,load=0.8", b"philly:30")
MESSAGES = (
    encode(
        Report(
            "report",
            "12_3",
            1,
            1795328684103155,
            "0a" * 32,
            1795328684.1,
            "v100-1",
            steps=171,
            total_steps=900,
            steps_per_s=11.9,
            world=2,
            resumable=True,
            saved_step=150,
            generation=1,
            save_s=0.01,
            step="12.0",
        )
    ),
    encode(Report("bye", "7", 0, 9, "ff" * 32, 1.5, "k80-1", exit_code=0, consolidation=4, consolidated_steps=70)),
    encode(Report("saved", "7", 0, 9, "ff" * 32, 1.5, "k80-1", saved_step=12, closes=True)),
)
ORDERS = (
    encode(Order("save", "7", "moved by the plan", 120.0)),
    encode(Order("plan", "7_1", "shares", plan='{"serial":1}')),
)
CHANNEL = ChannelInfo("tcp://127.0.0.1:6817", "a" * 40).to_json().encode()
TRACE_CSV = b"""# a comment
job_id,arrival_s,gpus,steps,model,batch,user,account,name,weight,deadline_s,mix,nodes,restart_s,fork,group,steps_per_s:v100
a,0,2,1000,resnet18,64,ann,lab,"x, y",1.5,9000,gated,1-2,30,,g1,
b,12.5,1,500,resnet50,64,bob,,z,1,,never,1,,auto,,
c,100,1-4,700,,,eve,,,,,,,,,,12.5
"""
PAI_FILES = ("pai_job_table.csv", "pai_task_table.csv", "pai_group_tag_table.csv")
PAI = (
    b"a,i1,ann,Terminated,4550879.0,4551416.0\nb,i2,ann,Terminated,4550979.0,4551979.0\n"
    b"\n=====\n"
    b"a,tensorflow,1.0,Terminated,4550900.0,4551416.0,600.0,29.296875,50.0,MISC\n"
    b"b,worker,3.0,Terminated,4550999.0,4551979.0,600.0,20.0,100.0,V100M32\n"
    b"\n=====\n"
    b"i1,ann,,g1,ctr\ni2,ann,V100,g2,\n"
)
GAVEL_JSON = json.dumps(
    {
        "v100": {"('ResNet-18 (batch size 64)', 1)": {"null": 12.0, "('LM (batch size 20)', 1)": [1.0, 2.0]}},
        "v100_unconsolidated": {"('ResNet-18 (batch size 64)', 2)": {"null": 20.5}},
    }
).encode()
FAULTS = b"node,down_s,up_s\nv100-1,100,400\n# a comment\nv100-2,0,5.5\n"
OFFER = json.dumps(
    {
        "format": 1,
        "copy": 0,
        "restart": 1,
        "base": 40,
        "spans": [[1198, 1199], [1239, 1240]],
        "seconds": 2.5,
        "stays": True,
        "stall_s": 0.1,
    }
).encode()
GRAPH = b"""micro_batches = 4
[[stage]]
compute_s = 0.12
parameter_bytes = 1.2e9
replicas = 2
width = 2
activation_bytes = 2.6e7
inside_bytes = 4.0e7
[[stage]]
compute_s = 0.15
parameter_bytes = 1.5e9
"""
GRAPHS = (b"gpt2-xl/pp4/dp2/tp2/mb8", b"gpt2-xl/pp4", b"../graphs/mine.toml", b"resnet50/dp4", b"bert-large/pp2/dp2")


class Answers(CliBackend):
    """A Slurm that answers every question with the same text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._settings = text

    def ask(self, *_command: str) -> str:
        return self._settings

    def _run(
        self,
        _command: list[str],
        _stdin: str | None = None,
        into: io.FileIO | None = None,  # noqa: ARG002 (by name)
    ) -> tuple[str, str, int]:
        return self._settings, self._settings, 0


def look_over(data: bytes, _folder: Path) -> None:
    """The survey that hadar doctor makes."""
    survey(Answers(data.decode("utf-8", "replace")))


def draw(data: bytes, _folder: Path) -> None:
    """A trace that is drawn, if it is not too large to draw here."""
    text = data.decode("utf-8", "replace")
    if any(len(word) > 3 for word in text.replace("=", ",").replace(":", ",").split(",") if word.isdecimal()):
        return
    read_trace(text, reference())


def journal_bytes(scratch: Path) -> bytes:
    """A journal with something in every table."""
    path = scratch / "sample.db"
    for old in scratch.glob("sample.db*"):
        old.unlink()
    journal = Journal(path)
    placement = Placement.of({"v100-1": {"v100": 2}})
    for number in range(1, 4):
        journal.save_jobs([JobRecord(str(number), 10.0, 1, 9.0, 2, avoid={"k80-1": 5.0}, ran_s={"v100": 4.0})])
        round_ = journal.add_round(RoundRecord(10.0, "act", "hadar"))
        journal.add_decisions(round_, 10.0, [Decision(str(number), "start", new=placement, why="first", price=1.0)])
        journal.add_writes(round_, 10.0, [WriteRecord(str(number), "requeue 1", WriteOutcome.OK)])
    journal.replace_waits(1, {"2": {"tier": "policy", "why": "waits"}})
    journal.replace_prices({("v100-1", "v100"): 1.5})
    journal.save_usage({("ann", "lab", "v100"): (3.0, 4.0)})
    journal.save_forks({"9": (1, 20, 100.0, None)})
    journal.save_memory(json.dumps(["hadar", {}]), '{"offered":{"1":2.0}}')
    ThroughputStore(journal.connection).record("resnet18:64", "v100", 2, 12.0, 10.0)
    journal.close()
    return path.read_bytes()


def job_rows(_scratch: Path) -> tuple[bytes, ...]:
    """Rows as the journal has them."""
    record = asdict(JobRecord("7", 10.0, 1, 9.0, 2, avoid={"k80-1": 5.0}, ran_s={"v100": 4.0}, batch=64))
    round_ = asdict(RoundRecord(10.0, "act", "hadar"))
    return tuple(json.dumps(row).encode() for row in (record, round_, {"tier": "policy", "why": "x"}, {"a": {"v": 1}}))


def use(journal: Journal) -> None:
    """What a controller and the commands read."""
    try:
        records = journal.load_jobs()
        journal.save_jobs(records.values())
        for read in (journal.usage, journal.forks, journal.trainings, journal.rounds, journal.waits, journal.prices):
            read()
        journal.rounds_since(0)
        journal.decisions_since(0)
        journal.jobs_since(0)
        for job in ("1", "2"):
            journal.history(job)
            journal.job(job)
            journal.wait(job)
        JournalRecorder(journal, "hadar", {}, 1e9).recall()
        ThroughputStore(journal.connection).errors()
    finally:
        journal.close()

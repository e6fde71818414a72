"""Slurm's accounting as a trace."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces import node_types, read_text, read_trace
from slurm_hadar.throughput.table import reference

DATA = Path(__file__).parents[1] / "data"
TABLE = reference()


def read(text: str, **options: Any) -> Any:
    return read_text(text, "t.trace", TABLE, **options)


def test_accounting_as_text() -> None:
    """Work is elapsed time times speed; runs of a requeued job add up; what cannot be used is told."""
    trace = read_trace(DATA / "sacct.txt", TABLE)

    by_id = {j.job_id: j for j in trace.jobs}
    rate = TABLE.steps_per_s("resnet18", 64, "v100", 2)
    assert trace.format == "sacct" and list(by_id) == ["1", "3", "7_1"]
    first = by_id["1"]
    assert first.steps == pytest.approx(3600 * rate) and (first.model, first.batch, first.workers) == (
        "resnet18",
        64,
        2,
    )
    assert (first.user, first.account, first.name, first.weight) == ("ann", "lab", "train|me", 2.0)
    assert (first.wanted, first.ran_s, first.waited_s, first.arrival_s) == ("v100", 3600, 60, 0)
    assert (by_id["7_1"].ran_s, by_id["7_1"].arrival_s, by_id["7_1"].waited_s) == (900, 1800, 10)
    assert "2 of 3 jobs name no model" in trace.assumptions[1] and "k80 0.27 : v100 1.00" in trace.assumptions[1]
    assert {
        "1 jobs are left out: they had no GPU",
        "1 jobs are left out: they never ran",
        "1 jobs are left out: they had not ended",
    } <= {*trace.assumptions}


def test_a_replayed_job_runs_as_long_as_it_did() -> None:
    """On the type and gang it really had."""
    trace = read_trace(DATA / "sacct.txt", TABLE)

    rates = Rates(TABLE, ("v100", "k80"))
    for job in trace.jobs:
        assert job.steps / rates.of(job, job.workers)[job.wanted].steps_per_s == pytest.approx(job.ran_s)


def test_accounting_as_json() -> None:
    """The shapes of older and newer versions."""
    trace = read_trace(DATA / "sacct.json", TABLE)

    assert [(j.job_id, j.workers, j.wanted, j.ran_s) for j in trace.jobs] == [
        ("1", 2, "v100", 3),
        ("2_2", 1, "k80", 3),
        ("3", 1, "v100", 1),
        ("99", 2, "v100", 7),
    ]
    assert trace.jobs[-1].model == "lm" and trace.jobs[-1].arrival_s == 5


def test_what_jobs_of_the_accounting_asked_for() -> None:
    """Time limit, number of nodes and GPU type, in text and in JSON; nothing where nothing is told."""
    head = "JobID|State|Submit|ElapsedRaw|End|AllocTRES|NodeList|Partition|TimelimitRaw|ReqTRES\n"
    row = "{}|COMPLETED|100|50|150|gres/gpu:v100={}|gpu[1-2]|long|{}|{}\n"
    rows = [
        row.format(1, 4, 90, "cpu=1,gres/gpu:v100=4,gres/gpu=4,node=2"),
        row.format(2, 4, "UNLIMITED", "node=1"),
        row.format(3, 3, "", "gres/gpu=3,node=2"),
        row.format(4, 4, "Partition_Limit", "node=0"),
    ]

    jobs = read(head + "".join(rows)).jobs

    assert [(j.limit_s, j.nodes, j.asked) for j in jobs] == [
        (5400.0, (2, 2), "v100"),
        (math.inf, (1, 2), ""),
        (None, None, ""),
        (None, None, ""),
    ]
    assert {j.partition for j in jobs} == {"long"}
    with pytest.raises(TraceError, match="TimelimitRaw must be a number"):
        read(head + row.format(1, 4, "long", ""))
    content = json.loads((DATA / "sacct.json").read_text())
    job = next(j for j in content["jobs"] if j["job_id"] == 1)
    job["time"]["limit"] = {"set": True, "infinite": False, "number": 30}
    job["tres"]["requested"] = [
        {"type": "node", "name": "", "count": 1},
        {"type": "gres", "name": "gpu:v100", "count": 2},
    ]
    (first, *_) = read(json.dumps({"jobs": [job]})).jobs
    assert (first.limit_s, first.nodes, first.asked) == (1800.0, (1, 1), "v100")
    job["time"]["limit"] = {"set": False, "infinite": True, "number": 0}
    assert read(json.dumps({"jobs": [job]})).jobs[0].limit_s == math.inf


def test_elastic_jobs_of_the_accounting() -> None:
    """The sizes that the live controller would weigh, the one that it had among them."""
    head = "JobID|State|Submit|ElapsedRaw|End|AllocTRES|Comment\n"
    row = "{}|COMPLETED|100|50|150|gres/gpu:v100=4|hadar:model=resnet18,batch=64,gpus={}\n"

    jobs = read(head + row.format(1, "2-8") + row.format(2, "1+4") + row.format(3, "3-4")).jobs

    assert [j.sizes for j in jobs] == [(2, 4, 8), (1, 4), (4,)] and {j.workers for j in jobs} == {4}


def test_types_of_nodes_fill_in() -> None:
    """Where accounting records only a number of GPUs."""
    text = "JobID|State|Submit|ElapsedRaw|End|AllocTRES|NodeList\n7|COMPLETED|100|50|150|gres/gpu=2|gpu03\n"

    with pytest.raises(TraceError, match="job 7 had GPUs of an unknown type on gpu03; name the types"):
        read(text)
    (job,) = read(text, types_of=node_types("gpu[01-04]=p100; old1=k80")).jobs
    assert (job.wanted, job.workers, job.ran_s) == ("p100", 2, 50)


def test_bad_node_types() -> None:
    with pytest.raises(TraceError, match="'gpu1': must read NODES=TYPE"):
        node_types("gpu1")


def accounts(submits: Sequence[str], gpus: int = 1) -> str:
    """Jobs 1, 2, ... that ran for ten seconds, submitted then."""
    rows = (f"{n}|{at}|{at}|COMPLETED|gres/gpu:v100={gpus}|10" for n, at in enumerate(submits, 1))
    return "\n".join(["JobID|Submit|End|State|AllocTRES|ElapsedRaw", *rows, ""])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("JobID|Submit|State\n1|2|COMPLETED\n", "t.trace:1: field AllocTRES is missing; ask sacct for JobID,User"),
        ("JobID|Submit|State|AllocTRES\n1|2|COMPLETED|gres/gpu=1\n", "t.trace:2: none of ElapsedRaw"),
        ("JobID|Submit|State|AllocTRES|ElapsedRaw\n1|2|x\n", "t.trace:2: 3 fields where the header has 5"),
        ("JobID|Submit|State|AllocTRES|ElapsedRaw\n1|now|DONE||1\n", "t.trace:2: Submit must be a time such as"),
        ("JobID|Submit|State|AllocTRES|ElapsedRaw\n1|2|DONE||long\n", "t.trace:2: ElapsedRaw must be a number"),
        ("JobID|Submit|State|AllocTRES|Elapsed\n1|2|DONE||long\n", "t.trace:2: Elapsed must read [D-[HH:]]MM:SS"),
        ("{", "t.trace:1: is not valid JSON"),
        ("{}", "t.trace: has no list of jobs"),
        ('{"jobs": [{}]}', "t.trace: job number 1 is not understood: KeyError('time')"),
        ("JobID|Submit|State|AllocTRES|ElapsedRaw\n1|2|DONE||1\n", "trace t.trace has no jobs"),
        (accounts(("1", "99999999999999999999")), "t.trace: job 2 arrives over 1e+10 s after the first"),
        (accounts(("1",), gpus=9999999), "t.trace: job 1 has over 1000000 GPUs"),
    ],
)
def test_bad_accounting(text: str, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text)

    assert str(caught.value).startswith(error)


def test_elapsed_times() -> None:
    rows = "".join(f"{i}|2|DONE|gres/gpu:v100=1|{t}|9\n" for i, t in enumerate(("1-02:03:04", "02:03:04", "03:04")))

    trace = read("JobID|Submit|State|AllocTRES|Elapsed|End\n" + rows)

    assert [j.ran_s for j in trace.jobs] == [93784, 7384, 184]

"""What a queue can be made to say: values for the fields of jobs, of reports and of the journal that no one expects."""

from __future__ import annotations

import random
from typing import Any

from slurm_hadar.comment import KEYS
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import GpuRequest

__all__ = ["HADAR", "NUMBERS", "TEXTS", "comment", "honest", "hostile", "number", "report_fields"]

HADAR = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes"
NUMBERS = (0, 1, 2, 3, 7, -1, 64, 1000, 10**6, 2**31 - 1, 2**32 - 2, 2**63, 10**15, 10**18)
REALS = (0.0, -0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 3.5, 1e3, 1e9, 1e12, 1e15, 1e18, 1e300, -1.0)
# without NUL, which ends a text in Slurm, and with what stands for bytes that are no UTF-8
TEXTS = ("", "x", "a,b", "../..", "\x1f", "a\x1fb", "\r", "\n", "%n", "'; DROP TABLE jobs", "é" * 50, "\ufffd",
         "0" * 400, "<script>", "(null)", "N/A", "gpu:v100:2", " ", "x" * 5000)  # fmt: skip
REASONS = ("Resources", "Priority", "None", "BeginTime", "Dependency", "DependencyNeverSatisfied", "Licenses",
           "QOSMaxGRESPerUser", "AssocGrpGRES", "AssocGrpGRESMinutes", "JobArrayTaskLimit", "Reservation",
           "ReqNodeNotAvail, UnavailableNodes:v100-1", "ReqNodeNotAvail, May be reserved for other job",
           "BadConstraints", "JobHeldUser", "JobHeldAdmin", "launch failed requeued held", "JobHoldMaxRequeue",
           "PartitionTimeLimit", "NodeDown", "SomethingNew", "")  # fmt: skip
STATES = {
    JobState.PENDING: ("PENDING", "REQUEUE_HOLD", "EXPEDITING"),
    JobState.RUNNING: ("RUNNING", "CONFIGURING"),
    JobState.COMPLETING: ("COMPLETING",),
    JobState.SUSPENDED: ("SUSPENDED", "STOPPED"),
    JobState.DONE: ("COMPLETED",),
    JobState.FAILED: ("FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"),
}
VALUES = {
    "model": ("resnet18", "gpt2", "no-such-model"), "batch": ("1", "64", "9" * 18), "steps": ("1", "9" * 18, "2000"),
    "gpus": ("1-9999", "1-8", "2+4", "1"), "nodes": ("1-99999", "99999", "1-4", "2"), "weight": ("1000", "0.001", "2"),
    "period": ("1", "0.000000001s", "1s", "9" * 18, "9" * 400 + "s", "1e9"), "deadline": ("1s", "9" * 400 + "d", "1d"),
    "types": ("v100", "no-such-type", "v100+k80"), "fork": ("auto", "spread"), "asked": ("2/1/16/16", "9/3/3/3"),
    "lease": ("100", "9" * 18, "1"), "key": ("0" * 16,), "restart": ("0", "86400"),
    "graph": ("gpt2-xl/pp4/dp2", "no-such/pp9999", "/dev/zero.toml", "g.toml"), "mix": ("never", "gated", "balanced"),
}  # fmt: skip


def number(rng: random.Random) -> int:
    return rng.choice(NUMBERS)


def comment(rng: random.Random) -> str:
    """A comment: of ours and well-formed, of ours and not, or anything."""
    if rng.random() < 0.1:
        return rng.choice(TEXTS)
    keys = rng.sample(sorted(KEYS), rng.randrange(6))
    text = "hadar:" + ",".join(f"{k}={_value(k, rng)}" for k in keys)
    if rng.random() < 0.1:
        text += rng.choice(("", ",", "=", ",model=", " " * 300, *TEXTS))
    return text


def _value(key: str, rng: random.Random) -> str:
    if rng.random() < 0.05:
        return rng.choice(TEXTS)
    return rng.choice((*VALUES.get(key, ("yes", "no")), KEYS[key].example))


def honest(job_id: str, work_dir: str) -> dict[str, Any]:
    """A job like any other, of one GPU, that any node can take."""
    return {"job_id": job_id, "user": "honest", "uid": 1000, "comment": HADAR, "work_dir": work_dir,
            "account": "good", "time_limit_s": 600.0}  # fmt: skip


def hostile(rng: random.Random, job_id: str, nodes: list[str], work_dir: str, now: float) -> dict[str, Any]:
    """A job of another user's: like an honest one but for a few fields, or but for most of them."""
    user = rng.choice(("mallory", "oscar"))
    fields: dict[str, Any] = {"job_id": job_id, "user": user, "uid": 1001 + (user == "oscar"), "comment": comment(rng),
                              "work_dir": work_dir, "requeue": rng.random() < 0.9}  # fmt: skip
    if "_" in job_id:
        fields["array_id"] = job_id.split("_")[0]
    if "+" in job_id:
        fields["het_id"] = job_id.split("+")[0]
    odd = rng.choice((0, 1, 1, 2, 3, 30))
    for name in rng.sample(sorted(_ODD), min(odd, len(_ODD))):
        fields[name] = _ODD[name](rng, nodes, now)
    if "state" in fields:
        fields["state_text"] = rng.choice(STATES[fields["state"]])
        if fields["state"] in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING):
            fields.setdefault("nodes", tuple(rng.sample(nodes, 1)))
            fields.setdefault("start", now - 5.0)
    return fields


def _request(rng: random.Random) -> tuple[GpuRequest, ...]:
    one = GpuRequest(
        rng.choice(("node", "node", "job", "socket", "task")),
        tuple(
            (rng.choice(("", "", "v100", "k80", *TEXTS[:6])), rng.choice((1, 2, 4, 8, 0, 10**9, 2**63)))
            for _ in range(rng.choice((0, 1, 1, 1, 2)))
        ),
    )
    return (one,) * rng.choice((0, 1, 1, 1, 2))


def _time(rng: random.Random, _nodes: list[str], now: float) -> float | None:
    return rng.choice((None, 0.0, -1.0, now - 5.0, now, now + 5.0, now + 1000.0, 2.0**31, 1e15, 1e300))


def _names(rng: random.Random, nodes: list[str], _now: float) -> tuple[str, ...]:
    return tuple(rng.sample([*nodes, "no-such-node", ""], rng.randrange(1, 3)))


# Fields of a job, and who draws a value for each.
_ODD: dict[str, Any] = {
    "state": lambda r, _n, _t: r.choice([*JobState]),
    "reason": lambda r, _n, _t: r.choice(REASONS),
    "user": lambda r, _n, _t: r.choice(TEXTS),
    "account": lambda r, _n, _t: r.choice(("small", *TEXTS)),
    "qos": lambda r, _n, _t: r.choice(("one", "one", *TEXTS)),
    "partition": lambda r, _n, _t: r.choice(("all", "all,prod", "prod,all", "nowhere", ",", "", "all,all")),
    "nodes": _names,
    "req_nodes": _names,
    "features": lambda r, _n, _t: r.choice(("v100", "k80|v100", "[v100*2&k80]", "!v100", "&&", "no", *TEXTS)),
    "gpus": lambda r, _n, _t: _request(r),
    "num_nodes": lambda r, _n, _t: number(r),
    "max_nodes": lambda r, _n, _t: number(r),
    "num_tasks": lambda r, _n, _t: number(r),
    "num_cpus": lambda r, _n, _t: number(r),
    "time_limit_s": lambda r, _n, _t: r.choice((None, 0.0, 60.0, -60.0, 1e300)),
    "submit": lambda r, _n, t: r.choice((None, 0.0, -1.0, t - 1000.0, t - 5.0, t)),
    "eligible": _time,
    "start": _time,
    "end": _time,
    "requeue": lambda r, _n, _t: r.random() < 0.5,
    "restarts": lambda r, _n, _t: number(r),
    "batch": lambda r, _n, _t: r.random() < 0.5,
    "priority": lambda r, _n, _t: number(r),
    "dependency": lambda r, _n, _t: r.choice(("afterok:1", "singleton", *TEXTS)),
    "het_id": lambda r, _n, _t: r.choice((None, "1", "")),
    "raw_id": lambda r, _n, _t: number(r),
    "name": lambda r, _n, _t: r.choice(TEXTS),
    "work_dir": lambda r, _n, _t: r.choice(TEXTS),
    "comment": lambda r, _n, _t: comment(r),
    "uid": lambda r, _n, _t: r.choice((None, 0, 5, -1, 2**32 - 1)),
    "memory_bytes": lambda r, _n, _t: r.choice((0, 1 << 30, 10**15, 2**63)),
    "exclusive": lambda _r, _n, _t: True,
    "licenses": lambda r, _n, _t: r.choice(("tool:1", "tool:1,other:2", "tool", *TEXTS)),
    "reservation": lambda r, _n, _t: r.choice(("later", "other", *TEXTS)),
    "exc_nodes": _names,
    "throttle": lambda r, _n, _t: r.choice((None, 0, 1, 2, 10**9)),
    "fault": lambda r, _n, _t: r.choice((None, "its record cannot be read")),
}


def report_fields(rng: random.Random) -> dict[str, Any]:
    """Some of a report's optional fields, true or not."""
    wild = {
        "steps": number(rng), "total_steps": number(rng), "steps_per_s": rng.choice(REALS), "world": number(rng),
        "resumable": rng.random() < 0.7, "saved_step": number(rng), "generation": number(rng),
        "save_s": rng.choice(REALS), "stall_s": rng.choice(REALS), "load_s": rng.choice(REALS),
        "memory_bytes": number(rng), "consolidation": number(rng), "consolidated_steps": number(rng),
        "consolidate_s": rng.choice(REALS), "closes": rng.random() < 0.2, "step": rng.choice((None, "12.0", "12.1")),
    }  # fmt: skip
    return {name: wild[name] for name in rng.sample(sorted(wild), rng.randrange(8))}

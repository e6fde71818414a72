"""``guard.max_stretch``: who has run too small a share of the time since its submission is not stopped for others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slurm_hadar.config import load
from slurm_hadar.controller.safety.guard import Change, ChangeKind, changes_of, limit
from slurm_hadar.model import Fork, Form, Job, JobState, Node, Placement, Plan, Snapshot, Speed, Tier, Wait
from tests.controller.scripted import Scripted

NODES = (Node("a", {"v100": 1}), Node("b", {"v100": 1}))
WHY = "guard.max_stretch = 20, and it has run less than 1/20 of the time since its submission"


def runs(job_id: str, attained_s: float, node: str = "a", **fields: Any) -> Job:
    held = Placement.of({node: {"v100": 1}})
    return Job(job_id, Form(1), state=JobState.RUNNING, placement=held, attained_s=attained_s, **fields)


def after(old: Job, *others: Job, most: float = 20.0) -> dict[str, Change]:
    """What becomes of a plan that stops ``old`` at second 10,000 so that job 9 may start."""
    new = Job("9", Form(1), speeds={"v100": Speed(1.0)}, arrival=9990.0)
    placements = {**{j.job_id: j.placement for j in others}, "9": old.placement}
    plan = Plan("x", placements, waits={old.job_id: Wait(Tier.POLICY, "others go first")})
    snapshot = Snapshot(10_000.0, NODES, (old, *others, new))
    changes = limit(snapshot, changes_of(snapshot, plan), load(None, [f"guard.max_stretch={most}"]))
    return {change.job_id: change for change in changes}


def test_a_twentieth_of_the_time_and_no_less() -> None:
    starving, fed = after(runs("1", 499.0)), after(runs("1", 501.0))

    assert (starving["1"].kind, starving["1"].veto) == (ChangeKind.STAY, WHY)
    assert starving["9"].kind is ChangeKind.WAIT
    assert fed["1"].kind is ChangeKind.PREEMPT and fed["9"].kind is ChangeKind.START
    assert after(runs("1", 1.0), most=0.0)["1"].kind is ChangeKind.PREEMPT


def test_who_came_late_has_less_to_run() -> None:
    assert after(runs("1", 60.0, arrival=9000.0))["1"].kind is ChangeKind.PREEMPT


def test_a_move_is_no_stop() -> None:
    snapshot = Snapshot(10_000.0, NODES, (runs("1", 1.0),))
    plan = Plan("x", {"1": Placement.of({"b": {"v100": 1}})})

    (change,) = limit(snapshot, changes_of(snapshot, plan), load(None, ["guard.max_stretch=20"]))

    assert change.kind is ChangeKind.MOVE


def test_copies_of_one_job_have_run_together() -> None:
    """The first copy has just started; its parent has run enough with the other."""
    copy, other = (runs(f"7_{n}", s, "ab"[n], array_id="7", fork=Fork.SPREAD) for n, s in enumerate((1.0, 600.0)))

    assert after(copy, other)["7_0"].kind is ChangeKind.PREEMPT
    assert after(replace(copy, fork=None), other)["7_0"].kind is ChangeKind.STAY


def test_history_and_reasons_name_the_bound(bench: Callable[..., Any]) -> None:
    """The one that stays is not said to wait, as it was planned to; the one that does not start is told so, once."""
    b = bench({"v100-1": ("v100", 1)}, "guard.max_stretch=20")
    old = b.slurm.submit(comment="hadar:ckpt=yes", submit=float(int(time.time())) - 1000.0)
    b.slurm.start(old, "v100-1")
    new = b.slurm.submit()
    controller = b.new_controller(policy=Scripted(j2={"v100-1": {"v100": 1}}))

    for _ in range(3):
        controller.run_round()

    assert b.slurm.jobs[old].state is JobState.RUNNING
    assert [(e["kind"], e["why"]) for e in b.journal.history(old) if "kind" in e] == [("stay", f"put off: {WHY}")]
    assert b.journal.wait(old) is None
    put_off = "put off: the GPUs it was to start on did not come free"
    assert b.journal.wait(new)["why"] == put_off and b.journal.wait(new)["tier"] == "transient"
    assert [(e["kind"], e["why"]) for e in b.journal.history(new) if "kind" in e] == [("wait", put_off)]

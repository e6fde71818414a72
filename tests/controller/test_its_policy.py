"""What a controller does with its policy: its memory, its faults, and its end."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

from slurm_hadar.model import Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from tests.controller.scripted import MODEL, Scripted


def test_a_policy_that_breaks_the_contract_is_not_obeyed(bench: Any) -> None:
    """More GPUs than there are: nothing is done, and the round says why."""
    b = bench()
    b.slurm.submit(gpus=3, comment=MODEL)

    result = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 3}})).run_round()

    assert b.slurm.batches == []
    assert "broke its contract" in result.record.note


class _Ends(Scripted):
    """Fails in a way that no defect of ours does."""

    def allocate(self, snapshot: Any) -> Any:
        del snapshot
        raise SystemExit(3)


def test_where_a_policy_fails_nobody_is_said_to_be_stopped(bench: Any) -> None:
    """Jobs go on as they are, and those that wait are told why."""
    b = bench()
    runs, waits = b.slurm.submit(1, MODEL), b.slurm.submit(4, MODEL)
    b.slurm.start(runs, "v100-1")

    result = b.new_controller(policy=_Ends()).run_round()

    assert b.slurm.batches == [] and result.record.preemptions == 0
    assert "policy scripted failed: SystemExit(3)" in result.record.note
    told = {d["job_id"]: d["kind"] for d in b.journal.decisions_since(0.0)}
    assert told.get(runs, "stay") == "stay" and told.get(waits) == "wait"
    assert "policy scripted failed" in b.journal.waits()[waits]["why"]


class Counting(Policy):
    """Remembers how many rounds it has decided."""

    name = "counting"

    def allocate(self, snapshot: Any) -> Any:
        waits = {j.job_id: Wait(Tier.POLICY, "told to wait") for j in snapshot.steerable_jobs}
        return Plan(self.name, {}, waits, memory={"rounds": snapshot.memory.get("rounds", 0) + 1})


class Says(Policy):
    """Its reasons to wait have these prices and payoffs."""

    name = "says"

    def __init__(self, price: Any, payoff: Any) -> None:
        self.told = price, payoff

    def allocate(self, snapshot: Any) -> Any:
        return Plan(self.name, {}, {j.job_id: Wait(Tier.POLICY, "dear", *self.told) for j in snapshot.steerable_jobs})


@pytest.mark.parametrize(("price", "payoff"), [(math.inf, 1.0), (math.nan, None), (1.0, -math.inf), ("much", 1.0)])
def test_what_a_wait_costs_is_a_number(bench: Any, price: Any, payoff: Any) -> None:
    """Nobody could read the journal as JSON else, and the controller would end where it notes when jobs start."""
    b = bench()
    job = b.slurm.submit(1, MODEL)

    result = b.new_controller(policy=Says(price, payoff)).run_round()

    assert "broke its contract" in result.record.note and "which waits, is" in result.record.note
    assert json.dumps([b.journal.wait(job), b.journal.history(job)], allow_nan=False)
    assert b.new_controller(policy=Says(2.0, None)).run_round().record.note == ""
    b.journal.note_starts({job: (1.0, 2.0)})


def test_a_policy_is_given_its_memory_back(bench: Any) -> None:
    """From round to round, after a restart too; not that of another policy or of other parameters."""
    b = bench()
    told = ("policy.name=counting",)
    first = b.new_controller(*told, policy=Counting())
    first.run_round()
    second = first.run_round()

    restarted = b.new_controller(*told, policy=Counting()).run_round()
    with_parameters = b.new_controller(*told, "policy.params.x=1", policy=Counting()).run_round()

    assert [r.plan.memory["rounds"] for r in (second, restarted, with_parameters)] == [2, 3, 1]


def test_a_memory_that_is_no_json_costs_a_warning(
    bench: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller goes on; only a restart loses it."""
    b = bench()
    policy = Counting()
    monkeypatch.setattr(policy, "allocate", lambda _snapshot: Plan("counting", memory={"now": object()}))

    result = b.new_controller(policy=policy).run_round()

    assert result.record.note == "" and "cannot be written as JSON" in caplog.text


def test_the_end_does_not_wait_for_a_policy_that_never_returns(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    policy = Counting()
    controller = b.new_controller(policy=policy)

    def allocate(_snapshot: Snapshot) -> Plan:
        controller.stop()  # as the handler of SIGTERM does, within the policy's own loop
        raise AssertionError("the policy goes on")

    monkeypatch.setattr(policy, "allocate", allocate)
    controller.run()

    assert "the end was asked for while counting decided" in b.journal.rounds(1)[0]["note"]


def test_the_end_asked_for_by_another_thread_waits_for_the_policy(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    policy = Counting()
    controller = b.new_controller(policy=policy)
    decide = policy.allocate

    def allocate(snapshot: Snapshot) -> Plan:
        other = threading.Thread(target=controller.stop)
        other.start()
        other.join()
        return decide(snapshot)

    monkeypatch.setattr(policy, "allocate", allocate)
    controller.run()

    assert b.journal.rounds(1)[0]["note"] == ""

"""Weights and sizes that users state: what they may claim, and what a false claim gains them (nothing)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import load
from slurm_hadar.controller.observe.jobs.weights import Standing, standing_of, weight_of
from slurm_hadar.model import JobState
from slurm_hadar.policies import registry
from slurm_hadar.testing.fake_slurm import FakeSlurm

GRANTS = ("guard.max_weight=2", "guard.max_weight_by_account={vip=4}", "guard.max_weight_by_qos={low=0.5}")


def slurm_job(**fields: Any) -> Any:
    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    return slurm.jobs[slurm.submit(1, "hadar:", **fields)]


@pytest.mark.parametrize(
    ("stated", "fields", "settings", "value"),
    [(None, {}, (), 1.0), (0.5, {}, (), 0.5), (1000.0, {}, (), 1.0), (3.0, {}, GRANTS, 2.0),
     (1000.0, {"account": "vip"}, GRANTS, 4.0), (1000.0, {"account": "vip", "qos": "low"}, GRANTS, 0.5),
     (None, {"qos": "low"}, GRANTS, 0.5)],
)  # fmt: skip
def test_a_stated_weight_counts_within_what_is_granted(
    stated: float | None, fields: dict[str, str], settings: tuple[str, ...], value: float
) -> None:
    """By QOS, else by account, else for all; whoever gets less than they state is told."""
    weight = weight_of(stated, slurm_job(**fields), load(None, settings).guard, Standing())

    assert weight.value == value
    assert bool(weight.lowered) == (stated is not None and stated > value)


def test_weights_from_priority_and_fair_share() -> None:
    """Relative to the queue; nobody is starved, and nobody takes all."""
    guard = load(None, []).guard
    usual, high, none = slurm_job(priority=100), slurm_job(priority=300), slurm_job(priority=0)
    by_priority = standing_of("priority", [usual, usual, high, none], {}, {})
    assert [weight_of(None, j, guard, by_priority).value for j in (usual, high, none)] == [1.0, 3.0, 1.0]
    assert weight_of(None, slurm_job(priority=2**32 - 1), guard, by_priority).value == 10.0

    ann, bob = slurm_job(user="ann", account="a"), slurm_job(user="bob", account="a")
    shares = standing_of("fairshare", [ann, bob], {"ann": {"v100": 300.0}, "bob": {"v100": 50.0, "k80": 50.0}}, {})
    values = [weight_of(None, j, guard, shares).value for j in (ann, bob)]
    assert values == [pytest.approx(2**-0.5), pytest.approx(2**0.5)]
    assert standing_of("none", [ann], {"ann": {"v100": 1.0}}, {}) == Standing()


_AMOUNTS = st.floats() | st.floats(0, 1e12)


@given(st.sampled_from(["priority", "fairshare", "none"]), st.integers(0, 2**32), _AMOUNTS, _AMOUNTS,
       st.none() | st.floats(0.001, 1000))  # fmt: skip
def test_any_standing_gives_a_weight(
    source: str, priority: int, one: float, other: float, stated: float | None
) -> None:
    """Also what a damaged journal says of usage."""
    jobs = [slurm_job(user="ann", priority=priority), slurm_job(user="bob")]
    standing = standing_of(source, jobs, {"ann": {"v100": one}, "bob": {"v100": other}}, {"": {"v100": one}})

    assert 0.0001 <= weight_of(stated, jobs[0], load(None, []).guard, standing).value <= 10.0


def test_who_states_too_much_is_told_once(bench: Any) -> None:
    """In the job's history, and in explain as long as it is so."""
    one = bench()
    job = one.slurm.submit(1, "hadar:model=resnet18,weight=1000")
    for _ in range(2):
        seen = one.controller.run_round().seen
    told = [e["why"] for e in one.journal.history(job) if e.get("event") == "weight"]

    assert seen.snapshot.job[job].weight == 1.0
    assert (
        told
        == [one.journal.load_jobs()[job].lowered]
        == ["weight 1000 counts as 1, the most that guard.max_weight grants it"]
    )


def _liar(one: Any, comment: str, ran_s: float) -> str:
    """A job that holds the only fast node and has run for a while without a word."""
    job = one.slurm.submit(2, f"hadar:model=resnet18,batch=64,lose=yes,{comment}", user="mallory")
    one.slurm.start(job, "v100-1")
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], start=time.time() - ran_s)
    return job


@pytest.mark.parametrize("policy", ["srtf", "hadar", "allox", "asrpt"])
def test_a_false_size_is_not_nearly_done_for_ever(bench: Any, policy: str) -> None:
    """``steps=1``: by its time and speed it has made thousands, and is expected to go on as long again."""
    one = bench({"v100-1": ("v100", 2)})
    job = _liar(one, "steps=1", 3600.0)
    snapshot = one.new_controller(policy=registry.get(policy)).run_round().seen.snapshot
    liar = snapshot.job[job]

    assert liar.state is JobState.RUNNING and liar.overrun
    assert liar.expected_remaining_steps == pytest.approx(3600.0 * liar.rate(liar.placement), rel=0.01)


def test_an_honest_job_comes_before_an_overrun_one(bench: Any) -> None:
    """Under a policy that goes by what is left, the false statement gains nothing."""
    one = bench({"v100-1": ("v100", 2)}, "guard.min_run_s=0")
    liar = _liar(one, "steps=1", 36000.0)
    honest = one.slurm.submit(2, "hadar:model=resnet18,batch=64,steps=20000", user="ann")

    result = one.new_controller(policy=registry.get("srtf")).run_round()

    kinds = {c.job_id: str(c.kind) for c in result.changes}
    assert kinds == {liar: "preempt", honest: "start"}


def test_an_honest_job_is_not_overrun(bench: Any) -> None:
    """One that is a little slower than expected, and one at its very last step."""
    one = bench({"v100-1": ("v100", 2)})
    rate = 60.0
    job = _liar(one, "steps=400000", 400000 / rate * 0.9)
    snapshot = one.controller.run_round().seen.snapshot

    assert not snapshot.job[job].overrun
    done = replace(snapshot.job[job], done_steps=400000.0)
    assert done.expected_remaining_steps == 0.0 and not done.overrun

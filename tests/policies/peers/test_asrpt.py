"""A-SRPT: its virtual machine is optimal, its order is the virtual one, its bound holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.asrpt.bound import play, random_instance
from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed, Tier
from slurm_hadar.policies import get
from slurm_hadar.policies.asrpt.policy import Asrpt
from slurm_hadar.policies.asrpt.virtual_machine import Arrival, VirtualMachine
from slurm_hadar.testing.policies import PolicyContract
from slurm_hadar.testing.snapshots import carry_out

NODES = (Node("a", {"v100": 4}), Node("b", {"v100": 4}))


def job(job_id: str, steps: float, workers: int = 1, arrival: float = 0.0, **more: object) -> Job:
    speeds = {"v100": Speed(1.0, 0.5)}
    made = Job(job_id, Form(workers, max_nodes=2), arrival=arrival, total_steps=steps, speeds=speeds)
    return replace(made, **more)


class TestStrictKeepsTheContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Any:
        return get("asrpt", strict=True)

    @pytest.mark.parametrize("workers", [1, 2, 3, 4])
    def test_a_lone_job_runs(self, policy: Any, workers: int) -> None:
        """Once the virtual machine has ended it, and not before: so says the proof."""
        alone = job("1", 800.0, workers)
        first = policy.allocate(Snapshot(0.0, NODES, (alone,)))
        assert first.waits["1"].why == "its turn has not come: jobs with less predicted work go first"
        later = policy.allocate(Snapshot(100.0 * workers, NODES, (alone,), memory=first.memory))
        assert set(later.placements) == {"1"}

    @pytest.mark.skip(reason="nobody starts before its turn, and a lone job's has not come")
    def test_a_lone_gang_runs_on_unlike_nodes(self) -> None:  # type: ignore[override]  # skipped: is given nothing
        """See the work-conserving variant."""

    @pytest.mark.skip(reason="nobody starts before its turn, so there may be nobody to be harmed")
    def test_an_impossible_job_harms_nobody(self) -> None:  # type: ignore[override]  # skipped: is given nothing
        """See the work-conserving variant."""


def srpt_by_slots(jobs: list[tuple[int, int]]) -> list[int]:
    """The least sum of completion times of unit-speed preemptive schedules in whole slots, over all priority orders."""
    best: list[int] = []
    for order in permutations(range(len(jobs))):
        left, ends, at = [size for _, size in jobs], [0] * len(jobs), 0
        while any(left):
            ready = [i for i in order if left[i] and jobs[i][0] <= at]
            at += 1
            if ready:
                left[ready[0]] -= 1
                ends[ready[0]] = at
        if not best or sum(ends) < sum(best):
            best = ends
    return best


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=5))
def test_the_virtual_machine_is_at_least_as_good_as_any_order(jobs: list[tuple[int, int]]) -> None:
    """SRPT on one machine: no fixed priority order has a smaller sum of completion times."""
    machine = VirtualMachine(0.0)
    machine.advance((Arrival(float(r), str(i), float(p)) for i, (r, p) in enumerate(jobs)), 100.0)
    assert set(machine.done_at) == {str(i) for i in range(len(jobs))}
    assert sum(machine.done_at.values()) <= sum(srpt_by_slots(jobs)) + 1e-9


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), max_size=8),
    st.lists(st.floats(0, 100), max_size=6),
)
def test_the_virtual_machine_does_not_depend_on_when_it_is_asked(jobs: Any, looks: Any) -> None:
    """Advanced in many steps, with what it has in mind written down in between, it ends where one step ends."""
    arrivals = [Arrival(r, str(i), p) for i, (r, p) in enumerate(jobs)]
    once = VirtualMachine(0.0)
    once.advance(arrivals, 100.0)
    often, before = VirtualMachine(0.0), -1.0
    for now in [*sorted(looks), 100.0]:
        often.advance([a for a in arrivals if before < a.time <= now], now)
        often, before = VirtualMachine.read(often.memory(), 0.0), now
    assert often.ends().keys() == once.ends().keys()
    assert all(often.ends()[j] == pytest.approx(end, abs=1e-6) for j, end in once.ends().items())


def test_a_newcomer_with_less_work_overtakes_virtually() -> None:
    machine = VirtualMachine(0.0)
    machine.advance([Arrival(0.0, "long", 10.0)], 4.0)
    machine.advance([Arrival(4.0, "short", 1.0)], 20.0)
    assert machine.done_at == {"short": 5.0, "long": 11.0}


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 300, 100))
def test_the_proved_bound(first: int) -> None:
    """Strict A-SRPT never costs more than the bound, with true and with wrong predictions."""
    for seed in range(first, first + 100):
        outcome = play(random_instance(seed))
        assert outcome.used <= 1.0, f"seed {seed}: {outcome}"


def test_strict_order_and_overtaking() -> None:
    """Behind a gang that does not fit, nobody starts in the strict variant; in the other one whoever fits does."""
    running = job("0", 1e4, 4, unmovable="is never stopped")
    wide, narrow = job("1", 10.0, 8, arrival=1.0), job("2", 90.0, 1, arrival=2.0)
    start = Snapshot(0.0, NODES, (running,))
    running = carry_out(start, Asrpt().allocate(start)).jobs[0]
    now = Snapshot(100.0, NODES, (running, wide, narrow))
    loose, strict = Asrpt().allocate(now), Asrpt(strict=True).allocate(now)
    assert set(loose.placements) == {"0", "2"} and loose.waits["1"].tier is Tier.CAPACITY
    assert set(strict.placements) == {"0"}
    assert strict.waits["2"].why == "is behind job 1, which nobody may overtake"


def test_the_order_is_that_of_virtual_completions() -> None:
    """Room for one: the one with the least work runs, though it came last; a prediction is used where no steps are
    stated."""
    jobs = (job("1", 500.0, 8), job("2", 400.0, 8), replace(job("3", 0.0, 8), total_steps=None, predicted_steps=100.0))
    assert set(Asrpt().allocate(Snapshot(0.0, NODES, jobs)).placements) == {"3"}
    by_submission = get("wcs_subtime").allocate(Snapshot(0.0, NODES, jobs))
    assert set(by_submission.placements) == {"1"}


def test_of_two_with_the_same_median_the_surer_one_goes_first() -> None:
    """Nobody is stopped here: who may be very long would hold its GPUs for long."""
    predicted = replace(job("1", 0.0, 8), total_steps=None, predicted_steps=100.0)
    vague, sure = replace(predicted, predicted_range=(15.0, 700.0)), replace(predicted, predicted_range=(80.0, 125.0))
    for first, second in ((vague, sure), (sure, vague)):
        jobs = (replace(first, job_id="1"), replace(second, job_id="2"))
        plan = Asrpt().allocate(Snapshot(0.0, NODES, jobs))
        assert [jobs[int(j) - 1].predicted_range for j in plan.placements] == [sure.predicted_range]


def busy(job_id: str, node: str, gpu_type: str, workers: int) -> Job:
    """A job that holds GPUs and is never stopped."""
    held = Placement.of({node: {gpu_type: workers}})
    return job(job_id, 1e4, workers, placement=held, state=JobState.RUNNING, started=0.0, unmovable="is never stopped")


def test_a_sensitive_gang_waits_for_one_node_up_to_its_cap() -> None:
    """Two GPUs free on each of two nodes: the gang of four would run at half speed, and waits half of its run."""
    gang = job("1", 1000.0, 4)
    others = (busy("8", "a", "v100", 2), busy("9", "b", "v100", 2))
    rules = Asrpt(kappa=1.5, theta=0.5)
    early = rules.allocate(Snapshot(0.0, NODES, (*others, gang)))
    assert early.waits["1"].why.startswith("what is free would make it 2.0 times slower than its best place")
    late = rules.allocate(Snapshot(501.0, NODES, (*others, gang), memory=early.memory))
    assert late.placements["1"].as_dict() == {"a": {"v100": 2}, "b": {"v100": 2}}
    assert "1" in Asrpt(kappa=3.0).allocate(Snapshot(0.0, NODES, (*others, gang))).placements
    assert "1" in rules.allocate(Snapshot(0.0, NODES, (others[0], gang))).placements


def test_unequal_gpus() -> None:
    """A job with a choice takes the fast type; if that is taken it waits, at most for half of what the slow one
    would cost it, and takes that in the end."""
    one = replace(job("1", 4000.0), speeds={"v100": Speed(4.0), "k80": Speed(1.0)})
    nodes = (Node("a", {"k80": 1}), Node("b", {"v100": 1}))
    assert Asrpt().allocate(Snapshot(0.0, nodes, (one,))).placements["1"].nodes == ("b",)
    other = busy("9", "b", "v100", 1)
    early = Asrpt().allocate(Snapshot(0.0, nodes, (other, one)))
    assert "4.0 times slower" in early.waits["1"].why
    assert "1" in Asrpt().allocate(Snapshot(1499.0, nodes, (other, one), memory=early.memory)).waits
    late = Asrpt().allocate(Snapshot(1501.0, nodes, (other, one), memory=early.memory))
    assert late.placements["1"].nodes == ("a",)


def test_reserved_places_are_left_in_time() -> None:
    """A gang of four waits for the node that is free soonest; who would still be there then has to go elsewhere, who
    would be gone may overtake."""
    others = (
        replace(busy("8", "a", "v100", 3), total_steps=100.0),
        replace(busy("9", "b", "v100", 2), total_steps=1000.0),
    )
    gang = replace(job("1", 1000.0, 4), form=Form(4))
    long, short = job("2", 2000.0, arrival=1.0), job("3", 50.0, arrival=2.0)
    snapshot = Snapshot(0.0, NODES, (*others, gang, long, short))
    plan = Asrpt(order="submission", reserve=1).allocate(snapshot)
    assert "1" in plan.waits
    assert plan.placements["2"].nodes == ("b",)
    assert plan.placements["3"].nodes in (("a",), ("b",))
    alone_on_a = Snapshot(0.0, NODES[:1], (others[0], gang, long, short))
    assert set(Asrpt(order="submission", reserve=1).allocate(alone_on_a).placements) == {"8", "3"}
    assert set(Asrpt(order="submission", reserve=0).allocate(alone_on_a).placements) == {"8", "2"}


def test_pace_of_the_virtual_machine() -> None:
    """One as fast as all GPUs has ended a large job long since, whose turn it then is; a slow one has not."""
    large, small = job("1", 1000.0, 4, arrival=0.0), job("2", 100.0, 4, arrival=3000.0)
    snapshot = Snapshot(3000.0, NODES[:1], (large, small))
    assert set(Asrpt(pace=1.0).allocate(snapshot).placements) == {"1"}
    assert set(Asrpt(pace=0.1).allocate(snapshot).placements) == {"2"}
    assert set(Asrpt(pace=0.1, strict=True).allocate(snapshot).placements) == {"1"}


@pytest.mark.parametrize(
    "wrong", [{"order": "random"}, {"theta": -1.0}, {"pace": 0.0}, {"pace": 1.5}, {"kappa": float("nan")}]
)
def test_odd_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"policy asrpt: {next(iter(wrong))}="):
        Asrpt(**wrong)

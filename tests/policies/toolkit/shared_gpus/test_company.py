"""What jobs that take turns keep of their speeds, and who accepts whose company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_hadar.model import LEAST_DUTY, Form, Job, JobState, Node, Placement, Plan, Snapshot, Speed
from slurm_hadar.policies.toolkit.shared_gpus.company import (
    all_accept,
    by_duty,
    fits,
    heir,
    keep_together,
    keeps,
    kept_by_each,
    level,
    on_same_gpu,
    same_gpu,
    shares_kept,
)
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL, kept_by

ON_V100 = Placement.of({"n1": {"v100": 1}})
DUTIES = st.lists(st.floats(LEAST_DUTY, 1.0), min_size=1, max_size=12)
HALF = {("a", "a", "v100"): (0.5, 0.5)}


def job(job_id: str, duty: float = 1.0, **fields: Any) -> Job:
    given_ = {"form": Form(1), "model": "a", "slow_down": 2.0, "speeds": {"v100": Speed(1.0)}, "duty": {"v100": duty}}
    return Job(job_id, **{**given_, **fields})


def running(job_id: str, duty: float = 1.0, **fields: Any) -> Job:
    return job(job_id, duty, **{"state": JobState.RUNNING, "placement": ON_V100, "started": 0.0, **fields})


def cluster(*jobs: Job, gpus: int = 1, **fields: Any) -> Snapshot:
    given_ = {"pairings": HALF, "turns": True, **fields}
    return Snapshot(1000.0, (Node("n1", {"v100": gpus}),), jobs, **given_)


def got(duties: list[float]) -> list[float]:
    return [duty * share for duty, share in zip(duties, keeps(duties), strict=True)]


@given(DUTIES)
def test_the_time_of_the_gpu_is_conserved_and_none_of_it_is_wasted(duties: list[float]) -> None:
    """All have what they want, or there is nothing left."""
    used = sum(got(duties))

    assert used <= 1 + 1e-9
    assert used == pytest.approx(min(1.0, sum(duties)))


@given(DUTIES)
def test_nobody_gets_more_than_it_wants_and_nobody_less_than_a_fair_share_while_another_has_more(
    duties: list[float],
) -> None:
    times = got(duties)

    assert all(0 < share <= 1 for share in keeps(duties))
    for mine, wanted in zip(times, duties, strict=True):
        assert mine <= wanted + 1e-12
        assert mine >= wanted - 1e-9 or mine >= max(times) - 1e-9  # max-min: who lacks something has as much as any
        assert mine >= min(wanted, 1 / len(duties)) - 1e-9


@given(DUTIES, st.floats(LEAST_DUTY, 1.0))
def test_more_company_leaves_nobody_more(duties: list[float], another: float) -> None:
    before, after = keeps(duties), keeps([*duties, another])

    assert all(then <= now + 1e-9 for now, then in zip(before, after, strict=False))


@given(DUTIES, st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(duties: list[float], dice: Any) -> None:
    order = list(range(len(duties)))
    dice.shuffle(order)

    again = keeps([duties[n] for n in order])

    assert list(again) == pytest.approx([keeps(duties)[n] for n in order])


@pytest.mark.parametrize("jobs", range(1, 9))
def test_without_duties_each_has_an_equal_part(jobs: int) -> None:
    assert keeps([1.0] * jobs) == pytest.approx([1 / jobs] * jobs)


def test_what_the_small_ones_leave_goes_to_the_large_one() -> None:
    assert keeps([0.1, 0.2, 1.0]) == pytest.approx((1.0, 1.0, 0.7))
    assert level([]) == 1.0


@given(st.floats(LEAST_DUTY, 1.0), st.floats(LEAST_DUTY, 1.0), st.floats(0.0, 1.0))
def test_two_by_shares_of_the_turns(guest: float, host: float, share: float) -> None:
    """By equal ones as any number; with all the time wanted as it is without duties; the time is conserved, and who has
    more of the turns has more."""
    assert [float(k) for k in by_duty(guest, host, EQUAL)] == pytest.approx(keeps([guest, host]))
    assert [float(k) for k in by_duty(1.0, 1.0, share)] == pytest.approx(kept_by((0.5, 0.5), share))
    mine, its = by_duty(guest, host, share)
    assert mine * guest + its * host == pytest.approx(min(1.0, guest + host))
    more = by_duty(guest, host, min(1.0, share + 0.1))
    assert more[0] >= mine - 1e-9 and more[1] <= its + 1e-9
    each = by_duty(np.array([guest]), np.array([host]), share)
    assert (each[0][0], each[1][0]) == (mine, its)


def test_duties_say_what_a_pair_keeps_unless_it_was_measured() -> None:
    one, other = job("1", 0.3), job("2", 0.9)
    assert keep_together(cluster(), one, other, "v100") == pytest.approx((1.0, 7 / 9))
    both = {("a", ("a",), "v100"): 0.8}
    measured = cluster(pairings={("a", "a", "v100"): (0.8, 0.8)}, measured=both)
    assert keep_together(measured, one, other, "v100") == (0.8, 0.8)
    assert keep_together(cluster(turns=False), one, other, "v100") == (0.5, 0.5)


def test_duties_are_believed_among_one_users_jobs() -> None:
    mine, foreign = job("1", 0.1, user="ann"), job("2", 0.1, user="bob")

    assert keep_together(cluster(), mine, foreign, "v100") == (0.5, 0.5)
    assert not all_accept(cluster(), [mine, foreign, job("3", 0.1, user="ann")], "v100")


def test_who_accepts_whose_company() -> None:
    small = [job(str(n), 0.2) for n in range(5)]
    everybody = cluster()
    assert all_accept(everybody, small, "v100")
    assert all_accept(everybody, [*small[:2], job("9")], "v100")  # which has 0.6 of the time
    assert not all_accept(everybody, [*small[:3], job("9")], "v100")  # 0.4
    assert not all_accept(everybody, [*small[:2], job("9", 0.2, slow_down=1.0)], "v100")  # which shares with nobody
    assert not all_accept(everybody, [*small[:2], job("9", 0.2, model="b")], "v100")  # of which nothing is known
    assert not all_accept(cluster(turns=False), small[:3], "v100")  # beside each other a third is assumed


def test_what_was_measured_of_a_company_goes_before_what_is_reckoned() -> None:
    """Whoever told too small a duty."""
    small = [job(str(n), 0.1) for n in range(3)]
    slow = cluster(measured={("a", ("a", "a"), "v100"): 0.4})

    assert kept_by_each(cluster(), small, "v100") == [1.0] * 3
    assert kept_by_each(slow, small, "v100") == [0.4] * 3
    assert not all_accept(slow, small, "v100") and all_accept(slow, small[:2], "v100")


@pytest.mark.parametrize(("room", "fit"), [(16, False), (17, True), (None, True)])
def test_memory_is_the_sum_of_what_stays_and_the_most_of_what_comes(room: int | None, fit: bool) -> None:
    assert fits([(6, 3), (6, 5), None], room) == fit
    takes = [job("1", 0.1, takes=(6, 3)), job("2", 0.1, takes=(6, 5)), job("3", 0.1)]
    assert all_accept(cluster(gpu_bytes={} if room is None else {"v100": room}), takes, "v100") == fit


def test_what_is_kept_on_gpus_with_one_two_and_three_jobs() -> None:
    jobs = [running("1"), running("2", host="1", turns=0.75)]
    jobs += [running("3", 0.5), running("4", 0.5, host="3"), running("5", 0.5, host="3"), running("6")]

    kept = shares_kept(cluster(*jobs, gpus=3), {j.job_id: j for j in jobs})

    assert kept == pytest.approx({"1": 0.25, "2": 0.75, "3": 2 / 3, "4": 2 / 3, "5": 2 / 3})


def test_whose_gpu_it_is_when_some_of_three_leave() -> None:
    """The host's, else that of the guest that has been there longest and is nobody's guest by the plan; of guests that
    are all given GPUs of their own only one keeps it."""
    three = running("1"), running("2", host="1", started=2.0), running("3", host="1", started=3.0)
    snapshot = cluster(*three, gpus=3)
    everybody = dict.fromkeys("123", ON_V100)

    def same(plan: Plan) -> list[bool]:
        return [on_same_gpu(snapshot, plan, j) for j in three if plan.placement(j.job_id)]

    assert same(Plan("p", everybody, guests={"2": "1", "3": "1"})) == [True, True, True]
    assert same(Plan("p", {"2": ON_V100, "3": ON_V100}, guests={"3": "2"})) == [True, True]  # the host stops
    assert same(Plan("p", everybody, guests={"1": "3", "2": "3"})) == [True, True, True]  # it is another's guest
    assert same(Plan("p", everybody)) == [True, False, False]
    assert same(Plan("p", {"2": ON_V100, "3": ON_V100})) == [True, False]
    assert heir(snapshot, Plan("p", {}), "1") is None


def test_a_new_host_comes_to_the_gpu_that_all_have_left_but_its_guests() -> None:
    there = running("1"), running("2", host="1", started=2.0), running("3", host="1", started=3.0)
    new = job("8"), job("9")
    snapshot = cluster(*there, *new, gpus=2)
    placed = dict.fromkeys("2389", ON_V100)
    one, two = Plan("p", placed, guests={"2": "9", "3": "9"}), Plan("p", placed, guests={"2": "9", "3": "8"})

    assert [on_same_gpu(snapshot, one, j) for j in there[1:]] == [True, True]
    assert [on_same_gpu(snapshot, two, j) for j in there[1:]] == [True, False]
    assert same_gpu(snapshot, Plan("p", dict.fromkeys("89", ON_V100)), there[1], "9")


@given(DUTIES.filter(lambda duties: len(duties) > 1), st.floats(1.01, 8.0))
def test_who_is_accepted_keeps_as_much_as_it_accepts(duties: list[float], slow_down: float) -> None:
    jobs = [job(str(n), duty, slow_down=slow_down) for n, duty in enumerate(duties)]
    kept = kept_by_each(cluster(), jobs, "v100")
    assert kept is not None
    assume(all(abs(k * slow_down - 1) > 1e-6 for k in kept))

    assert all_accept(cluster(), jobs, "v100") == all(k * slow_down > 1 for k in kept)

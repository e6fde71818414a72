"""Whose turn is next, and who is let in."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.sharing import entry
from slurm_hadar.sharing.entry import Applicant, let_in
from slurm_hadar.sharing.lanes import Demand, GpuMemory
from slurm_hadar.sharing.turns import EqualShareClock, Policy, Standing, rank, stride

STANDINGS = (
    Standing(0, left_ns=30, tag=60, passed=2),
    Standing(1, left_ns=10, tag=70, passed=1),
    Standing(2, left_ns=20, tag=50, passed=1),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (Policy.FIFO, [0, 1, 2]), (Policy.PACK, [0, 1, 2]), (Policy.SRTF, [1, 2, 0]), (Policy.FSP, [2, 0, 1]),
        (Policy.FAIR, [1, 2, 0]), (Policy.RR, [1, 2, 0]), (Policy.PRIORITY, [1, 2, 0]),
    ],
)  # fmt: skip
def test_the_least_rank_is_next(policy: Policy, order: list[int]) -> None:
    assert [s.order for s in sorted(STANDINGS, key=lambda s: rank(policy, s))] == order


def test_what_a_turn_is_charged() -> None:
    """Its time, itself, or its time by the job's part of its class's share."""
    standing = Standing(0, weight=4)

    assert stride(Policy.FAIR, 500, standing, 3) == 500
    assert stride(Policy.RR, 500, standing, 3) == 1
    assert stride(Policy.PRIORITY, 500, standing, 3) == 2 * stride(Policy.PRIORITY, 500, Standing(0, weight=8), 3)
    assert stride(Policy.PRIORITY, 500, standing, 3) == 3 * stride(Policy.PRIORITY, 500, standing, 1)
    assert stride(Policy.SRTF, 500, standing, 3) == 0


def _ends_under_equal_shares(jobs: list[tuple[int, int]]) -> list[Fraction]:
    """By small steps of the definition: all who are there advance alike."""
    left = [Fraction(total) for _, total in jobs]
    ends: list[Fraction] = [Fraction(0)] * len(jobs)
    now = Fraction(0)
    while any(left):
        active = [i for i, (arrival, _) in enumerate(jobs) if arrival <= now and left[i]]
        coming = [Fraction(arrival) for arrival, _ in jobs if arrival > now]
        if not active:
            now = min(coming)
            continue
        span = min([min(left[i] for i in active) * len(active), *(c - now for c in coming)])
        now += span
        for i in active:
            left[i] -= span / len(active)
            ends[i] = now
    return ends


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=7))
def test_tags_are_ordered_as_ends_under_equal_shares(drawn: list[tuple[int, int]]) -> None:
    scale = 10**6
    jobs = sorted((arrival * scale, total * scale) for arrival, total in drawn)
    clock = EqualShareClock()
    tags = [clock.arrive(arrival, total) for arrival, total in jobs]

    ends = _ends_under_equal_shares(jobs)

    for i, first in enumerate(ends):
        for j, second in enumerate(ends):
            if first + 100 < second:
                assert tags[i] < tags[j] + 100, (jobs, tags, ends)


def _waiting(*jobs: tuple[int, int], weights: tuple[int, ...] = ()) -> list[Applicant]:
    """Each by persistent and ephemeral bytes; the time that they take falls with their number."""
    return [
        Applicant(str(i), Demand(*job), Standing(i, 100 - i, 100 - i, weight=weights[i] if weights else 1))
        for i, job in enumerate(jobs)
    ]


def _names(policy: Policy, capacity: int, waiting: list[Applicant]) -> list[str]:
    return [a.name for a in let_in(policy, GpuMemory(capacity), waiting, []).entered]


def test_whom_the_policies_let_in() -> None:
    """Three who all fit by turns, and not beside each other."""
    waiting = _waiting((10, 60), (10, 50), (10, 40))

    assert _names(Policy.FIFO, 100, waiting) == ["0"]
    assert _names(Policy.SRTF, 100, waiting) == _names(Policy.FSP, 100, waiting) == ["2"]
    assert _names(Policy.FAIR, 100, waiting) == _names(Policy.RR, 100, waiting) == ["0", "1", "2"]
    assert _names(Policy.PACK, 100, waiting) == ["0"]
    assert _names(Policy.PACK, 180, waiting) == ["0", "1", "2"]


def test_all_who_fit_are_let_in_however_many() -> None:
    assert len(_names(Policy.FAIR, 1000, _waiting(*[(10, 50)] * 42))) == 42
    assert len(_names(Policy.PACK, 42 * 60, _waiting(*[(10, 50)] * 42))) == 42


def test_a_crowded_gpu_takes_as_many_as_the_policy_does_well_with() -> None:
    assert len(_names(Policy.FAIR, 1000, _waiting(*[(100, 50)] * 42))) == 6
    assert len(_names(Policy.PACK, 1000, _waiting(*[(100, 50)] * 42))) == 2


def test_nobody_passes_by_who_shares_by_turns() -> None:
    assert _names(Policy.FAIR, 100, _waiting((10, 60), (50, 60), (10, 10))) == ["0"]


def test_the_heaviest_class_enters_first() -> None:
    assert _names(Policy.PRIORITY, 100, _waiting((60, 10), (60, 10), weights=(1, 9))) == ["1"]


def test_srtf_lets_in_who_is_to_run_now_and_nobody_else() -> None:
    long, short = _waiting((10, 60), (10, 50))
    memory, entered, _ = let_in(Policy.SRTF, GpuMemory(100), [long], [])

    assert entered == [long]
    assert let_in(Policy.SRTF, memory, [short], [long.standing]).entered == [short]
    memory, entered, _ = let_in(Policy.SRTF, GpuMemory(100), [short], [])
    assert let_in(Policy.SRTF, memory, [long], [short.standing]).waiting == [long]


def test_pack_passes_by_who_does_not_fit_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "PATIENCE", 2)
    _, entered, waiting = let_in(Policy.PACK, GpuMemory(100), _waiting((10, 40), (10, 80), (10, 30)), [])

    assert [a.name for a in entered] == ["0", "2"]
    assert [(a.name, a.overtaken) for a in waiting] == [("1", 1)]
    patient = [Applicant("1", Demand(10, 80), Standing(1), overtaken=1), *_waiting((0, 0), (0, 0), (0, 0), (0, 5))[3:]]
    assert [a.name for a in let_in(Policy.PACK, GpuMemory(100), patient, []).entered] == ["1", "3"]
    barred = [Applicant("1", Demand(10, 80), Standing(1), overtaken=2), Applicant("4", Demand(0, 5), Standing(4))]
    holds = let_in(Policy.PACK, GpuMemory(100), _waiting((10, 40)), []).memory
    assert let_in(Policy.PACK, holds, barred, []).entered == []

"""Lanes: where a job's memory goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.sharing.lanes import (
    Demand,
    GpuMemory,
    Place,
    Step,
    admit,
    at_boundary,
    find_lane,
    is_safe,
    keep,
    keep_no_more,
    release,
)  # fmt: skip

CAPACITY = 100


def _with(capacity: int, *jobs: tuple[str, int, int], most_lanes: int | None = None) -> GpuMemory:
    memory = GpuMemory(capacity)
    for name, persistent, ephemeral in jobs:
        demand = Demand(persistent, ephemeral)
        place = find_lane(memory, demand, most_lanes)
        assert place is not None, name
        memory = admit(memory, name, demand, place)
    return memory


def test_step_1_opens_a_lane_of_the_jobs_size() -> None:
    assert find_lane(_with(CAPACITY, ("a", 10, 40)), Demand(10, 40)) == Place(Step.NEW, None, 40)


def test_step_2_takes_the_smallest_lane_that_is_large_enough() -> None:
    memory = _with(CAPACITY, ("a", 5, 50), ("b", 5, 30))

    assert find_lane(memory, Demand(5, 20)) == Place(Step.MATCH, 1, 30)


def test_step_2_looks_whether_the_persistent_memory_fits() -> None:
    """As printed in the paper, the step takes a lane without that check, and the GPU is overcommitted."""
    memory = _with(CAPACITY, ("a", 5, 50), ("b", 5, 30))

    assert find_lane(memory, Demand(10, 20)) == Place(Step.MATCH, 1, 30)
    assert find_lane(memory, Demand(11, 20)) is None


def test_step_3_enlarges_the_smallest_lane_for_which_it_is_enough() -> None:
    memory = _with(CAPACITY, ("a", 5, 40), ("b", 5, 30))

    assert find_lane(memory, Demand(5, 41)) == Place(Step.ENLARGE, 1, 41)
    assert find_lane(memory, Demand(5, 46)) == Place(Step.ENLARGE, 0, 46)
    assert find_lane(memory, Demand(5, 56)) is None


def test_step_3_never_makes_a_lane_smaller_than_its_members_need() -> None:
    """As printed, a lane larger than the job needs would count as the memory that its shrinking sets free."""
    memory = _with(CAPACITY, ("a", 20, 70))

    assert find_lane(memory, Demand(15, 10)) is None


def test_one_lane_is_the_whole_gpu() -> None:
    memory = _with(CAPACITY, ("a", 10, 20), ("b", 10, 60), most_lanes=1)

    assert [lane.members for lane in memory.lanes] == [("a", "b")]
    assert memory.reserved_bytes == 80


def test_42_small_models_fit_where_the_largest_ephemeral_counts_once() -> None:
    """The comparison that Salus' author makes with MPS, which adds up all of them."""
    jobs = [(str(i), 100, 500 + i) for i in range(42)]
    memory = _with(42 * 100 + 541, *jobs, most_lanes=1)

    assert len(memory.demands) == 42 and memory.reserved_bytes == memory.capacity_bytes and is_safe(memory)
    assert sum(p + e for _, p, e in jobs) > 5 * memory.capacity_bytes


def test_who_dies_in_a_members_turn_leaves_the_lane_as_it_is_until_its_boundary() -> None:
    memory = release(_with(CAPACITY, ("a", 10, 20), ("b", 10, 60), most_lanes=1), "b")

    assert memory.reserved_bytes == 70 and is_safe(memory)
    assert at_boundary(memory, 0).reserved_bytes == 30
    assert at_boundary(memory, 7) == memory


def test_a_lane_without_members_is_gone_and_its_number_is_not_used_again() -> None:
    memory = release(_with(CAPACITY, ("a", 10, 20)), "a")

    assert memory.lanes == () and memory.reserved_bytes == 0
    again = admit(memory, "b", Demand(1, 1), Place(Step.NEW, None, 1))
    assert again.lane_of("b").number == 1


def test_nobody_is_admitted_twice_or_found_who_is_not_there() -> None:
    memory = _with(CAPACITY, ("a", 10, 20))

    with pytest.raises(ValueError, match="'a' is there already"):
        admit(memory, "a", Demand(1, 1), Place(Step.NEW, None, 1))
    with pytest.raises(KeyError):
        memory.lane_of("b")


@pytest.mark.parametrize(
    "memory",
    [
        admit(GpuMemory(10), "a", Demand(6, 5), Place(Step.NEW, None, 5)),
        admit(GpuMemory(10), "a", Demand(1, 5), Place(Step.NEW, None, 4)),
        GpuMemory(10, {"a": Demand(1, 1)}),
    ],
    ids=["too much", "lane too small", "in no lane"],
)
def test_what_is_unsafe_is_seen(memory: GpuMemory) -> None:
    """The check of the other tests is one that can fail."""
    assert not is_safe(memory)


def test_what_is_kept_counts_beside_what_lanes_need_and_nobody_keeps_what_others_need() -> None:
    memory = _with(CAPACITY, ("a", 10, 20), ("b", 10, 30), most_lanes=1)
    assert memory.reserved_bytes == 50

    one = keep(memory, ["a"])
    assert one is not None and one.reserved_bytes == 70 and one.lanes[0].size_bytes == 30
    both = keep(memory, "ab")
    assert both is not None and both.reserved_bytes == 70 and both.lanes[0].size_bytes == 0 and is_safe(both)
    assert keep_no_more(both, "ab") == memory
    assert keep(_with(69, ("a", 10, 20), ("b", 10, 30), most_lanes=1), "ab") is None
    assert not is_safe(GpuMemory(CAPACITY, keepers=frozenset("b")))


demands = st.builds(Demand, st.integers(0, 40), st.integers(0, 80)).filter(lambda d: d.alone_bytes <= CAPACITY)
events = st.lists(
    st.tuples(st.sampled_from(["arrive", "leave", "boundary", "keep", "keep no more"]), demands, st.integers(0, 9)),
    max_size=60,
)


@given(events, st.sampled_from([None, 1, 2]))
def test_the_condition_holds_whatever_comes(happenings: list[tuple[str, Demand, int]], most: int | None) -> None:
    """Arrivals, ends and deaths at any time, boundaries, and who keeps; and an empty GPU takes in everybody."""
    memory = GpuMemory(CAPACITY)
    for number, (what, demand, which) in enumerate(happenings):
        present = sorted(memory.demands)
        if what == "arrive":
            place = find_lane(memory, demand, most)
            assert place is not None or present
            memory = memory if place is None else admit(memory, str(number), demand, place)
        elif what == "leave" and present:
            memory = release(memory, present[which % len(present)])
        elif what == "boundary" and memory.lanes:
            memory = at_boundary(memory, memory.lanes[which % len(memory.lanes)].number)
        elif what == "keep" and present:
            memory = keep(memory, present[which % len(present) :]) or memory
        elif what == "keep no more" and present:
            less = keep_no_more(memory, present[: which % len(present)])
            assert less.reserved_bytes <= memory.reserved_bytes
            memory = less
        assert is_safe(memory)
        assert most is None or len(memory.lanes) <= most

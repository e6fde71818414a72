"""What is free on which node, and where gangs go: in a shape that their form allows, on the fewest nodes, with least
disturbance."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Form, Mix, Node, Placement, Snapshot
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import node_counts
from slurm_hadar.policies.toolkit.ledger import Ledger


def ledger_of(*left: Any) -> Any:
    """Nodes with eight GPUs each, of which ``left[i]`` are left."""
    nodes = tuple(Node(f"n{i}", {"v100": 8}) for i in range(len(left)))
    ledger = Ledger(Arena.of(Snapshot(0.0, nodes, ())))
    ledger.take(tuple((i, 8 - count) for i, count in enumerate(left)))
    return ledger


forms = st.builds(
    lambda workers, least, more, uniform: Form(workers, least, least + more, uniform),
    st.sampled_from((1, 2, 3, 4, 6, 8, 12)),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)


def fewest_nodes(form: Any, left: Any) -> Any:
    """By trying all sets of nodes: the fewest that can take the gang; None if none can."""
    for count in node_counts(form):
        for chosen in itertools.combinations([n for n in left if n], count):
            if form.uniform and min(chosen) * count >= form.workers and form.workers % count == 0:
                return count
            if not form.uniform and sum(chosen) >= form.workers >= count:
                return count
    return None


@given(forms)
def test_over_how_many_nodes_a_gang_may_lie(form: Any) -> None:
    counts = range(form.min_nodes, min(form.max_nodes, form.workers) + 1)
    assert list(node_counts(form)) == [n for n in counts if not form.uniform or form.workers % n == 0]


def test_what_users_ask_for_costs_no_time() -> None:
    """A thousand million GPUs are 100 divisors, and no list of all numbers up to there."""
    assert len(node_counts(Form(10**9, 1, 10**9))) == 100
    assert len(node_counts(Form(10**9, 1, 10**9, uniform=False))) == 10**9


@given(forms, st.lists(st.integers(0, 8), min_size=1, max_size=5), st.data())
def test_a_gang_is_placed_if_and_only_if_it_fits_and_on_the_fewest_nodes(form: Any, left: Any, data: Any) -> None:
    """Within the free GPUs of the slots that are open to it, in an allowed shape; and in the same place where its nodes
    are looked at as such that might have several types."""
    ledger = ledger_of(*left)
    slots = data.draw(st.sets(st.sampled_from(range(len(left)))).map(sorted))
    ledger.hold(tuple((slot, data.draw(st.integers(0, left[slot]))) for slot in slots))
    gang = ledger.find(form, slots)
    fewest = fewest_nodes(form, [left[s] for s in slots])
    assert gang == ledger.find_mixed(form, [(s,) for s in slots])
    assert (gang is None) == (fewest is None)
    if gang is not None:
        assert all(count <= left[slot] for slot, count in gang)
        assert {slot for slot, _ in gang} <= set(slots)
        placement = Placement.of({f"n{slot}": {"v100": count} for slot, count in gang})
        assert form.refusal(placement) is None
        assert len(gang) == fewest


def test_uneven_only_where_the_form_allows() -> None:
    """Three and one lie unevenly on two nodes; a plain Slurm job of four does not fit there."""
    assert ledger_of(3, 1).find(Form(4, max_nodes=2, uniform=False), (0, 1)) == ((0, 3), (1, 1))
    assert ledger_of(3, 1).find(Form(4, max_nodes=2), (0, 1)) is None


def test_tightest_fit_and_least_disturbance() -> None:
    """The fullest node that has room; GPUs that a running job would like to keep come last, and count again once it
    has been placed elsewhere."""
    ledger = ledger_of(8, 3, 2)
    assert ledger.find(Form(2), range(3)) == ((2, 2),)
    ledger.hold(((2, 2),))
    assert ledger.find(Form(2), range(3)) == ((1, 2),)
    ledger.let_go(((2, 2),))
    assert ledger.find(Form(2), range(3)) == ((2, 2),)
    assert ledger.by_type == {"v100": 13}


def test_who_cannot_stay_anyway_need_not_be_spared() -> None:
    """Two jobs held four GPUs each of two nodes; one GPU of the second node is gone already, and it counts no more
    than what is left there."""
    ledger = ledger_of(4, 1)
    ledger.hold(((0, 4), (1, 4)))
    ledger.trim_held((0, 1))
    assert ledger.held == [4, 1]
    assert ledger.find(Form(1), (0, 1)) == ((1, 1),)


def test_what_is_taken_is_gone_until_it_is_put_back() -> None:
    """Nobody can stay where the GPUs were given away; a copy is an account of its own."""
    ledger = ledger_of(4, 4)
    before = ledger.copy()
    assert ledger.is_free(((0, 4),))
    ledger.take(((0, 1),))
    assert not ledger.is_free(((0, 4),)) and ledger.is_free(((0, 3),))
    assert ledger.find(Form(4), (0, 1)) == ((1, 4),)
    assert ledger.find(Form(4), (0,)) is None
    assert before.free == [4, 4] and before.by_type == {"v100": 8}
    ledger.put_back(((0, 1),))
    assert (ledger.free, ledger.by_type) == (before.free, before.by_type)


def test_a_placement_has_room_only_where_all_of_it_can_be_handed_out() -> None:
    """On nodes that are not there, or of types that they do not have, there is none; a gang is the part on slots."""
    ledger = ledger_of(2)
    elsewhere = Placement.of({"n0": {"v100": 1}, "gone": {"v100": 1}})
    assert ledger.has_room(Placement.of({"n0": {"v100": 2}}))
    assert not ledger.has_room(Placement.of({"n0": {"v100": 3}}))
    assert not ledger.has_room(elsewhere) and ledger.is_free(ledger.arena.gang(elsewhere))


def test_a_node_that_has_lost_gpus_is_full_not_overdrawn() -> None:
    """A job still holds four where two are left."""
    ledger = ledger_of(2)
    ledger.occupy(((0, 4),))
    assert ledger.free == [0] and ledger.by_type == {"v100": 0}


def test_a_balanced_gang_across_types_takes_the_fastest_node() -> None:
    """With speeds given, they decide before the tightness of the fit."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 1}))
    ledger = Ledger(Arena.of(Snapshot(0.0, nodes, ())))
    form = Form(1, mix=Mix.BALANCED)
    assert ledger.find_mixed(form, [(0,), (1,)]) == ((1, 1),)
    assert ledger.find_mixed(form, [(0,), (1,)], [10.0, 5.0]) == ((0, 1),)

"""Where gangs go: in a shape that their form allows, on the fewest nodes, with least disturbance."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job, Mix, Node, Placement, Snapshot, Speed
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.floor import Floor
from slurm_hadar.policies.hadar.lookahead.outlook import survey
from slurm_hadar.policies.toolkit.arena import Arena, node_counts


def floor_of(*rooms):
    """The floor of a cluster with one pool, whose node i has ``rooms[i]`` GPUs left of eight."""
    nodes = tuple(Node(f"n{i}", {"v100": 8}) for i in range(len(rooms)))
    job = Job("1", Form(1), total_steps=1.0, speeds={"v100": Speed(1.0)})
    floor = Floor(survey(Arena.of(Snapshot(0.0, nodes, (job,))), 3600.0))
    floor.take(tuple((i, 8 - room) for i, room in enumerate(rooms)))
    return floor


forms = st.builds(
    lambda workers, least, more, uniform: Form(workers, least, least + more, uniform),
    st.sampled_from((1, 2, 3, 4, 6, 8, 12)),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)


def fewest_nodes(form, rooms):
    """By trying all sets of nodes: the fewest that can take the gang; None if none can."""
    for count in node_counts(form):
        for chosen in itertools.combinations([r for r in rooms if r], count):
            if form.uniform and min(chosen) * count >= form.workers and form.workers % count == 0:
                return count
            if not form.uniform and sum(chosen) >= form.workers >= count:
                return count
    return None


@given(forms, st.lists(st.integers(0, 8), min_size=1, max_size=5), st.data())
def test_a_gang_is_placed_if_and_only_if_it_fits_and_on_the_fewest_nodes(form, rooms, data):
    """Within the free GPUs of the slots that are open to it, in an allowed shape."""
    floor = floor_of(*rooms)
    slots = data.draw(st.one_of(st.none(), st.sets(st.sampled_from(range(len(rooms)))).map(sorted)))
    inside = rooms if slots is None else [rooms[s] for s in slots]
    gang = floor.find(form, 0, slots)
    fewest = fewest_nodes(form, inside)
    assert (gang is None) == (fewest is None)
    if gang is not None:
        assert all(count <= rooms[slot] for slot, count in gang)
        assert slots is None or {slot for slot, _ in gang} <= set(slots)
        placement = Placement.of({f"n{slot}": {"v100": count} for slot, count in gang})
        assert form.refusal(placement) is None
        assert len(gang) == fewest


def test_uneven_only_where_the_form_allows():
    """Three and one lie unevenly on two nodes; a plain Slurm job of four does not fit there."""
    rooms = (3, 1)
    assert floor_of(*rooms).find(Form(4, max_nodes=2, uniform=False), 0, None) == ((0, 3), (1, 1))
    assert floor_of(*rooms).find(Form(4, max_nodes=2), 0, None) is None


def test_tightest_fit_and_least_disturbance():
    """The fullest node that has room; GPUs that a running job would like to keep come last, and count again once it
    has been placed elsewhere."""
    floor = floor_of(8, 3, 2)
    assert floor.find(Form(2), 0, None) == ((2, 2),)
    floor.expect(((2, 2),))
    assert floor.find(Form(2), 0, None) == ((1, 2),)
    floor.forget(((2, 2),))
    assert floor.find(Form(2), 0, None) == ((2, 2),)
    assert floor.free(0) == 13 and floor.widest(0) == 8


def test_what_is_taken_is_gone():
    """Nobody can stay where the GPUs were given away."""
    floor = floor_of(4, 4)
    assert floor.can_stay(((0, 4),))
    floor.take(((0, 1),))
    assert not floor.can_stay(((0, 4),)) and floor.can_stay(((0, 3),))
    assert floor.find(Form(4), 0, None) == ((1, 4),)
    assert floor.find(Form(4), 0, (0,)) is None


def test_a_balanced_gang_across_types_takes_the_fastest_node():
    """With speeds given, they decide before the tightness of the fit."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 1}))
    job = Job("1", Form(1), total_steps=1.0, speeds={"v100": Speed(10.0), "p100": Speed(5.0)})
    floor = Floor(survey(Arena.of(Snapshot(0.0, nodes, (job,))), 3600.0))
    form = Form(1, mix=Mix.BALANCED)
    assert floor.find_across(form, [(0,), (1,)], None) == ((1, 1),)
    assert floor.find_across(form, [(0,), (1,)], [10.0, 5.0]) == ((0, 1),)


def test_wide_gangs_are_laid_out_before_narrow_ones(job, snapshot):
    """Gangs of 1, 2, 3 and 2, in this order of density, fill two nodes of four only if the widest is placed first."""
    nodes = (Node("a", {"v100": 4}), Node("b", {"v100": 4}))
    steps = {"1": (1, 1e3), "2": (2, 2e3), "3": (3, 3e3), "4": (2, 5e3)}
    jobs = [job(name, form=Form(workers), steps=n, p100=None, k80=None) for name, (workers, n) in steps.items()]
    plan = get("hadar").allocate(snapshot(jobs, nodes))
    assert set(plan.placements) == {"1", "2", "3", "4"}


def test_running_jobs_stay_where_a_newcomer_fits_beside_them(job, running, snapshot):
    """A wide newcomer takes the free node although running jobs come first in line."""
    nodes = (Node("a", {"v100": 4}), Node("b", {"v100": 4}))
    here = [running(str(i), {"b": {"v100": 1}}, steps=5e4) for i in range(1, 4)]
    plan = get("hadar").allocate(snapshot([*here, job("9", form=Form(4), steps=1e5)], nodes))
    assert all(plan.placements[j.job_id] == j.placement for j in here)
    assert plan.placements["9"] == Placement.of({"a": {"v100": 4}})

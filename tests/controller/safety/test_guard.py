"""Limits on a round: never more than allowed, never more than there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import load
from slurm_hadar.controller.safety.guard import Change, ChangeKind, changes_of, fit, limit
from slurm_hadar.model import Form, Job, JobState, Needs, Node, Placement, Plan, Snapshot, Speed

TYPES = {"a": "v100", "b": "p100", "c": "k80"}


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Snapshot, Plan]:
    """A cluster that runs some jobs, and a valid plan that may move, stop and start any of them."""
    nodes = tuple(Node(n, {t: 4}) for n, t in TYPES.items())
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    now, then = dict.fromkeys(TYPES, 4), dict.fromkeys(TYPES, 4)
    jobs, placements, payoffs = [], {}, {}
    for index, size in enumerate(sizes):
        job_id = str(index)
        held = draw(st.sampled_from([None, *TYPES]))
        state, placement = JobState.PENDING, Placement()
        if held and now[held] >= size:
            now[held] -= size
            state, placement = JobState.RUNNING, Placement.of({held: {TYPES[held]: size}})
        speeds = {t: Speed(1.0) for t in TYPES.values()}
        form = Form(size, sizes=draw(st.sampled_from([(), tuple(range(1, size + 1))])))
        serves = draw(st.booleans())
        jobs.append(Job(job_id, form, state=state, placement=placement, speeds=speeds, serves=serves))
        target = draw(st.sampled_from([None, *TYPES]))
        if target and then[target] >= size:
            then[target] -= size
            placements[job_id] = Placement.of({target: {TYPES[target]: size}})
            payoffs[job_id] = draw(st.floats(-5, 5))
    return Snapshot(0.0, nodes, tuple(jobs)), Plan("x", placements, payoffs=payoffs)


def used_after(changes: list[Change]) -> dict[str, int]:
    """GPUs in use per node once all changes are done."""
    used: dict[str, int] = {}
    for change in changes:
        for node, _, n in change.new.items():
            used[node] = used.get(node, 0) + n
    return used


@given(rounds(), st.data())
def test_capacity_holds_whatever_is_vetoed(case: tuple[Snapshot, Plan], data: st.DataObject) -> None:
    """Vetoed jobs keep what they hold, and the rest still fits."""
    snapshot, plan = case
    changes = changes_of(snapshot, plan)
    vetoed = {j.job_id: "no" for j in snapshot.jobs if data.draw(st.booleans())}

    settled = fit(snapshot, changes, vetoed)

    assert all(n <= 4 for n in used_after(settled).values())
    assert [c.job_id for c in settled] == [c.job_id for c in changes]
    for change in settled:
        assert snapshot.job[change.job_id].form.refusal(change.new) is None
        if change.job_id in vetoed:
            assert change.kind in (ChangeKind.STAY, ChangeKind.WAIT)
            assert change.new == change.old


@given(rounds(), st.integers(0, 3), st.sampled_from([0.2, 0.5, 1.0]))
def test_limits_hold(case: tuple[Snapshot, Plan], most: int, share: float) -> None:
    """At most so many preemptions, and at most so much of the queue."""
    snapshot, plan = case
    config = load(None, [f"guard.max_preemptions={most}", f"guard.max_changed_share={share}"])

    limited = limit(snapshot, changes_of(snapshot, plan), config)

    moved = [c for c in limited if c.kind not in (ChangeKind.STAY, ChangeKind.WAIT)]
    assert sum(1 for c in limited if c.kind.stops) <= most
    assert share == 1.0 or len(moved) <= max(1, int(share * len(limited)))
    assert all(n <= 4 for n in used_after(limited).values())
    kinds = {c.job_id: c.kind for c in limited}
    assert not any(j.serves and j.placement and kinds[j.job_id] is ChangeKind.PREEMPT for j in snapshot.jobs)


def test_a_server_is_made_smaller_for_others_and_not_stopped() -> None:
    """To the fewest GPUs that it may have, on its own node; the others start on what it gives back."""
    held = Placement.of({"a": {"v100": 4}})
    form, speeds = Form(2, sizes=(2, 3, 4)), {"v100": Speed(1.0)}
    server = Job("1", form, state=JobState.RUNNING, placement=held, speeds=speeds, serves=True)
    waiting = [Job(n, Form(2), speeds=speeds) for n in ("2", "3")]
    snapshot = Snapshot(0.0, (Node("a", {"v100": 4}),), (server, *waiting))
    half = Placement.of({"a": {"v100": 2}})
    plan = Plan("x", {"2": half, "3": half}, payoffs={"2": 2.0, "3": 1.0})

    changes = limit(snapshot, changes_of(snapshot, plan), load(None))

    assert [(c.kind, c.new) for c in changes[:2]] == [(ChangeKind.MOVE, half), (ChangeKind.START, half)]
    assert changes[2].kind is ChangeKind.WAIT and "fewer GPUs" in changes[0].why

    small = snapshot.with_jobs([replace(server, placement=half), *waiting])
    kept = limit(small, changes_of(small, plan), load(None))
    assert [c.kind for c in kept] == [ChangeKind.STAY, ChangeKind.START, ChangeKind.WAIT]
    assert "server of models" in kept[0].why


def test_reasons_name_the_limit() -> None:
    """Who is put off can be told by which setting."""
    held = Placement.of({"a": {"v100": 4}})
    job = Job("1", Form(4), state=JobState.RUNNING, placement=held, speeds={"v100": Speed(1.0), "p100": Speed(2.0)})
    snapshot = Snapshot(0.0, (Node("a", {"v100": 4}), Node("b", {"p100": 4})), (job,))
    plan = Plan("x", {"1": Placement.of({"b": {"p100": 4}})})

    (change,) = limit(snapshot, changes_of(snapshot, plan), load(None, ["guard.max_preemptions=0"]))

    assert change.kind is ChangeKind.STAY and "guard.max_preemptions = 0" in change.why


def test_who_leaves_a_shared_gpu_is_told_so() -> None:
    """To another GPU of the same node: no speed tells why."""
    there = Placement.of({"k": {"k80": 1}})
    speeds = {"k80": Speed(2.7, 1.0, measured=True)}
    first = Job("1", Form(1), state=JobState.RUNNING, speeds=speeds, placement=there)
    snapshot = Snapshot(0.0, (Node("k", {"k80": 2}),), (first, replace(first, job_id="2", host="1")))

    stays, moves = changes_of(snapshot, Plan("x", {"1": there, "2": there}))

    assert stays.kind is ChangeKind.STAY and moves.kind is ChangeKind.MOVE
    assert moves.why == "to a GPU of its own, no longer on that of job 1"


def test_who_stays_keeps_the_whole_of_its_node() -> None:
    """A job that has its node to itself, and is not stopped after all: the gang that was to have the node waits."""
    at, whole, wanted = (Placement.of({"a": {"v100": n}}) for n in (1, 4, 2))
    alone = Job("1", Form(1), state=JobState.RUNNING, placement=at, whole=whole, speeds={"v100": Speed(1.0)})
    snapshot = Snapshot(0.0, (Node("a", {"v100": 4}),), (alone, Job("2", Form(2), speeds={"v100": Speed(1.0)})))
    changes = changes_of(snapshot, Plan("x", {"2": wanted}))

    assert [c.kind for c in fit(snapshot, changes, {})] == [ChangeKind.PREEMPT, ChangeKind.START]
    assert [c.kind for c in fit(snapshot, changes, {"1": "so"})] == [ChangeKind.STAY, ChangeKind.WAIT]


@pytest.mark.parametrize(
    ("needs", "cpus", "why"),
    [(Needs(by_user=True), None, "jobs of others are on n1"), (Needs(cpus=3.0), 4, "3 CPUs are not free on n1")],
)
def test_who_stays_keeps_others_away_who_may_not_be_beside_it(needs: Needs, cpus: int | None, why: str) -> None:
    """Though GPUs are free there: another user's job, or one for which no CPUs are left."""
    speeds = {"v100": Speed(1.0)}
    at = {n: Placement.of({n: {"v100": 1}}) for n in ("n1", "n2")}
    stays = Job("1", Form(1), user="alice", state=JobState.RUNNING, placement=at["n1"], speeds=speeds, needs=needs)
    starts = Job("2", Form(1), user="bob", speeds=speeds, needs=needs)
    snapshot = Snapshot(0.0, tuple(Node(n, {"v100": 4}, cpus=cpus) for n in at), (stays, starts))
    plan = Plan("x", {"1": at["n2"], "2": at["n1"]})

    allowed = limit(snapshot, changes_of(snapshot, plan), load(None))
    moved, waits = limit(snapshot, changes_of(snapshot, plan), load(None, ["guard.max_preemptions=0"]))

    assert [c.new for c in allowed] == [at["n2"], at["n1"]]
    assert (moved.new, waits.kind) == (at["n1"], ChangeKind.WAIT) and why in str(waits.veto)


def _for_shorter(*, longer: int, shorter: int) -> tuple[Snapshot, Plan]:
    """A node on which longer jobs run, and a plan that stops them all for shorter ones, which gain more."""
    one, speeds = Placement.of({"a": {"v100": 1}}), {"v100": Speed(1.0)}
    runs = [Job(f"l{n}", Form(1), state=JobState.RUNNING, placement=one, speeds=speeds) for n in range(longer)]
    waits = [Job(f"s{n}", Form(1), speeds=speeds) for n in range(shorter)]
    snapshot = Snapshot(0.0, (Node("a", {"v100": longer}),), (*runs, *waits))
    come = [job.job_id for job in waits[:longer]]
    return snapshot, Plan("x", dict.fromkeys(come, one), payoffs=dict.fromkeys(come, 2.0))


@pytest.mark.parametrize(("shorter", "share", "stops", "starts"), [(16, 0.2, 2, 2), (16, 0.15, 1, 1), (16, 0.05, 1, 0)])
def test_who_starts_counts_together_with_who_makes_room(shorter: int, share: float, stops: int, starts: int) -> None:
    """Those that are stopped gain nothing by it, and must not be put off for the starts that need their GPUs; nor is
    one stopped for whom nobody comes, but where a round may make a single change."""
    snapshot, plan = _for_shorter(longer=4, shorter=shorter)

    changes = limit(snapshot, changes_of(snapshot, plan), load(None, [f"guard.max_changed_share={share}"]))

    kinds = [c.kind for c in changes]
    assert (kinds.count(ChangeKind.PREEMPT), kinds.count(ChangeKind.START)) == (stops, starts)


def test_nobody_is_stopped_for_a_gang_that_another_keeps_from_starting() -> None:
    """Two jobs run where a gang of two shall, and one of them has waited too long to be stopped again."""
    single, both = (Placement.of({"a": {"v100": n}}) for n in (1, 2))
    speeds, ran_s = {"v100": Speed(1.0)}, {"1": 1.0, "2": 900.0}
    runs = Job("", Form(1), state=JobState.RUNNING, placement=single, speeds=speeds)
    ran = [replace(runs, job_id=job_id, attained_s=seconds) for job_id, seconds in ran_s.items()]
    snapshot = Snapshot(1000.0, (Node("a", {"v100": 2}),), (*ran, Job("3", Form(2), speeds=speeds)))

    changes = limit(snapshot, changes_of(snapshot, Plan("x", {"3": both}, payoffs={"3": 1.0})), load(None))

    assert [c.kind for c in changes] == [ChangeKind.STAY, ChangeKind.STAY, ChangeKind.WAIT]
    assert "max_stretch" in changes[0].why and "put off" in changes[1].why and "did not come free" in changes[2].why


@pytest.mark.parametrize(
    ("steps", "boot_s", "to", "moves"),
    [
        (2000, 180.0, "b", True),  # 2000 s where it is, 1000 s and a boot there
        (300, 180.0, "b", False),
        (300, 0.0, "b", True),
        (300, 180.0, "c", True),  # for others' sake: it is no faster there
    ],
)
def test_nobody_is_moved_for_less_than_a_boot(steps: float, boot_s: float, to: str, moves: bool) -> None:
    """Policies know what a restart costs; that the new node has to be switched on first costs minutes more."""
    nodes = (Node("a", {"p100": 1}), Node("b", {"v100": 1}, boot_s=boot_s), Node("c", {"k80": 1}, boot_s=boot_s))
    speeds = {"p100": Speed(1.0), "v100": Speed(2.0), "k80": Speed(0.5)}
    there = {"a": "p100", "b": "v100", "c": "k80"}
    job = Job("1", Form(1), state=JobState.RUNNING, placement=Placement.of({"a": {"p100": 1}}), speeds=speeds,
              total_steps=steps, restart_cost_s=10.0)  # fmt: skip
    snapshot = Snapshot(0.0, nodes, (job,))
    plan = Plan("x", {"1": Placement.of({to: {there[to]: 1}})})

    (change,) = limit(snapshot, changes_of(snapshot, plan), load(None, []))

    assert change.kind is (ChangeKind.MOVE if moves else ChangeKind.STAY)
    assert moves or "3 min" in change.veto

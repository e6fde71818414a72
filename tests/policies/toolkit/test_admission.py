"""What the cluster would refuse is kept out of every policy's plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_hadar.model import (
    Draw,
    Form,
    Job,
    JobState,
    Mix,
    Needs,
    Node,
    Placement,
    Plan,
    Quota,
    Snapshot,
    Speed,
    Tier,
    Wait,
)
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.admission import _Booking, refusals, within_bounds

POLICIES = ["hadar", "hadare", "asrpt", "gavel_las", "tiresias", "allox", "srtf", "fifo"]
SPEEDS = {"v100": Speed(4.0), "k80": Speed(1.0)}


def job(name: str, workers: int = 1, **fields: object) -> Job:
    """A job of ten minutes on a v100."""
    given_ = {
        "form": Form(workers),
        "speeds": SPEEDS,
        "total_steps": 2400.0,
        "arrival": float(name.strip("abcdefgh") or 0),
    }
    return Job(name, **{**given_, **fields})


def cluster(*jobs: Job, quotas: tuple[Quota, ...] = (), cpus: int | None = None, **node: object) -> Snapshot:
    """Two nodes of four GPUs."""
    nodes = tuple(Node(n, {t: 4}, cpus=cpus, **node) for n, t in (("n1", "v100"), ("n2", "k80")))
    return Snapshot(1000.0, nodes, jobs, quotas=quotas)


def draws(quota: str, per: str = "job", each: float = 1.0) -> Needs:
    return Needs(draws=(Draw(quota, per, each),))


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_at_a_limit_leave_their_gpus_to_others(policy: str) -> None:
    """24 jobs of a user who may have one GPU more; the six of others get theirs in the same round."""
    limited = [job(f"a{i}", needs=draws("gpus of alice", "gpu"), user="alice") for i in range(24)]
    others = [job(f"b{100 + i}", user="bob") for i in range(6)]
    snapshot = cluster(*limited, *others, quotas=(Quota("gpus of alice", 1.0, "alice may have 1 GPU"),))

    plan = registry.get(policy).allocate(snapshot)

    started = [a for a in limited if a.job_id in plan.placements]
    assert len(started) == 1 and check_plan(snapshot, plan) == []
    alone = registry.get(policy).allocate(cluster(*started, *others))
    assert set(plan.placements) == set(alone.placements) and len(alone.placements) >= 4
    assert all(plan.waits[a.job_id].why == "alice may have 1 GPU" for a in limited if a.job_id not in plan.placements)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("needs", [Needs(exclusive=True), Needs(cpus=1.0, memory_per_cpu=9.0)], ids=["whole", "memory"])
def test_jobs_without_room_on_any_node_leave_their_gpus_to_others(policy: str, needs: Needs) -> None:
    """24 jobs that want whole nodes, or more memory than is free; the others get their GPUs in the same round."""
    large = [job(f"a{i}", needs=needs) for i in range(24)]
    others = [job(f"b{100 + i}") for i in range(6)]
    shared = {"shared": True, "memory_bytes": 8}

    plan = registry.get(policy).allocate(cluster(*large, *others, **shared))

    alone = registry.get(policy).allocate(cluster(*others, **shared))
    assert set(plan.placements) == set(alone.placements) and len(alone.placements) >= 4
    assert {a.job_id for a in large} <= plan.waits.keys()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("left", "size"), [(0.0, None), (1.0, 1), (3.0, 2), (9.0, 4)])
def test_an_elastic_job_takes_the_size_that_a_limit_leaves_it(policy: str, left: float, size: int | None) -> None:
    """All GPUs are free, and it would take four."""
    speeds = {n: {t: Speed(s.steps_per_s * n**0.9) for t, s in SPEEDS.items()} for n in (1, 2, 4)}
    elastic = job("a0", 4, form=Form(4, sizes=(1, 2, 4)), speeds=speeds[4], scaled=speeds, needs=draws("q", "gpu"))

    plan = registry.get(policy).allocate(cluster(elastic, quotas=(Quota("q", left, "the limit is reached"),)))

    placed = plan.placements.get("a0")
    most = placed.workers if placed else None
    assert most == size or (policy != "hadar" and most is not None and most <= left)
    assert placed or plan.waits["a0"].why == "the limit is reached"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "form",
    [Form(1, types=frozenset({"v100"})), Form(1, nodes=frozenset({"n1"})), Form(4, mix=Mix.NEVER)],
    ids=["type", "node", "gang"],
)
def test_a_node_whose_cpus_are_gone_for_now_is_no_reason_to_give_up(policy: str, form: Form) -> None:
    """The job is told of the CPUs, not that it cannot run: the only node that will do has none left now."""
    speeds = {"v100": Speed(4.0)} if form.workers == 4 else SPEEDS
    first = job("a0", form=Form(1, nodes=frozenset({"n1"})), needs=Needs(cpus=8.0))
    late = [job(f"b{100 + i}", form=form, speeds=speeds, needs=Needs(cpus=8.0)) for i in range(2)]
    running = replace(first, state=JobState.RUNNING, placement=Placement.of({"n1": {"v100": 1}}), unmovable="so")
    snapshot = cluster(running, *late, cpus=9)
    nodes = (replace(snapshot.nodes[0], cpus=1), snapshot.nodes[1])  # as the controller shows what is left

    plan = registry.get(policy).allocate(replace(snapshot, nodes=nodes))

    for waiting in late:
        wait = plan.waits[waiting.job_id]
        assert wait.tier is not Tier.CANNOT_RUN and "cannot run" not in wait.why, wait


def test_what_is_refused_in_the_last_try_is_not_placed() -> None:
    """A policy that plans one more job over a limit in each try: none of them is both placed and waiting."""
    jobs = [job(f"a{i}", needs=draws(f"q{i}")) for i in range(8)]
    quotas = tuple(Quota(f"q{i}", 0.0, "nothing is left") for i in range(8))

    def one(_policy: object, snapshot: Snapshot) -> Plan:
        first, *rest = snapshot.jobs
        waits = {j.job_id: Wait(Tier.POLICY, "not the first") for j in rest}
        return Plan("one", {first.job_id: Placement.of({"n1": {"v100": 1}})}, waits)

    plan = within_bounds(one)(None, cluster(*jobs, quotas=quotas))

    assert plan.placements == {} and plan.waits.keys() == {j.job_id for j in jobs}


@pytest.mark.parametrize("policy", POLICIES)
def test_blocked_jobs_are_not_shown(policy: str) -> None:
    """They wait with their reason, whatever the policy; what runs is not touched by a word about waiting."""
    blocked = [job(f"a{i}", blocked="Slurm keeps it back: Licenses") for i in range(12)]
    running = job(
        "c50", state=JobState.RUNNING, placement=Placement.of({"n1": {"v100": 1}}), blocked="?", unmovable="so"
    )
    snapshot = cluster(*blocked, running, job("b100"))

    plan = registry.get(policy).allocate(snapshot)

    assert set(plan.placements) == {"b100", "c50"} and check_plan(snapshot, plan) == []
    assert {plan.waits[b.job_id].why for b in blocked} == {"Slurm keeps it back: Licenses"}


@pytest.mark.parametrize("policy", POLICIES)
def test_cpus_memory_and_whole_nodes(policy: str) -> None:
    """A node whose CPUs are gone takes no more jobs though its GPUs are free; who wants a node alone gets one alone."""
    hungry = [job(f"a{i}", needs=Needs(cpus=8.0)) for i in range(4)]
    alone = job("c3", needs=Needs(cpus=1.0, exclusive=True))
    modest = [job(f"b{100 + i}", needs=Needs(cpus=1.0)) for i in range(2)]
    snapshot = cluster(*hungry, alone, *modest, cpus=9)

    plan = registry.get(policy).allocate(snapshot)

    assert refusals(snapshot, plan) == [] and check_plan(snapshot, plan) == []
    assert len(plan.placements) >= 2


def test_what_stays_is_granted_and_what_leaves_makes_room() -> None:
    """A limit that is overdrawn already stops nobody who runs; a job that is stopped gives back what it held."""
    held = Placement.of({"n2": {"k80": 4}})
    stays = job("a1", 4, state=JobState.RUNNING, placement=held, unmovable="so", needs=draws("q", "gpu"))
    snapshot = cluster(stays, job("b2", needs=draws("q", "gpu")), quotas=(Quota("q", -2.0, "over"),))

    plan = registry.get("fifo").allocate(snapshot)

    assert plan.placements == {"a1": held} and plan.waits["b2"].why == "over"


def test_who_counted_on_the_gpus_of_a_job_that_stays_after_all_waits() -> None:
    """A move that is refused in the last try leaves its job where it was, and nobody else there."""
    runs = job("a0", 4, state=JobState.RUNNING, placement=Placement.of({"n2": {"k80": 4}}), needs=draws("v", "v100"))
    others = [job(f"b{i}", 1, needs=draws(f"q{i}")) for i in range(1, 5)]
    quotas = (Quota("v", 0.0, "no v100 for you"), *(Quota(f"q{i}", float(i == 4), "none") for i in range(1, 5)))

    def moves(_policy: object, snapshot: Snapshot) -> Plan:
        """Moves a0 as if nothing had been said, and gives its GPU to the first who waits."""
        first = next(j for j in snapshot.jobs if not j.running)
        placed = {"a0": Placement.of({"n1": {"v100": 4}}), first.job_id: Placement.of({"n2": {"k80": 1}})}
        waits = {j.job_id: Wait(Tier.POLICY, "not the first") for j in snapshot.jobs if j.job_id not in placed}
        return Plan("moves", placed, waits)

    snapshot = cluster(runs, *others, quotas=quotas)
    plan = within_bounds(moves)(None, snapshot)

    assert plan.placements == {"a0": runs.placement}
    assert check_plan(snapshot, plan) == [] and refusals(snapshot, plan) == []


needs = st.builds(
    Needs,
    cpus=st.sampled_from([0.0, 1.0, 4.0, 9.0]),
    cpus_per_gpu=st.sampled_from([0.0, 2.0]),
    memory_per_cpu=st.sampled_from([0.0, 1.0, 3.0]),
    exclusive=st.booleans(),
    by_user=st.booleans(),
    draws=st.lists(
        st.builds(Draw, st.sampled_from(["q", "r"]), st.sampled_from(["job", "gpu", "node", "v100"]), st.just(1.0)),
        max_size=2,
        unique_by=lambda d: d.quota,
    ).map(tuple),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A few jobs that run or wait, and little of everything."""
    jobs = []
    free = {"n1": 4, "n2": 4}
    for i in range(draw(st.integers(1, 9))):
        size = draw(st.sampled_from([1, 2, 4]))
        one = job(
            f"a{i}",
            size,
            needs=draw(needs),
            user=draw(st.sampled_from("ab")),
            blocked=draw(st.sampled_from([None, None, None, "so"])),
        )
        where = draw(st.sampled_from([None, "n1", "n2"]))
        if where and free[where] >= size:
            free[where] -= size
            at = Placement.of({where: {"v100" if where == "n1" else "k80": size}})
            movable = draw(st.sampled_from([None, "stays"]))
            one = replace(one, state=JobState.RUNNING, placement=at, unmovable=movable, blocked=None)
            if one.needs.exclusive and free[where] == 4 - size:
                free[where] = 0
                one = replace(one, whole=Placement.of({where: {"v100" if where == "n1" else "k80": 4}}))
        jobs.append(one)
    quotas = tuple(Quota(name, float(draw(st.integers(-1, 6))), f"{name} is used up") for name in ("q", "r"))
    return cluster(
        *jobs, quotas=quotas, cpus=draw(st.sampled_from([None, 4, 10])), memory_bytes=draw(st.sampled_from([None, 8]))
    )


@given(snapshots(), st.sampled_from(POLICIES))
def test_no_plan_is_over_any_bound(snapshot: Snapshot, policy: str) -> None:
    """Whatever there is little of, and whoever decides: every plan keeps its contract and would be carried out."""
    plan = registry.get(policy).allocate(snapshot)

    assert refusals(snapshot, plan) == []
    assert check_plan(snapshot, plan) == []
    assert not [j for j in plan.placements if snapshot.job[j].blocked and not snapshot.job[j].running]


@given(snapshots(), st.sampled_from(POLICIES), st.data())
def test_beside_who_is_left_alone_nobody_is_planned_that_has_no_room(
    snapshot: Snapshot, policy: str, data: st.DataObject
) -> None:
    """Of what runs some is left where it is, and the others are planned: together they fit, if what ran did."""
    jobs = [replace(j, needs=replace(j.needs, cpus=max(1.0, j.needs.cpus))) for j in snapshot.jobs]
    snapshot = replace(cluster(*jobs), nodes=tuple(replace(n, cpus=n.cpus or 10) for n in snapshot.nodes))
    run = {j.job_id: j.placement for j in jobs if j.running}
    anew = snapshot.with_jobs([replace(j, state=JobState.PENDING, placement=Placement()) for j in jobs])
    assume(run and not refusals(anew, Plan("runs", run)))
    alone = data.draw(st.sets(st.sampled_from(sorted(run)), min_size=1))

    left = snapshot.without(dict.fromkeys(alone, "so"))
    plan = registry.get(policy).allocate(left)

    together = {**plan.placements, **{j: run[j] for j in alone}}
    assert check_plan(left, plan) == [] and refusals(snapshot, replace(plan, placements=together)) == []
    for node, before in zip(left.nodes, snapshot.nodes, strict=True):
        assert (node.cpus or 0) <= (before.cpus or 0) and (node.memory_bytes or 0) <= (before.memory_bytes or 0)
    assert snapshot.without({}) == snapshot


@given(st.data())
def test_whatever_a_policy_plans_the_last_word_keeps_the_contract(data: st.DataObject) -> None:
    """One that looks at GPUs alone, and plans anew at random in each try."""
    snapshot = data.draw(snapshots())

    def wild(_policy: object, shown: Snapshot) -> Plan:
        free = {"n1": 4, "n2": 4}
        placed = {j.job_id: j.placement for j in shown.jobs if j.running and j.unmovable}
        for placement in placed.values():
            free[placement.nodes[0]] -= placement.workers
        for one in data.draw(st.permutations([j for j in shown.jobs if j.job_id not in placed])):
            open_ = [n for n in free if free[n] >= one.form.workers and one.form.admits_node(n)]
            if open_:
                node = data.draw(st.sampled_from(open_))
                free[node] -= one.form.workers
                placed[one.job_id] = Placement.of({node: {"v100" if node == "n1" else "k80": one.form.workers}})
        return Plan("wild", placed, {j.job_id: Wait(Tier.POLICY, "so") for j in shown.jobs if j.job_id not in placed})

    plan = within_bounds(wild)(None, snapshot)

    assert refusals(snapshot, plan) == []
    assert check_plan(snapshot, plan) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_jobs_of_a_partition_may_have_of_a_node(policy: str) -> None:
    """Two jobs of four CPUs are more than the partition may have there; those of another share the node all the same,
    and so does one that may start in either."""
    form, needs = Form(1, nodes=frozenset({"n1"})), Needs(cpus=4.0)
    jobs = [job(f"a{i}", form=form, needs=needs, partition=p) for i, p in enumerate(("mc", "mc", "all", "all,mc"))]
    one = cluster(*jobs, cpus=32, partitions=("all", "mc"), partition_cpus={"mc": 6})

    plan = registry.get(policy).allocate(one)

    assert refusals(one, plan) == [] and check_plan(one, plan) == []
    assert len({"a0", "a1"} & plan.placements.keys()) <= 1
    alone = cluster(jobs[0], cpus=32, partitions=("all", "mc"), partition_cpus={"mc": 3})
    waits = registry.get(policy).allocate(alone).waits["a0"]
    assert waits.why == "partition mc has no 4 of its MaxCPUsPerNode left on n1"


@pytest.mark.parametrize("policy", ["hadar", "gavel_las", "tiresias", "allox", "srtf", "fifo"])
def test_many_nodes_with_gpus_and_no_cpus_do_not_hide_those_with_both(policy: str) -> None:
    """Who runs there could be moved, so each node might have room: all such are ruled out at once, not one by one."""
    nodes = [Node(f"v{i}", {"v100": 4}, cpus=32, cpu_step=16) for i in range(12)]
    there = [
        job(
            f"a{2 * i + k}",
            needs=Needs(cpus=1.0),
            state=JobState.RUNNING,
            placement=Placement.of({f"v{i}": {"v100": 1}}),
            speeds={"v100": Speed(4.0), "k80": Speed(3.9)},
        )
        for i in range(12)
        for k in range(2)
    ]
    waiting = [
        job(f"b{100 + i}", needs=Needs(cpus=1.0), speeds={"v100": Speed(4.0), "k80": Speed(3.9)}) for i in range(4)
    ]
    snapshot = Snapshot(1000.0, (*nodes, Node("k", {"k80": 4}, cpus=32)), (*there, *waiting))

    plan = registry.get(policy).allocate(snapshot)

    assert len(plan.placements) == 28 and refusals(snapshot, plan) == []


def test_what_nodes_lack_is_looked_up_once_for_jobs_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 jobs of two kinds wait, and 20 nodes have GPUs free but not the CPUs: jobs times nodes would be 6,000."""
    nodes = tuple(Node(f"n{i:02d}", {"v100": 1}, cpus=2) for i in range(20))
    jobs = tuple(job(f"a{i}", needs=Needs(cpus=4.0 + i % 2)) for i in range(300))
    looked: list[str] = []
    lacking = _Booking.lacking

    def counted(booking: _Booking, one: Job, node: Node, gpus: int) -> str | None:
        looked.append(node.name)
        return lacking(booking, one, node, gpus)

    monkeypatch.setattr(_Booking, "lacking", counted)

    plan = registry.get("fifo").allocate(Snapshot(1000.0, nodes, jobs))

    assert not plan.placements and {w.why for w in plan.waits.values()} == {
        "4 CPUs are not free on n19",
        "5 CPUs are not free on n19",
    }
    assert len(looked) <= 5 * len(nodes)  # as planned, and for each kind beside who was booked, and were nobody there

"""What Slurm would refuse beside GPUs in use, told beforehand where it shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.bounds import QuotaBook, node_room
from slurm_hadar.model import Form, JobState, Partition, Placement
from slurm_hadar.slurm.state import (
    Access,
    Bounds,
    ClusterState,
    Licence,
    Limit,
    PartitionTerms,
    Reservation,
    SlurmJob,
    SlurmNode,
)
from tests.controller.steering.waiting import RECORD, job


def bounds(*jobs: SlurmJob, **said: object) -> QuotaBook:
    return QuotaBook(ClusterState(1000.0, jobs, bounds=Bounds(**said)))


def test_every_limit_that_binds_a_job_is_drawn_from() -> None:
    """Its QOS's, its user's under it, its account's and those above; of GPUs, of one type, CPUs, memory, jobs."""
    limits = (
        Limit(("qos", "small"), "gres/gpu", 6, 2), Limit(("qos-user", "small", "1001"), "cpu", 10, 3),
        Limit(("qos-user", "small", "1002"), "cpu", 1, 1), Limit(("account", "top"), "jobs", 5, 5),
        Limit(("user", "lab", "eve"), "mem", 8 << 30, 1 << 30), Limit(("qos", "large"), "gres/gpu", 1, 1),
        Limit(("qos", "small"), "gres/gpu:v100", 3, 0), Limit(("qos", "small"), "billing", 3, 0),
    )  # fmt: skip
    one = bounds(limits=limits, parents={"lab": "top"})

    draws = one.needs(job(), RECORD).draws

    held = Placement.of({"v100-1": {"v100": 2}})
    assert {d.quota: (one.quotas[d.quota].left, d.amount(held)) for d in draws} == {
        "qos small gres/gpu": (4.0, 2.0),
        "qos-user small 1001 cpu": (7.0, 4.0),
        "account top jobs": (0.0, 1.0),
        "user lab eve mem": (float(7 << 30), float(4 << 30)),
        "qos small gres/gpu:v100": (3.0, 2.0),
    }
    assert "account top" in one.quotas["account top jobs"].words


def test_of_a_limit_that_two_qos_have_one_counts() -> None:
    """The partition's or the job's own: which of them is not shown, so the one that leaves more. What only one of them
    limits counts, whichever it is; of several partitions only where all have the same QOS."""
    limits = (
        Limit(("qos-user", "small", "1001"), "gres/gpu", 2, 2), Limit(("qos-user", "of-p", "1001"), "gres/gpu", 8, 2),
        Limit(("qos", "of-p"), "cpu", 64, 60), Limit(("qos", "small"), "cpu", 99, 96),
        Limit(("qos", "small"), "node", 5, 1), Limit(("qos-user", "of-p", "1001"), "jobs", 3, 1),
        Limit(("qos", "of-p"), "gres/gpu", 4, each_job=True),
    )  # fmt: skip
    terms = {"p": PartitionTerms(own_qos="of-p"), "r": PartitionTerms(own_qos="of-p"), "s": PartitionTerms()}
    one = bounds(limits=limits, partitions=terms)

    drawn = {p: {d.quota for d in one.needs(job(partition=p), RECORD).draws} for p in ("p", "p,r", "p,s", "s")}

    own = {"qos small cpu", "qos small node", "qos-user small 1001 gres/gpu"}
    assert drawn["p"] == drawn["p,r"] == {
        "qos-user of-p 1001 gres/gpu", "qos of-p cpu", "qos small node", "qos-user of-p 1001 jobs",
    }  # fmt: skip
    assert drawn["s"] == drawn["p,s"] == own
    assert one.beyond(job(partition="p"), RECORD, Form(3)) is None
    assert one.beyond(job(partition="s"), RECORD, Form(3)) is not None
    assert one.may_have(job(partition="s"), RECORD, 2, 1) and not one.may_have(job(partition="p"), RECORD, 3, 1)


def test_what_a_qos_limits_is_not_limited_by_an_association() -> None:
    limits = (
        Limit(("qos", "small"), "gres/gpu", 8, 2), Limit(("account", "lab"), "gres/gpu", 2, 2),
        Limit(("account", "lab"), "cpu", 9, 1), Limit(("qos-user", "small", "1001"), "jobs", 9, 1),
        Limit(("user", "lab", "eve"), "jobs", 1, 1), Limit(("qos", "small"), "cpu", 4, each_job=True),
    )  # fmt: skip
    one = bounds(limits=limits)

    drawn = {d.quota for d in one.needs(job(), RECORD).draws}

    assert drawn == {"qos small gres/gpu", "account lab cpu", "qos-user small 1001 jobs"}


def test_a_limit_binds_once_where_accounts_go_round_in_a_circle() -> None:
    one = bounds(limits=(Limit(("account", "lab"), "jobs", 5, 0),), parents={"lab": "top", "top": "lab"})

    assert [d.quota for d in one.needs(job(), RECORD).draws] == ["account lab jobs"]


def test_who_asks_for_more_than_a_limit_allows_never_starts() -> None:
    """However few run; an elastic job may be small enough."""
    scope = ("qos-user", "small", "1001")
    one = bounds(limits=(Limit(scope, "gres/gpu", 1, 0), Limit(scope, "cpu", 4, 4)))
    roomy = bounds(limits=(Limit(scope, "gres/gpu", 2, 2), Limit(scope, "mem", 4 << 30, 0)))

    told = "asks for more than the limit of QOS small for each user allows: 1 gres/gpu at once"
    assert one.beyond(job(), RECORD, Form(2)) == told
    assert one.beyond(job(), RECORD, Form(1)) is None and roomy.beyond(job(), RECORD, Form(2)) is None
    less = bounds(limits=(Limit(("account", "lab"), "mem", 1 << 30, 0),))
    assert less.beyond(job(), RECORD, Form(1)) == (
        "asks for more than the limit of account lab allows: 1 GiB of memory at once"
    )


def test_licences_and_array_throttles() -> None:
    """So many are free, so many tasks run already; one licence of several is Slurm's to choose."""
    running = [job(job_id=f"9_{i}", array_id="9", state=JobState.RUNNING, throttle=3) for i in (1, 2)]
    waits = job(job_id="9_3", array_id="9", throttle=3, licenses="matlab:2,ansys,unknown:1")
    one = bounds(*running, waits, licences={"matlab": Licence("matlab", 5, 1), "ansys": Licence("ansys", 2, 2)})

    draws = {d.quota: d.each for d in one.needs(waits, RECORD).draws}

    assert draws == {"licence matlab": 2.0, "licence ansys": 1.0, "array 9": 1.0}
    assert (one.quotas["licence matlab"].left, one.quotas["array 9"].left) == (1.0, 1.0)
    assert one.needs(job(licenses="matlab:1|ansys:1"), RECORD).draws == ()


def test_cpus_and_memory_follow_the_shape() -> None:
    """A job with a task for each GPU takes CPUs with them; memory goes with CPUs."""
    plain, per_gpu = bounds().needs(job(), RECORD), bounds().needs(job(), replace(RECORD, tasks=2))

    assert (plain.cpus_for(1), plain.cpus_for(4), plain.memory_per_cpu) == (4.0, 4.0, float(1 << 30))
    assert (per_gpu.cpus_for(1), per_gpu.cpus_for(4)) == (2.0, 8.0)
    assert QuotaBook(ClusterState(0.0, memory_counts=False)).needs(job(), RECORD).memory_per_cpu == 0.0


def test_nodes_that_are_closed() -> None:
    """What the owner excludes; what is reserved for others, also when the job would run into it; only its own."""
    later = Reservation("later", frozenset({"b"}), 1500.0, 9000.0)
    part = Reservation("part", frozenset({"c"}), 0.0, 9000.0, whole=False)
    over = Reservation("over", frozenset({"d"}), 0.0, 900.0)
    one = bounds(reservations=(later, part, over))

    assert one.closed(job(exc_nodes=("a",)), 1000.0) == (None, frozenset({"a", "b"}))
    assert one.closed(job(time_limit_s=400.0), 1000.0) == (None, frozenset())
    assert one.closed(job(reservation="later"), 1000.0) == (frozenset({"b"}), frozenset())


def test_a_job_may_use_any_reservation_that_it_names_once_one_has_begun() -> None:
    """Before that it waits for the first of them; none is closed to it."""
    soon, late = (Reservation(n, frozenset({n}), at, 9000.0) for n, at in (("soon", 1500.0), ("late", 2000.0)))
    one, both = bounds(reservations=(late, soon)), job(reservation="late,soon")

    assert [one.awaited(both, now) for now in (1000.0, 1500.0)] == [soon, None]
    assert one.closed(both, 1000.0) == (frozenset({"soon", "late"}), frozenset())
    assert one.closed(both, 1500.0) == (frozenset({"soon"}), frozenset())
    assert one.awaited(job(reservation="gone"), 1000.0) is None is one.awaited(job(), 1000.0)


def test_a_job_of_a_flexible_reservation_waits_for_nothing() -> None:
    """It may begin before the reservation does, and on other nodes; others may not."""
    one = bounds(reservations=(Reservation("flex", frozenset({"b"}), 1500.0, 9000.0, flex=True),))

    assert one.awaited(job(reservation="flex"), 1000.0) is None
    assert one.closed(job(reservation="flex"), 1000.0) == (None, frozenset())
    assert one.closed(job(), 1000.0) == (None, frozenset({"b"}))


def test_a_magnetic_reservation_takes_who_names_none() -> None:
    """While it lasts, whom its users and accounts admit, those below included; such a job may run elsewhere, too."""
    lab, now = Access(frozenset({"lab"})), 1000.0
    magnetic = Reservation("m", frozenset({"b"}), 0.0, 9000.0, magnetic=True, accounts=lab)
    one = bounds(reservations=(magnetic,), parents={"vision": "lab", "lab": "root"})
    others = replace(magnetic, users=Access(None, frozenset({"alice"})))

    assert one.closed(job(account="vision"), now) == (None, frozenset())
    assert one.closed(job(account="chem"), now) == (None, frozenset({"b"}))
    assert bounds(reservations=(others,)).closed(job(account="lab", user="alice"), now) == (None, frozenset({"b"}))
    assert bounds(reservations=(replace(magnetic, start=2000.0),)).closed(job(account="lab"), now)[1] == {"b"}
    assert one.closed(job(reservation="m", state=JobState.RUNNING), now)[0] is None
    assert one.closed(job(reservation="m"), now) == (frozenset({"b"}), frozenset())


def test_a_magnetic_reservation_that_outlasts_whom_it_takes() -> None:
    """As 26.05 has it: a job that names it may run to its own limit, others have to end before it does."""
    one = bounds(reservations=(Reservation("m", frozenset({"b"}), 0.0, 9000.0, magnetic=True, outlasts=True),))
    closed = {s: one.closed(job(time_limit_s=s), 1000.0)[1] for s in (8000.0, 8001.0, None)}

    assert closed == {8000.0: set(), 8001.0: {"b"}, None: {"b"}}
    assert one.closed(job(reservation="m", time_limit_s=None), 1000.0)[1] == set()


def test_nodes_of_partitions_that_do_not_take_the_job() -> None:
    """What only such have is closed to it; where none takes it, Slurm says so."""
    terms = {"b": PartitionTerms(accounts=Access(None, frozenset({"lab"})))}
    terms |= {"c": PartitionTerms(qos=Access(frozenset("q")))}
    partitions = (Partition("a", ("x", "y")), Partition("b", ("y", "z")), Partition("c", ("w",)))
    state = ClusterState(0.0, partitions=partitions, bounds=Bounds(partitions=terms))
    book = QuotaBook(state)
    closed = {p: book.closed(job(partition=p, qos="n"), 0.0)[1] for p in ("a,b,c", "b", "b,c")}

    assert closed == {"a,b,c": {"z", "w"}, "b": set(), "b,c": set()}
    assert book.closed(job(partition="a,b,c", account="chem", qos="q"), 0.0)[1] == set()


@pytest.mark.parametrize(
    ("accounts", "closed"),
    [(Access(frozenset({"physics"})), set()), (Access(frozenset({"lab"})), set()), (Access(frozenset({"chem"})), {"z"}),
     (Access(None, frozenset({"physics"})), set()), (Access(None, frozenset({"lab"})), {"z"})],
)  # fmt: skip
def test_accounts_below_those_that_a_partition_names(accounts: Access, closed: set[str]) -> None:
    """Newer releases take them for named, older ones do not: what either takes is tried."""
    terms = {"b": PartitionTerms(accounts=accounts)}
    state = ClusterState(
        0.0,
        partitions=(Partition("a", ("x",)), Partition("b", ("z",))),
        bounds=Bounds(partitions=terms, parents={"lab": "physics"}),
    )
    assert QuotaBook(state).closed(job(partition="a,b"), 0.0)[1] == closed


def test_no_job_is_given_more_than_its_owner_may_ask() -> None:
    """GPUs, CPUs that go with them, and nodes."""
    one = bounds(limits=(Limit(("qos", "small"), "gres/gpu", 4, each_job=True), Limit(("qos", "small"), "cpu", 6, 0)))

    assert one.may_have(job(), RECORD, 3, 1)
    assert not one.may_have(job(), RECORD, 4, 2)  # eight CPUs
    assert not one.may_have(job(num_cpus=1), RECORD, 8, 1)
    assert one.may_have(job(qos="large"), RECORD, 64, 8)


def test_what_a_node_has_left() -> None:
    """CPUs and memory that nobody holds but jobs that may be moved; others' jobs are seen."""
    node = SlurmNode("a", cpus=32, cpus_used=10, memory_bytes=100, memory_used_bytes=60)

    assert node_room(node, 10.0, 20.0, True) == (32, 60, False)
    assert node_room(node, 4.0, 0.0, False) == (26, None, True)
    assert node_room(SlurmNode("a"), 0.0, 0.0, True) == (None, None, False)


@pytest.mark.parametrize(("what", "each"), [("cpu", 1), ("mem", 1 << 30)])
@pytest.mark.parametrize(("tasks", "held"), [(1, [2, 4]), (2, [2, 8])])
def test_cpus_and_memory_grow_with_the_job(tasks: int, held: list[int], what: str, each: int) -> None:
    """With one task for each node they are each node's; with one for each GPU, each GPU's."""
    shapes = (Placement.of({"a": {"v100": tasks}}), Placement.of({"a": {"v100": 2 * tasks}, "b": {"v100": 2 * tasks}}))
    record = JobRecord("1", workers=tasks, nodes=1, tasks=tasks, cpus=2)
    now = job(num_cpus=2, memory_bytes=2 << 30)

    (draw,) = bounds(limits=(Limit(("qos-user", "small", "1001"), what, 100 * each),)).needs(now, record).draws

    assert [draw.amount(shape) / each for shape in shapes] == held


def test_a_job_that_has_grown_may_keep_its_size() -> None:
    """What its owner may ask for is reckoned from what was asked for, not from what the job has become."""
    record = JobRecord("1", workers=1, nodes=1, tasks=1, cpus=2)
    grown, one = job(num_nodes=2, num_cpus=4), bounds(limits=(Limit(("qos", "small"), "cpu", 4, each_job=True),))

    assert one.may_have(grown, record, 4, 2) and not one.may_have(grown, record, 6, 3)


def test_more_nodes_than_a_partition_allows_never_start() -> None:
    """Nor fewer; unless the job's form has a number of nodes that is allowed."""
    one = bounds(partitions={"all": PartitionTerms(max_nodes=1), "big": PartitionTerms(min_nodes=2)})
    record, pair = replace(RECORD, nodes=2), Form(2, min_nodes=2, max_nodes=2)

    told = "cannot start as it was submitted: asks for 2 nodes, and partition all allows 1 at most (MaxNodes)"
    assert one.beyond(job(), record, pair) == told
    assert one.beyond(job(), record, Form(2, max_nodes=2)) is None
    assert one.beyond(job(partition="all,big"), record, pair) is None
    few = one.beyond(job(partition="big"), RECORD, Form(2))
    assert few is not None and few.endswith("asks for 1 node, and partition big 2 at least (MinNodes)")


def test_cpus_that_are_counted_by_gpus() -> None:
    """By the job's own wish, or by its partition's default, where Slurm has not tried it and it asks for none."""
    one = bounds(partitions={"all": PartitionTerms(cpus_per_gpu=3)})
    record = replace(RECORD, cpus=1)

    assert one.needs(job(cpus_per_gpu=2), record).cpus_for(4) == 8.0
    assert one.needs(job(num_cpus=1), record).cpus_for(4) == 12.0
    assert one.needs(job(num_cpus=4), RECORD).cpus_for(4) == 4.0, "its owner counts them: -c 4"
    assert one.needs(job(num_cpus=1, restarts=1), record).cpus_for(4) == 1.0, "Slurm has not applied the default"
    assert bounds(limits=(Limit(("qos", "small"), "cpu", 8),)).may_have(job(cpus_per_gpu=3), record, 4, 1) is False

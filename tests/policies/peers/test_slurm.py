"""Policy slurm: order of submission with backfill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Form, Job, JobState, Mix, Node, Placement, Snapshot, Speed, Tier
from slurm_hadar.policies import get
from slurm_hadar.policies.baselines.slurm import Slurm

NOW = 1_000_000_025.0  # not a whole multiple of 30 s; of 60 s neither
MIN = 60.0
SPEEDS = {"v100": Speed(2.0), "k80": Speed(1.0)}


def node(name: str, gpus: int = 4) -> Node:
    return Node(name, {name.partition("-")[0]: gpus})


def running(job_id: str, place: dict[str, int], ran_s: float, limit_s: float | None) -> Job:
    held = Placement.of({n: {n.partition("-")[0]: count} for n, count in place.items()})
    form = Form(held.workers, len(place), len(place))
    return Job(
        job_id,
        form,
        state=JobState.RUNNING,
        arrival=0.0,
        started=NOW - ran_s,
        placement=held,
        speeds=SPEEDS,
        time_limit_s=limit_s,
    )


def waiting(job_id: str, gpus: int, limit_s: float | None = 10 * MIN, nodes: int = 1, **form: object) -> Job:
    shape = Form(gpus, nodes, nodes, **form)
    return Job(job_id, shape, arrival=float(job_id), speeds=SPEEDS, time_limit_s=limit_s)


def started(jobs: list[Job], nodes: tuple[Node, ...], policy: Slurm | None = None, **changes: object) -> dict[str, str]:
    """Which of the waiting jobs start, and where."""
    snapshot = replace(Snapshot(NOW, nodes, tuple(jobs)), **changes)
    plan = (policy or Slurm()).allocate(snapshot)
    there = {j.job_id for j in jobs if j.running}
    return {j: "+".join(p.nodes) for j, p in plan.placements.items() if j not in there}


ONE = (node("v100-1"),)
TWO = (node("v100-1"), node("v100-2"))
HALF = running("1", {"v100-1": 2}, 5 * MIN, 15 * MIN)  # is over in 10 minutes at the latest


def test_backfill_delays_nobody() -> None:
    """Behind a gang that is promised the node in 10 minutes, only jobs start that are over by then, by their limits."""
    gang = waiting("2", 4)

    assert started([HALF, gang, waiting("3", 2, 9 * MIN)], ONE) == {"3": "v100-1"}
    assert started([HALF, gang, waiting("3", 2, 10 * MIN)], ONE, Slurm(resolution_s=1.0)) == {"3": "v100-1"}
    assert started([HALF, gang, waiting("3", 2, 10 * MIN)], ONE) == {}  # promises begin at whole minutes
    assert started([HALF, gang, waiting("3", 2, 11 * MIN)], ONE) == {}
    assert started([HALF, gang, waiting("3", 2, None)], ONE) == {}
    assert started([HALF, waiting("3", 2, None)], ONE) == {"3": "v100-1"}


def test_whole_nodes_are_promised() -> None:
    """The gang of 3 would leave a GPU to a longer job, but Slurm promises nodes and not GPUs."""
    assert started([HALF, waiting("2", 3), waiting("3", 1, 60 * MIN)], ONE) == {}
    # the long job has only what is left of the first node, which is promised to nobody
    jobs = [HALF, running("9", {"v100-2": 4}, 0.0, 5 * MIN), waiting("2", 4), waiting("3", 2, 60 * MIN)]
    assert started(jobs, TWO) == {"3": "v100-1"}


def test_each_that_waits_is_promised_a_place() -> None:
    """Conservative: also the second in line, whom a later job would delay although it does not delay the first."""
    full = [running("8", {"v100-1": 4}, 0.0, 20 * MIN), running("9", {"v100-2": 2}, 0.0, 10 * MIN)]
    second = [waiting("2", 4, 60 * MIN), waiting("3", 4, 60 * MIN)]

    assert started([*full, *second, waiting("4", 2, 9 * MIN)], TWO) == {"4": "v100-2"}
    assert started([*full, *second, waiting("4", 2, 15 * MIN)], TWO) == {}
    assert started([*full, second[1], waiting("4", 2, 25 * MIN)], TWO) == {}
    one = Slurm(depth=1)  # nobody is promised anything but the first in line, and no other is looked at
    assert started([*full, *second, waiting("4", 2, 9 * MIN)], TWO, one) == {}


def test_nothing_is_promised_beyond_the_window() -> None:
    """Nor where a running job has no limit: whoever fits goes first, as in Slurm."""
    for_ever = running("1", {"v100-1": 2}, 0.0, None)
    assert started([for_ever, waiting("2", 4), waiting("3", 2, None)], ONE) == {"3": "v100-1"}
    far = Slurm(window_s=5 * MIN)
    assert started([HALF, waiting("2", 4), waiting("3", 2, 60 * MIN)], ONE, far) == {"3": "v100-1"}


def test_backfill_looks_every_so_often() -> None:
    """Between its looks the main scheduler starts jobs in order only; in the controller's rounds it looks each time."""
    jobs = [HALF, waiting("2", 4), waiting("3", 2, 5 * MIN)]

    assert started(jobs, ONE, round_s=30.0) == {}
    assert started(jobs, ONE, round_s=30.0, time=1_000_000_040.0) == {}
    assert started(jobs, ONE, round_s=30.0, time=1_000_000_050.0) == {"3": "v100-1"}
    assert started(jobs, ONE, round_s=360.0) == {"3": "v100-1"}
    assert started([HALF, waiting("3", 2), waiting("4", 4)], ONE, round_s=30.0) == {"3": "v100-1"}


def test_jobs_of_one_partition_hold_up_that_alone() -> None:
    """The first that does not fit closes the nodes open to it, whatever the type it asks for."""
    nodes = (node("v100-1"), node("k80-1"))
    busy = running("1", {"v100-1": 4}, 0.0, None)
    typed = waiting("2", 4, types=frozenset({"v100"}))
    main = {"round_s": 30.0}

    assert started([busy, typed, waiting("3", 1, types=frozenset({"k80"}))], nodes, **main) == {}
    bound = waiting("2", 4, nodes=1)
    bound = replace(bound, form=replace(bound.form, nodes=frozenset({"v100-1"})))
    assert started([busy, bound, waiting("3", 1, types=frozenset({"k80"}))], nodes, **main) == {"3": "k80-1"}
    impossible = waiting("2", 64)
    assert started([busy, impossible, waiting("3", 1)], nodes, **main) == {"3": "k80-1"}


def test_where_slurm_puts_them() -> None:
    """By its own choice, blind to speeds; a gang on nodes of unlike types only where it may."""
    nodes = (node("v100-2"), node("v100-10"), node("k80-1"))

    assert started([waiting("2", 2)], nodes) == {"2": "k80-1"}
    assert started([waiting("2", 8, nodes=2)], nodes) == {"2": "v100-10+v100-2"}
    assert started([running("1", {"v100-10": 1}, 0.0, None), waiting("2", 8, nodes=2)], nodes) == {}
    mixed = waiting("2", 8, nodes=2, mix=Mix.GATED)
    assert started([running("1", {"v100-10": 1}, 0.0, None), mixed], nodes) == {"2": "k80-1+v100-2"}


def test_jobs_of_one_second_start_in_the_order_of_their_numbers() -> None:
    """Job 10 came after job 9."""
    jobs = [replace(waiting(i, 4), arrival=5.0) for i in ("10", "9")]
    assert started(jobs, ONE) == {"9": "v100-1"}


def test_overdue_jobs_may_end_at_any_moment() -> None:
    """One that is beyond its limit is about to be killed: nothing is started before it that lasts."""
    overdue = running("1", {"v100-1": 2}, 20 * MIN, 15 * MIN)
    assert started([overdue, waiting("2", 4), waiting("3", 2, 2 * MIN)], ONE) == {}


def test_why_they_wait() -> None:
    """First in line, or behind whom."""
    plan = Slurm().allocate(Snapshot(NOW, ONE, (HALF, waiting("2", 4), waiting("3", 4))))

    assert (plan.waits["2"].tier, plan.waits["3"].tier) == (Tier.CAPACITY, Tier.POLICY)
    assert plan.waits["2"].why == "first in line, but needs 4 GPUs that 1 hold"
    assert plan.waits["3"].why == "waits behind 2, which came first and needs these nodes"


def test_parameters() -> None:
    """Those of slurm.conf, refused where they make no sense."""
    assert get("slurm", interval_s="60", depth="100").at_once_s == 60.0 and get("fifo").at_once_s is None
    with pytest.raises(ConfigError, match="interval_s"):
        get("slurm", interval_s=0)

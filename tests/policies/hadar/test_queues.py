"""Queues for GPU pools: nobody gains by moving alone, prices are what others lose, and the target of the makespan."""

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog

from slurm_hadar.model import Form, Job, Node, Snapshot, Speed
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes
from slurm_hadar.policies.hadar.lookahead.makespan import with_leftovers
from slurm_hadar.policies.hadar.lookahead.outlook import survey
from slurm_hadar.policies.hadar.lookahead.prices import Aim, assign, balance, set_target
from slurm_hadar.policies.toolkit.arena import Arena

TYPES = ("v100", "p100", "k80")
NOW = 1000.0


def outlook_of(run_s: Any, gpus: Any, workers: Any = None, elastic: Any = False) -> Any:
    """Jobs that take ``run_s[j][r]`` seconds on the r-th type (None: never), where there are ``gpus[r]`` GPUs.
    ``elastic``: as if they could have other sizes, with which the queues are those of a fluid."""
    nodes = tuple(Node(t, {t: n}) for t, n in zip(TYPES, gpus, strict=False))
    jobs = []
    for j, row in enumerate(run_s):
        speeds = {t: Speed(1e6 / s) for t, s in zip(TYPES, row, strict=False) if s is not None}
        wide = (workers or {}).get(j, 1)
        form = Form(wide, sizes=(wide,) if elastic else ())
        jobs.append(Job(f"{j:03}", form, arrival=NOW, total_steps=1e6, speeds=speeds))
    return survey(Arena.of(Snapshot(NOW, nodes, tuple(jobs))), Lifetimes(3600.0))


def total_cost(outlook: Any, weights: Any, column: Any, terminal: Any) -> Any:
    """Each pool serves its jobs in the order of area / weight, one after the other on all of its GPUs: the weighted sum
    of completion times, and what waits behind all others for each area. Plain loops."""
    total = 0.0
    for pool, gpus in enumerate(outlook.gpus):
        mine = [j for j in range(len(column)) if outlook.pool_of[column[j]] == pool]
        area = {j: outlook.run_s[j, column[j]] * outlook.workers[j, column[j]] for j in mine}
        before = 0.0
        for j in sorted(mine, key=lambda j: area[j] / weights[j]):
            total += weights[j] * (outlook.run_s[j, column[j]] + before / gpus) + terminal[pool] * area[j] / gpus
            before += area[j]
    return total


def settled(outlook: Any, weights: Any, terminal: Any) -> Any:
    """Assigned again from its own result until nothing changes."""
    column = np.full(len(outlook.jobs), -1)
    for _ in range(20):
        queues = assign(outlook, outlook.run_s, weights, column, terminal)
        if (queues.column == column).all():
            return queues
        column = queues.column
    pytest.fail("the assignment does not settle")


@st.composite
def instances(draw: Any) -> Any:
    """Up to ten jobs, gangs among them, on one to three types, with weights and terminal weights: of a fluid."""
    gpus = draw(st.lists(st.sampled_from((1, 2, 5, 16)), min_size=1, max_size=3))
    seconds = st.sampled_from((None, 10.0, 60.0, 61.0, 1000.0, 9999.0))
    row = st.lists(seconds, min_size=len(gpus), max_size=len(gpus)).filter(any)
    run_s = draw(st.lists(row, min_size=1, max_size=10))
    workers = {j: draw(st.sampled_from((1, 1, min(2, min(gpus))))) for j in range(len(run_s))}
    weights = np.array([draw(st.sampled_from((0.1, 1.0, 1.0, 5.0))) for _ in run_s])
    terminal = np.array([draw(st.sampled_from((0.0, 0.0, 0.5, 20.0))) for _ in gpus])
    return outlook_of(run_s, gpus, workers, elastic=True), weights, terminal


@settings(deadline=None)
@given(instances())
def test_nobody_gains_by_moving_alone(instance: Any) -> None:
    """Once settled, the weighted sum of completion times falls with no move of one job."""
    outlook, weights, terminal = instance
    queues = settled(outlook, weights, terminal)
    reached = total_cost(outlook, weights, queues.column, terminal)
    for job, column in zip(*np.nonzero(np.isfinite(outlook.run_s)), strict=True):
        other = queues.column.copy()
        other[job] = column
        assert total_cost(outlook, weights, other, terminal) >= reached * (1 - 1e-8)


@settings(deadline=None)
@given(instances())
def test_a_price_is_what_the_jobs_behind_lose(instance: Any) -> None:
    """``after`` times a job's area is what the cost of all others falls by when the job is taken away; the job itself
    ends ``turn_s`` and its run time from now; the price now is that of the whole queue."""
    outlook, weights, terminal = instance
    queues = settled(outlook, weights, terminal)
    reached = total_cost(outlook, weights, queues.column, terminal)
    for job in range(len(weights)):
        rest = [j for j in range(len(weights)) if j != job]
        without = replace(outlook, run_s=outlook.run_s[rest], workers=outlook.workers[rest])
        others = total_cost(without, weights[rest], queues.column[rest], terminal)
        own = weights[job] * (queues.turn_s[job] + outlook.run_s[job, queues.column[job]])
        area = outlook.run_s[job, queues.column[job]] * outlook.workers[job, queues.column[job]]
        assert reached - others == pytest.approx(own + queues.after[job] * area)
    for pool in range(len(outlook.pools)):
        waiting = weights[outlook.pool_of[queues.column] == pool].sum()
        assert queues.price[pool] == pytest.approx((waiting + terminal[pool]) / outlook.gpus[pool])


def draw_run_s(rng: Any, jobs: Any, types: Any) -> Any:
    return [
        [10 ** rng.uniform(2, 4) * speed for speed in (1.0, rng.uniform(1, 3), rng.uniform(2, 9))[:types]]
        for _ in range(jobs)
    ]


def allox_optimum(outlook: Any, gpus: Any) -> Any:
    """The least sum of completion times of one-GPU jobs: the k-th from the last on a GPU counts k times."""
    jobs = len(outlook.jobs)
    cost = [outlook.run_s[:, r] * k for r, count in enumerate(gpus) for _ in range(count) for k in range(1, jobs + 1)]
    table = np.array(cost).T
    return table[linear_sum_assignment(table)].sum()


def on_whole_gpus(outlook: Any, column: Any, gpus: Any) -> Any:
    """The sum of completion times if each pool's jobs run one after the other on its GPUs, shortest first."""
    total = 0.0
    for pool, count in enumerate(gpus):
        longest_first = sorted(outlook.run_s[column == pool, pool], reverse=True)
        total += sum(run_s * (i // count + 1) for i, run_s in enumerate(longest_first))
    return total


@pytest.mark.parametrize("gpus", [(1, 1, 1), (1, 1), (3, 2, 4), (4, 16)])
def test_close_to_the_optimum_of_single_gpu_jobs(gpus: Any) -> None:
    """AlloX's matching is the optimum for one-GPU jobs that are all there; the assignment, carried out on whole GPUs,
    is within 0.3 % of it on average and 7 % at worst, as a local optimum (measured: 0.3 % and 5.9 %). That of the fluid
    is within 1 % and 10 % (0.4 % and 5.9 %).

    The fluid is no wild guess: on C GPUs a list in Smith's order starts a job no later than B / C, and by the bound of
    Eastman, Even and Isaacs (1964) ends (C - 1) / 2C of the run times earlier at most.
    """
    for elastic, mean, worst in ((False, 1.003, 1.07), (True, 1.01, 1.10)):
        rng, ratios = random.Random(7), []
        for _ in range(40):
            run_s = draw_run_s(rng, rng.randint(6, 16), len(gpus))
            outlook = outlook_of(run_s, gpus, elastic=elastic)
            ones, none = np.ones(len(outlook.jobs)), np.zeros(len(gpus))
            column = settled(outlook, ones, none).column
            whole, fluid = on_whole_gpus(outlook, column, gpus), total_cost(outlook, ones, column, none)
            size = outlook.gpus[column]
            slack = ((size - 1) / (2 * size) * outlook.run_s[outlook.rows, column]).sum()
            assert whole * (1 - 1e-9) <= fluid <= (whole + slack) * (1 + 1e-9)
            ratios.append(whole / allox_optimum(outlook, gpus))
        assert min(ratios) >= 1 - 1e-9
        assert sum(ratios) / len(ratios) <= mean
        assert max(ratios) <= worst


def test_near_the_best_of_all_assignments_with_gangs() -> None:
    """Gangs of 1, 2 and 4 on pools of 4: within 8 % of the best of all assignments, 1 % on average."""
    rng, ratios = random.Random(11), []
    for _ in range(15):
        run_s = draw_run_s(rng, 6, 3)
        outlook = outlook_of(run_s, (4, 4, 4), {j: rng.choice((1, 2, 4)) for j in range(6)})
        weights, none = np.array([rng.choice((0.5, 1.0, 3.0)) for _ in range(6)]), np.zeros(3)
        reached = total_cost(outlook, weights, settled(outlook, weights, none).column, none)
        best = min(total_cost(outlook, weights, c, none) for c in itertools.product(range(3), repeat=6))
        ratios.append(reached / best)
    assert sum(ratios) / len(ratios) <= 1.01
    assert max(ratios) <= 1.08


def test_the_same_queue_is_assigned_the_same() -> None:
    """No chance is involved, however often the queue is sorted."""
    outlook = outlook_of(draw_run_s(random.Random(2), 300, 3), (8, 8, 8))
    new, none = np.full(300, -1), np.zeros(3)
    first, second = (assign(outlook, outlook.run_s, np.ones(300), new, none) for _ in range(2))
    assert first.column.tolist() == second.column.tolist()
    assert first.turn_s.tolist() == second.turn_s.tolist()


def test_terminal_weight_pushes_to_where_a_job_takes_least() -> None:
    """A job alone runs where it is fastest; with enough weight behind it, where it takes fewest GPU-seconds."""
    fast_but_wide = outlook_of([[100.0, 150.0]], (8, 8))
    fast_but_wide.workers[0] = [4, 1]
    column = [
        assign(fast_but_wide, fast_but_wide.run_s, np.ones(1), np.array([-1]), np.full(2, w)).column[0]
        for w in (0.0, 1.0, 10.0)
    ]
    assert column == [0, 0, 1]


def test_balancing_makes_the_busy_pool_dear() -> None:
    """A pool with more work than fits the time left gains terminal weight, one with less loses what it has."""
    outlook = outlook_of([[100.0, 400.0]] * 8, (2, 2))
    area = outlook.run_s * outlook.workers
    terminal = balance(outlook, area, np.zeros(8, int), np.array([0.0, 1.0]), left_s=200.0)
    assert terminal[0] > 0
    assert terminal[1] < 1.0


def test_a_pool_is_not_dear_for_longer_than_it_was_too_busy() -> None:
    """Three rounds of fifty times too much work, and three of none."""
    outlook = outlook_of([[100.0, 100.0]] * 4, (2, 2))
    area, terminal = outlook.run_s * outlook.workers, np.zeros(2)
    for column, left_s in ((1, 4.0), (0, 400.0)):
        for _ in range(3):
            terminal = balance(outlook, area, np.full(4, column), terminal, left_s=left_s)
    assert terminal[1] == 0.0


# The target


def fluid_makespan(outlook: Any) -> Any:
    """The makespan if jobs could be cut in any way, as a linear programme: shares x[j, r] of each job's work."""
    n, types = outlook.run_s.shape
    area = np.where(np.isfinite(outlook.run_s), outlook.run_s * outlook.workers, 0.0)
    most = [0.0 if not np.isfinite(s) else 1.0 for s in outlook.run_s.ravel()]
    load = np.zeros((types, n * types + 1))
    for r in range(types):
        load[r, r : n * types : types] = area[:, r]
    load[:, -1] = -outlook.gpus
    whole = np.zeros((n, n * types + 1))
    for j in range(n):
        whole[j, j * types : (j + 1) * types] = 1.0
    goal = np.zeros(n * types + 1)
    goal[-1] = 1.0
    found = linprog(goal, load, np.zeros(types), whole, np.ones(n), [*[(0, m) for m in most], (0, None)])
    return found.fun


def test_the_knob_gives_up_slack_and_takes_in_margin() -> None:
    """From 0, where no makespan is aimed at, to 1, where nothing goes above the bound and all jobs are critical."""
    assert Aim.of(0.0) is None
    aims = [Aim.of(f) for f in (0.05, 0.25, 0.5, 0.75, 1.0)]
    slack, margin = [a.slack for a in aims], [a.margin for a in aims]
    assert slack == sorted(slack, reverse=True) and slack[2] == pytest.approx(0.03) and slack[4] == 0
    assert margin == sorted(margin) and margin[0] == 0.02 and margin[4] == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_target_against_the_linear_programme(seed: Any) -> None:
    """The target is never earlier than the longest run time nor, by more than the 3 % that 80 steps of multiplicative
    weights may be off, than the fluid makespan; without slack it is never later than both. Slack moves it later."""
    rng = random.Random(seed)
    outlook = outlook_of(draw_run_s(rng, 5 * 4**seed, 3), (2, 4, 4))
    area = outlook.run_s * outlook.workers
    bound = max(fluid_makespan(outlook), outlook.best_s.max())
    ends = [set_target(outlook, Aim.of(f), area, 0.0, fresh=True).end - NOW for f in (1.0, 0.5, 0.25, 0.1)]
    assert 0.97 * bound <= ends[0] <= bound * (1 + 1e-9)
    assert ends[0] >= outlook.best_s.max()
    assert [e / ends[0] for e in ends] == pytest.approx([1.0, 1.03, 1.174, 2.009], rel=1e-3)


def test_critical_are_those_that_would_be_late_if_they_waited() -> None:
    """With 3 % of slack, who needs 98 % of the time left or more where it costs the makespan least, and nobody else."""
    outlook = outlook_of([[1000.0], [930.0], [100.0]], (4,))
    area = outlook.run_s * outlook.workers
    at_once = set_target(outlook, Aim.of(0.5), area, 0.0, fresh=True)
    assert at_once.end == pytest.approx(NOW + 1030.0) and not at_once.critical.any()
    half_a_minute_on = replace(outlook, arena=Arena.of(replace(outlook.arena.snapshot, time=NOW + 30.0)))
    then = set_target(half_a_minute_on, Aim.of(0.5), area, at_once.end, fresh=False)
    assert then.critical.tolist() == [True, False, False]
    assert set_target(outlook, Aim.of(1.0), area, 0.0, fresh=True).critical.all()


def test_gpus_that_gangs_leave_unusable_count_for_the_makespan() -> None:
    """Three gangs of two on three GPUs go one after the other; not so of one, nor where two fit beside each other."""
    for gpus, gangs, least_s in (
        (3, (2, 2, 2), 30.0),
        (3, (1, 1, 1), 10.0),
        (4, (2, 2, 2, 2), 20.0),
        (8, (5, 6), 20.0),
    ):
        outlook = outlook_of([[10.0]] * len(gangs), (gpus,), dict(enumerate(gangs)))
        target = set_target(outlook, Aim.of(1.0), outlook.run_s * outlook.workers, 0.0, fresh=True)
        assert target.end - NOW == pytest.approx(least_s)


@given(st.integers(1, 40), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_gangs_that_fit_together_fit_with_what_they_leave(gpus: int, gangs: list[int]) -> None:
    fitting = list(itertools.takewhile(lambda n: sum(gangs[:n]) <= gpus, range(1, len(gangs) + 1)))
    together = np.array(gangs[: len(fitting)], float)
    for taken in with_leftovers(together, np.full(len(together), float(gpus)), np.ones(len(together), bool)):
        assert taken.sum() <= gpus * (1 + 1e-9)


def test_the_target_stays_unless_jobs_come_or_the_bound_forces_it() -> None:
    """Time that passes does not move it; a bound beyond it does, just so far; only fresh jobs bring new slack."""
    outlook = outlook_of([[1000.0], [500.0]], (2,))
    area, aim = outlook.run_s * outlook.workers, Aim.of(0.5)
    end = set_target(outlook, aim, area, 0.0, fresh=True).end

    def at(seconds: Any, fresh: Any, scale: Any = 1.0) -> Any:
        arena = Arena.of(replace(outlook.arena.snapshot, time=NOW + seconds))
        seen = replace(outlook, arena=arena, run_s=outlook.run_s * scale)
        return set_target(seen, aim, area * scale, end, fresh).end

    assert at(20.0, fresh=False) == end
    assert at(500.0, fresh=False, scale=0.5) == end
    assert at(100.0, fresh=False) == pytest.approx(NOW + 1100.0)
    assert at(100.0, fresh=True) == pytest.approx(NOW + 1130.0)


def test_no_job_is_sent_where_it_alone_would_miss_the_target() -> None:
    """The column that costs the makespan least is not taken where its run time is beyond the bound."""
    outlook = outlook_of([[1000.0, 9000.0], *[[1000.0, 1100.0]] * 6], (1, 4))
    target = set_target(outlook, Aim.of(1.0), outlook.run_s * outlook.workers, 0.0, fresh=True)
    assert target.column[0] == 0
    assert (target.need_s <= target.end - NOW + 1.0).all()

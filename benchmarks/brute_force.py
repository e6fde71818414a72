"""How far from the optimum of a round is Hadar? Exhaustive search on tiny instances, a linear programme on larger ones.

    python benchmarks/brute_force.py --instances 500 --seed 0

prints JSON. Both parts use the model of one round: maximise the sum of the utilities per round over all joint
placements that fit, restarts counted in the completion times. ``exact`` compares with the true optimum (at most 4 jobs
on at most 3 nodes, gangs, mixed types and running jobs included). ``lp`` compares with the linear programme that lets
jobs run in part and ignores node boundaries (single-type gangs, nothing running): an upper bound that no integral plan
may reach.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from slurm_hadar.model import EMPTY, Form, Job, JobState, Mix, Node, Placement, Plan, Snapshot, Speed
from slurm_hadar.policies.hadar.paper.bids import Bidder, Market, make_bidders, round_era
from slurm_hadar.policies.hadar.policy import Hadar
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.waits import Obstacles

NOW = 1e6
TYPES = ("v100", "p100", "k80")


def random_job(rng: random.Random, job_id: str, most_workers: int, plain: bool) -> Job:
    """A job of log-uniform length and speeds; with ``plain`` it keeps to one type."""
    workers = rng.choice([1, 1, 2, 2, 3, 4, 8][: most_workers + 2 if most_workers < 5 else 7])
    mix = Mix.NEVER if plain else rng.choice([Mix.NEVER, Mix.NEVER, Mix.GATED, Mix.BALANCED])
    form = Form(workers, 1, rng.choice([1, 2, 3]), uniform=rng.random() < 0.7, mix=mix)
    base = 10 ** rng.uniform(-1, 1)
    known = rng.sample(TYPES, rng.choice([2, 3, 3]))
    speeds = {t: Speed(base * 10 ** rng.uniform(-0.5, 0.5), rng.uniform(0.3, 1.0)) for t in known}
    length_s = 10 ** rng.uniform(2, 5)
    steps = length_s * max(s.steps_per_s for s in speeds.values())
    return Job(job_id, form, arrival=NOW - rng.uniform(0, 1e4), total_steps=steps, speeds=speeds, restart_cost_s=30.0)


def tiny(rng: random.Random) -> Snapshot:
    """At most 4 jobs on at most 3 nodes; some jobs run already."""
    nodes = tuple(
        Node(f"n{i}", {t: rng.choice([1, 2, 2, 4]) for t in rng.sample(TYPES, rng.choice([1, 1, 2]))})
        for i in range(rng.randint(1, 3))
    )
    jobs = [random_job(rng, str(i), 4, plain=False) for i in range(rng.randint(2, 4))]
    snapshot = Snapshot(NOW, nodes, tuple(jobs))
    capacity = {(n.name, t): c for n in nodes for t, c in n.gpus.items()}
    for i, job in enumerate(jobs):
        choices = [p for p in every_placement(snapshot, job) if _room(capacity, p)]
        if choices and rng.random() < 0.3:
            place = rng.choice(choices)
            jobs[i] = replace(job, state=JobState.RUNNING, placement=place)
            for node, gpu_type, count in place.items():
                capacity[node, gpu_type] -= count
    return snapshot.with_jobs(jobs)


def every_placement(snapshot: Snapshot, job: Job) -> Iterator[Placement]:
    """Every placement that the job's form allows and that gives it a speed, found without the policy's own search."""
    slots = [(n.name, t, c) for n in snapshot.nodes for t, c in n.gpus.items()]
    for counts in itertools.product(*(range(c + 1) for _, _, c in slots)):
        if sum(counts) != job.form.workers:
            continue
        mapping: dict[str, dict[str, int]] = {}
        for (node, gpu_type, _), count in zip(slots, counts, strict=True):
            mapping.setdefault(node, {})[gpu_type] = count
        placement = Placement.of(mapping)
        if job.form.refusal(placement) is None and job.rate(placement) > 0:
            yield placement


def _room(capacity: dict[tuple[str, str], int], placement: Placement) -> bool:
    return all(capacity[n, t] >= c for n, t, c in placement.items())


def bidders_of(snapshot: Snapshot, policy: Hadar) -> dict[str, Bidder]:
    """The policy's own utilities; its search is not used."""
    arena = Arena.of(snapshot)
    era = round_era(arena, policy.unknown_runtime_s)
    market = Market(arena, policy.utility, era, policy.switch_gain, policy.patience_s)
    return {b.job.job_id: b for b in make_bidders(market, policy.unknown_runtime_s)}


def worth(bidder: Bidder, placement: Placement) -> float:
    """Utility per round of a placement, with the bonus for staying."""
    if not placement:
        return 0.0
    if bidder.job.running and placement == bidder.job.placement:
        return bidder.stay_utility
    return bidder.utility(bidder.remaining_steps / bidder.job.rate(placement))


def optimum(snapshot: Snapshot, bidders: dict[str, Bidder]) -> float:
    """The largest sum of utilities over all joint placements, by exhaustive search with a bound."""
    options = []
    for bidder in bidders.values():
        found = [(worth(bidder, p), p) for p in every_placement(snapshot, bidder.job)]
        options.append(sorted(found, key=lambda pair: -pair[0]))
    rest = [0.0] * (len(options) + 1)
    for i in range(len(options) - 1, -1, -1):
        rest[i] = rest[i + 1] + (options[i][0][0] if options[i] else 0.0)
    capacity = {(n.name, t): c for n in snapshot.nodes for t, c in n.gpus.items()}
    best = 0.0

    def search(i: int, value: float) -> None:
        nonlocal best
        best = max(best, value)
        if i == len(options) or value + rest[i] <= best:
            return
        for utility, placement in [*options[i], (0.0, EMPTY)]:
            if value + utility + rest[i + 1] <= best:
                break
            if _room(capacity, placement):
                for n, t, c in placement.items():
                    capacity[n, t] -= c
                search(i + 1, value + utility)
                for n, t, c in placement.items():
                    capacity[n, t] += c

    search(0, 0.0)
    return best


def value_of(plan: Plan, bidders: dict[str, Bidder]) -> float:
    return sum(worth(bidders[job_id], placement) for job_id, placement in plan.placements.items())


def exact_ratio(rng: random.Random, policy: Hadar) -> float:
    """Hadar's value over the optimum, on one tiny instance."""
    snapshot = tiny(rng)
    bidders = bidders_of(snapshot, policy)
    best = optimum(snapshot, bidders)
    return value_of(policy.allocate(snapshot), bidders) / best if best > 0 else 1.0


def lp_ratio(rng: random.Random, policy: Hadar, jobs: int = 60, nodes_per_type: int = 4) -> float:
    """Hadar's value over the bound of the linear programme, on one instance of moderate size."""
    from scipy.optimize import linprog

    nodes = tuple(Node(f"{t}-{i}", {t: 4}) for t in TYPES for i in range(nodes_per_type))
    snapshot = Snapshot(NOW, nodes, tuple(random_job(rng, str(i), 8, plain=True) for i in range(jobs)))
    obstacles = Obstacles(Arena.of(snapshot))
    bidders = {j: b for j, b in bidders_of(snapshot, policy).items() if obstacles.of(b.job) is None}
    columns = [(j, o.gpu_type, b.utility(o.one_node_s)) for j, b in bidders.items() for o in b.options]
    rows = {name: i for i, name in enumerate([*bidders, *TYPES])}
    matrix = np.zeros((len(rows), len(columns)))
    for k, (job_id, gpu_type, _) in enumerate(columns):
        matrix[rows[job_id], k] = 1.0
        matrix[rows[gpu_type], k] = bidders[job_id].job.form.workers
    limits = [1.0] * len(bidders) + [4.0 * nodes_per_type] * len(TYPES)
    result = linprog([-u for _, _, u in columns], A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")
    return value_of(policy.allocate(snapshot), bidders) / -float(result.fun)


def summary(ratios: list[float]) -> dict[str, float | int]:
    return {
        "instances": len(ratios),
        "mean_ratio": round(sum(ratios) / len(ratios), 4),
        "worst_ratio": round(min(ratios), 4),
        "optimal_share": round(sum(r > 1 - 1e-9 for r in ratios) / len(ratios), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500, help="tiny instances for exhaustive search")
    parser.add_argument("--lp-instances", type=int, default=30, help="instances compared with the linear programme")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--objective", default="jct")
    parser.add_argument("--frontier", type=float, default=0.0)
    args = parser.parse_args()
    policy = Hadar(objective=args.objective, frontier=args.frontier, prices="round")
    rng = random.Random(args.seed)
    exact = [exact_ratio(rng, policy) for _ in range(args.instances)]
    lp = [lp_ratio(rng, policy) for _ in range(args.lp_instances)]
    print(json.dumps({"seed": args.seed, "objective": args.objective, "exact": summary(exact), "lp": summary(lp)}))


if __name__ == "__main__":
    main()

"""A site's accounting held against policies: what happened, in the same terms as what is simulated."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.nodes import cluster_nodes, gpus_by_type
from slurm_hadar.simulator.outcome.metrics import JobRow
from slurm_hadar.simulator.outcome.result import ClusterShape, Setting, SimResult
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.simulator.virtual.cluster import Interval
from slurm_hadar.slurm.accounting import AccountedJob
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.slurm.state import SlurmNode
from slurm_hadar.units import lasting

__all__ = ["BASELINE", "HAPPENED", "Site", "deviations", "of_the_done", "past", "site_of_accounting", "site_of_slurm"]

HAPPENED = "what happened"
#: The policy that stands for what Slurm did by itself.
BASELINE = "slurm"
_TRUSTED = 0.15
_NO_WAIT = 0.01  # of the time that jobs took: a share of next to nothing says nothing
#: Nodes by their real names: (GPU type, GPUs).
Nodes = Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class Site:
    """The cluster to simulate: ``spec`` as ``--cluster`` takes it, ``names`` from real nodes to the simulated ones,
    ``partitions`` with their simulated nodes, and what was assumed."""

    spec: str
    names: Mapping[str, str]
    assumptions: tuple[str, ...] = ()
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Nodes, partitions: Mapping[str, Iterable[str]], assumptions: tuple[str, ...] = ()) -> Site:
        """Nodes of one type and size form a group; within a type the larger ones come first."""
        plain = {name: (spec_type(t), n) for name, (t, n) in nodes.items()}
        ranked = sorted(plain, key=lambda name: (plain[name][0], -plain[name][1], name))
        groups = Counter(plain[name] for name in ranked)
        spec = ",".join(f"{t}:{count}x{n}" for (t, n), count in groups.items())
        numbered: Counter[str] = Counter()
        names = {}
        for name in ranked:
            gpu_type = plain[name][0]
            numbered[gpu_type] += 1
            names[name] = f"{gpu_type}-{numbered[gpu_type]}"
        there = {p: frozenset(names[n] for n in found if n in names) for p, found in partitions.items()}
        return cls(spec, names, assumptions, there)

    def bound(self, trace: Trace) -> Trace:
        """The same jobs, each bound to the GPU type that it asked for and to the nodes of its partition."""
        types = {t for node in cluster_nodes(self.spec) for t in node.gpus}
        jobs = []
        for job in trace.jobs:
            asked = frozenset(spec_type(t) for t in job.asked.split("+") if t)
            nodes = frozenset().union(*(self.partitions.get(p, frozenset()) for p in job.partition.split(",")))
            jobs.append(replace(job, types=asked & types or None, open_to=nodes or None))
        return replace(trace, jobs=tuple(jobs), assumptions=(*trace.assumptions, *_bounds_told(jobs)))


def _bounds_told(jobs: Sequence[TraceJob]) -> list[str]:
    lines = []
    typed = sum(1 for j in jobs if j.types)
    if typed:
        lines.append(f"{typed} of {len(jobs)} jobs asked for a GPU type, and are bound to it under every policy")
    if all(j.limit_s is None for j in jobs):
        lines.append(
            "the accounting does not tell what jobs asked for (fields TimelimitRaw and ReqTRES): no job is bound to a "
            "GPU type, and policy slurm takes jobs as having no time limits, which makes its backfill a poor guess"
        )
    return lines


def spec_type(name: str) -> str:
    """A GRES type as ``--cluster`` can name it: ``A100-SXM4`` is ``a100_sxm4``."""
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())[:32]
    return plain if plain[:1].isalpha() else f"t{plain}"[:32]


def site_of_slurm(nodes: Sequence[SlurmNode]) -> Site:
    """The cluster that Slurm has now. Raises TraceError if it has no GPUs whose types are known."""
    found = {n.name: n.gpus[0] for n in nodes if len(n.gpus) == 1 and n.gpus[0][0] and n.gpus[0][1] > 0}
    several = sum(1 for n in nodes if len(n.gpus) > 1)
    lines = ["the cluster is the one that Slurm has now, all of its nodes up all the time"]
    if several:
        lines.append(f"{several} nodes that have several GPU types are left out")
    if not found:
        raise TraceError("sinfo shows no node with GPUs of one type; say what there is with --cluster")
    partitions: dict[str, list[str]] = {}
    for node in nodes:
        for partition in node.partitions:
            partitions.setdefault(partition, []).append(node.name)
    return Site.of(found, partitions, tuple(lines))


def site_of_accounting(records: Sequence[AccountedJob], trace: Trace) -> Site:
    """The cluster as far as jobs ever showed it: on each node as many GPUs as they held there at once.

    Raises TraceError if the accounting names no nodes.
    """
    types: dict[str, Counter[str]] = {}
    events: dict[str, list[tuple[float, int]]] = {}
    partitions: dict[str, set[str]] = {}
    for job, held in _held(records, trace):
        for node, gpu_type, count, start, end in held:
            if job.partition:
                partitions.setdefault(job.partition, set()).add(node)
            types.setdefault(node, Counter())[gpu_type] += 1
            events.setdefault(node, []).extend([(start, count), (end, -count)])
    nodes = {}
    for name, changes in events.items():
        level = most = 0
        for _, change in sorted(changes):
            level += change
            most = max(most, level)
        nodes[name] = (types[name].most_common(1)[0][0], most)
    if not nodes:
        raise TraceError(f"{trace.name} names no nodes (field NodeList): say what there is with --cluster")
    line = (
        "the cluster has the nodes and GPUs that these jobs ever held at once, and each partition those that its jobs "
        "ever held; say what there really is with --cluster, which opens all nodes to all partitions"
    )
    return Site.of(nodes, partitions, (line,))


_Hold = tuple[str, str, int, float, float]


def _held(records: Sequence[AccountedJob], trace: Trace) -> list[tuple[TraceJob, list[_Hold]]]:
    """Each job of the trace with (node, GPU type, GPUs, start, end) of each of its runs, in seconds of the trace's
    clock."""
    first = min((r.submit for r in records), default=0.0)
    by_id = {r.job_id: r for r in records}
    runs = {job.job_id: by_id[job.job_id].runs for job in trace.jobs}
    return [
        (job, [held for run in runs[job.job_id] for held in _held_in(run, job, first, len(runs[job.job_id]) > 1)])
        for job in trace.jobs
    ]


def _held_in(run: AccountedJob, job: TraceJob, first: float, several: bool) -> list[_Hold]:
    """A run's; of one that had no nodes nothing is known. ``several``: each may have had other GPUs."""
    nodes = expand(run.nodes) if run.nodes else ()
    if not nodes or run.end is None or run.elapsed_s <= 0:
        return []
    each, more = divmod(sum(run.gpus.values()) if several else job.workers, len(nodes))
    end, gpu_type = run.end - first, (run.gpu_type({}) if several else "") or job.wanted
    counts = ((node, each + (i < more)) for i, node in enumerate(nodes))
    return [(node, gpu_type, count, end - run.elapsed_s, end) for node, count in counts if count]


def past(
    records: Sequence[AccountedJob], trace: Trace, site: Site, measure: tuple[int, int] | None = None
) -> SimResult:
    """What happened to the jobs of ``trace`` (made of ``records``), as if it were a policy's result; ``measure`` as of
    a simulation.

    A job that ran several times is shown in each of its runs.
    """
    rows, intervals = [], []
    ends = {r.job_id: r.end for r in records}
    first = min((r.submit for r in records), default=0.0)
    begin_at, end_at = measure or (0, len(trace.jobs))
    for number, (job, held) in enumerate(_held(records, trace)):
        gpu_s: defaultdict[str, float] = defaultdict(float)
        for _, gpu_type, count, begin, until in held:
            gpu_s[spec_type(gpu_type)] += count * (until - begin)
        end, ran_s = (ends[job.job_id] or 0.0) - first, job.ran_s or 0.0
        jct_s = end - job.arrival_s
        started = None if job.waited_s is None else job.arrival_s + job.waited_s
        rows.append(
            JobRow(
                job_id=job.job_id,
                user=job.user,
                account=job.account,
                model=job.model,
                batch=job.batch,
                gpus=job.workers,
                arrival_s=job.arrival_s,
                first_start_s=started,
                completion_s=end,
                jct_s=jct_s,
                queueing_s=max(0.0, jct_s - ran_s),
                gpu_s=dict(gpu_s) or {spec_type(job.wanted): ran_s * job.workers},
                steps=job.steps,
                deadline_s=job.deadline_s,
                counted=begin_at <= number < end_at,
            )
        )
        intervals += [Interval(job.job_id, site.names.get(n, n), spec_type(t), c, a, b) for n, t, c, a, b in held]
    nodes = cluster_nodes(site.spec)
    last = max((row.completion_s or 0.0 for row in rows), default=0.0)
    shape = ClusterShape(site.spec, gpus_by_type(nodes), len(nodes))
    setting = Setting(HAPPENED, {}, seed=0, trace=trace.name, model="nodes", round_s=0.0, cluster=shape)
    return SimResult(setting, tuple(rows), rounds=(), intervals=tuple(intervals), decide_s=(), end_s=last)


def of_the_done(happened: SimResult, simulated: Sequence[SimResult]) -> SimResult:
    """What happened, of the jobs alone that some policy did, so that averages are over the same jobs; how many others
    there are is among the assumptions."""
    never = frozenset.intersection(*(frozenset(result.unfinished) for result in simulated))
    if not never:
        return happened
    jobs = tuple(replace(job, counted=job.counted and job.job_id not in never) for job in happened.jobs)
    line = f"{len(never)} jobs that no policy did are left out of what happened, too"
    return replace(happened, jobs=jobs, assumptions=(*happened.assumptions, line))


def deviations(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """How far a replay can be trusted, in words: what happened against policy slurm, which is to do again what Slurm
    did. ``policies`` are a comparison's; empty where it is no replay."""
    by_label = {p["label"]: p for p in policies}
    past = by_label.get(HAPPENED)
    if past is None or not past["avg_jct_s"]:
        return []
    again = next((p for p in policies if p.get("policy") == BASELINE), None)
    if again is None or not again["avg_jct_s"]:
        return [f"How far this can be trusted is not known without policy {BASELINE}, which does again what Slurm did."]
    if past.get("jobs") != again.get("jobs"):
        return [f"How far this can be trusted is not known: policy {BASELINE} left jobs undone that Slurm did."]
    least_s = _NO_WAIT * past["avg_jct_s"]
    found = {"average JCT": _deviation(past["avg_jct_s"], again["avg_jct_s"], least_s)}
    waits = past["avg_queueing_s"], again["avg_queueing_s"]
    if max(waits) > least_s:
        found["average wait"] = _deviation(*waits, least_s)
    told = ", ".join(f"{name} {words}" for name, (words, _) in found.items())
    off = [name for name, (_, share) in found.items() if abs(share) > _TRUSTED]
    limit = f"{100 * _TRUSTED:.0f} %"
    verdict = (
        f"It differs by more than {limit} in the {' and the '.join(off)}: on this site the simulation does not do what "
        "Slurm did, and only differences between policies that are far larger mean something."
        if off
        else f"Both are within {limit}."
        if len(found) > 1
        else f"It is within {limit}."
    )
    return [
        f"Policy {BASELINE}, which is to do again what Slurm did, against {HAPPENED}: {told}. {verdict}",
        f"Hold the other policies against {again['label']} rather than against {HAPPENED}: both are simulated alike.",
    ]


def _deviation(past_s: float, again_s: float, least_s: float) -> tuple[str, float]:
    share = again_s / past_s - 1.0 if past_s > least_s else float("inf")
    words = f"{100 * share:+.0f} %" if past_s > least_s else "next to none happened"
    return f"{lasting(again_s)} against {lasting(past_s)} ({words})", share

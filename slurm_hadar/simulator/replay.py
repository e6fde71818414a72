"""A site's accounting held against policies: what happened, in the same terms as what is simulated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.cluster import Interval
from slurm_hadar.simulator.metrics import JobRow
from slurm_hadar.simulator.result import SimResult
from slurm_hadar.simulator.run import cluster_nodes
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.slurm.accounting import AccountedJob
from slurm_hadar.slurm.parsing import expand
from slurm_hadar.slurm.state import SlurmNode

__all__ = ["HAPPENED", "Site", "past", "site_of_accounting", "site_of_slurm"]

HAPPENED = "what happened"
#: Nodes by their real names: (GPU type, GPUs).
Nodes = Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class Site:
    """The cluster to simulate: ``spec`` as ``--cluster`` takes it, ``names`` from real nodes to the simulated ones, and
    what was assumed."""

    spec: str
    names: Mapping[str, str]
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(cls, nodes: Nodes, assumptions: tuple[str, ...] = ()) -> Site:
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
        return cls(spec, names, assumptions)


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
    return Site.of(found, tuple(lines))


def site_of_accounting(records: Sequence[AccountedJob], trace: Trace) -> Site:
    """The cluster as far as jobs ever showed it: on each node as many GPUs as they held there at once.

    Raises TraceError if the accounting names no nodes.
    """
    types: dict[str, Counter[str]] = {}
    events: dict[str, list[tuple[float, int]]] = {}
    for job, held in _held(records, trace):
        for node, count, start, end in held:
            types.setdefault(node, Counter())[job.wanted] += 1
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
    line = "the cluster has the nodes and GPUs that these jobs ever held at once; say what it really has with --cluster"
    return Site.of(nodes, (line,))


def _held(records: Sequence[AccountedJob], trace: Trace) -> list[tuple[TraceJob, list[tuple[str, int, float, float]]]]:
    """Each job of the trace with (node, GPUs, start, end) in seconds of the trace's clock."""
    first = min((r.submit for r in records), default=0.0)
    by_id = {r.job_id: r for r in records}
    found = []
    for job in trace.jobs:
        record = by_id[job.job_id]
        nodes = expand(record.nodes) if record.nodes else ()
        each, more = divmod(job.workers, len(nodes)) if nodes else (0, 0)
        end = (record.end or 0.0) - first
        start = end - record.elapsed_s
        found.append((job, [(n, each + (i < more), start, end) for i, n in enumerate(nodes) if each + (i < more)]))
    return found


def past(records: Sequence[AccountedJob], trace: Trace, site: Site) -> SimResult:
    """What happened to the jobs of ``trace`` (made of ``records``), as if it were a policy's result.

    A job that ran several times is shown as having run once, at its end, as long as all its runs together.
    """
    rows, intervals = [], []
    ends = {r.job_id: r.end for r in records}
    first = min((r.submit for r in records), default=0.0)
    for job, held in _held(records, trace):
        gpu_type = spec_type(job.wanted)
        end, ran_s = (ends[job.job_id] or 0.0) - first, job.ran_s or 0.0
        jct_s = end - job.arrival_s
        started = None if job.waited_s is None else job.arrival_s + job.waited_s
        rows.append(JobRow(
            job.job_id, job.user, job.account, job.model, job.batch, job.workers, job.arrival_s, started, end, jct_s,
            max(0.0, jct_s - ran_s), 0, 0, 0, {gpu_type: ran_s * job.workers}, job.steps, 0.0, None, None,
            job.deadline_s, True,
        ))  # fmt: skip
        intervals += [Interval(job.job_id, site.names.get(n, n), gpu_type, count, a, b) for n, count, a, b in held]
    nodes = cluster_nodes(site.spec)
    gpus: Counter[str] = Counter()
    for node in nodes:
        gpus.update(node.gpus)
    last = max((row.completion_s or 0.0 for row in rows), default=0.0)
    return SimResult(
        HAPPENED, {}, 0, site.spec, "nodes", trace.name, 0.0, dict(gpus), len(nodes), tuple(rows), (), tuple(intervals),
        (), last,
    )  # fmt: skip

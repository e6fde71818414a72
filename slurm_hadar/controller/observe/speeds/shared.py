"""What jobs that have turns on one GPU report of their speeds: filed with whose company they had."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_hadar.controller.observe.jobs.facts import JobFacts
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.observe.speeds.shared_gpus import own_turns
from slurm_hadar.controller.steering.nodes import NodeBook
from slurm_hadar.messages import Report
from slurm_hadar.model import JobState
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL
from slurm_hadar.throughput.profiles import Needs, joined

__all__ = ["learn_shared"]


def learn_shared(sources: Sources, known: Mapping[str, JobFacts | None], nodes: NodeBook, now: float) -> None:
    """File the speeds of jobs with shards on one node of one GPU type. Of a job that names others as its company it is
    believed where those are jobs of the same user on the same node."""
    if sources.profiles is None:
        return
    for job_id, facts in known.items():
        if facts is not None and facts.job.state is JobState.RUNNING and facts.job.shares:
            with sources.quarantine.over(job_id, "learning from it"):
                _learn_of(sources, facts, known, nodes, now)


def _learn_of(
    sources: Sources, facts: JobFacts, known: Mapping[str, JobFacts | None], nodes: NodeBook, now: float
) -> None:
    job, news = facts.job, sources.book.get(facts.job.job_id)
    node = nodes.get(job.nodes[0]) if len(job.nodes) == 1 else None
    if news is None or news.report.restart != job.restarts or node is None or node.gpu_type is None:
        return
    _learn_needs(sources, facts, news.report, node.gpu_type, now)
    told, news.shared_speeds = news.shared_speeds, []
    for company, steps_per_s in told:
        others = [known.get(other) for other in company.split("+")] if company else []
        theirs = [o for o in others if o is not None and (o.job.user, o.job.nodes) == (job.user, job.nodes)]
        if len(theirs) < len(others):
            continue
        if others and (any(own_turns(facts, o) != EQUAL for o in theirs) or "turns" in facts.record.company):
            continue  # a profile is of equal turns: those now, and those that the last round saw
        beside = joined(o.workload(1) for o in theirs)
        if sources.profiles is not None:
            with sources.best_effort():
                sources.profiles.record(facts.workload(1), beside, node.gpu_type, job.user, steps_per_s, now)


def _learn_needs(sources: Sources, facts: JobFacts, report: Report, gpu_type: str, now: float) -> None:
    if sources.profiles is None or report.iter_s is None or facts.record.needs_filed == report.seq:
        return
    facts.record.needs_filed = report.seq
    taken = report.persistent_bytes, report.ephemeral_bytes, report.iter_s
    with sources.best_effort():
        sources.profiles.record_needs(Needs(facts.workload(1), gpu_type, facts.job.user, *taken, now, report.duty))

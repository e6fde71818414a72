"""Jobs as a policy sees them: made of facts, and nothing is changed by it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace

from slurm_hadar.comment import JobComment
from slurm_hadar.config import Config
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.observe.jobs.facts import JobFacts
from slurm_hadar.controller.observe.speeds.estimates import Estimates
from slurm_hadar.controller.observe.speeds.peers import Peers
from slurm_hadar.controller.observe.speeds.shared_gpus import accepted_slow_down, likeness
from slurm_hadar.controller.prediction.forecasts import Forecast
from slurm_hadar.controller.safety.guard import unmovable_reason
from slurm_hadar.controller.steering.elastic import enough
from slurm_hadar.controller.steering.forms import shared_form
from slurm_hadar.controller.steering.nodes import NodeBook
from slurm_hadar.controller.steering.time_limits import goes_on, types_within
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.controller.words import being_readied
from slurm_hadar.model import Basis, Form, Job, JobState, Speed
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.throughput.estimator import DATA_SHEETS_WITHIN

__all__ = ["JobViews", "unreadable_job"]

_NOT_SCALED: Mapping[int, Mapping[str, Speed]] = {}  # these two are one for all jobs, of which there are many
_NO_TYPES: frozenset[str] = frozenset()
_MEASURED_WITHIN_S = 120.0  # a first step may be long in coming; who tells no speed by then is judged without
_DOUBTFUL = f"at most {DATA_SHEETS_WITHIN:g} times as fast by the data sheets, and nothing else is known of its speed"
_TELLS_WITHIN_S = 15.0  # of its first steps; what saves after each of them is never measured


class JobViews:
    """Of one round, at ``now``; ``nodes`` are those of the cluster. ``book``: what jobs report. ``peers``:
    what others tell of a job that has not run yet."""

    def __init__(
        self,
        config: Config,
        estimates: Estimates,
        book: ReportBook,
        nodes: NodeBook,
        now: float,
        peers: Peers,
    ) -> None:
        self._peers = peers
        self._config = config
        self._estimates = estimates
        self._book = book
        self._nodes = nodes
        self._types = nodes.gpu_types
        self._now = now

    def view(self, facts: JobFacts) -> Job:
        """The job as a policy sees it."""
        job, comment, record, form = facts.job, facts.comment, facts.record, facts.form
        speeds: Mapping[str, Speed] = self._estimates.speeds(facts, form.workers, self._types, self._now)
        scaled: Mapping[int, Mapping[str, Speed]] = {
            n: self._estimates.speeds(facts, n, self._types, self._now) for n in form.sizes if n != form.workers
        }
        if record.serves and form.sizes:
            speeds, scaled = _useful(form, speeds, scaled, record.wanted)
        held = facts.placement.workers
        forecast = facts.forecast
        per_s = self._fastest(facts, forecast) if forecast else 0.0
        shown = Job(
            job_id=job.job_id,
            form=form,
            user=job.user,
            account=job.account,
            qos=job.qos,
            partition=job.partition,
            name=job.name,
            model=comment.model or "",
            batch=comment.batch,
            state=job.state,
            reason=job.reason,
            arrival=record.arrived,
            started=record.run_since,
            eligible=job.eligible,
            total_steps=record.total_steps,
            raised=record.raised,
            predicted_steps=forecast.expected_s * per_s if forecast else None,
            predicted_range=(forecast.low_s * per_s, forecast.high_s * per_s) if forecast else None,
            outlives=forecast.outlives if forecast else 1.0,
            done_steps=record.steps if job.state is JobState.RUNNING else record.saved_step or 0.0,
            speeds=speeds,
            scaled=scaled or _NOT_SCALED,
            placement=facts.placement,
            whole=facts.whole,
            pinned=facts.pinned,
            unmovable=self._unmovable(facts, speeds if held == form.workers else scaled.get(held, {})),
            restart_cost_s=self._restart_cost(record, comment),
            restarts=job.restarts,
            attained_s=record.attained_s,
            weight=facts.weight,
            deadline=_deadline(comment, record),
            time_limit_s=job.time_limit_s,
            array_id=job.array_id,
            het_id=job.het_id,
            fork=comment.fork if job.array_id else None,
            prefer=comment.prefer or _NO_TYPES,
            graph=facts.graph.name if facts.graph else "",
            needs=facts.needs,
            slow_down=accepted_slow_down(facts, self._config.jobs.slow_down, self._nodes),
            host=facts.host,
            turns=record.turns,
            held_up_s=record.held_up_s,
            gives_way=self._book.reaches(job.job_id),
            pairs_as=likeness(facts) if job.shards else "",
            blocked=facts.blocked,
            blocked_until=facts.blocked_until,
            opens=facts.opens,
            ruled_out=_not_named(comment.types, self._types),
            serves=record.serves,
        )
        known = _by_what_is_known(self._reckoned(shown, record), wants_more=record.serves and _wants_more(facts))
        return self._within_limit(known, facts)

    def stays(self, facts: JobFacts) -> bool:
        """Whether a steerable job keeps its place once it runs, however long that is."""
        return facts.pinned is None and self._fixed(facts) is not None

    def _fastest(self, facts: JobFacts, forecast: Forecast) -> float:
        """Steps per second on the GPU type whose seconds ``forecast`` counts, which need not be one of this site."""
        known = self._estimates.speeds(facts, facts.form.workers, forecast.gpu_types or self._types, None)
        return max((s.steps_per_s for s in known.values()), default=1.0)

    def _within_limit(self, shown: Job, facts: JobFacts) -> Job:
        """A waiting job only sees the GPU types on which it is done within its time limit, where it is so on some and
        does not go on after the limit."""
        limit_s = facts.job.time_limit_s
        if shown.pinned or shown.running or limit_s is None or goes_on(facts.comment, facts.record):
            return shown
        types = types_within(shown, limit_s)
        if types is None:
            return shown
        late = _not_named(types, tuple(shown.speeds), "too slow for its time limit")
        form = shared_form(replace(shown.form, types=types))
        return replace(shown, form=form, ruled_out={**late, **shown.ruled_out})

    def _reckoned(self, job: Job, record: JobRecord) -> Job:
        """With what a job must have done without telling: where its size is stated, to tell a false statement; where it
        is predicted, as its steps, if it reports none. Of one whose statement tells nothing, with all that it must have
        made, over all its trainings."""
        if job.fork is not None:
            return job
        if record.disbelieved:
            best = job.best_rate()
            made = sum(s * (job.speeds[t].steps_per_s if t in job.speeds else best) for t, s in record.ran_s.items())
            return replace(job, reckoned_steps=made)
        if record.run_since is None:
            return job
        steps = (record.untold_s or 0.0) * job.rate(job.placement)
        if job.total_steps is not None:
            return replace(job, reckoned_steps=steps)
        silent = record.steps_per_s is None and record.steps == 0
        return replace(job, done_steps=steps) if silent and job.predicted_steps is not None else job

    def _unmovable(self, facts: JobFacts, speeds: Mapping[str, Speed]) -> str | None:
        """Of a job that waits: why it will keep its place once it runs, as far as that is known before. ``speeds``: of
        the gang that it runs with."""
        record, now = facts.record, self._now
        if facts.pinned is not None:
            return None
        if facts.job.state is not JobState.RUNNING:
            return self._fixed(facts) if facts.job.state is JobState.PENDING else None
        if facts.job.configuring:
            return being_readied(record)
        if record.unsaved_until > now:
            why = "though it says that it can" if record.unsaved else "as its training had not begun"
            again_s = record.unsaved_until - now
            return f"did not save within jobs.ack_timeout_s when it was asked to, {why}; asked again in {again_s:.0f} s"
        young = unmovable_reason(self._config.guard, record.counted_moves, record.run_since or now, now)
        if record.serves:
            return self._fixed(facts) or young or _content(facts)
        return self._fixed(facts) or young or self._unmeasured(facts, speeds)

    def _unmeasured(self, facts: JobFacts, speeds: Mapping[str, Speed]) -> str | None:
        """That a run which counts its steps has not told its speed yet: it is measured before it is judged."""
        news, since, now = self._book.get(facts.job.job_id), facts.record.run_since, self._now
        if news is None or news.ended or news.report.restart != facts.job.restarts or since is None:
            return None
        unknown = [t for t in facts.placement.by_type if t not in speeds or speeds[t].basis is not Basis.MEASURED]
        silent = news.first_step is not None and now - news.first_step > _TELLS_WITHIN_S
        if not unknown or silent or now - since > _MEASURED_WITHIN_S:
            return None
        return f"its speed on {' and '.join(unknown)} is being measured"

    def _fixed(self, facts: JobFacts) -> str | None:
        """Why the job keeps its place once it runs, however long that is; None if it need not."""
        lose = facts.comment.lose if facts.comment.lose is not None else self._config.jobs.lose_progress
        if not (self._saves(facts) or lose):
            return "has no checkpoint support, and neither lose=yes nor jobs.lose_progress lets it lose progress"
        return unmovable_reason(self._config.guard, facts.record.counted_moves)

    def _saves(self, facts: JobFacts) -> bool:
        """Whether its owner or its training has said that it saves. A training says so only when it runs: as long as
        the job waits it is taken to do as its owner's others did."""
        job, comment, record = facts.job, facts.comment, facts.record
        if record.resumable or comment.ckpt:
            return True
        unsaid = job.state is JobState.PENDING and comment.ckpt is None
        return unsaid and self._peers.save(job.user, record.model, record.name)

    def _restart_cost(self, record: JobRecord, comment: JobComment) -> float:
        """Seconds that a move costs, or a start where the job waits; who cannot save loses all that it has run."""
        saves = record.resumable or bool(comment.ckpt)
        lost_s = 0.0 if saves or record.run_since is None else max(0.0, self._now - record.run_since)
        if comment.restart is not None:
            return comment.restart + lost_s
        start_s = self._peers.start_s(record.user, record.model) if record.start_s is None else record.start_s
        if start_s is None:
            return self._config.jobs.restart_cost_s + lost_s
        stop_s = 0.0 if record.run_since is None else (record.save_s or 0.0) + RESTART_GAP_S
        return stop_s + start_s + lost_s


def unreadable_job(job: SlurmJob, record: JobRecord, why: str) -> Job:
    """One that cannot be made sense of: it is left to Slurm, with the reason."""
    return Job(
        job.job_id,
        Form(max(1, record.workers)),
        user=job.user,
        account=job.account,
        partition=job.partition,
        name=job.name,
        state=job.state,
        reason=job.reason,
        arrival=record.arrived,
        pinned=why,
    )


def _useful(
    form: Form, speeds: Mapping[str, Speed], scaled: Mapping[int, Mapping[str, Speed]], wanted: int
) -> tuple[Mapping[str, Speed], Mapping[int, Mapping[str, Speed]]]:
    """Of a server: sizes above the one that it wants are worth no more than that one. So what it says can make its job
    smaller than another elastic one's, and never larger."""
    most = enough(form.sizes, wanted)
    there = speeds if most == form.workers else scaled[most]
    return (
        there if form.workers > most else speeds,
        {size: there if size > most else known for size, known in scaled.items()},
    )


def _content(facts: JobFacts) -> str | None:
    """That a server has the fewest GPUs that it may have, and wants no more: then nothing is to be changed about it."""
    if facts.placement.workers > facts.form.gang_sizes[0] or _wants_more(facts):
        return None
    return "is a server of models, which is not stopped for others, and has the fewest GPUs that it may have"


def _wants_more(facts: JobFacts) -> bool:
    """Whether a server wants more GPUs than it has."""
    return enough(facts.form.gang_sizes, facts.record.wanted) > facts.placement.workers


def _by_what_is_known(job: Job, wants_more: bool) -> Job:
    """A running job of whose speed nothing is known may only be moved to GPU types on which data sheets leave no doubt
    that it gains. A server has to be started anew where it ``wants_more``, and may then be so on all faster types."""
    held = job.placement.by_type
    speeds = job.speeds_at(job.placement.workers)
    if not job.running or job.pinned or not held or all(t in speeds and speeds[t].error is not None for t in held):
        return job
    here = max((speeds[t].steps_per_s for t in held if t in speeds), default=math.inf)
    faster = {t: s.steps_per_s for t, s in speeds.items() if s.steps_per_s > here and job.form.admits_type(t)}
    if job.serves:
        others, doubtful = set(faster) if wants_more else set[str](), set[str]()
    else:
        others = {t for t, rate in faster.items() if rate > here * DATA_SHEETS_WITHIN}
        doubtful = faster.keys() - others - held.keys()
    form = shared_form(replace(job.form, types=frozenset(held).union(others)))
    return replace(job, form=form, ruled_out={**dict.fromkeys(sorted(doubtful), _DOUBTFUL), **job.ruled_out})


@functools.lru_cache(maxsize=1024)
def _not_named(
    accepted: frozenset[str] | None, offered: tuple[str, ...], why: str = "not in its types="
) -> Mapping[str, str]:
    """One mapping for all jobs alike."""
    return {} if accepted is None else {gpu_type: why for gpu_type in offered if gpu_type not in accepted}


def _deadline(comment: JobComment, record: JobRecord) -> float | None:
    if comment.deadline is not None:
        return comment.deadline
    return None if comment.deadline_after_s is None else record.arrived + comment.deadline_after_s

"""What a round did to Slurm, in the words of the audit log and of hooks."""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Iterable
from typing import Any

from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import Purpose, WriteOutcome
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.slurm.node_lists import fold
from slurm_hadar.slurm.state import SlurmJob, WriteResult
from slurm_hadar.slurm.survey import name_of

__all__ = ["acting_user", "hook_variables", "release_entries", "write_entries"]

_MOST_LEASES = 500


def write_entries(number: int, seen: Observation, outcome: Outcome) -> list[dict[str, Any]]:
    """One entry per write and job. Leases that were given in the same words for the same reason share one, so many as
    make a line that can still be read, with each job's begin time before and after."""
    why = {c.job_id: c.why or f"{c.kind} {c.new}" for c in outcome.changes}
    entries: list[dict[str, Any]] = []
    leases: dict[tuple[str, str], dict[str, Any]] = {}
    for write in outcome.log:
        job_id, reason = write.job_id, why.get(write.job_id, "")
        before = seen.raw.get(job_id) or seen.retries.get(job_id)
        if write.purpose is Purpose.LEASE and write.outcome is WriteOutcome.OK:
            command = write.command.replace(f" {job_id} ", " ", 1)  # one for all jobs
            key = (command, reason)
            if key not in leases or len(leases[key]["jobs"]) == _MOST_LEASES:
                leases[key] = {"event": "lease", "round": number, "command": command, "outcome": "ok",
                               "why": reason, "jobs": {}}  # fmt: skip
                entries.append(leases[key])
            begins = before and _moment(before.eligible), _moment(outcome.shown.begin(job_id))
            leases[key]["jobs"][job_id] = list(begins)
            continue
        entries.append(
            {
                "event": "write",
                "round": number,
                "job": job_id,
                "user": before.user if before else "",
                "command": write.command,
                "before": shown(before),
                "after": shown(outcome.shown.jobs.get(job_id)),
                "outcome": write.outcome,
                "detail": write.detail,
                "why": reason or write.detail,
            }
        )
    return entries


def release_entries(results: Iterable[WriteResult], by: str) -> list[dict[str, Any]]:
    """What ``hadar release`` did, on the word of user ``by``: an entry for the command, and one per job."""
    jobs = [
        {
            "event": "write",
            "by": by,
            "job": r.job_id,
            "command": str(r.write),
            "outcome": "refused" if r.error else "ok",
            "detail": r.error or "",
            "why": "hadar release",
        }
        for r in results
    ]
    return [{"event": "release", "by": by, "jobs": len(jobs)}, *jobs]


def acting_user() -> str:
    """Who this process acts for: its effective user, and behind sudo who called it."""
    user, caller = name_of(os.geteuid()), os.environ.get("SUDO_USER", "")
    return f"{user} (sudo by {caller})" if caller and caller != user else user


def shown(job: SlurmJob | None) -> dict[str, Any] | None:
    """What of a job a write can change, as Slurm shows it; None where it was not seen."""
    if job is None:
        return None
    gpus = [f"{sum(n for _, n in g.types)} per {g.per}" for g in job.gpus]
    return {
        "state": job.state_text, "reason": job.reason, "nodes": fold(job.nodes), "asked_nodes": fold(job.req_nodes),
        "num_nodes": job.num_nodes, "gpus": ", ".join(gpus), "begin": _moment(job.eligible), "restarts": job.restarts,
    }  # fmt: skip


def hook_variables(number: int, seen: Observation, outcome: Outcome, cluster: str) -> list[dict[str, str]]:
    """The environment of ``hooks.moved`` for each job that was really moved or stopped."""
    return [_variables(number, seen, change, cluster) for change in outcome.changes if _stopped(change, outcome)]


def _stopped(change: Change, outcome: Outcome) -> bool:
    """Slurm took the requeue, and the job did not end by itself meanwhile."""
    if not change.kind.stops or change.job_id in outcome.ended:
        return False
    told = [w for w in outcome.log if w.job_id == change.job_id and w.purpose is Purpose.REQUEUE]
    return bool(told) and all(w.outcome is WriteOutcome.OK for w in told)


def _variables(number: int, seen: Observation, change: Change, cluster: str) -> dict[str, str]:
    job, record, now = seen.snapshot.job[change.job_id], seen.records[change.job_id], seen.snapshot.time
    left, rate, new_rate = job.expected_remaining_steps, job.rate(change.old), job.rate(change.new)
    finish_old = now + left / rate if left is not None and rate > 0 else None
    # a script that cannot save begins anew
    again = 0.0 if record.resumable else max(0.0, job.done_steps - (record.saved_step or 0.0))
    finish_new = now + job.restart_cost_s + (left + again) / new_rate if left is not None and new_rate > 0 else None
    values = {
        "JOB_ID": change.job_id, "USER": job.user, "JOB_NAME": job.name, "CLUSTER": cluster,
        "EVENT": "moved" if change.kind is ChangeKind.MOVE else "stopped", "OLD": str(change.old),
        "NEW": str(change.new) if change.new else "", "WHY": change.why, "ROUND": str(number), "TIME": f"{now:.0f}",
        "FINISH_OLD": "" if finish_old is None else f"{finish_old:.0f}",
        "FINISH_NEW": "" if finish_new is None else f"{finish_new:.0f}",
    }  # fmt: skip
    # names are the users' own: what is not printable has no business in an environment or a mail
    return {f"HADAR_{k}": "".join(c if c.isprintable() else "?" for c in v) for k, v in values.items()}


@functools.lru_cache(maxsize=1024)
def _moment(epoch: float | None) -> str | None:
    if epoch is None:
        return None
    return dt.datetime.fromtimestamp(epoch, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

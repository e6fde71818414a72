"""The page of what a live controller did lately, from its journal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.usage import Usage
from slurm_hadar.simulator import page, plots
from slurm_hadar.simulator.worth import worth_by_accounting, worth_by_rounds
from slurm_hadar.throughput.store import EstimateError

__all__ = ["journal_page"]

_MOST_ROWS = 200
_OCCUPY, _RELEASE = ("start", "move"), ("preempt", "end")


def journal_page(
    journal: Journal,
    errors: Sequence[EstimateError],
    half_life_s: float,
    since: float,
    now: float,
    command: str,
    replayed: Mapping[str, Any] | None = None,
) -> str:
    """The page, in one file. ``errors`` are those of the estimates that turned out by now (ThroughputStore.errors);
    times are epoch seconds; ``replayed`` is the comparison of ``hadar replay`` (check_document), if there is one.
    Raises StoreError if the journal cannot be read."""
    rounds = journal.rounds_since(since)
    decisions = [d for d in journal.decisions_since(since) if d["mode"] == "act"]
    records = journal.jobs_since(since)
    body = [page.listing(_findings(rounds, records))]
    body += [worth_by_rounds(journal.gains(since)), worth_by_accounting(replayed)]
    if rounds:
        body.append(_queue(rounds, since))
        intervals = _intervals(decisions, since, now)
        if intervals:
            body += _gpus(intervals, since)
    body.append(page.section("Who used the GPUs", _usage(Usage(journal, half_life_s), now, half_life_s)))
    body.append(page.section("Moves", _moves(decisions)))
    body.append(page.section("Jobs", _jobs(records)))
    if errors:
        body.append(page.section("How good the estimates of speeds were", _errors(errors)))
    lead = f"{page.when(since)} to {page.when(now)}, from the journal {journal.path}"
    return page.page("What the controller did", lead, body, f"made {page.when(now)} by {command}")


def _findings(rounds: Sequence[Mapping[str, Any]], records: Sequence[JobRecord]) -> list[str]:
    if not rounds:
        return ["No round in this time: was the controller running?"]
    total = {key: sum(r[key] for r in rounds) for key in ("starts", "moves", "preemptions", "writes", "failed")}
    modes = ", ".join(sorted({f"{r['mode']} with policy {r['policy']}" for r in rounds}))
    done = [r.ended - r.arrival for r in records if r.ended is not None]
    lines = [
        f"{len(rounds)} rounds in mode {modes}; {total['starts']} starts, {total['moves']} moves, "
        f"{total['preemptions']} stops; {total['writes']} writes to Slurm, {total['failed']} of them in vain."
    ]
    if done:
        lines.append(
            f"{len(done)} jobs ended; from submission to end they took {page.hours(statistics.fmean(done))} on "
            f"average, {page.hours(statistics.median(done))} in the middle, {page.hours(max(done))} at most."
        )
    slowest = max(rounds, key=lambda r: r["read_s"] + r["decide_s"])
    lines.append(
        f"A round read Slurm in {statistics.median(r['read_s'] for r in rounds):.2f} s and decided in "
        f"{statistics.median(r['decide_s'] for r in rounds):.2f} s (medians); the slowest took "
        f"{slowest['read_s']:.2f} s and {slowest['decide_s']:.2f} s."
    )
    notes = sorted({r["note"] for r in rounds if r["note"]})
    return lines + [f"Rounds said: {note}" for note in notes[:5]]


def _queue(rounds: Sequence[Mapping[str, Any]], since: float) -> str:
    series = {
        name: [(r["time"] - since, r[key]) for r in rounds]
        for name, key in (("all jobs", "jobs"), ("steered", "steered"), ("running", "running"))
    }
    words = "Curves: jobs in the queue, steered and running, over time."
    return page.section(
        "The queue", page.figure(lambda dark: plots.counts(series, _axis(since), "jobs in the queue", dark), words)
    )


def _axis(since: float) -> str:
    return f"hours since {page.when(since)}"


def _intervals(decisions: Sequence[Mapping[str, Any]], since: float, now: float) -> list[list[Any]]:
    """What jobs held, as decided: from a start or move to the next decision; seconds since ``since``."""
    held: dict[str, tuple[float, Mapping[str, Mapping[str, int]]]] = {}
    found: list[list[Any]] = []

    def close(job: str, moment: float) -> None:
        began, placement = held.pop(job)
        for node, types in placement.items():
            for gpu_type, count in types.items():
                if moment > began:
                    found.append([job, node, gpu_type, count, began - since, moment - since])

    for decision in decisions:
        job, kind = decision["job_id"], decision["kind"]
        if kind not in _OCCUPY + _RELEASE:
            continue
        if job in held:
            close(job, decision["time"])
        elif decision["old"]:
            held[job] = (since, decision["old"])
            close(job, decision["time"])
        if kind in _OCCUPY:
            held[job] = (decision["time"], decision["new"])
    for job in list(held):
        close(job, now)
    return found


def _gpus(intervals: Sequence[Sequence[Any]], since: float) -> list[str]:
    lanes = plots.lanes_of([intervals])
    types: dict[str, int] = {}
    for gpu_type, count in lanes.values():
        types[gpu_type] = types.get(gpu_type, 0) + count
    end = max(row[5] for row in intervals)
    shares = {t: sum(r[3] * (r[5] - r[4]) for r in intervals if r[2] == t) / (n * end) for t, n in types.items()}
    rows, names = {"steered jobs": intervals}, {row[0]: f"job {row[0]}" for row in intervals}
    used = page.figure(
        lambda dark: plots.utilisation(rows, types, {"steered jobs": shares}, dark, _axis(since)),
        "Curve: the share of GPUs held over time.",
        "As decided in each round, for steered jobs, and out of the GPUs that they ever held.",
    )
    who = page.figure(
        lambda dark: plots.gantt(rows, names, lanes, dark, _axis(since)),
        "Coloured bars for the jobs on each GPU over time.",
        "The jobs that held most GPU time have colours of their own.",
    )
    return [page.section("Use of the GPUs", used), page.section("Who ran where", who)]


def _usage(usage: Usage, now: float, half_life_s: float) -> str:
    by_user = usage.by_user(now)
    types = sorted({t for served in by_user.values() for t in served})
    if not by_user:
        return page.paragraph("Nothing was booked yet.")
    ranked = sorted(by_user, key=lambda u: (-sum(by_user[u].values()), u))
    rows = [[user or "-", *(f"{by_user[user].get(t, 0.0) / 3600:.1f}" for t in types)] for user in ranked[:_MOST_ROWS]]
    note = f"GPU hours by type; after {half_life_s / 3600:g} hours they count half."
    return page.table(["user", *types], rows) + page.paragraph(note, dim=True)


def _moves(decisions: Sequence[Mapping[str, Any]]) -> str:
    moves = [d for d in decisions if d["kind"] in ("move", "preempt")]
    if not moves:
        return page.paragraph("No job was moved or stopped.")
    rows = [[page.when(d["time"]), d["job_id"], _place(d["old"]), _place(d["new"]) or "stopped", d["why"]]
            for d in reversed(moves[-_MOST_ROWS:])]  # fmt: skip
    said = page.table(["when", "job", "from", "to", "why"], rows, text_columns=(2, 3, 4))
    return said + (
        page.paragraph(f"The last {_MOST_ROWS} of {len(moves)}.", dim=True) if len(moves) > _MOST_ROWS else ""
    )


def _jobs(records: Sequence[JobRecord]) -> str:
    if not records:
        return page.paragraph("No job was seen.")
    rows = []
    for r in reversed(records[-_MOST_ROWS:]):
        steps = f"{r.steps:.0f}" + (f" of {r.total_steps:.0f}" if r.total_steps else "")
        rows.append([r.job_id, str(r.workers), page.when(r.arrival), page.when(r.ended) if r.ended else "-",
                     page.hours(r.ended - r.arrival if r.ended else None), f"{r.attained_s / 3600:.2f}", str(r.moves),
                     str(r.restarts), steps, f"{r.lost_steps:.0f}"])  # fmt: skip
    head = ["job", "GPUs asked", "submitted", "ended", "took", "GPU hours", "moves", "restarts", "steps", "steps lost"]
    return page.table(head, rows) + _cut(len(records))


def _cut(count: int) -> str:
    return page.paragraph(f"The last {_MOST_ROWS} of {count}.", dim=True) if count > _MOST_ROWS else ""


def _errors(errors: Sequence[EstimateError]) -> str:
    rows = [
        [e.workload, f"{e.gpus} x {e.gpu_type}" + (" spread" if e.spread else ""), f"{e.estimated:.3g}",
         f"{e.measured:.3g}", f"{100 * e.relative:+.0f} %", e.source]
        for e in sorted(errors, key=lambda e: -abs(e.relative))[:_MOST_ROWS]
    ]  # fmt: skip
    middle = statistics.median(abs(e.relative) for e in errors)
    return page.paragraph(f"Off by {100 * middle:.0f} % in the middle, over {len(errors)} pairs.") + page.table(
        ["workload", "gang", "estimate (steps/s)", "measured", "error", "estimated from"], rows, text_columns=(5,)
    )


def _place(placement: Mapping[str, Mapping[str, int]]) -> str:
    return ", ".join(f"{node} {'+'.join(f'{n} x {t}' for t, n in types.items())}" for node, types in placement.items())

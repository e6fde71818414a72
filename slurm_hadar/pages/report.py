"""The page of what a live controller did lately, from its journal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.pages import html as page
from slurm_hadar.pages import plots
from slurm_hadar.pages.journal_runs import Held, Window, held_in, window_of
from slurm_hadar.pages.worth import worth_by_accounting, worth_by_rounds
from slurm_hadar.throughput.measurements import EstimateError
from slurm_hadar.units import lasting

__all__ = ["journal_page"]

_MOST_ROWS = 200


def journal_page(
    journal: Journal,
    errors: Sequence[EstimateError],
    half_life_s: float,
    since: float,
    now: float,
    command: str,
    replayed: Mapping[str, Any] | None = None,
) -> str:
    """The page, in one file, of the time from ``since`` to ``now`` (epoch seconds), as far as there were rounds in it.
    ``errors`` are those of the estimates that turned out by now (ThroughputStore.errors); ``replayed`` is the
    comparison of ``hadar replay`` (check_document), if there is one. Raises StoreError if the journal cannot be
    read."""
    rounds = journal.rounds_since(since)
    looks = [r for r in rounds if not r["skipped"]]  # the others saw nothing, which is not an empty queue
    decisions = [d for d in journal.decisions_since(since) if d["mode"] == "act"]
    records = journal.jobs_since(since)
    window = window_of(looks)
    held = held_in(journal, window) if window else None
    body = [page.listing(_findings(rounds, records))]
    body += [worth_by_rounds(journal.gains(since)), worth_by_accounting(replayed)]
    if window and held:
        body += [_queue(looks, window), *_gpus(held, window)]
    body.append(page.section("Who used the GPUs", _usage(UsageBook(journal, half_life_s), now, half_life_s)))
    body.append(page.section("Moves", _moves(decisions)))
    body.append(page.section("Jobs", _jobs(records, held.began if held else {})))
    if errors:
        body.append(page.section("How good the estimates of speeds were", _errors(errors)))
    lead = f"{_told(window, since, now)}, from the journal {journal.path}"
    return page.page("What the controller did", lead, body, f"made {page.when(now)} by {command}")


def _told(window: Window | None, since: float, now: float) -> str:
    """Of which time the page tells, and how much of what was asked for that is."""
    if window is None:
        return f"{page.when(since)} to {page.when(now)}"
    words = f"{page.when(window.since)} to {page.when(window.until)} ({lasting(window.length_s)})"
    if window.length_s > 0.9 * (now - since):
        return words
    return f"{words}, the time between the first and the last round in the {lasting(now - since)} that were asked for"


def _findings(rounds: Sequence[Mapping[str, Any]], records: Sequence[JobRecord]) -> list[str]:
    if not rounds:
        return ["No round in this time: was the controller running?"]
    total = {key: sum(r[key] for r in rounds) for key in ("starts", "moves", "preemptions", "writes", "failed")}
    modes = ", ".join(sorted({f"{r['mode']} with policy {r['policy']}" for r in rounds}))
    done = [r.ended - r.arrived for r in records if r.ended is not None]
    lines = [
        f"{len(rounds)} rounds in mode {modes}; {total['starts']} starts, {total['moves']} moves, "
        f"{total['preemptions']} stops; {total['writes']} writes to Slurm, {total['failed']} of them in vain."
    ]
    if done:
        lines.append(
            f"{len(done)} jobs ended; from submission to end they took {lasting(statistics.fmean(done))} on "
            f"average, {lasting(statistics.median(done))} in the middle, {lasting(max(done))} at most."
        )
    looks = [r for r in rounds if not r["skipped"]]
    if len(looks) < len(rounds):
        lines.append(f"{len(rounds) - len(looks)} of the rounds were skipped, and saw nothing.")
    if looks:
        slowest = max(looks, key=lambda r: r["read_s"] + r["decide_s"])
        lines.append(
            f"A round read Slurm in {statistics.median(r['read_s'] for r in looks):.2f} s and decided in "
            f"{statistics.median(r['decide_s'] for r in looks):.2f} s (medians); the slowest took "
            f"{slowest['read_s']:.2f} s and {slowest['decide_s']:.2f} s."
        )
    notes = sorted({r["note"] for r in rounds if r["note"]})
    return lines + [f"Rounds said: {note}" for note in notes[:5]]


def _queue(rounds: Sequence[Mapping[str, Any]], window: Window) -> str:
    series = {
        name: [(r["time"] - window.since, r[key]) for r in rounds]
        for name, key in (("all jobs", "jobs"), ("steered", "steered"), ("running", "running"))
    }
    words = "Curves: jobs in the queue, steered and running, over time."
    since = page.when(window.since)
    return page.section(
        "The queue",
        page.figure(lambda dark: plots.counts(series, since, window.length_s, "jobs in the queue", dark), words),
    )


def _gpus(held: Held, window: Window) -> list[str]:
    since, end_s = page.when(window.since), window.length_s
    panels = {"all jobs": held.intervals}
    if held.steered and len(held.steered) < len(held.intervals):
        panels["steered jobs"] = held.steered
    shares = {label: held.shares(rows, end_s) for label, rows in panels.items()}
    rows = {label: [astuple(row) for row in found] for label, found in panels.items()}
    names = {row.job_id: f"job {row.job_id}" for row in held.intervals}
    figures = page.table(
        ["GPU type", "GPUs", *(f"held by {label}, on average" for label in shares)],
        [[t, str(n), *(page.percent(share[t]) for share in shares.values())] for t, n in held.gpus.items()],
    )
    used = page.figure(
        lambda dark: plots.utilisation(rows, held.gpus, shares, dark, since, end_s),
        "Curve: the share of GPUs held over time.",
        "Out of all GPUs that Slurm has, by one look a round: jobs that came and went between two looks are missing.",
    )
    who = page.figure(
        lambda dark: plots.gantt({"all jobs": rows["all jobs"]}, names, held.lanes, dark, since, end_s),
        "Coloured bars for the jobs on each GPU over time.",
        "The jobs that held most GPU time have colours of their own.",
    )
    return [page.section("Use of the GPUs", figures, used), page.section("Who ran where", who)]


def _usage(usage: UsageBook, now: float, half_life_s: float) -> str:
    by_user = usage.by_user(now)
    types = sorted({t for served in by_user.values() for t in served})
    if not by_user:
        return page.paragraph("Nothing was booked yet.")
    ranked = sorted(by_user, key=lambda u: (-sum(by_user[u].values()), u))
    rows = [[user or "-", *(lasting(by_user[user].get(t, 0.0)) for t in types)] for user in ranked[:_MOST_ROWS]]
    note = f"GPU time by type; after {lasting(half_life_s)} it counts half."
    return page.table(["user", *types], rows) + page.paragraph(note, dim=True)


def _moves(decisions: Sequence[Mapping[str, Any]]) -> str:
    moves = [d for d in decisions if d["kind"] in ("move", "preempt")]
    if not moves:
        return page.paragraph("No job was moved or stopped.")
    rows = [
        [page.when(d["time"]), d["job_id"], _place(d["old"]), _place(d["new"]) or "stopped", d["why"]]
        for d in reversed(moves[-_MOST_ROWS:])
    ]
    said = page.table(["when", "job", "from", "to", "why"], rows, text_columns=(2, 3, 4))
    return said + (
        page.paragraph(f"The last {_MOST_ROWS} of {len(moves)}.", dim=True) if len(moves) > _MOST_ROWS else ""
    )


def _jobs(records: Sequence[JobRecord], began: Mapping[str, float]) -> str:
    if not records:
        return page.paragraph("No job was seen.")
    rows = []
    for r in reversed(records[-_MOST_ROWS:]):
        steps = f"{r.steps:.0f}" + (f" of {r.total_steps:.0f}" if r.total_steps else "")
        start = began.get(r.job_id)
        rows.append(
            [
                r.job_id,
                str(r.workers),
                page.when(r.arrival),
                page.when(start) if start else "-",
                page.when(r.ended) if r.ended else "-",
                lasting(r.ended - r.arrived if r.ended else None),
                lasting(r.had_s),
                str(r.moves),
                str(r.restarts),
                steps,
                f"{r.lost_steps:.0f}",
            ]
        )
    head = [
        "job",
        "GPUs asked",
        "submitted",
        "started",
        "ended",
        "took",
        "GPU time",
        "moves",
        "restarts",
        "steps",
        "steps lost",
    ]
    return page.table(head, rows) + _cut(len(records))


def _cut(count: int) -> str:
    return page.paragraph(f"The last {_MOST_ROWS} of {count}.", dim=True) if count > _MOST_ROWS else ""


def _errors(errors: Sequence[EstimateError]) -> str:
    rows = [
        [
            e.workload,
            f"{e.gpus} x {e.gpu_type}" + (" spread" if e.spread else ""),
            f"{e.estimated:.3g}",
            f"{e.measured:.3g}",
            f"{100 * e.relative:+.0f} %",
            e.source,
        ]
        for e in sorted(errors, key=lambda e: -abs(e.relative))[:_MOST_ROWS]
    ]
    middle = statistics.median(abs(e.relative) for e in errors)
    return page.paragraph(f"Off by {100 * middle:.0f} % in the middle, over {len(errors)} pairs.") + page.table(
        ["workload", "gang", "estimate (steps/s)", "measured", "error", "estimated from"], rows, text_columns=(5,)
    )


def _place(placement: Mapping[str, Mapping[str, int]]) -> str:
    return ", ".join(f"{node} {'+'.join(f'{n} x {t}' for t, n in types.items())}" for node, types in placement.items())

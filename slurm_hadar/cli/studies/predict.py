"""``hadar predict``: how much work a job will be, and how far that can be trusted here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.table import Table

from slurm_hadar.cli.common import cell, config_options, console, json_option, open_journal, print_json
from slurm_hadar.cli.studies.replay import accounting_text, since_epoch
from slurm_hadar.comment import read
from slurm_hadar.config import Config
from slurm_hadar.controller.prediction.past_jobs import history_of_accounting, history_of_journal, submission_of
from slurm_hadar.controller.state_dir import PREDICTOR, state_dir
from slurm_hadar.controller.words import clock, plain
from slurm_hadar.errors import HadarError, PredictionError, SlurmError, TraceError
from slurm_hadar.predict.attempts import Attempt, Attempts
from slurm_hadar.predict.evaluate import Report, evaluate, refusal, train
from slurm_hadar.predict.features import Past
from slurm_hadar.predict.history import HistoryJob
from slurm_hadar.predict.predictors import Prediction
from slurm_hadar.predict.store import Stored, Version, VersionStore
from slurm_hadar.simulator.history import gpu_types_of, history_of_trace
from slurm_hadar.simulator.traces import FORMATS, node_types, read_trace
from slurm_hadar.slurm.accounting import parse_accounting
from slurm_hadar.slurm.backend.select import choose
from slurm_hadar.slurm.state import ClusterState, SlurmJob
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.table import reference
from slurm_hadar.units import span

__all__ = ["predict"]

_NO_ACCOUNTS = "disabled"  # as sacct says it
_FROM_JOURNAL = "Slurm keeps no accounts (AccountingStorageType): only jobs that the controller saw end are known"


@dataclass(frozen=True)
class _History:
    """Jobs to learn from, what they were read out of, and what was assumed; ``notes`` are what somebody may want to
    mend."""

    jobs: tuple[HistoryJob, ...]
    source: str
    gpu_types: tuple[str, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Source:
    """Where the history comes from, as typed."""

    trace: str | None
    trace_format: str | None
    file: str | None
    since: str
    types: str | None
    seed: int


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--evaluate", "evaluates", is_flag=True, help="Compare predictors on the history's last fifth.")
@click.option("--train", "trains", is_flag=True, help="Evaluate, then store a new version.")
@click.option("--trainings", "lists", is_flag=True, help="Show what became of the trainings, the newest first.")
@click.option("--trace", "trace", help="History from a trace: file, folder of PAI tables, or recurring:jobs=2000.")
@click.option("--format", "trace_format", type=click.Choice(FORMATS), help="Of the trace. Default: by content.")
@click.option("--sacct", "file", metavar="FILE", help="History from sacct -P or sacct --json; - reads it from stdin.")
@click.option("--since", default="30d", show_default=True, help="How far back to ask sacct, where no file is given.")
@click.option("--node-types", "types", metavar="NODES=TYPE;...",
              help="GPU types of nodes, where accounting does not record them: gpu[01-08]=v100.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of the forest, and of drawn traces.")
@json_option
@config_options
def predict(
    config: Config, job_id: str | None, evaluates: bool, trains: bool, lists: bool, as_json: bool, **given: Any
) -> int:
    """Show how long JOB is expected to be; or evaluate or train what says so.

    A random forest learns from jobs that have ended: of the site's accounting, of the controller's journal where there
    is none (predict.source), or of a trace. It is used only if it orders jobs at least as well as the mean of each
    job's group, and is off by no more; else that mean is what answers.
    """
    if sum((job_id is not None, evaluates, trains, lists)) != 1:
        raise click.UsageError("say one of: JOB, --evaluate, --train, --trainings")
    if lists:
        return _trainings(config, as_json)
    source = _Source(**given)
    if source.trace is not None and source.file is not None:
        raise click.UsageError("--trace and --sacct exclude each other")
    if job_id is not None:
        if source.trace is not None or source.file is not None:
            raise click.UsageError("JOB is predicted by the stored version; --trace and --sacct are for --train")
        return _show(config, job_id, as_json)
    if trains:
        return _train(config, source, as_json)
    return _evaluate(_gather(config, source), source.seed, as_json)


def _gather(config: Config, source: _Source) -> _History:
    if source.trace is not None:
        return _trace(source.trace, source.trace_format, source.types, source.seed)
    if source.file is not None:
        return _accounting(source.file, source.since, source.types)
    return _site(config, source.since, source.types)


def _trainings(config: Config, as_json: bool) -> int:
    """Those that the controller has told of, by hand or by itself."""
    with open_journal(config) as journal:
        found = journal.trainings()
    if as_json:
        print_json(found)
        return 0
    if not found:
        click.echo("no training is over yet that the controller knows of")
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("BEGAN", "TOOK", "VERSION", "GOES BY", "WHY"):
        table.add_column(title, no_wrap=title != "WHY")
    for entry in found:
        took = "-" if entry["ended"] is None else span(entry["ended"] - entry["began"])
        table.add_row(
            clock(entry["began"]),
            took,
            entry["version"] or "-",
            entry["predictor"] or "-",
            cell(entry["detail"] or "-"),
        )
    console().print(table)
    return 0


def _trace(source: str, trace_format: str | None, types: str | None, seed: int) -> _History:
    table = reference()
    trace = read_trace(source, table, trace_format, node_types(types or ""), seed=seed)
    return _History(history_of_trace(trace, table), trace.name, gpu_types_of(trace, table), trace.assumptions)


def _accounting(file: str | None, since: str, types: str | None) -> _History:
    text, name = accounting_text(file, since)
    records = parse_accounting(text, name)
    types_of = node_types(types or "")
    table = reference()
    seen = {t for r in records for t in r.gpus if t} | {*types_of.values()}
    gpu_types = tuple(sorted({*table.gpu_types} | seen))
    jobs, assumptions = history_of_accounting(records, Estimator(table), gpu_types, types_of)
    if not jobs:
        raise TraceError(f"{name} has no jobs to learn from" + (f": {assumptions[-1]}" if assumptions[1:] else ""))
    return _History(jobs, name if file is not None else f"sacct since {since}", gpu_types, assumptions)


def _site(config: Config, since: str, types: str | None) -> _History:
    """The site's own jobs, as ``predict.source`` has it. Accounts that are kept and cannot be read are no reason to
    learn from something else."""
    notes: tuple[str, ...] = ()
    if config.predict.source != "journal":
        try:
            return _accounting(None, since, types)
        except SlurmError as error:
            if config.predict.source == "sacct" or _NO_ACCOUNTS not in str(error):
                raise
            notes = (_FROM_JOURNAL,)
    with open_journal(config) as journal:
        records = [r for r in journal.jobs_since(since_epoch(since, time.time())) if r.ended is not None]
    table = reference()
    gpu_types = tuple(sorted({*table.gpu_types, *(t for r in records for t in r.ran_s)}))
    jobs, assumptions = history_of_journal(records, Estimator(table), gpu_types)
    return _History(jobs, f"the controller's journal since {since}", gpu_types, assumptions, notes)


def _evaluate(history: _History, seed: int, as_json: bool) -> int:
    report = evaluate(history.jobs, seed=seed)
    refused = refusal(report)
    if as_json:
        print_json(_document(history, report, refused))
        return 0
    _print(history, report)
    click.echo(f"a forest of this history would be refused: {refused}" if refused else "it would be stored by --train")
    return 0


def _train(config: Config, source: _Source, as_json: bool) -> int:
    folder = state_dir(config) / PREDICTOR
    attempts, began = Attempts(folder), time.time()
    with attempts.alone():
        attempts.save(Attempt(began))
        notes: tuple[str, ...] = ()
        try:
            history = _gather(config, source)
            notes = history.notes
            version, report = _store(config, VersionStore(folder), history, source.seed)
        except HadarError as error:
            attempts.save(Attempt(began, time.time(), detail=str(error), notes=notes))
            raise
        attempts.save(Attempt(began, time.time(), version.name, version.predictor, version.refused, notes))
    if as_json:
        found = _document(history, report, version.refused or None)
        print_json({**found, "version": version.name, "predictor": version.predictor})
        return 0
    if report is not None:
        _print(history, report)
    for note in notes:
        click.echo(plain(f"note: {note}"))
    if version.refused:
        click.echo(f"no forest: {version.refused}")
    learned = f"learned from {version.samples or version.jobs} jobs"
    click.echo(f"stored as version {version.name}, which goes by the {version.predictor}, {learned}")
    return 0


def _store(config: Config, store: VersionStore, history: _History, seed: int) -> tuple[Version, Report | None]:
    taught, least = sum(job.teaches for job in history.jobs), config.predict.min_jobs
    if taught < least:
        raise PredictionError(f"{taught} jobs ended well in {history.source}; predict.min_jobs asks for {least}")
    training = train(history.jobs, seed=seed, predictor=config.predict.predictor.replace("_", " "))
    version = store.add(training, history.jobs, history.source, history.gpu_types, time.time())
    return version, training.report


def _document(history: _History, report: Report | None, refused: str | None) -> dict[str, Any]:
    found = {} if report is None else report.as_dict()
    return {"source": history.source, "refused": refused, "assumptions": list(history.assumptions),
            "notes": list(history.notes), **found}  # fmt: skip


def _print(history: _History, report: Report) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("PREDICTOR")
    for title in ("R2 (LOG)", "MAPE", "RANK CORR", "OVER", "UNDER"):
        table.add_column(title, justify="right")
    for s in report.scores:
        rank = "-" if s.rank is None else f"{s.rank:.3f}"
        table.add_row(s.name, f"{s.r2_log:.3f}", f"{100 * s.mape:.0f} %", rank, f"{s.over:.1f}x", f"{s.under:.1f}x")
    click.echo(
        plain(f"{history.source}: learned from {report.trained} jobs, asked about the {report.tested} submitted last")
    )
    console().print(table)
    click.echo(
        "errors of the seconds a job takes alone; over, under: the largest predicted / true and true / predicted"
    )
    click.echo(
        f"{100 * report.unseen:.0f} % of these are of groups never seen before; "
        f"{100 * report.inside:.0f} % lie in the forest's interval, meant to be 80 %"
    )
    for line in history.assumptions:
        click.echo(plain(f"assumed: {line}"))


def _show(config: Config, job_id: str, as_json: bool) -> int:
    stored = VersionStore(state_dir(config) / PREDICTOR).load()
    state = choose("cli", config.slurm.timeout_s, config.slurm.retries).read()
    job = next((j for j in state.jobs if j.job_id == job_id), None)
    if job is None:
        raise HadarError(f"job {job_id} is not in the queue; is the id right (array tasks: 123_4)?")
    estimator = Estimator(reference())
    asked = submission_of(job, estimator, stored.version.gpu_types, job.submit or state.time)
    found = stored.predictor.predict(asked, Past(stored.history))
    if found is None:
        raise HadarError("the stored predictor has no history to answer from; train anew with hadar predict --train")
    alone = found.scaled(1 / asked.steps_per_s)
    comment, _ = read(job.comment)
    speeds = estimator.speeds(comment.model or "", comment.batch, asked.gpus, _types_here(state))
    factors = {t: asked.steps_per_s / s.steps_per_s for t, s in speeds.items() if s.steps_per_s > 0}
    if as_json:
        print_json(_json(job, comment.model, found, alone, factors, stored))
    else:
        for line in _words(job, comment.model, comment.steps, found, alone, factors, stored):
            click.echo(plain(line))
    return 0


def _types_here(state: ClusterState) -> list[str]:
    return sorted({t for node in state.nodes for t, count in node.gpus if t and count > 0})


def _json(
    job: SlurmJob, model: str | None, found: Prediction, alone: Prediction, factors: Mapping[str, float], stored: Stored
) -> dict[str, Any]:
    """``steps`` only where a model is named: else a step is whatever the estimate takes for one."""
    v = stored.version
    steps = {"expected": found.steps, "low": found.low, "high": found.high} if model else None
    run_s = {t: {"expected": alone.steps * f, "low": alone.low * f, "high": alone.high * f} for t, f in factors.items()}
    return {
        "job_id": job.job_id, "user": job.user, "name": job.name, "model": model, "steps": steps, "run_s": run_s,
        "seen": found.runs, "why": found.source, "version": v.name, "predictor": v.predictor, "created": v.created,
        "learned_from": v.samples or v.jobs,
    }  # fmt: skip


def _words(
    job: SlurmJob,
    model: str | None,
    stated: int | None,
    found: Prediction,
    alone: Prediction,
    factors: Mapping[str, float],
    stored: Stored,
) -> list[str]:
    lines = [f"job {job.job_id} of {job.user}, {job.name}:"]
    if model:
        most = f", four in five such jobs {_about(found.low)} to {_about(found.high)}"
        lines.append(f"  steps        {_about(found.steps)}{most if found.high > found.low else ''}")
    if stated is not None:
        lines.append(f"  its comment  says {stated} steps, which is what counts")
    lines += _times(alone, factors)
    times = "once" if found.runs == 1 else f"{found.runs} times"
    seen = f"ended {times} before" if found.runs else "has never ended before"
    lines.append(f"  its group    ({job.user}/{job.name}) {seen}; predicted by {found.source}")
    v = stored.version
    learned = f"learned from {v.samples or v.jobs} jobs"
    lines.append(f"  predictor    version {v.name} of {clock(v.created)}, {learned} ({v.source})")
    if v.refused:
        lines.append(f"  no forest    {v.refused}")
    return lines


def _about(steps: float) -> str:
    """Three figures: more would say more than is known."""
    digits = max(0, len(f"{steps:.0f}") - 3)
    return f"{round(steps, -digits):.0f}"


def _times(alone: Prediction, factors: Mapping[str, float]) -> Sequence[str]:
    """One line per GPU type, the fastest first."""
    lines: list[str] = []
    for gpu_type, f in sorted(factors.items(), key=lambda item: item[1]):
        title = "" if lines else "run time"
        between = f", four in five {span(alone.low * f)} to {span(alone.high * f)}" if alone.high > alone.low else ""
        lines.append(f"  {title:<12} {span(alone.steps * f)} on {gpu_type}{between}")
    return lines

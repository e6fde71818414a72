"""``hadar speeds``: what is known of training speeds, and how good the estimates were."""

from __future__ import annotations

import time
from dataclasses import asdict

import click
from rich.table import Table

from slurm_hadar.cli.common import cell, config_options, console, journal_path, json_option, print_json
from slurm_hadar.config import Config
from slurm_hadar.controller.journal import journal_copy
from slurm_hadar.throughput.measurements import EstimateError, Measurement
from slurm_hadar.throughput.profiles import Needs, Profile, ProfileStore
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.units import span

__all__ = ["speeds"]


@click.command()
@json_option
@config_options
def speeds(config: Config, as_json: bool) -> None:
    """Show measured steps per second by workload, user and GPU type, and how wrong the estimates before them were.

    A user's jobs go by what their own jobs measured; others by the median, where enough users measured the same.
    """
    with journal_copy(journal_path(config)) as journal:
        store = ThroughputStore(journal.connection)
        measured = store.everything()
        errors = store.errors()
        profiles = ProfileStore(journal.connection)
        shared, needs = profiles.everything(), profiles.needs()
    if as_json:
        told = {"measured": [asdict(m) for m in measured], "errors": [_error(e) for e in errors]}
        beside = [{**asdict(p), "beside": " + ".join(p.others)} for p in shared]
        print_json({**told, "shared": beside, "needs": [asdict(n) for n in needs]})
        return
    if needs:
        console().print(_needs_table(needs))
    if shared:
        console().print(_shared_table(shared))
    if not (measured or shared or needs):
        click.echo("nothing has been measured yet: start jobs through hadar-srun")
        return
    if measured:
        console().print(_table(measured, errors))


def _error(error: EstimateError) -> dict[str, object]:
    return {**asdict(error), "relative": error.relative}


def _shared_table(shared: list[Profile]) -> Table:
    """What jobs make on a GPU that they share; ``KEEPS``: of what they make there alone."""
    table = Table(box=None, pad_edge=False)
    for title in ("WORKLOAD", "ON A SHARED", "BESIDE", "MEASURED BY"):
        table.add_column(title)
    for title in ("STEPS/S", "KEEPS", "SAMPLES", "AGE"):
        table.add_column(title, justify="right")
    now = time.time()
    for p in shared:
        keeps = f"{100 * p.keeps:.0f} %" if p.beside and p.keeps is not None else "-"
        who = (cell(p.workload), p.gpu_type, cell(" + ".join(p.others) or "nobody"), cell(p.user))
        table.add_row(*who, f"{p.steps_per_s:.3g}", keeps, str(p.samples), span(now - p.updated_at))
    return table


def _needs_table(needs: list[Needs]) -> Table:
    """What jobs take of a GPU that they share; ``DUTY``: the share of its time in which one needs it."""
    table = Table(box=None, pad_edge=False)
    for title in ("WORKLOAD", "ON A SHARED", "MEASURED BY"):
        table.add_column(title)
    for title in ("STAYS (MIB)", "BY TURNS (MIB)", "TURN (MS)", "DUTY", "AGE"):
        table.add_column(title, justify="right")
    now = time.time()
    for n in needs:
        sizes = ("-" if b is None else str(b >> 20) for b in (n.persistent_bytes, n.ephemeral_bytes))
        turns = f"{1000 * n.iter_s:.3g}", "-" if n.duty is None else f"{100 * n.duty:.0f} %"
        table.add_row(cell(n.workload), n.gpu_type, cell(n.user), *sizes, *turns, span(now - n.updated_at))
    return table


def _table(measured: list[Measurement], errors: list[EstimateError]) -> Table:
    before = {(e.workload, e.user, e.gpu_type, e.gpus, e.spread): e for e in errors}
    table = Table(box=None, pad_edge=False)
    table.add_column("WORKLOAD")
    table.add_column("MEASURED BY")
    table.add_column("GPUS")
    for title in ("STEPS/S", "SAMPLES", "AGE", "ESTIMATE", "ERROR"):
        table.add_column(title, justify="right")
    table.add_column("ESTIMATED FROM")
    now = time.time()
    for m in measured:
        error = None if m.shared else before.get((m.workload, m.user, m.gpu_type, m.gpus, m.spread))
        who = f"median of {m.users} users" if m.shared else m.user or "-"
        gang = f"{m.gpus}x{m.gpu_type}" + (" spread" if m.spread else "")
        guess = (
            (f"{error.estimated:.3g}", f"{100 * error.relative:+z.0f} %", error.source) if error else ("-", "-", "-")
        )
        row = (gang, f"{m.steps_per_s:.3g}", str(m.samples), span(now - m.updated_at))
        table.add_row(cell(m.workload), cell(who), *row, *guess)
    return table

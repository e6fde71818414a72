"""``hadar run``: the controller, as a daemon or for one round."""

from __future__ import annotations

import signal
from typing import Any

import click

from slurm_hadar.cli.common import Number, config_loader, config_options, json_option, print_json
from slurm_hadar.config import Config, Mode, changed
from slurm_hadar.controller.loop import RoundResult
from slurm_hadar.controller.safety.guard import ChangeKind
from slurm_hadar.controller.words import place
from slurm_hadar.service.service import Service

__all__ = ["run"]


@click.command()
@click.option("--once", is_flag=True, help="One round, then end: for cron.")
@click.option("--mode", type=click.Choice([str(m) for m in Mode]), help="Instead of controller.mode.")
@click.option("--policy", help="Instead of policy.name.")
@click.option("--round", "round_s", type=Number(), help="Instead of controller.round_s, in seconds.")
@click.option("--quiet", is_flag=True, help="Log warnings only.")
@json_option
@config_options
def run(
    config: Config, once: bool, mode: str | None, policy: str | None, round_s: float | None, quiet: bool, as_json: bool
) -> int:
    """Schedule the cluster, round by round.

    Starts in mode observe: reads only. `advise` also prints what it would do; `act` does it. SIGTERM ends it after
    the current write; jobs that wait become eligible by themselves within two rounds. SIGHUP reads the configuration
    again between two rounds; where it is wrong, the old one goes on.
    """
    options = {"controller.mode": mode, "policy.name": policy, "controller.round_s": round_s}
    given = {key: value for key, value in options.items() if value is not None}
    load_again = config_loader()
    with Service(
        changed(config, given), lambda: changed(load_again(), given), lambda result: _tell(result, as_json), quiet, once
    ) as service:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: service.stop())
        signal.signal(signal.SIGHUP, lambda *_: service.reload_soon())
        if once:
            return 1 if service.round().plan is None else 0
        service.run()
        return 0


def _tell(result: RoundResult[Any], as_json: bool) -> None:
    """Print a round for people who advise, or as one JSON object; the log has the rest."""
    if as_json:
        print_json(_as_dict(result))
        return
    if result.record.mode != Mode.ADVISE:
        return
    for change in result.changes:
        if change.kind not in (ChangeKind.STAY, ChangeKind.WAIT):
            click.echo(f"would {change.kind} {change.job_id}: {place(change.old)} -> {place(change.new)}  {change.why}")


def _as_dict(result: RoundResult[Any]) -> dict[str, Any]:
    record = result.record
    content: dict[str, Any] = {name: getattr(record, name) for name in record.__slots__}
    content["round"] = result.number
    content["changes"] = [
        {"job_id": c.job_id, "kind": str(c.kind), "old": c.old.as_dict(), "new": c.new.as_dict(), "why": c.why}
        for c in result.changes
        if c.kind is not ChangeKind.STAY
    ]
    return content

"""``hadar release``: undo all steering."""

from __future__ import annotations

import click

from slurm_hadar.cli.common import config_options, json_option, print_json
from slurm_hadar.config import Config
from slurm_hadar.controller.act.context import longest_defer_s
from slurm_hadar.controller.act.release import release_all
from slurm_hadar.controller.agents.notes import Seal, load_key
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.state_dir import JOURNAL, state_dir
from slurm_hadar.controller.steering.rules import out_of_scope
from slurm_hadar.names import by_number
from slurm_hadar.service.accounts import acting_user, release_entries
from slurm_hadar.service.audit import AuditLog
from slurm_hadar.slurm.backend.select import choose
from slurm_hadar.units import counted

__all__ = ["release"]

_NOT_YOURS = "not this user's to change; their owners can release them, or an operator of Slurm"


@click.command()
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@json_option
@config_options
def release(config: Config, job_ids: tuple[str, ...], as_json: bool) -> int:
    """Give waiting jobs back to Slurm: eligible at once, on every node, as they were submitted.

    Running jobs stay as they are; those that would wait for the nodes that they were sent to, if they were requeued,
    are named. Jobs outside controller.users and controller.partitions are another controller's: only those that are
    named are released. A controller that still runs in mode act will steer them again in its next round: stop it first.
    """
    backend = choose("cli", config.slurm.timeout_s, config.slurm.retries)
    directory = state_dir(config)
    journal = Journal(directory / JOURNAL)
    try:
        seal = Seal(backend.identity(), load_key(directory))
        results, bound, others, unwritten = release_all(
            backend, journal, job_ids, seal, lambda job: out_of_scope(job, config) is not None, longest_defer_s(config)
        )
    finally:
        journal.close()
    audit = AuditLog(directory, config.audit)
    audit.write(release_entries(results, acting_user()))
    audit.close()
    released = [r.job_id for r in results if not r.error]
    failed = {r.job_id: _NOT_YOURS if r.denied else r.error for r in results if r.error}
    known = {*failed, *released, *bound}
    failed |= {j: "no waiting job that is steered" for j in job_ids if j not in known}
    if as_json:
        print_json({"released": released, "failed": failed, "bound": bound, "others": others})
    else:
        click.echo(f"{counted(len(released), 'job')} released" + (f", {len(failed)} refused:" if failed else ""))
        for error in dict.fromkeys(failed.values()):
            theirs = sorted((j for j, one in failed.items() if one == error), key=by_number)
            click.echo(f"  {', '.join(theirs)}: {error}", err=True)
        if bound:
            click.echo(_bound(bound), err=True)
        if others:
            click.echo(_others(others), err=True)
    if unwritten:
        click.echo(f"the journal does not know of it: {unwritten}", err=True)
    return 1 if failed or unwritten else 0


def _bound(job_ids: list[str]) -> str:
    """Slurm changes no node list of a running job."""
    runs, which = ("runs", "it") if len(job_ids) == 1 else ("run", "one")
    return (
        f"{counted(len(job_ids), 'job')} {runs} on nodes that the controller chose "
        f"({', '.join(sorted(job_ids, key=by_number))}). If {which} is requeued, it waits for these nodes: "
        "hadar release frees it then"
    )


def _others(job_ids: list[str]) -> str:
    are, them = ("is", "it") if len(job_ids) == 1 else ("are", "them")
    return (
        f"{counted(len(job_ids), 'job')} outside this controller's scope {are} left as before "
        f"({', '.join(sorted(job_ids, key=by_number))}). Name {them} to release {them}, too"
    )

"""``hadar logs``: what a job writes, over all of its runs."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click

from slurm_hadar.cli.common import config_options
from slurm_hadar.config import Config
from slurm_hadar.controller.words import plain
from slurm_hadar.errors import SlurmError, SlurmUnavailable
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.shown import JOB_ID, Shown, shown

__all__ = ["logs"]

_LOOK_S, _ASK_S = 0.3, 5.0
_BLOCK = 1 << 16


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on, over moves and requeues, until the job is over.")
@click.argument("job")
@config_options
def logs(config: Config, job: str, follow: bool) -> None:
    """Show the output of a job.

    All runs of a job that is moved write to the same file, where it was submitted with --open-mode=append; each run
    after the first begins with a line that says where it goes on.
    """
    if not JOB_ID.fullmatch(job):
        raise click.UsageError(f"{job!r} is no job id, such as 4711 or 4711_3")
    backend = CliBackend(config.slurm.timeout_s, config.slurm.retries)
    path, found = _output_of(backend, job)
    active = found.state.active
    out = sys.stdout.buffer
    place, asked = _show(path, 0, out), time.monotonic()
    if not follow and not path.exists():
        raise SlurmError(f"job {job} has written nothing yet; its output will be in {path}")
    while follow and active:
        time.sleep(_LOOK_S)
        place = _show(path, place, out)
        if time.monotonic() - asked > _ASK_S:
            with contextlib.suppress(SlurmUnavailable):  # it is restarted, say; what the job writes is there
                active = _output_of(backend, job)[1].state.active
            asked = time.monotonic()
    _show(path, place, out)
    with contextlib.suppress(OSError):
        if found.errors is not None and found.errors.stat().st_size:
            click.echo(plain(f"hadar: what it wrote to stderr is in {found.errors}"), err=True)


def _output_of(backend: CliBackend, job: str) -> tuple[Path, Shown]:
    """Where the job writes, and what else Slurm shows of it. Raises SlurmError if Slurm does not know it any more."""
    found = shown(backend.ask, job)
    if found is None:
        raise SlurmError(
            f"Slurm does not know job {job} (any more); its output is where it was submitted, in slurm-{job}.out "
            "unless its owner said otherwise"
        )
    if found.parts and (len(found.parts) > 1 or found.parts[0].endswith("]")):
        raise SlurmError(f"job {job} has several parts, each with its own output: {', '.join(found.parts)}; name one")
    if found.output is None:
        raise SlurmError(f"job {job} is no batch job, or an array: give one of its tasks, such as {job}_1")
    return found.output, found


def _show(path: Path, place: int, out: BinaryIO) -> int:
    """What was written since; a file that is shorter now is begun anew. Returns how far it was shown."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < place:
                place = 0
            file.seek(place)
            while block := file.read(_BLOCK):
                out.write(block)
                place += len(block)
    except FileNotFoundError:  # not started yet
        return place
    out.flush()
    return place

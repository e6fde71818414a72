"""``hadar submit``: a training as a batch job that can be moved, without a script of its own."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_hadar.comment import JobComment
from slurm_hadar.config import load
from slurm_hadar.controller.steering.forms import no_type
from slurm_hadar.controller.steering.nodes import node_facts
from slurm_hadar.errors import HadarError
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.submission.sbatch import said, sbatch

__all__ = ["submit"]

_WORDS = "slurm_hadar.submit"
_NOWHERE = (
    "the scheduler starts it nowhere, but Slurm, which knows nothing of types= and mem=, may start it on any GPU where "
    "job_submit.lua does not put it off"
)
_USAGE = (
    "hadar submit [sbatch options] -- command [argument ...], such as: hadar submit --gres=gpu:2 -- python train.py"
)


class _AsTyped(click.Command):
    """The words are sbatch's and the command's: none of them is looked at here but a call for help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] in (["-h"], ["--help"]):
            return super().parse_args(ctx, args)
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, [])


@click.command(cls=_AsTyped, options_metavar="[SBATCH OPTIONS] -- COMMAND [ARGUMENT ...]")
@click.pass_context
def submit(context: click.Context) -> None:
    """Submit a command as a job that the scheduler may place and move.

    All options are sbatch's own. What makes a job movable is added unless you say otherwise: --requeue,
    --open-mode=append, and --comment=hadar: (better with what the job is: --comment=hadar:model=resnet18,batch=128).
    The command is run by hadar-srun, once per node of the job, as with srun. With --parsable only the job's id is
    printed.
    """
    words = context.meta[_WORDS]
    if "--" not in words[:-1]:
        raise click.UsageError(f"say what is to be run after --: {_USAGE}")
    split = words.index("--")
    options, command = words[:split], words[split + 1 :]
    wanted = said(options)
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    job = sbatch(options, command, Path(script).name)
    if not job:  # --test-only, whose answer is on stderr
        return
    parsable = "--parsable" in options
    click.echo(job if parsable else f"job {job} is submitted")
    if short := _no_type(wanted):
        click.echo(f"warning: no GPU type of this cluster will do: {short}; {_NOWHERE}", err=True)
    if parsable:
        return
    click.echo(f"  hadar status {job}     where it is, and why it waits")
    click.echo(f"  hadar explain {job}    when it is expected to start, and what if it took other GPUs")
    click.echo(f"  hadar logs -f {job}    its output, over all moves")


def _no_type(wanted: JobComment) -> str | None:
    """Why no GPU type here is one that the job accepts; None if one is, or that cannot be told."""
    if wanted.types is None and wanted.mem_gb is None:
        return None
    try:
        config = load()
        state = CliBackend(config.slurm.timeout_s, retries=0).read()
    except HadarError:  # the job is submitted whatever can be said about it
        return None
    return no_type(wanted, node_facts(state.nodes, config.gpus.memory_gb))

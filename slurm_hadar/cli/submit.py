"""``hadar submit``: a training as a batch job that can be moved, without a script of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from slurm_hadar import comment
from slurm_hadar.config import load
from slurm_hadar.controller.steering import no_type, node_facts
from slurm_hadar.errors import HadarError, SlurmError
from slurm_hadar.slurm.cli import CliBackend

__all__ = ["submit"]

_WORDS = "slurm_hadar.submit"
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
    The command is run by hadar-srun, once per node of the job, as with srun.
    """
    words = context.meta[_WORDS]
    if "--" not in words[:-1]:
        raise click.UsageError(f"say what is to be run after --: {_USAGE}")
    split = words.index("--")
    options, command = words[:split], words[split + 1 :]
    said = _comment(options)
    job = _sbatch([*options, *_missing(options), *_name(options, command), f"--wrap={_wrapped(command)}"])
    click.echo(f"job {job} is submitted")
    if short := _no_type(said):
        click.echo(f"warning: no GPU type of this cluster will do, so it waits for ever: {short}", err=True)
    click.echo(f"  hadar explain {job}    when it is expected to start, and why it waits")
    click.echo(f"  hadar logs -f {job}    its output, over all moves")


def _given(options: list[str], name: str) -> bool:
    return any(word == f"--{name}" or word.startswith(f"--{name}=") for word in options)


def _missing(options: list[str]) -> list[str]:
    """What a movable job needs and its owner has not said anything about."""
    added = []
    if not _given(options, "requeue") and not _given(options, "no-requeue"):
        added.append("--requeue")
    if not _given(options, "open-mode"):
        added.append("--open-mode=append")
    if not _given(options, "comment"):
        added.append(f"--comment={comment.PREFIX}")
    return added


def _name(options: list[str], command: list[str]) -> list[str]:
    """The script's, where its owner gives none: sbatch would call it wrap."""
    if _given(options, "job-name") or any(word.startswith("-J") for word in options):
        return []
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    return [f"--job-name={Path(script).name}"]


def _no_type(said: comment.JobComment) -> str | None:
    """Why no GPU type here is one that the job accepts; None if one is, or that cannot be told."""
    if said.types is None and said.mem_gb is None:
        return None
    try:
        config = load()
        state = CliBackend(config.slurm.timeout_s, retries=0).read()
    except HadarError:  # the job is submitted whatever can be said about it
        return None
    return no_type(said, node_facts(state.nodes, config.gpus.memory_gb))


def _comment(options: list[str]) -> comment.JobComment:
    """What the comment says. Refuses one that cannot be read, or is not for the scheduler. Raises CommentError or
    UsageError."""
    said = comment.JobComment()
    for number, word in enumerate(options):
        name, equals, text = word.partition("=")
        if name != "--comment":
            continue
        text = text if equals else next(iter(options[number + 1 : number + 2]), "")
        if not comment.is_ours(text):
            raise click.UsageError(
                f"--comment={text} is not for the scheduler; begin it with {comment.PREFIX}, or use sbatch"
            )
        said = comment.parse(text)
    return said


def _wrapped(command: list[str]) -> str:
    """The batch script's only line. The wrapper that lies beside this command is the one that belongs to it."""
    beside = Path(sys.argv[0]).resolve().with_name("hadar-srun")
    wrapper = str(beside) if os.access(beside, os.X_OK) else "hadar-srun"
    return f"{shlex.quote(wrapper)} -- {shlex.join(command)}"


def _sbatch(arguments: list[str]) -> str:
    """The job's id. Raises SlurmError with sbatch's own words; what else it says is passed on."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise SlurmError("sbatch is not on PATH: jobs are submitted where Slurm's commands are installed")
    done = subprocess.run([sbatch, "--parsable", *arguments], capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines() if line]
        raise SlurmError("; ".join(said) or f"sbatch ended with {done.returncode} and gave no reason")
    sys.stderr.write(done.stderr)
    return done.stdout.strip().partition(";")[0]

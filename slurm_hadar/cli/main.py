"""``hadar``: the command that an administrator and a researcher type."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from slurm_hadar import __version__
from slurm_hadar.errors import HadarError

__all__ = ["hadar", "main"]

# Named, not imported: a command pays for its own imports only (the private cluster's, SQLite's, NumPy's).
COMMANDS = {
    "bench": "slurm_hadar.cli.studies.bench:bench",
    "cluster": "slurm_hadar.cli.admin.cluster:cluster",
    "compare": "slurm_hadar.cli.studies.compare:compare",
    "config": "slurm_hadar.cli.admin.config:config",
    "doctor": "slurm_hadar.cli.admin.doctor:doctor",
    "explain": "slurm_hadar.cli.jobs.explain:explain",
    "history": "slurm_hadar.cli.jobs.history:history",
    "logs": "slurm_hadar.cli.admin.logs:logs",
    "predict": "slurm_hadar.cli.studies.predict:predict",
    "queue": "slurm_hadar.cli.jobs.queue:queue",
    "release": "slurm_hadar.cli.admin.release:release",
    "replay": "slurm_hadar.cli.studies.replay:replay",
    "report": "slurm_hadar.cli.admin.report:report",
    "run": "slurm_hadar.cli.admin.run:run",
    "serve": "slurm_hadar.cli.systems.serve:serve",
    "share": "slurm_hadar.cli.systems.share:share",
    "simulate": "slurm_hadar.cli.studies.simulate:simulate",
    "speeds": "slurm_hadar.cli.jobs.speeds:speeds",
    "status": "slurm_hadar.cli.jobs.status:status",
    "submit": "slurm_hadar.cli.jobs.submit:submit",
    "top": "slurm_hadar.cli.admin.top:top",
    "tune": "slurm_hadar.cli.systems.tune:tune",
    "web": "slurm_hadar.cli.admin.web:web",
}


_OF_EXTRA = re.compile(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]")


class _Lazy(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        if name in ("run", "web"):  # before NumPy comes: OpenBLAS would begin a thread for each core (TasksMax=)
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Group(commands=[_outline(name) for name in COMMANDS]).format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [_outline(name) for name in sorted(COMMANDS) if name.startswith(incomplete)]
        commands = [CompletionItem(command.name, help=command.get_short_help_str()) for command in found]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def _outline(name: str) -> click.Command:
    """A command's name and help, parsed from its file: to import every command for a list of them takes a second."""
    module, _, attribute = COMMANDS[name].partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == attribute)
    return click.Command(name, help=ast.get_docstring(function))


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hadar")
def hadar() -> None:
    """Heterogeneity-aware scheduling of deep-learning jobs on stock Slurm."""


def main(arguments: list[str] | None = None) -> None:
    """The command ``hadar``."""
    run(hadar, "hadar", args=arguments, prog_name="hadar")


def run(command: click.Command, name: str, **given: Any) -> NoReturn:
    """Run a command and exit: 0 done, 1 refused or failed with one line, 2 wrong usage; never a traceback. ``given``
    are further arguments of :meth:`click.Command.main`."""
    _make_writable()
    try:
        code = command.main(**given, standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(1)
    except click.Abort:
        click.echo(f"{name}: stopped", err=True)
        sys.exit(130)
    except ModuleNotFoundError as error:
        installs = " or ".join(f"pip install 'slurm_hadar[{extra}]'" for extra in _extras_with(error.name or ""))
        if not installs:
            raise
        click.echo(f"{name}: this needs {error.name}: {installs}", err=True)
        sys.exit(1)
    except HadarError as error:
        for fault in (error, *getattr(error, "more", ())):
            click.echo(f"{name}: {fault}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; closing stdout quietly is what it expects.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        click.echo(f"{name}: {error.filename or 'system'}: {error.strerror or error}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _make_writable() -> None:
    """stdout and stderr, should they be closed, or not know all letters of other users' names."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 until the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _extras_with(module: str) -> list[str]:
    """The extras of ours that bring a module which is not installed."""
    package = module.partition(".")[0]
    package = {"sklearn": "scikit-learn"}.get(package, package).replace("_", "-").lower()
    found = (_OF_EXTRA.match(requirement) for requirement in metadata.requires("slurm_hadar") or ())
    return [extra for name, extra in (f.groups() for f in found if f) if name.replace("_", "-").lower() == package]


if __name__ == "__main__":
    main()

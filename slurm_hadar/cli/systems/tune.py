"""``hadar tune``: hyper-parameter tuning that fills the GPUs it has."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_hadar.cli.common import Number, console, facts_table, write_json
from slurm_hadar.cli.systems.tune_table import Screenful, best_line, standing_line, standing_table, study_line
from slurm_hadar.cluster.emulation import default_factors
from slurm_hadar.controller.words import plain
from slurm_hadar.errors import ConfigError
from slurm_hadar.fields import LONGEST_S, MOST_PAUSE_S
from slurm_hadar.joblog import say
from slurm_hadar.throughput.table import reference
from slurm_hadar.tuning.allocation.allocator import Form, TuningPolicy
from slurm_hadar.tuning.allocation.pool import GpuType, Limits, parse_pool
from slurm_hadar.tuning.groups import read_groups
from slurm_hadar.tuning.simulation.run import TuningResult
from slurm_hadar.tuning.simulation.run import simulate as run_simulation
from slurm_hadar.units import lasting

if TYPE_CHECKING:
    from slurm_hadar.tuning.executor.executor import Executor
    from slurm_hadar.tuning.session import Ending, Options

__all__ = ["tune"]

_STOP_S = 240.0
_INTERRUPTED = 130  # as shells have it, so that nothing follows in a list of commands
_LINE_S = 30.0


@click.group()
def tune() -> None:
    """Trials of hyper-parameters on the GPUs of one allocation."""


_ALGORITHMS = ("random", "grid", "tpe", "asha", "sha", "hyperband", "pbt")


def _algorithm(_context: click.Context, _param: click.Parameter, text: str) -> str:
    from slurm_hadar.tuning.session import function_at

    if text not in _ALGORITHMS and ":" not in text:
        raise click.BadParameter(f"{text!r} is none of {', '.join(_ALGORITHMS)}, nor FILE.py:FUNCTION")
    return text if text in _ALGORITHMS else function_at(text)


_storage = click.option(
    "--storage", default="sqlite:///tune.db", show_default=True, metavar="URL", help="Optuna's storage of the study."
)
_study = click.option("--study", metavar="NAME", help="Of several studies in one storage.")
_gpus = click.option(
    "--gpus",
    metavar="N|TYPE:N,...",
    help="So many of what is here; default: all. Without a GPU: how many trials the CPUs run at once.",
)


@tune.command()
@click.argument("objective", metavar="FILE.py:FUNCTION")
@click.option("--trials", default=20, show_default=True, type=click.IntRange(1, 100_000), help="How many, in all.")
@click.option("--algorithm", default="tpe", show_default=True, callback=_algorithm, metavar="NAME", help="Who is "
              f"tried, and who goes on: {', '.join(_ALGORITHMS)}; or FILE.py:FUNCTION, one of your own.")  # fmt: skip
@click.option("--sampler", default="random", show_default=True, type=click.Choice(["random", "tpe"]), help="Who is "
              "tried, with sha, hyperband and asha; tpe learns from the brackets before.")  # fmt: skip
@_gpus
@click.option("--metric", metavar="NAME", help="Of a dictionary that the objective returns; else its name in tables.")
@click.option("--direction", default="minimize", show_default=True, type=click.Choice(["minimize", "maximize"]),
              help="What is better.")  # fmt: skip
@click.option("--target", type=Number(), help="A value that ends the search.")
@_storage
@_study
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of the sampler.")
@click.option("--eta", default=3, show_default=True, type=click.IntRange(2, 100), help="Of sha, hyperband and asha: of "
              "so many at a rung one goes on.")  # fmt: skip
@click.option("--first-rung", default=1, show_default=True, type=click.IntRange(1, 10**9), help="Of these: the step of "
              "the report at which the first rung is.")  # fmt: skip
@click.option(
    "--longest",
    type=click.IntRange(1, 10**9),
    help="Of sha and hyperband: the last step that a whole trial reports; default: as many rungs as trials allow.",
)
@click.option("--time-limit", "time_limit_s", type=Number(0.1, LONGEST_S), metavar="SECONDS",
              help="Of a trial's running time; one that takes longer fails.")  # fmt: skip
@click.option("--group-deadline", "deadline_s", type=Number(0.1, LONGEST_S), metavar="SECONDS",
              help="Of a trial group: who is not done by then is ranked by what it has reported.")  # fmt: skip
@click.option("--packed", default=2, show_default=True, type=click.IntRange(1, 64), help="The most trials on a GPU.")
@click.option("--widest", default=4, show_default=True, type=click.IntRange(1, 1024), help="The most GPUs of a trial.")
@click.option("--speed", "speeds", multiple=True, metavar="TYPE=X", help="Of a GPU type; default: by the published "
              "table, the median over its workloads.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def run(
    objective: str, storage: str, study: str | None, speeds: tuple[str, ...], json_file: str | None, **options: Any
) -> None:
    """Search for good hyper-parameters: an Optuna objective, its trials on the GPUs that are here.

    Within a Slurm job trials are steps on the job's GPUs, else processes of this machine. A study that is there
    already goes on.
    """
    from slurm_hadar.tuning.session import Options, function_at, storage_url

    whole = function_at(objective)
    name = study or f"{Path(objective.rpartition(':')[0]).stem}-{objective.rpartition(':')[2]}"
    _run(Options(whole, storage_url(storage), name, **options), speeds, json_file, fresh=True)


@tune.command()
@_storage
@_study
@_gpus
@click.option("--trials", type=click.IntRange(1, 100_000), help="How many, in all; default: as before.")
@click.option("--target", type=Number(), help="A value that ends the search; default: as before.")
@click.option("--speed", "speeds", multiple=True, metavar="TYPE=X", help="Of a GPU type.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def resume(
    storage: str, study: str | None, gpus: str | None, trials: int | None, target: float | None,
    speeds: tuple[str, ...], json_file: str | None,
) -> None:  # fmt: skip
    """Go on with a study that was stopped, or whose tuner has died; finished trials stay as they are."""
    from dataclasses import replace

    from slurm_hadar.tuning.session import options_of

    options = options_of(storage, study)
    options = replace(options, trials=trials or options.trials, target=options.target if target is None else target)
    _run(replace(options, gpus=gpus), speeds, json_file, fresh=False)


@tune.command()
@_storage
@_study
@click.option("--json", "json_file", metavar="FILE", help="Write it as JSON; - prints it.")
def status(storage: str, study: str | None, json_file: str | None) -> None:
    """How a study stands, and whether a tuner is at work on it."""
    from slurm_hadar.tuning import session
    from slurm_hadar.tuning.study.record import folder_of, is_done, is_running, read_status

    options = session.options_of(storage, study)
    folder = folder_of(options.storage, options.study)
    counts, best = session.standing(options)
    running = is_running(folder)
    live = read_status(folder) if running else {}
    if json_file is not None:
        told = best and best.told
        write_json(json_file, {"study": options.study, "trials": counts, "best": told, "tuner": live or None})
        return
    click.echo(study_line(options.study, counts, tuned=bool(live)))
    if best is not None:
        click.echo(best_line(best, options.metric, tuned=bool(live)))
    if running is None:
        click.echo(f"it is another user's: whether a tuner is at work on it is not to be seen ({folder})")
        return
    total = sum(counts.values())
    over = total - counts.get("running", 0) - counts.get("waiting", 0)
    if not live and over == total and (total >= options.trials or is_done(folder)):
        more = f"; for more: {_resume(options)} --trials {2 * options.trials}" if total >= options.trials else ""
        click.echo(f"all of its trials are over{more}")
        return
    if not live:
        click.echo(f"no tuner is at work on it; go on with: {_resume(options)}")
        return
    click.echo(f"tuner: process {live['pid']} on {live['host']}")
    console().print(standing_table(live))


@tune.command()
@_storage
@_study
def stop(storage: str, study: str | None) -> None:
    """End a study's tuner, once its trials have saved; resume goes on with it."""
    import time

    from slurm_hadar.tuning import session
    from slurm_hadar.tuning.study.record import folder_of, is_running, request_stop

    options = session.options_of(storage, study)
    folder = folder_of(options.storage, options.study)
    running = is_running(folder)
    if running is None:
        raise ConfigError(f"study {options.study} is another user's, who can stop it ({folder})")
    if not running:
        raise ConfigError(f"no tuner is at work on study {options.study}")
    request_stop(folder)
    until = time.monotonic() + _STOP_S
    while is_running(folder):
        if time.monotonic() > until:
            raise ConfigError(f"the tuner of {options.study} was asked to stop and has not within {_STOP_S:g} s")
        time.sleep(0.2)
    click.echo(f"stopped; go on with: {_resume(options)}")


def _resume(options: Options) -> str:
    import shlex

    command = f"hadar tune resume --storage {shlex.quote(options.storage)} --study {shlex.quote(options.study)}"
    return command if options.gpus is None else f"{command} --gpus {shlex.quote(options.gpus)}"


def _run(options: Options, speeds: tuple[str, ...], json_file: str | None, fresh: bool) -> None:
    from slurm_hadar.tuning import session

    with _watching(options.trials, options.metric or "value") as look:
        ending = session.run(options, _say, look, lambda sites: _speeds(sites.types, speeds), fresh)
    _show_end(options, ending, json_file)
    if ending.why == "stopped":
        _say(f"stopped; go on with: {_resume(options)}")
    if ending.interrupted:
        raise SystemExit(_INTERRUPTED)


@contextlib.contextmanager
def _watching(trials: int, metric: str) -> Iterator[Callable[[Executor], None]]:
    """A table that lives, on a terminal; a line now and then anywhere else; the status file, always."""
    import time

    from rich.console import Console
    from rich.live import Live

    from slurm_hadar.tuning.view import snapshot

    screen = Console(stderr=True)
    lives = sys.stderr.isatty() and not screen.is_dumb_terminal  # on which rich would draw nothing
    live = Live(console=screen, auto_refresh=False, transient=True) if lives else None
    said_s = time.monotonic()

    def look(executor: Executor) -> None:
        nonlocal said_s
        stands = snapshot(executor, trials) | {"metric": metric}
        executor.record.status(**stands)
        if live is not None:
            live.update(Screenful(stands), refresh=True)
        elif time.monotonic() - said_s > _LINE_S:
            said_s = time.monotonic()
            _say(standing_line(stands))

    with live or contextlib.nullcontext():
        yield look


def _show_end(options: Options, ending: Ending, json_file: str | None) -> None:
    from slurm_hadar.tuning import session

    trials = ending.book.trials()
    best = session.best_of(trials, ending.book.maximize)
    states = session.counts_of(trials)
    command = session.repeat_command(options, best) if best is not None else None
    picture = _draw(options, ending)
    if json_file is not None:
        write_json(json_file, {
            "ended": ending.why, "trials": states, "resizes": ending.resizes, "folder": str(ending.folder),
            "best": best and best.told,
            "repeat": command, "picture": None if picture is None else str(picture),
        })  # fmt: skip
    if best is None and ending.why == "stopped":
        return
    if best is None:
        raise ConfigError(f"no trial has a value; their output is in {ending.folder}/trials")
    if json_file == "-":
        return
    click.echo("trials: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    click.echo(best_line(best, options.metric, tuned=False))
    console().print(facts_table((name, f"{value!r}", "") for name, value in best.parameters.items()))
    click.echo(f"to train with it again: {command}")
    if picture is not None:
        click.echo(f"what ran where: {picture}")


def _draw(options: Options, ending: Ending) -> Path | None:
    """The picture; None where matplotlib is not installed, or nothing has run."""
    from slurm_hadar.tuning.study.record import read_events

    events = read_events(ending.folder)
    if importlib.util.find_spec("matplotlib") is None or not any(event["event"] == "start" for event in events):
        return None
    from slurm_hadar.pages.tuning import tuning_picture

    file = ending.folder / "run.png"
    try:
        file.write_bytes(tuning_picture(events, ending.book.maximize, options.metric or "value"))
    except Exception as error:  # matplotlib's may be any, as of one that finds no memory; the search has ended well
        _say(f"{file}: {getattr(error, 'strerror', None) or error}; there is no picture")
        return None
    return file


def _say(line: str) -> None:
    say(plain(line))


@tune.command()
@click.option("--trials", "source", required=True, type=click.Path(path_type=Path), help="CSV, a line for each trial.")
@click.option("--gpus", required=True, metavar="TYPE:N,...", help="What there is, such as v100:4,p100:4.")
@click.option("--policy", required=True, type=click.Choice([str(p) for p in TuningPolicy]), help="How wide trials are.")
@click.option("--form", default="level", show_default=True, type=click.Choice([str(f) for f in Form]),
              help="Of fluid and static: the water level, or the widths as the paper prints them.")  # fmt: skip
@click.option("--packed", default=2, show_default=True, type=click.IntRange(1, 64), help="The most trials on a GPU.")
@click.option("--widest", default=4, show_default=True, type=click.IntRange(1, 1024), help="The most GPUs of a trial.")
@click.option("--resize-cost", "resize_s", default=0.0, show_default=True, type=Number(0, MOST_PAUSE_S),
              help="Seconds that a resize takes.")  # fmt: skip
@click.option("--speed", "speeds", multiple=True, metavar="TYPE=X", help="Of a GPU type; default: by the published "
              "table, the median over its workloads.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def simulate(
    source: Path, gpus: str, policy: str, form: str, packed: int, widest: int, resize_s: float,
    speeds: tuple[str, ...], json_file: str | None,
) -> None:  # fmt: skip
    """Simulate groups of trials, one group after the other, on a pool of GPUs.

    Columns: group, trial, budget_s (at width 1 on the fastest type), and optional alpha, beta (overheads of packing and
    scaling, 1 = none).
    """
    groups, pool = read_groups(source), _pool(gpus, speeds)
    limits = Limits(packed, widest)
    result = run_simulation(groups, pool, TuningPolicy(policy), limits, resize_s, Form(form))
    if json_file is not None:
        write_json(json_file, result.summary())
        if json_file == "-":
            return
    console().print(facts_table(_rows(result)))
    click.echo("assumed: " + ", ".join(f"{t.name} {t.speed:.2f} times as fast as the fastest" for t in pool))


def _pool(gpus: str, speeds: tuple[str, ...]) -> tuple[GpuType, ...]:
    types = [t.name for t in parse_pool(gpus, {})]
    return parse_pool(gpus, _speeds(types, speeds))


def _speeds(types: Sequence[str], speeds: tuple[str, ...]) -> dict[str, float]:
    """The published ones of types for which none is given."""
    given = {}
    for text in speeds:
        name, equals, value = text.partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            given[name] = 0.0
        if not equals or not 1e-6 <= given[name] <= 1e6:
            raise ConfigError(f"--speed {text!r} must read TYPE=X, a number above 0")
    published = default_factors(reference(), types)
    return {name: published[name] for name in types} | given


def _rows(result: TuningResult) -> list[tuple[str, str, str]]:
    to_bound = result.makespan_s / result.lower_bound_s
    return [
        (
            "total time",
            lasting(result.makespan_s),
            f"{to_bound:.2f} times a lower bound of {lasting(result.lower_bound_s)}",
        ),
        ("GPU use", f"{100 * result.gpu_use:.0f} %", "of the time in which a GPU had a trial"),
        ("resizes", str(result.resizes), ""),
    ]

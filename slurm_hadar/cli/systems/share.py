"""``hadar share``: several jobs on one GPU by turns."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_hadar.cli.common import Number, console, facts_table, fitting_table, printed, write_json, write_text
from slurm_hadar.controller.words import plain
from slurm_hadar.errors import ChannelError, ConfigError
from slurm_hadar.joblog import say
from slurm_hadar.runtime.inject import INJECT
from slurm_hadar.runtime.launch.turns import has_shards
from slurm_hadar.sharing.broker.queries import NobodyServes, sockets, status_of
from slurm_hadar.sharing.broker.server import Broker
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.simulation.result import ShareResult
from slurm_hadar.sharing.simulation.run import PARALLEL_GAIN, ShareOptions
from slurm_hadar.sharing.simulation.run import simulate as run_simulation
from slurm_hadar.sharing.simulation.trace import read_trace, write_trace
from slurm_hadar.sharing.simulation.workloads import GAP_S, draw_trace
from slurm_hadar.sharing.sizes import MOST_BYTES, size_bytes, size_in_words
from slurm_hadar.sharing.together import Command, End, run_together
from slurm_hadar.sharing.turns import Policy
from slurm_hadar.units import lasting
from slurm_hadar.wakeup import signals_wake

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["share"]

_HEAVIEST = 1000
_MEMORY = "Of the GPU that jobs may use; also 16G (powers of 1000) or 16GiB (of 1024)."
_CHOICE = click.Choice([str(p) for p in Policy])
_policy = click.option("--policy", required=True, type=_CHOICE, help="Who is next.")


def _some_bytes(_context: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    try:
        size = None if text is None else size_bytes(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    if size == 0:
        raise click.BadParameter("no job fits into nothing")
    return size


_memory = click.option(
    "--memory",
    "memory_bytes",
    required=True,
    callback=_some_bytes,
    metavar="BYTES",
    help=_MEMORY,
)
_any_memory = click.option(
    "--memory", "memory_bytes", callback=_some_bytes, metavar="BYTES", help=f"{_MEMORY} Default: not counted."
)
_shares = click.option(
    "--share", "shares", multiple=True, metavar="CLASS=WEIGHT", help="Of a class's jobs together (priority); default 1."
)


@click.group()
def share() -> None:
    """Several jobs on one GPU, iteration by iteration."""


@share.command()
@click.option("--policy", default="fair", show_default=True, type=_CHOICE, help="Who is next.")
@_any_memory
@_shares
@click.argument("jobs", nargs=-1, required=True)
def run(policy: str, memory_bytes: int | None, shares: tuple[str, ...], jobs: tuple[str, ...]) -> None:
    """Run several commands at once that share this allocation's GPU by turns. Of several GPUs each command sees one.

    Each JOB is a command with its options, in quotes: "python train.py --lr 0.1". NAME=VALUE in front of it is its
    environment; no shell reads it. Ends with the code of the first that fails, or 0.
    """
    commands = [Command.read(number, text) for number, text in enumerate(jobs, 1)]
    if (outer := os.environ.get("HADAR_SHARE")) and Path(outer).is_socket():
        raise ConfigError(
            f"this command takes turns on its GPU already (HADAR_SHARE={outer}), and what it runs does so too: start "
            "several commands by 'command & command & wait', or with HADAR_SHARE= for turns of their own"
        )
    if has_shards(os.environ):
        say(
            "this job has a part of a GPU: its commands take turns with each other, and not with other jobs there, as "
            "commands of hadar-srun do"
        )
    rules = Rules(Policy(policy), MOST_BYTES if memory_bytes is None else memory_bytes, _weights(shares, policy))
    raise SystemExit(run_together(commands, rules, INJECT, say, _show_end))


def _show_end(end: End) -> None:
    turns = f"{end.turns} turns, {lasting(end.used_s)} in all, {100 * end.used_s / end.ran_s:.0f} % of its time"
    had = turns if end.turns else "it took no turns"
    say(f"job {end.command.number} ({plain(end.command.text)}) ended with {end.code} after {lasting(end.ran_s)}: {had}")


@share.command()
@click.option("--socket", "path", type=click.Path(path_type=Path), help="Of one broker; default: those of share run.")
@click.option("--json", "json_file", metavar="FILE", help="Write it as JSON; - prints it.")
def status(path: Path | None, json_file: str | None) -> None:
    """Lanes, turns and memory of this user's brokers on this machine."""
    brokers = _found() if path is None else [{"socket": str(path), **status_of(path)}]
    if json_file is not None:
        write_json(json_file, {"brokers": brokers})
        return
    if not brokers:
        click.echo("no broker of share run or of jobs with shards is here; --socket PATH asks another one")
    for broker in brokers:
        console().print(
            f"{broker['socket']}: policy {broker['policy']}, {_reserved(broker)}", soft_wrap=True, markup=False
        )
        console().print(_sessions(broker["sessions"], console().width))


def _found() -> list[dict[str, Any]]:
    """One that does not answer hides no other. Nothing is said of what a broker has left that was killed."""
    found = []
    for path in sockets():
        try:
            found.append({"socket": str(path), **status_of(path)})
        except NobodyServes:
            continue
        except ChannelError as error:
            say(str(error))
    return found


def _reserved(broker: dict[str, Any]) -> str:
    if broker["memory_bytes"] is None:
        return "memory is not counted"
    reserved, memory = (size_in_words(broker[key]) for key in ("reserved_bytes", "memory_bytes"))
    return f"{reserved} of {memory} reserved, lanes: {len(broker['lanes'])}"


#: What a narrow terminal has no room for, in this order; a job's name and state stay.
_DROPPED = ("process", "lane", "duty", "memory", "time", "turns", "share")


def _sessions(sessions: Iterable[dict[str, Any]], width: int) -> Table:
    titles = ("job", "process", "lane", "state", "turns", "time", "share", "duty", "memory")
    return fitting_table([_facts(row) for row in sessions], titles, _DROPPED, width)


def _facts(row: dict[str, Any]) -> dict[str, str]:
    return {
        "job": plain(row["label"]),
        "process": str(row["pid"]),
        "lane": "-" if row["lane"] is None else str(row["lane"]),
        "state": _state(row),
        "turns": str(row["turns"]),
        "time": lasting(row["used_s"]),
        "share": f"{100 * row['share']:.1f} %",
        "duty": "-" if row.get("duty") is None else f"{100 * row['duty']:.0f} %",
        "memory": " + ".join(size_in_words(row[key]) for key in ("persistent_bytes", "ephemeral_bytes"))
        + " kept" * bool(row.get("keeps")),
    }


def _state(row: dict[str, Any]) -> str:
    """A broker that an older release serves says nothing of giving way."""
    kept = row.get("gives_way")
    return str(row["state"]) if kept is None else f"{row['state']}, gives way: {100 * kept:.0f} % of the turns"


@share.command()
@click.option("--trace", "source", required=True, type=click.Path(path_type=Path), help="CSV, a line for each job.")
@_policy
@_memory
@click.option(
    "--parallel-gain",
    "gain",
    type=Number(0.01, 100.0),
    default=float(PARALLEL_GAIN),
    show_default=True,
    help="What jobs beside each other (pack) do in all, against one alone.",
)
@_shares
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
@click.option("--jobs-csv", "jobs_file", metavar="FILE", help="Write one line per job; - prints them.")
def simulate(
    source: Path,
    policy: str,
    memory_bytes: int,
    gain: float,
    shares: tuple[str, ...],
    json_file: str | None,
    jobs_file: str | None,
) -> None:
    """Simulate a trace on one GPU that its jobs share.

    Columns: job_id, arrival_s, iterations, iter_s, persistent_bytes, ephemeral_bytes, and for policy priority class.
    """
    on_terminal = printed(json=json_file, jobs_csv=jobs_file)
    weights = _weights(shares, policy)
    jobs = read_trace(source)
    classes = {job.group for job in jobs}
    for name in weights.keys() - classes:
        known = ", ".join(map(repr, sorted(classes)))
        raise ConfigError(f"--share {name}: no job of the trace is of this class; its column class has {known}")
    options = ShareOptions(memory_bytes, Fraction(gain).limit_denominator(10_000), weights)
    result = run_simulation(jobs, Policy(policy), options)
    if jobs_file is not None:
        write_text(jobs_file, result.jobs_csv())
    if json_file is not None:
        write_json(json_file, result.summary())
    if on_terminal:
        return
    console().print(facts_table(_rows(result, memory_bytes)))
    if result.lanes_max > 1:
        click.echo(f"assumed: jobs beside each other do {gain:g} times what one alone does (--parallel-gain)")


def _weights(shares: Iterable[str], policy: str) -> dict[str, int]:
    weights = {}
    for text in shares:
        if policy != Policy.PRIORITY:
            raise click.UsageError("--share goes with --policy priority")
        name, equals, weight = text.rpartition("=")
        if not equals or not weight.isdecimal() or not 1 <= int(weight) <= _HEAVIEST:
            raise ConfigError(f"--share {text!r} must read CLASS=WEIGHT, a whole number from 1 to {_HEAVIEST}")
        weights[name] = int(weight)
    return weights


def _rows(result: ShareResult, memory_bytes: int) -> list[tuple[str, str, str]]:
    s = result.summary()
    used = f"{100 * s['peak_bytes'] / memory_bytes:.1f} % of {size_in_words(memory_bytes)}"
    return [
        ("policy", s["policy"], f"{s['jobs']} jobs"),
        ("makespan", lasting(s["makespan_s"]), ""),
        ("average JCT", lasting(s["avg_jct_s"]), f"95 %: {lasting(s['p95_jct_s'])}"),
        ("average queueing", lasting(s["avg_queueing_s"]), "until the first turn"),
        ("peak memory", size_in_words(s["peak_bytes"]), used),
        ("most lanes", str(s["lanes_max"]), ""),
        ("switches", str(s["switches"]), ""),
        ("violations", str(s["violations"]), "of the condition on memory"),
    ]


@share.command()
@click.option("--jobs", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="How many.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same trace.")
@click.option(
    "--gap",
    "gap_s",
    type=Number(0.0, 1e6),
    default=GAP_S,
    show_default=True,
    help="Mean seconds between arrivals; 0: all at once.",
)
@click.option("--out", default="-", metavar="FILE", help="Write the trace there; default: print it.")
def trace(jobs: int, seed: int, gap_s: float, out: str) -> None:
    """Draw a trace over the workloads that Salus was measured with, for simulate."""
    write_text(out, write_trace(draw_trace(jobs, seed, gap_s)))


@share.command()
@click.option("--socket", "path", required=True, type=click.Path(path_type=Path), help="Where jobs find it.")
@_policy
@_any_memory
@_shares
@click.option(
    "--linger",
    "linger_s",
    type=Number(0.0, 1e6),
    default=10.0,
    show_default=True,
    help="Seconds that it stays when nobody is there; 0: for ever.",
)
@click.option(
    "--report-after",
    "report_s",
    type=Number(0.0, 1e6),
    default=30.0,
    show_default=True,
    help="Seconds after which it is said that others still wait for the end of an iteration.",
)
@click.option(
    "--kill-after",
    "kill_s",
    type=Number(0.0, 1e6),
    help="Seconds after which the process that holds it is killed; default: never.",
)
@click.option(
    "--users",
    default="mine",
    show_default=True,
    type=click.Choice(["mine", "all"]),
    help="Whose processes are served; all: for an administrator's broker, as root.",
)
def broker(
    path: Path,
    policy: str,
    memory_bytes: int | None,
    shares: tuple[str, ...],
    linger_s: float,
    report_s: float,
    kill_s: float | None,
    users: str,
) -> None:
    """Give turns on one GPU to processes of this user, until nobody is left; with --linger 0 for ever."""
    if users == "all" and os.getuid() != 0:
        raise ConfigError("--users all is for root: jobs take turns by no other user's word than root's and their own")
    rules = Rules(Policy(policy), memory_bytes or MOST_BYTES, _weights(shares, policy))
    limits = Limits(linger_s or None, report_s, kill_s, all_users=users == "all")
    with signals_wake() as ended:
        signal.signal(signal.SIGTERM, lambda *_: None)
        served = Broker(path, rules, limits, say)
        try:
            served.serve(until=ended)
        finally:
            served.close()

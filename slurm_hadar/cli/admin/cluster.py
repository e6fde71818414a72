"""``hadar cluster``: the private Slurm cluster on this machine."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from slurm_hadar.cli.common import Number
from slurm_hadar.cluster import DEFAULT_NODES, ClusterSpec, NodeState, PrivateCluster, exposure, find
from slurm_hadar.cluster import down as take_down
from slurm_hadar.cluster import up as bring_up
from slurm_hadar.errors import ClusterError
from slurm_hadar.messages import CHANNEL_FILE, ChannelInfo

__all__ = ["cluster"]

_name = click.option("--name", default="hadar", show_default=True, help="Tells several clusters of one user apart.")
_dir = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the cluster, instead of the default one for its name.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def cluster() -> None:
    """A private, real Slurm cluster on this machine, with GPUs that are only pretended.

    Needs neither root nor an installed Slurm; leaves nothing behind.
    """


@cluster.command()
@click.option(
    "--nodes",
    default=DEFAULT_NODES,
    show_default=True,
    help="Groups of type:nodesxGPUs; v100+k80:1x2 is a node with two of each.",
)
@_name
@_dir
@click.option("--accounting", is_flag=True, help="Also start a private MariaDB and slurmdbd, so that sacct works.")
@click.option("--plugins", is_flag=True, help="Switch on job_submit.lua and the TaskProlog.")
@click.option("--partitions", is_flag=True, help="One partition per GPU type beside 'all'.")
@click.option("--shards", default=0, show_default=True, help="How many jobs may share a GPU (--gres=shard:N); 0: none.")
@click.option(
    "--fastest",
    "fastest_steps_per_s",
    type=Number(),
    default=20.0,
    show_default=True,
    help="Emulated steps per second of a job on its fastest single GPU.",
)
@click.option("--kill-wait", "kill_wait_s", default=5, show_default=True, help="Slurm's KillWait, in seconds.")
@_json
def up(as_json: bool, **given: Any) -> None:
    """Start the cluster and wait until its nodes are idle."""
    # an interrupted start must still end what it had started
    signal.signal(signal.SIGTERM, _terminated)
    spec = ClusterSpec(**given)
    if not as_json:
        for line in exposure():  # before anything can be reached
            click.echo(f"Note: {line}", err=True)
    began = time.monotonic()
    terminal = sys.stderr.isatty() and not as_json
    started = bring_up(spec, (lambda line: click.echo(f"{line} ...", err=True)) if terminal else lambda _line: None)
    _have_jobs_heard(started)
    took_s = time.monotonic() - began
    if as_json:
        click.echo(json.dumps({**_facts(started), "took_s": round(took_s, 3)}, indent=1))
        return
    gpus = sum(sum(node.gpus.values()) for node in started.nodes)
    click.echo(f"Slurm cluster {started.cluster_name}: {len(started.nodes)} nodes, {gpus} GPUs, up in {took_s:.1f} s")
    click.echo("Use it from this shell with:")
    for line in _exports(started):
        click.echo(f"    {line}")
    click.echo(f"Take it down with: hadar cluster down{_which(spec.name, spec.directory)}")


def _have_jobs_heard(started: PrivateCluster) -> None:
    """Who tries it by hand may submit a job a moment before the first controller is there: the job would take it that
    there is none, and never be heard."""
    channel = started.conf.with_name(CHANNEL_FILE)
    if not channel.exists():
        channel.write_text(ChannelInfo("", "").to_json())


def _terminated(_signum: int, _frame: FrameType | None) -> None:
    raise ClusterError("terminated while starting; what had been started was ended")


def _which(name: str, directory: Path | None) -> str:
    if directory is not None:
        return f" --dir {shlex.quote(str(directory))}"
    return "" if name == "hadar" else f" --name {name}"


def _exports(started: PrivateCluster) -> list[str]:
    # prepended at the time of use: the shell's own PATH may have changed since, or be another shell's
    added = [f"export {key}={shlex.quote(value)}${{{key}:+:${key}}}" for key, value in started.install.search.items()]
    return [*added, f"export SLURM_CONF={shlex.quote(str(started.conf))}"]


def _facts(started: PrivateCluster) -> dict[str, Any]:
    return {
        "name": started.name,
        "cluster": started.cluster_name,
        "directory": str(started.directory),
        "slurm_conf": str(started.conf),
        "slurm_version": ".".join(f"{n:02d}" for n in started.install.version),
        "env": started.exports,
        "nodes": {node.name: dict(node.gpus) for node in started.nodes},
        "loopback_only": started.loopback_only,
        "warnings": started.exposure,
    }


@cluster.command()
@_name
@_dir
@_json
def status(name: str, directory: Path | None, as_json: bool) -> None:
    """Show the nodes, their states and the GPUs in use."""
    found = find(name, directory)
    if not found.daemon("slurmctld"):
        raise ClusterError(
            f"slurmctld of the cluster in {found.directory} does not run; "
            f"clear it with: hadar cluster down{_which(name, directory)}"
        )
    states = found.node_states()
    uptime_s = max(0.0, time.time() - found.created)
    if as_json:
        nodes = [
            {"name": s.name, "state": s.state, "reason": s.reason, "gpus": s.gpus, "gpus_used": s.gpus_used}
            for s in states
        ]
        used, total = _by_type(states)
        click.echo(
            json.dumps(
                {**_facts(found), "nodes": nodes, "gpus": total, "gpus_used": used, "uptime_s": uptime_s}, indent=1
            )
        )
        return
    Console().print(_table(found, states, uptime_s))


def _by_type(states: list[NodeState]) -> tuple[dict[str, int], dict[str, int]]:
    used: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for state in states:
        used.update(state.gpus_used)
        total.update(state.gpus)
    return dict(used), dict(total)


def _table(found: PrivateCluster, states: list[NodeState], uptime_s: float) -> Table:
    used, total = _by_type(states)
    title = f"{found.cluster_name}, up {_span(uptime_s)}: " + ", ".join(
        f"{name} {used.get(name, 0)}/{count} in use" for name, count in total.items()
    )
    table = Table(title=title, title_justify="left")
    for heading in ("node", "state", "GPUs in use", "reason"):
        table.add_column(heading)
    for state in states:
        gpus = ", ".join(f"{name} {state.gpus_used.get(name, 0)}/{count}" for name, count in state.gpus.items())
        table.add_row(state.name, state.state.lower(), gpus, state.reason)
    return table


def _span(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours} h {m} min" if hours else f"{m} min {s} s" if m else f"{s} s"


@cluster.command()
@_name
@_dir
def env(name: str, directory: Path | None) -> None:
    """Print the shell exports; use as: eval "$(hadar cluster env)"."""
    for line in _exports(find(name, directory)):
        click.echo(line)


@cluster.command()
@_name
@_dir
def down(name: str, directory: Path | None) -> None:
    """End the cluster, all its jobs included, and remove its folder."""
    ended = take_down(name, directory)
    click.echo(f"ended {ended} process{'' if ended == 1 else 'es'}; nothing is left of the cluster")

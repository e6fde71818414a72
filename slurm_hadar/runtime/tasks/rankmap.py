"""Which rank of a job with a graph runs where: worked out in the batch script, on the GPUs that the job has now.

A step with one task per GPU is laid out by a host file (``SLURM_HOSTFILE`` and ``--distribution=arbitrary``), so that
``SLURM_PROCID`` is the rank of the graph. A step with one task per node, in which torchrun starts the workers, is told
the ranks of each node (``HADAR_RANKS``), which :mod:`slurm_hadar.runtime.rank` hands to them.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.files import graph_of
from slurm_hadar.graphs.mapping import GpuMap, map_graph
from slurm_hadar.graphs.network import Network
from slurm_hadar.graphs.topology import parse_switches
from slurm_hadar.messages import channel_paths
from slurm_hadar.runtime.launch.slurmctld import Ask
from slurm_hadar.runtime.launch.srun_options import values
from slurm_hadar.runtime.rank import RANKS, write_ranks
from slurm_hadar.runtime.tasks import nodelist

__all__ = ["Layout", "lay_out", "read_allocation"]

_OWN = ("distribution", "nodelist", "exclude", "relative", "nodefile", "het-group", "pack-group", "ntasks-per-gpu",
        "ntasks-per-core", "ntasks-per-socket", "multi-prog", "pty")  # fmt: skip
_HELD = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"gpu(?::([^:(,]+))?:(\d+)(?=[(,]|$)")
_FEW = 2  # so many nodes have one boundary between them, whatever switch that goes through


@dataclass(frozen=True, slots=True)
class Layout:
    """What a step is to be started with: options and variables to add, long options to ``drop``, and in ``first`` the
    node of rank 0 where tasks are ranks.

    ``trouble``: why the ranks are not placed by the graph; nothing is to be changed then.
    """

    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    first: str = ""
    drop: tuple[str, ...] = ()
    trouble: str = ""


def lay_out(
    options: list[str], environ: Mapping[str, str], value: str, folder: Path, directory: Path, ask: Ask
) -> Layout:
    """Place the ranks of a job with ``graph=value``.

    Parameters
    ----------
    options: srun's. folder: the job's working directory. directory: of the job, for the host file. ask: runs a command
    and returns what it printed, or None.
    """
    given = dict(values(options))
    own = next((f"--{name}" for name in _OWN if name in given), None)
    own = own or next((name for name in ("SLURM_HOSTFILE", "SLURM_DISTRIBUTION") if environ.get(name)), None)
    if own or environ.get("SLURM_HET_SIZE"):
        return Layout(trouble=f"{own or 'a heterogeneous job'} has an order of its own")
    shown = ask(["scontrol", "--oneliner", "--details", "show", "job", environ.get("SLURM_JOB_ID", "")])
    try:
        gpus, types = read_allocation(shown or "")
    except GraphError as error:
        return Layout(trouble=str(error))
    tasks = _tasks(given, len(gpus))
    total = sum(gpus.values())
    if tasks not in (len(gpus), total):
        counts = f"one for each of its {len(gpus)} nodes nor one for each of its {total} GPUs"
        return Layout(
            trouble=f"the step has {'too few nodes' if tasks is None else f'{tasks} tasks'}, neither {counts}"
        )
    try:
        mapped = _mapped(value, folder, gpus, types, environ, ask)
    except GraphError as error:
        return Layout(trouble=str(error))
    if mapped is None:
        return Layout(trouble=f"its tensor-parallel groups do not fit on the GPUs it has ({_counts(gpus)})")
    ranks = (RANKS, write_ranks(mapped.order))
    if tasks != total:
        return Layout(variables=(ranks,))
    return _by_host_file(mapped, ranks, given, directory)


def _tasks(given: Mapping[str, str], nodes: int) -> int | None:
    """How many tasks the step has; None if it leaves nodes out, or that cannot be told."""
    try:
        if given.get("nodes", str(nodes)).partition("-")[0] != str(nodes):
            return None
        if "ntasks" in given:
            return int(given["ntasks"])
        return int(given.get("ntasks-per-node", "1")) * nodes
    except ValueError:
        return None


def _by_host_file(mapped: GpuMap, ranks: tuple[str, str], given: Mapping[str, str], directory: Path) -> Layout:
    text = "".join(f"{host}\n" for host in mapped.hosts)
    path = directory / f"hosts-{zlib.crc32(text.encode()):08x}"  # steps with the same order may share it
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        return Layout(trouble=f"cannot write {path}: {error.strerror}")
    counted = () if "ntasks" in given else ("-n", str(len(mapped.hosts)))
    return Layout(
        (*counted, "--distribution=arbitrary"),
        (ranks, ("SLURM_HOSTFILE", str(path))),
        mapped.hosts[0],
        ("ntasks-per-node", "nodes"),  # which the file says; Slurm since 24.11 refuses to be told twice
    )


def read_allocation(text: str) -> tuple[dict[str, int], dict[str, str]]:
    """GPUs, and their type, of each node that ``scontrol --details show job`` lists, in the order of Slurm.

    Raises GraphError if it lists none.
    """
    gpus: dict[str, int] = {}
    types: dict[str, str] = {}
    with contextlib.suppress(ValueError):
        for nodes, gres in _HELD.findall(text):
            held = _GPUS.findall(gres)
            for node in nodelist.expand(nodes) if held else ():
                gpus[node] = sum(int(count) for _, count in held)
                types[node] = held[0][0]
    if not gpus:
        raise GraphError("Slurm does not tell which GPUs the job has on which node")
    return gpus, types


def _mapped(
    value: str, folder: Path, gpus: dict[str, int], types: dict[str, str], environ: Mapping[str, str], ask: Ask
) -> GpuMap | None:
    graph = graph_of(value, sum(gpus.values()), folder)
    network = _network(environ)
    if len(gpus) > _FEW:
        with contextlib.suppress(GraphError):  # of a topology without switches nothing is known
            network = network.with_switches(parse_switches(ask(["scontrol", "show", "topology"]) or ""))
    return map_graph(graph, network.topology(gpus, types, types))


def _network(environ: Mapping[str, str]) -> Network:
    """As the controller has written it down; the defaults where there is none."""
    for path in channel_paths(environ):
        try:
            return Network.from_json(path.with_name(Network.FILE).read_text())
        except OSError:
            continue
    return Network()


def _counts(gpus: Mapping[str, int]) -> str:
    return ", ".join(f"{node}: {count}" for node, count in gpus.items())

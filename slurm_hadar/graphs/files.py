"""How a user states a graph: as a known model with its degrees, or in a file of their own.

The value of ``graph=`` in the ``hadar:`` comment::

    value  = model *( "/" degree )      gpt2-xl/pp4/dp2/tp2/mb8
           | path ending in ".toml"     relative to the directory of the job
    degree = "pp" n | "dp" n | "tp" n | "mb" n        each at most once

pp: pipeline stages, dp: replicas (default: what the job's GPUs leave), tp: GPUs of a replica, mb: micro-batches.

The file, one table per stage in the order of the pipeline::

    micro_batches = 8                # of an iteration; default 1

    [[stage]]
    compute_s = 0.12                 # one micro-batch on one replica, forward and backward, on a V100
    parameter_bytes = 1.2e9          # gradients of one replica
    replicas = 2                     # default 1
    width = 2                        # GPUs of a replica, on one server; default 1
    activation_bytes = 2.6e7         # of a micro-batch, all replicas together, to the next stage; not in the last one
    inside_bytes = 4.0e7             # on each link inside a replica, per micro-batch; default 0
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.graph import JobGraph, Stage
from slurm_hadar.graphs.presets import preset_graph

__all__ = ["MOST_BYTES", "graph_in", "graph_of", "parse_graph", "read_graph"]

MOST_BYTES = 1 << 16  # of a file
_DEGREE = re.compile(r"(pp|dp|tp|mb)([1-9][0-9]{0,3})", re.ASCII)
_STAGE_KEYS = tuple(f.name for f in fields(Stage))
_REQUIRED = ("compute_s", "parameter_bytes")


def graph_of(
    value: str,
    gpus: int | None = None,
    folder: Path | None = None,
    read: Callable[[Path], JobGraph] | None = None,
) -> JobGraph:
    """The graph that ``graph=value`` names, for a job of ``gpus`` GPUs whose directory is ``folder``.

    ``read`` gives the graph of a file, :func:`read_graph` if left out. Raises GraphError if the value cannot be read,
    or if the graph is not one of that many GPUs.
    """
    if value.endswith(".toml"):
        graph = (read or read_graph)((folder or Path()) / value)
        if gpus is not None and graph.gpus != gpus:
            raise GraphError(f"{value} describes {graph.gpus} GPUs, the job has {gpus}")
        return graph
    model, *parts = value.split("/")
    degrees = _degrees(value, parts)
    pp, tp = degrees.get("pp", 1), degrees.get("tp", 1)
    dp = degrees.get("dp")
    if gpus is not None:
        if gpus % (pp * tp):
            raise GraphError(f"graph {value} takes a multiple of {pp * tp} GPUs, the job has {gpus}")
        if dp is not None and dp * pp * tp != gpus:
            raise GraphError(f"graph {value} takes {dp * pp * tp} GPUs, the job has {gpus}")
        dp = gpus // (pp * tp)
    return preset_graph(model, pp, dp or 1, tp, degrees.get("mb"))


def _degrees(value: str, parts: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        match = _DEGREE.fullmatch(part)
        if not match:
            raise GraphError(f"graph {value}: {part!r} must be one of pp, dp, tp or mb with a number, such as pp4")
        if match[1] in found:
            raise GraphError(f"graph {value}: {match[1]} stands twice")
        found[match[1]] = int(match[2])
    return found


def read_graph(path: Path) -> JobGraph:
    """Read a graph file: a regular one, of at most :data:`MOST_BYTES`. Raises GraphError with the file and the key."""
    try:
        # a pipe must not hold the reader up
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise GraphError(f"graph file {path} is not a regular file")
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise GraphError(f"graph file {path}: there is no such file") from None
    except IsADirectoryError:
        raise GraphError(f"graph file {path} is not a regular file") from None
    except (OSError, ValueError) as error:
        raise GraphError(f"graph file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return graph_in(content, path)


def graph_in(content: bytes, path: Path) -> JobGraph:
    """The graph in the first :data:`MOST_BYTES` + 1 bytes of the file ``path``. Raises GraphError as
    :func:`read_graph` does."""
    if len(content) > MOST_BYTES:
        raise GraphError(f"graph file {path} is larger than {MOST_BYTES} bytes")
    try:
        return parse_graph(content.decode(), str(path))
    except UnicodeDecodeError:
        raise GraphError(f"graph file {path} is not UTF-8 text") from None


def parse_graph(text: str, name: str = "graph") -> JobGraph:
    """Read the text of a graph file. Raises GraphError naming ``name`` and the key."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{name}: not valid TOML: {error}") from None
    _known(name, content, ("micro_batches", "stage"))
    tables = content.get("stage")
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise GraphError(f"{name}: needs one [[stage]] table per stage")
    stages = []
    for number, table in enumerate(tables, 1):
        _known(f"{name}: stage {number}", table, _STAGE_KEYS)
        if missing := [key for key in _REQUIRED if key not in table]:
            raise GraphError(f"{name}: stage {number} needs {' and '.join(missing)}")
        stages.append(Stage(**table))
    try:
        return JobGraph(tuple(stages), content.get("micro_batches", 1))
    except GraphError as error:
        raise GraphError(f"{name}: {error}") from None


def _known(where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise GraphError(f"{where}: unknown key {key!r}; valid keys: {', '.join(keys)}")

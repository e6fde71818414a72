"""The graphs of the jobs in the queue, and what the cluster's links make of them."""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.config import NetworkSection
from slurm_hadar.controller.agents.user_files import UserFiles
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.errors import GraphError, SlurmError, SlurmUnavailable
from slurm_hadar.graphs.factors import Fleet
from slurm_hadar.graphs.files import MOST_BYTES, graph_in, graph_of
from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.network import Links, Network
from slurm_hadar.graphs.topology import parse_switches
from slurm_hadar.model import Form
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.throughput.inference import relative_speed

__all__ = ["GraphBook", "NamedGraph", "graph_name", "network_of"]

log = logging.getLogger(__name__)
_AGAIN_S = 300.0  # so long after a graph could not be had it is looked for again


def network_of(section: NetworkSection, switches: Mapping[str, tuple[str, ...]] = {}) -> Network:
    """The network that the configuration describes, with the switches that Slurm knows."""
    types, nodes = (
        {name: Links(links.inside_bytes_s, links.outside_bytes_s) for name, links in given.items()}
        for given in (section.types, section.nodes)
    )
    return Network(
        section.inside_bytes_s,
        section.outside_bytes_s,
        types,
        nodes,
        section.oversubscription,
        section.uplinks,
        switches,
    )


def graph_name(value: str, graph: JobGraph) -> str:
    """What a graph is called where speeds are filed: as its owner names it; a file also by what is in it."""
    if not value.endswith(".toml"):
        return value
    return f"{Path(value).name}#{zlib.crc32(repr((graph.stages, graph.micro_batches)).encode()):08x}"


@dataclass(frozen=True, slots=True)
class NamedGraph:
    """A job's graph in the size that it asked for. ``value`` is that of its comment, ``folder`` the job's directory."""

    name: str
    graph: JobGraph
    value: str
    folder: str

    def at(self, workers: int) -> JobGraph | None:
        """The graph of a gang of ``workers``; None if it cannot have so many."""
        if workers == self.graph.gpus:
            return self.graph
        if self.value.endswith(".toml"):
            return None
        try:
            return _known(self.value, workers)
        except GraphError:
            return None


@functools.lru_cache(maxsize=4096)
def _known(value: str, workers: int) -> JobGraph:
    """One graph for all jobs that name it."""
    return graph_of(value, workers)


class GraphBook:
    """Graphs by job, read once, and factors of placements, worked out once. ``files`` reads those of users."""

    def __init__(self, section: NetworkSection, files: UserFiles | None = None) -> None:
        self._section = section
        self._files = files or UserFiles()
        self._switches: Mapping[str, tuple[str, ...]] = {}
        self._asked_for: frozenset[str] | None = None
        self._fleet = Fleet(network_of(section), {})
        self._graphs: dict[tuple[str, str, int], tuple[NamedGraph | str, float]] = {}

    def survey_if_named(self, backend: Backend, view: SlurmView) -> None:
        """:meth:`survey` the cluster if a job in the queue names a graph."""
        if any(comment.graph is not None for comment in view.comments.values()):
            self.survey(backend, {n: (f.gpu_type, f.gpus) for n, f in view.facts.items() if f.gpu_type})

    def survey(self, backend: Backend, nodes: Mapping[str, tuple[str, int]]) -> None:
        """Learn the cluster: GPU type and GPUs of each node, and from Slurm, once for these nodes, its switches."""
        if self._asked_for != frozenset(nodes):
            self._asked_for = frozenset(nodes)
            try:
                self._switches = parse_switches(backend.topology())
            except SlurmUnavailable as error:
                self._asked_for = None  # the next round asks again
                log.info("switches are not known yet: %s", error)
            except (SlurmError, GraphError) as error:
                self._switches = {}
                log.warning("jobs are placed as if all nodes were below one switch: %s", error)
            if self._asked_for and (unknown := sorted(set(self._section.uplinks) - set(self._switches))):
                log.warning("network.uplinks names switches that Slurm does not know: %s", ", ".join(unknown))
        network = network_of(self._section, self._switches)
        if (network, dict(nodes)) != (self._fleet.network, self._fleet.nodes):
            self._fleet = Fleet(network, nodes)

    def of(
        self, job: str, value: str, workers: int, folder: str, user: str, now: float
    ) -> tuple[NamedGraph | None, str]:
        """The graph that a job's comment names, or why it cannot be used; a fault is looked into again after a while.

        ``job`` stands for one incarnation of a job: its file is read anew in the next one.
        """
        key = (job, value, workers)
        found, until = self._graphs.get(key, ("", now))
        if isinstance(found, str) and now >= until:
            found = self._read(value, workers, folder, user)
            self._graphs[key] = (found, now + _AGAIN_S)
            if isinstance(found, str):
                log.warning(
                    "job %s is scheduled without its graph: %s", job, found, extra={"job_id": job.partition("/")[0]}
                )
        return (None, found) if isinstance(found, str) else (found, "")

    def _read(self, value: str, workers: int, folder: str, user: str) -> NamedGraph | str:
        def read(path: Path) -> JobGraph:
            found = self._files.whole(path, user, MOST_BYTES + 1)
            if found.fault:
                raise GraphError(f"graph file {path}: {found.fault}")
            return graph_in(found.data, path)

        try:
            stated = value.endswith(".toml")
            graph = graph_of(value, workers, Path(folder), read) if stated else _known(value, workers)
        except GraphError as error:
            return str(error)
        return NamedGraph(graph_name(value, graph), graph, value, folder)

    def forget(self, jobs: Iterable[str]) -> None:
        """Keep the graphs of these incarnations only."""
        kept = set(jobs)
        self._graphs = {key: found for key, found in self._graphs.items() if key[0] in kept}

    def factors(
        self, named: NamedGraph, form: Form, workers: int, gpu_types: Iterable[str]
    ) -> dict[str, tuple[float, ...]] | None:
        """The factors for a gang of ``workers``, per type; None if the graph cannot have so many."""
        graph = named.at(workers)
        if graph is None:
            return None
        admitted = filter(form.admits_type, gpu_types)
        return {t: self._fleet.factors(graph, t, relative_speed(t), form.max_nodes) for t in admitted}

"""Bringing a private cluster up, finding it again and taking it down."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_hadar.cluster import accounting, conf, emulation, install, place, processes, wrappers
from slurm_hadar.cluster.ports import PortReservation
from slurm_hadar.cluster.private import PrivateCluster, dump_install
from slurm_hadar.cluster.spec import ClusterSpec
from slurm_hadar.errors import ClusterError

__all__ = ["directory_of", "down", "find", "up"]


def directory_of(name: str = "hadar", directory: Path | None = None) -> Path:
    """The absolute folder of the cluster called ``name``, or ``directory`` where one is given."""
    chosen = directory if directory is not None else place.default_directory(name)
    return chosen.resolve()


def find(name: str = "hadar", directory: Path | None = None) -> PrivateCluster:
    """The cluster that was started under that name or in that folder. Raises ClusterError where there is none."""
    return PrivateCluster(directory_of(name, directory))


def up(spec: ClusterSpec | None = None, report: Callable[[str], None] = lambda _line: None) -> PrivateCluster:
    """Start a private cluster and return when all its nodes are idle.

    ``report`` is told what is being done, in short lines. A failed start ends whatever it had started and keeps the
    folder with its logs; the next ``up`` or ``down`` clears it.

    Raises ClusterError, in one line, for everything that can go wrong.
    """
    spec = spec or ClusterSpec()
    directory = directory_of(spec.name, spec.directory)
    names = [node.name for node in spec.virtual_nodes]
    place.check_directory(directory, names)
    with place.locked(directory, create=True):
        _clear_stale(directory)
        found = install.ensure(spec.slurm, accounting=spec.accounting)
        with PortReservation(1 + len(names) + spec.accounting) as reserved:
            ports = dict(zip(["slurmctld", *names, "slurmdbd"], reserved.ports, strict=False))
            net = conf.network()
            place.write_state(directory, _state(spec, "starting", ports, found, net))
            _write_files(spec, directory, found, ports, net)
            cluster = PrivateCluster(directory)
            try:
                if spec.accounting:
                    accounting.start(cluster, report)
                cluster.start_all(spec.start_deadline_s, report)
            except BaseException:
                cluster.abandon()
                raise
        place.write_state(directory, _state(spec, "ready", ports, found, net))
    return cluster


def exposure() -> list[str]:
    """Who could reach a cluster that is started here and now: for its owner to know before."""
    return conf.exposure(_user(), conf.network())


def down(name: str = "hadar", directory: Path | None = None) -> int:
    """End a cluster, also one whose start or whose daemons crashed, and remove its folder.

    Returns how many processes there were. Raises ClusterError where there is no such cluster.
    """
    where = directory_of(name, directory)
    if not where.exists():
        raise ClusterError(f"no private cluster in {where}; nothing to take down")
    with place.locked(where, create=False):
        ended = processes.stop_all(where)
        if not ended and not (where / place.STATE_FILE).exists():
            raise ClusterError(f"no private cluster in {where}; nothing to take down")
        place.wipe(where)
    return ended


def _clear_stale(directory: Path) -> None:
    """Refuse a folder where a cluster runs or other files lie; clear what a crashed one left."""
    place.refuse_foreign(directory)
    if (directory / place.STATE_FILE).exists():
        state = place.read_state(directory)
        if state["state"] == "ready" and any(p.daemon for p in processes.of_cluster(directory)):
            raise ClusterError(f"a cluster already runs in {directory}; take it down with: hadar cluster down")
    processes.stop_all(directory)
    place.clear(directory)


def _state(
    spec: ClusterSpec, state: str, ports: dict[str, int], found: install.SlurmInstall, net: conf.Network
) -> dict[str, Any]:
    return {
        "version": 1,
        "state": state,
        "name": spec.name,
        "cluster_name": spec.cluster_name,
        "created": time.time(),
        "user": _user(),
        "nodes": {node.name: dict(node.gpus) for node in spec.virtual_nodes},
        "ports": ports,
        "loopback_only": net.loopback_only,
        "resolved": net.resolved,
        "accounting": spec.accounting,
        "plugins": spec.plugins,
        "install": dump_install(found),
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _write_files(
    spec: ClusterSpec, directory: Path, found: install.SlurmInstall, ports: dict[str, int], net: conf.Network
) -> None:
    nodes = spec.virtual_nodes
    place.make_folders(directory, [n.name for n in nodes], max(sum(n.gpus.values()) for n in nodes))
    etc = directory / "etc"
    _write(etc / "gres.conf", conf.gres_conf(nodes, directory, spec.shards))
    _write(etc / "cgroup.conf", conf.cgroup_conf(found.version))
    emulation.write(etc, spec.cluster_name, nodes, spec.fastest_steps_per_s)
    if spec.plugins:
        for name in ("job_submit.lua", "task_prolog.sh"):
            shutil.copyfile(wrappers.find(name), etc / name)
            (etc / name).chmod(0o755)
    if spec.accounting:
        _write(etc / "slurmdbd.conf", conf.slurmdbd_conf(directory, _user(), found, ports["slurmdbd"]), 0o600)
    _write(etc / "slurm.conf", conf.slurm_conf(spec, directory, _user(), found, ports, net))


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)

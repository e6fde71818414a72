"""A handle on one private cluster: its environment, its nodes, its daemons."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from slurm_hadar.cluster import conf, place, processes
from slurm_hadar.cluster.install import SlurmInstall
from slurm_hadar.cluster.processes import MARK, Process
from slurm_hadar.cluster.spec import VirtualNode
from slurm_hadar.errors import ClusterError

__all__ = ["NodeState", "PrivateCluster"]

_POLL_S = 0.05
_ANSWERS_S = 30.0  # after its start slurmctld does


@dataclass(frozen=True, slots=True)
class NodeState:
    """What Slurm says of one virtual node. ``gpus`` and ``gpus_used`` count by type."""

    name: str
    state: str
    reason: str
    gpus: Mapping[str, int]
    gpus_used: Mapping[str, int]


class PrivateCluster:
    """A private Slurm cluster that lives in ``directory``; made by :func:`slurm_hadar.cluster.up`.

    As a context manager it is taken down on the way out, also by an exception.

    >>> with up(ClusterSpec(nodes="v100:1x2")) as cluster:       # doctest: +SKIP
    ...     cluster.run(["sbatch", "--gres=gpu:1", "--wrap", "hostname"])
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._state = place.read_state(directory)
        self.name: str = self._state["name"]
        self.cluster_name: str = self._state["cluster_name"]
        self.nodes = tuple(VirtualNode(name, gpus) for name, gpus in self._state["nodes"].items())
        self.install = _install_from(self._state["install"])
        self.user: str = self._state["user"]
        self.created: float = self._state["created"]
        self.loopback_only: bool = self._state["loopback_only"]
        self.resolved: str = self._state["resolved"]
        self.ports: dict[str, int] = self._state["ports"]
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def exposure(self) -> list[str]:
        """Who can reach it, a line each."""
        return conf.exposure(self.user, conf.Network("", self.resolved, self.loopback_only))

    # ------------------------------------------------------------------------------------------------ its environment

    @property
    def conf(self) -> Path:
        """The cluster's slurm.conf."""
        return self.directory / "etc" / "slurm.conf"

    @property
    def exports(self) -> dict[str, str]:
        """The variables that point a shell or a subprocess to this cluster."""
        return {**self.install.environment(), "SLURM_CONF": str(self.conf)}

    @property
    def env(self) -> dict[str, str]:
        """A whole environment for ``subprocess``: this process's, without a surrounding job's variables."""
        foreign = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SLURMD_", "SQUEUE_", "SINFO_", "SCANCEL_")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        return {**clean, **self.exports}

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,  # noqa: A002 - the name subprocess.run uses
        check: bool = True,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        mark: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against this cluster; text in, text out. With ``mark`` it counts as one of its daemons.

        Raises ClusterError with the command's last line when it fails (unless ``check`` is False) or overruns.
        """
        program = self.install.programs.get(argv[0], argv[0])
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                env={**self.env, **({MARK: str(self.directory)} if mark else {}), **(env or {})},
                cwd=cwd,
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{shlex.join(argv)}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise ClusterError(f"{argv[0]}: {error.strerror}") from None
        if check and done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ClusterError(f"{shlex.join(argv)}: {said}")
        return done

    # --------------------------------------------------------------------------------------------------- what it does

    def node_states(self) -> list[NodeState]:
        """What Slurm says of each node, in the order of ``nodes``. Raises ClusterError when slurmctld is away."""
        done = self.run(["scontrol", "-o", "show", "node", "-d"], timeout_s=30)
        found = {state.name: state for line in done.stdout.splitlines() if (state := _node_state(line))}
        missing = NodeState("", "UNKNOWN", "", {}, {})
        return [found.get(node.name, missing) for node in self.nodes]

    def controller_up(self) -> bool:
        """Whether slurmctld answers."""
        with contextlib.suppress(ClusterError):
            return "is UP" in self.run(["scontrol", "ping"], check=False, timeout_s=15).stdout
        return False

    def wait_idle(self, deadline_s: float = 60.0) -> None:
        """Wait until all nodes are idle.

        Raises ClusterError naming the daemon that died, or the nodes that are not idle when the time is up.
        """
        end = time.monotonic() + deadline_s
        states: dict[str, str] = {}
        while True:
            self.check_children()
            done = self.run(["sinfo", "-h", "-N", "-o", "%N|%T"], check=False, timeout_s=30)
            states = dict(line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
            busy = [node.name for node in self.nodes if states.get(node.name) != "idle"]
            if not busy:
                return
            if time.monotonic() >= end:
                self._not_idle(busy, states, done.stderr)
            time.sleep(_POLL_S)

    def _not_idle(self, busy: Sequence[str], states: Mapping[str, str], said: str) -> None:
        if not states:
            reason = said.strip().splitlines()[-1] if said.strip() else "slurmctld does not answer"
            raise ClusterError(f"the cluster did not come up: {reason}; {self.last_error('slurmctld')}")
        first = busy[0]
        raise ClusterError(
            f"{len(busy)} of {len(self.nodes)} nodes are not idle, first {first} ({states.get(first, 'unknown')}); "
            f"{self.last_error(f'slurmd-{first}')}"
        )

    # ---------------------------------------------------------------------------------------------------- its daemons

    def processes(self) -> list[Process]:
        """All processes of the cluster, jobs included."""
        return processes.of_cluster(self.directory)

    def daemon(self, name: str) -> Process | None:
        """The running daemon ``slurmctld``, ``slurmdbd``, ``mariadbd`` or ``slurmd-NODE``."""
        program, _, node = name.partition("-")
        for process in self.processes():
            if process.daemon and process.name == program and (not node or process.argv[-2:] == ("-N", node)):
                return process
        return None

    def spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start a daemon in the foreground of a session of its own; its stderr goes to ``log/NAME.err``.

        In the foreground, so that its process id is known at once and its early end is seen.
        """
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "TZ": os.environ.get("TZ", ""),
            **self.exports,
            MARK: str(self.directory),
            **(env or {}),
        }
        if not environment["TZ"]:
            del environment["TZ"]
        with (self.directory / "log" / f"{name}.err").open("ab") as err:
            self._children[name] = subprocess.Popen(
                argv,
                env=environment,
                cwd=self.directory / "log",
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                start_new_session=True,
                umask=0o022,
            )

    def check_children(self) -> None:
        """Raise ClusterError if a daemon that this process started has ended, with the last error it logged."""
        for name, child in self._children.items():
            if child.poll() is not None:
                raise ClusterError(f"{name} ended with exit code {child.returncode}: {self.last_error(name)}")

    def last_error(self, name: str) -> str:
        """The last error line of a daemon's log, and where the log is."""
        for path in (self.directory / "log" / f"{name}.log", self.directory / "log" / f"{name}.err"):
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            # errors that Slurm reports at every start must not hide the one that ended it
            bad = [line for line in lines if "fatal:" in line] or [line for line in lines if "error:" in line]
            if bad:
                return f"{re.sub(r'^.*?(?=fatal:|error:)', '', bad[-1])} (log: {path})"
        return f"nothing in its log ({self.directory}/log/{name}.log)"

    def start_slurmctld(self) -> None:
        """Start slurmctld, keeping its state, and wait until it answers."""
        if self.daemon("slurmctld"):
            raise ClusterError(f"slurmctld of {self.directory} already runs")
        self.spawn("slurmctld", [self.install.program("slurmctld"), "-D"])
        end = time.monotonic() + _ANSWERS_S
        while not self.controller_up():
            self.check_children()
            if time.monotonic() >= end:
                raise ClusterError(f"slurmctld does not answer; {self.last_error('slurmctld')}")
            time.sleep(_POLL_S)

    def kill_slurmctld(self) -> None:
        """SIGKILL slurmctld, as a crash would, and wait until it is gone."""
        self._end("slurmctld", signal.SIGKILL)

    def stop_slurmctld(self) -> None:
        """End slurmctld in good order, so that it saves its state."""
        self._end("slurmctld", signal.SIGTERM)

    def start_slurmd(self, node: str) -> None:
        """Start the slurmd of one node; see :meth:`wait_idle` for when it is ready."""
        self._known(node)
        if self.daemon(f"slurmd-{node}"):
            raise ClusterError(f"slurmd of {node} already runs")
        self._spawn_slurmd(node)

    def _spawn_slurmd(self, node: str) -> None:
        argv = [self.install.program("slurmd"), "-D"]
        if self.install.root:
            argv += ["-d", self.install.program("slurmstepd")]
        self.spawn(f"slurmd-{node}", [*argv, "-N", node])

    def stop_slurmd(self, node: str, *, kill: bool = True) -> None:
        """End the slurmd of one node; SIGKILL as a crash would, or SIGTERM. Its jobs' processes go on."""
        self._known(node)
        self._end(f"slurmd-{node}", signal.SIGKILL if kill else signal.SIGTERM)

    def _known(self, node: str) -> None:
        if node not in {n.name for n in self.nodes}:
            raise ClusterError(f"no node {node!r}; nodes: {', '.join(n.name for n in self.nodes)}")

    def _end(self, name: str, signum: signal.Signals) -> None:
        process = self.daemon(name)
        if process is None:
            raise ClusterError(f"{name} of {self.directory} does not run")
        helpers = [p for p in self.processes() if p.parent == process.pid and p.name == "slurmscriptd"]
        processes.send(process, signum)
        left = processes.wait_gone([process, *helpers], 30.0)
        for stuck in left:
            processes.send(stuck, signal.SIGKILL)
        self._reap(name)

    def _reap(self, name: str | None = None) -> None:
        for child_name in [name] if name else list(self._children):
            if child := self._children.pop(child_name, None):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=10)

    # ------------------------------------------------------------------------------------------------------- the end

    def down(self) -> None:
        """End every process of the cluster and remove its folder."""
        with place.locked(self.directory, create=False):
            processes.stop_all(self.directory)
            self._reap()
            place.wipe(self.directory)

    def abandon(self) -> None:
        """End every process but keep the folder, so that the logs of a failed start can be read."""
        processes.stop_all(self.directory)
        self._reap()

    def __enter__(self) -> PrivateCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.directory.exists():
            self.down()

    def start_all(self, deadline_s: float, report: Callable[[str], None]) -> None:
        """Start slurmctld and all slurmd at once and wait until every node is idle."""
        self.spawn("slurmctld", [self.install.program("slurmctld"), "-D"])
        report(f"starting {len(self.nodes)} nodes")
        for node in self.nodes:
            self._spawn_slurmd(node.name)
        self.wait_idle(deadline_s)


def _install_from(state: Mapping[str, Any]) -> SlurmInstall:
    return SlurmInstall(
        programs=state["programs"],
        version=(state["version"][0], state["version"][1]),
        search=state["search"],
        plugin_directory=state["plugin_directory"],
        root=Path(state["root"]) if state["root"] else None,
    )


def _node_state(line: str) -> NodeState | None:
    fields = dict(re.findall(r"(?:^| )(NodeName|State|Gres|GresUsed)=(\S*)", line))
    if "NodeName" not in fields:
        return None
    reason = re.search(r" Reason=(.*?)(?: \[|$)", line)
    return NodeState(
        fields["NodeName"],
        fields.get("State", "UNKNOWN"),
        reason[1] if reason else "",
        _gpus(fields.get("Gres", "")),
        _gpus(fields.get("GresUsed", "")),
    )


def _gpus(text: str) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"gpu:([^:,(]+):(\d+)", text)}


def dump_install(install: SlurmInstall) -> dict[str, Any]:
    """The installation as JSON, for the state file."""
    state: dict[str, Any] = json.loads(
        json.dumps(
            {
                "programs": dict(install.programs),
                "version": list(install.version),
                "search": dict(install.search),
                "plugin_directory": install.plugin_directory,
                "root": str(install.root) if install.root else None,
            }
        )
    )
    return state

"""The text of a private cluster's configuration files. Every value here was tried on a running Slurm 22.05."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.cluster.install import SlurmInstall
from slurm_hadar.cluster.spec import ClusterSpec, VirtualNode

__all__ = ["Network", "cgroup_conf", "gres_conf", "network", "slurm_conf", "slurmdbd_conf"]

CPUS_PER_GPU = 8
MEMORY_MIB_PER_GPU = 64000


@dataclass(frozen=True, slots=True)
class Network:
    """How the daemons listen.

    host: the machine's name for Slurm. loopback_only: nobody outside this machine can reach the daemons. Slurm can
    bind to one address only where the machine's own name resolves to it, and srun's way back needs it to be 127.0.0.1;
    anywhere else the daemons listen on all addresses.
    """

    host: str
    resolved: str
    loopback_only: bool


def network() -> Network:
    """What this machine's name allows."""
    host = socket.gethostname().split(".")[0] or "localhost"
    try:
        resolved = socket.gethostbyname(socket.gethostname())
    except OSError:
        resolved = "nothing"
    return Network(host, resolved, resolved == "127.0.0.1")


def exposure(user: str, net: Network) -> list[str]:
    """What somebody on a shared machine should know of a cluster that ``user`` starts: it believes whoever connects."""
    who = "root" if user == "root" else f"user {user}"
    lines = [
        f"this cluster is open: anybody with an account on this machine can run jobs in it as {who} while it is up, "
        "since it has no munge; not for shared machines"
    ]
    if not net.loopback_only:
        lines.append(
            f"this machine's name resolves to {net.resolved}, not to 127.0.0.1, so the daemons also listen on the "
            "network; keep it behind a firewall"
        )
    return lines


def slurm_conf(
    spec: ClusterSpec,
    directory: Path,
    user: str,
    install: SlurmInstall,
    ports: Mapping[str, int],
    net: Network,
) -> str:
    """``slurm.conf``; ``ports`` holds those of slurmctld, of each node, and of slurmdbd where there is accounting."""
    lines = [
        f"ClusterName={spec.cluster_name}",
        f"SlurmctldHost={net.host}(127.0.0.1)",
        f"SlurmctldPort={ports['slurmctld']}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/none",
        "CredType=cred/none",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool/%n",
        f"SlurmctldPidFile={directory}/run/slurmctld.pid",
        f"SlurmdPidFile={directory}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={directory}/log/slurmctld.log",
        f"SlurmdLogFile={directory}/log/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=100",
        "GresTypes=gpu,shard" if spec.shards else "GresTypes=gpu",
        # two real cores pose as many
        "SlurmdParameters=config_overrides",
        "PropagateResourceLimits=NONE",
        "ReturnToService=2",
        "RequeueExit=99",
        f"KillWait={spec.kill_wait_s}",
        # squeue and the tests look at finished jobs
        "MinJobAge=300",
        "SlurmdTimeout=30",
        # without bf_interval=1 a deferred job waits up to 30 s for the backfill thread
        "SchedulerParameters=bf_interval=1,bf_max_job_test=5000,default_queue_depth=5000,bf_continue",
    ]
    if net.loopback_only:
        lines.append("CommunicationParameters=NoInAddrAny,NoCtldInAddrAny")
    if install.plugin_directory:
        lines.append(f"PluginDir={install.plugin_directory}")
    if spec.plugins:
        # the script cannot set a job's open mode; without appending, a moved job's output would be cut
        lines += ["JobSubmitPlugins=lua", f"TaskProlog={directory}/etc/task_prolog.sh", "JobFileAppend=1"]
    lines += _accounting(spec, ports)
    lines += spec.extra_conf
    lines += _nodes(spec, ports, net.host)
    lines += _partitions(spec)
    return "\n".join(lines) + "\n"


def _accounting(spec: ClusterSpec, ports: Mapping[str, int]) -> list[str]:
    if not spec.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    tres = ",".join(["gres/gpu", *(f"gres/gpu:{name}" for name in spec.gpu_types)])
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={ports['slurmdbd']}",
        f"AccountingStorageTRES={tres}",
        # a replay of the accounts knows the jobs' models by their comments
        "AccountingStoreFlags=job_comment",
    ]


def _nodes(spec: ClusterSpec, ports: Mapping[str, int], host: str) -> list[str]:
    lines = []
    for node in spec.virtual_nodes:
        total = sum(node.gpus.values())
        gres = ",".join(f"gpu:{name}:{count}" for name, count in node.gpus.items())
        if spec.shards:
            gres += f",shard:{spec.shards * total}"
        cpus = CPUS_PER_GPU * total
        lines.append(
            f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node.name]} Gres={gres} "
            f"Feature={','.join(node.features)} CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} "
            f"ThreadsPerCore=1 RealMemory={MEMORY_MIB_PER_GPU * total} State=UNKNOWN"
        )
    return lines


def _partitions(spec: ClusterSpec) -> list[str]:
    lines = ["PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"]
    if spec.partitions:
        for name in spec.gpu_types:
            members = ",".join(node.name for node in spec.virtual_nodes if name in node.gpus)
            lines.append(f"PartitionName={name} Nodes={members} MaxTime=INFINITE State=UP")
    return lines


def gres_conf(nodes: Sequence[VirtualNode], directory: Path, shards: int = 0) -> str:
    """``gres.conf``: each GPU is one of the symlinks to /dev/null in ``dev``; a gpu gres must have a device file.
    ``shards`` of each GPU: Slurm divides a node's number among its GPUs, equally."""
    lines = ["AutoDetect=off"]
    for node in nodes:
        first = 0
        for name, count in node.gpus.items():
            last = first + count - 1
            files = f"{directory}/dev/nvidia" + (f"[{first}-{last}]" if last > first else f"{first}")
            lines.append(f"NodeName={node.name} Name=gpu Type={name} File={files}")
            first = last + 1
        if shards:
            lines.append(f"NodeName={node.name} Name=shard Count={shards * first}")
    return "\n".join(lines) + "\n"


def cgroup_conf(version: tuple[int, int]) -> str:
    """``cgroup.conf`` that keeps Slurm from touching cgroups; without it some kernels' layouts are fatal."""
    return "CgroupPlugin=disabled\n" if version >= (24, 5) else "CgroupPlugin=cgroup/v1\n"


def slurmdbd_conf(directory: Path, user: str, install: SlurmInstall, port: int) -> str:
    """``slurmdbd.conf``, which Slurm wants readable by its user alone."""
    lines = [
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={port}",
        f"SlurmUser={user}",
        "AuthType=auth/none",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        f"StorageUser={user}",
        "StorageLoc=slurm_acct_db",
        f"LogFile={directory}/log/slurmdbd.log",
        f"PidFile={directory}/run/slurmdbd.pid",
        "DebugLevel=info",
    ]
    if install.plugin_directory:
        lines.append(f"PluginDir={install.plugin_directory}")
    return "\n".join(lines) + "\n"

"""Optional accounting of a private cluster: its own MariaDB on a unix socket, and slurmdbd.

Nothing listens on the network but slurmdbd on its own port, and nothing outside the cluster's folder is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from slurm_hadar.cluster.private import PrivateCluster
from slurm_hadar.errors import ClusterError

__all__ = ["start"]

#: How slurmdbd complains of a client library that gives it no result of any query.
_NO_RESULTS = ("null result from query", "set exceeds maximum", "set exceeds the maximum")


def start(cluster: PrivateCluster, report: Callable[[str], None], deadline_s: float = 90.0) -> None:
    """Create the database, start both daemons and register the cluster with them.

    Raises ClusterError when one of them does not come up in time.
    """
    report("creating the accounting database")
    _create_database(cluster)
    socket = _socket(cluster)
    cluster.spawn("mariadbd", [cluster.install.program("mariadbd"), *_options(cluster), "--skip-networking"])
    _wait(cluster, "mariadbd", socket.exists, deadline_s)
    report("starting slurmdbd")
    # Slurm's MySQL plugin cannot be told of a socket; its client library takes this variable
    cluster.spawn("slurmdbd", [cluster.install.program("slurmdbd"), "-D"], {"MYSQL_UNIX_PORT": str(socket)})
    # registered before slurmctld starts: without its cluster record it would run on without accounting
    _wait(cluster, "slurmdbd", lambda: _registered(cluster), deadline_s)


def _socket(cluster: PrivateCluster) -> Path:
    return cluster.directory / "run" / "mysql.sock"


def _data(cluster: PrivateCluster) -> Path:
    return cluster.directory / "sql" / "data"


def _base(cluster: PrivateCluster) -> list[str]:
    root = cluster.install.root
    return [f"--basedir={root}/usr"] if root else []


def _options(cluster: PrivateCluster) -> list[str]:
    small = [
        "--innodb-buffer-pool-size=32M",
        "--innodb-log-file-size=16M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=2",
        # newer servers have it on, and Slurm says that it cannot live with it; older ones do not know it
        "--loose-innodb-snapshot-isolation=OFF",
    ]
    return [
        "--no-defaults",
        *_base(cluster),
        f"--user={cluster.user}",
        f"--datadir={_data(cluster)}",
        f"--tmpdir={cluster.directory}/sql",
        f"--socket={_socket(cluster)}",
        f"--pid-file={cluster.directory}/run/mariadbd.pid",
        f"--log-error={cluster.directory}/log/mariadbd.log",
        *small,
    ]


def _create_database(cluster: PrivateCluster) -> None:
    _data(cluster).mkdir(parents=True, exist_ok=True)
    argv = ["mariadb-install-db", "--no-defaults", *_base(cluster), f"--user={cluster.user}"]
    argv += [f"--datadir={_data(cluster)}", "--auth-root-authentication-method=socket", "--skip-test-db"]
    # the daemons' own user becomes the database's administrator, by the socket's peer credentials
    argv += [f"--auth-root-socket-user={cluster.user}", "--skip-name-resolve"]
    cluster.run(argv, timeout_s=120, mark=True)


def _registered(cluster: PrivateCluster) -> bool:
    if not cluster.daemon("slurmdbd"):
        return False
    added = cluster.run(["sacctmgr", "-i", "add", "cluster", cluster.cluster_name], check=False, timeout_s=30)
    return added.returncode == 0 or "already exists" in (added.stdout + added.stderr)


def _wait(cluster: PrivateCluster, name: str, ready: Callable[[], bool], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not ready():
        _check(cluster)
        if time.monotonic() >= end:
            raise ClusterError(f"{name} is not ready after {deadline_s:g} s; {cluster.last_error(name)}")
        time.sleep(0.1)


def _check(cluster: PrivateCluster) -> None:
    try:
        cluster.check_children()
    except ClusterError as error:
        if any(words in str(error) for words in _NO_RESULTS):
            raise ClusterError(f"{error}. libmariadb3 11.8.9 does that; docs/versions.md has the remedy") from None
        raise

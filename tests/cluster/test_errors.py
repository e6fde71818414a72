"""Everything a user can do wrong with a private cluster ends in one clear line."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, conf, down, find, install, place, processes, up
from slurm_hadar.cluster.accounting import _wait
from slurm_hadar.cluster.ports import PortReservation
from slurm_hadar.errors import ClusterError


def _refused(action: Callable[[], object], match: str) -> str:
    with pytest.raises(ClusterError, match=match) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_down_and_find_without_a_cluster(short_tmp: Path) -> None:
    """Neither a missing folder nor an empty one is a cluster; nothing is removed."""
    empty = short_tmp / "empty"
    empty.mkdir()

    _refused(lambda: down(directory=short_tmp / "none"), "no private cluster in")
    _refused(lambda: down(directory=empty), "no private cluster in")
    _refused(lambda: find(directory=empty), "hadar cluster up")
    assert empty.exists()


def test_folder_with_other_files_is_never_touched(short_tmp: Path) -> None:
    """``up`` would hand the folder to ``down``, which removes what lies there. Nor may others look into it."""
    (short_tmp / "thesis.tex").write_text("precious")
    short_tmp.chmod(0o700)

    _refused(lambda: up(ClusterSpec(directory=short_tmp)), "holds other files")
    _refused(lambda: down(directory=short_tmp), "no private cluster in")

    assert (short_tmp / "thesis.tex").read_text() == "precious"
    assert short_tmp.stat().st_mode & 0o777 == 0o700


def test_folder_that_cannot_be_written() -> None:
    """The folder and the reason are named."""
    _refused(lambda: up(ClusterSpec(directory=Path("/proc/hadar"))), "/proc/hadar: .*choose another folder")
    _refused(lambda: up(ClusterSpec(directory=Path("/dev/null/x"))), "/dev/null/x: .*choose another folder")


def test_path_that_slurm_cannot_take(short_tmp: Path) -> None:
    """Too long for a unix socket, or with a character that slurm.conf cannot hold."""
    too_long = "too long for Slurm's unix sockets"
    _refused(lambda: up(ClusterSpec(directory=short_tmp / ("x" * 80))), too_long)
    _refused(lambda: up(ClusterSpec(directory=short_tmp / ("ü" * 40))), too_long)  # in bytes
    _refused(lambda: up(ClusterSpec(directory=short_tmp / "my cluster")), "cannot hold a path with ' '")


def test_busy_folder(short_tmp: Path) -> None:
    """Two commands at once on one folder: the second says so."""
    directory = short_tmp / "c"
    with place.locked(directory, create=True):
        _refused(lambda: up(ClusterSpec(directory=directory)), "another hadar cluster up or down")


def test_a_start_keeps_its_folder_from_another_to_the_end(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has just been made, or cleared of what a crashed start has left; jobs of others may look into it,
    whatever the umask of the one who starts."""
    directory, modes = short_tmp / "c", []

    def meanwhile(*_: object, **__: object) -> install.SlurmInstall:
        modes.append(directory.stat().st_mode & 0o777)
        _refused(lambda: up(ClusterSpec(directory=directory)), "another hadar cluster up or down is at work")
        raise ClusterError("no Slurm here")

    monkeypatch.setattr(install, "ensure", meanwhile)
    before = os.umask(0o077)
    try:
        for _ in range(2):
            _refused(lambda: up(ClusterSpec(directory=directory)), "no Slurm here")
            (directory / "cluster.json").write_text('{"version": 1, "state": "starting"}')
    finally:
        os.umask(before)
    assert modes == [0o755, 0o755]


def test_broken_state_file_is_named(short_tmp: Path) -> None:
    """A truncated state file is named, and ``down`` still clears it."""
    (short_tmp / "c").mkdir()
    (short_tmp / "c" / "cluster.json").write_text("{")

    _refused(lambda: find(directory=short_tmp / "c"), "cluster.json cannot be read")
    assert down(directory=short_tmp / "c") == 0
    assert not (short_tmp / "c").exists()


def test_reserved_ports_are_free_unshared_and_usable() -> None:
    """A reservation fails others' test binds, but a daemon may listen on the port."""
    with PortReservation(3) as first, PortReservation(3) as second:
        assert not set(first.ports) & set(second.ports)
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind(("127.0.0.1", first.ports[0]))
            daemon.listen()


def test_port_exhaustion() -> None:
    """Says how many are needed and how many there are."""
    with PortReservation(2) as taken:
        low, high = taken.ports[0], taken.ports[0] + 1
        _refused(lambda: PortReservation(1, low, high), "1 free TCP ports are needed .*only 0 are")


def test_slurm_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm and without apt, one line says what to install."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(install, "_search_path", lambda: "/nonexistent")

    said = _refused(lambda: install.ensure("system"), "Slurm is not installed")
    assert "slurmctld" in said
    _refused(lambda: install.ensure("auto"), "no Debian or Ubuntu system; install Slurm's")
    _refused(lambda: install.ensure("never"), "HADAR_SLURM=never: must be")


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder and its variable are named."""
    monkeypatch.setenv("HADAR_CACHE", "/proc/hadar")
    _refused(lambda: install.ensure("unpacked"), "/proc/hadar: .*HADAR_CACHE")


def test_download_that_fails(monkeypatch: pytest.MonkeyPatch, short_tmp: Path) -> None:
    """apt's own reason is passed on, and no half installation is left."""
    tools = short_tmp / "bin"
    tools.mkdir()
    for name in ("apt-get", "dpkg"):
        (tools / name).write_text("#!/bin/sh\necho 'E: Could not resolve deb.example' >&2\nexit 100\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HADAR_CACHE", str(short_tmp / "cache"))

    _refused(lambda: install.ensure("unpacked"), r"cannot be downloaded \(E: Could not resolve deb.example\)")
    assert not (short_tmp / "cache" / "slurm").exists()


@pytest.mark.slurm
def test_slurmctld_that_does_not_come_up(short_tmp: Path) -> None:
    """The last error of its log and the log's path are shown; nothing keeps running; the next start works."""
    directory = short_tmp / "c"
    bad = ClusterSpec(nodes="v100:1x1", directory=directory, extra_conf=("NoSuchKey=1",))

    said = _refused(lambda: up(bad), "ended with exit code 1: (error|fatal):")

    assert str(directory / "log") in said
    assert processes.of_cluster(directory) == []
    with up(ClusterSpec(nodes="v100:1x1", directory=directory)) as cluster:
        assert cluster.controller_up()


@pytest.mark.slurm
def test_slurmd_that_does_not_come_up(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's own failure is told from the others by its log."""
    directory = short_tmp / "c"
    write = conf.slurm_conf
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken = squatter.getsockname()[1]
        monkeypatch.setattr(
            conf,
            "slurm_conf",
            lambda spec, where, user, found, ports, net: write(
                spec, where, user, found, {**ports, "v100-2": taken}, net
            ),
        )

        said = _refused(
            lambda: up(ClusterSpec(nodes="v100:2x1", directory=directory)),
            "slurmd-v100-2 ended .*Address already in use",
        )

    assert f"(log: {directory}/log/slurmd-v100-2.log)" in said
    assert processes.of_cluster(directory) == []


@pytest.mark.slurm
def test_commands_that_fail_name_themselves(slurm_cluster: PrivateCluster) -> None:
    """``run`` raises with the command and its last line."""
    _refused(
        lambda: slurm_cluster.run(["scontrol", "show", "job", "999999"]), "scontrol show job 999999: .*Invalid job"
    )
    _refused(lambda: slurm_cluster.run(["no-such-program"]), "no-such-program: No such file")


@pytest.mark.parametrize(
    ("said", "hinted"), [("fatal: null result from query `select 1`", True), ("fatal: no such host", False)]
)
def test_a_library_that_gives_slurmdbd_no_results_is_named(
    said: str, hinted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 13's, where slurmdbd itself blames a query; other ends are told as they are."""

    def ended(_self: PrivateCluster) -> None:
        raise ClusterError(f"slurmdbd ended with exit code 1: {said}")

    monkeypatch.setattr(PrivateCluster, "check_children", ended)
    words = _refused(lambda: _wait(object.__new__(PrivateCluster), "slurmdbd", lambda: False, 9.0), said)
    assert ("docs/versions.md has the remedy" in words) is hinted

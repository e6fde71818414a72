"""Slurm's daemons and clients for a private cluster: those of the system, or unpacked from packages without root.

Three ways, in this order: what PATH (and /usr/sbin) offers; as root on Debian and Ubuntu, ``apt-get install`` with
services kept from starting; as anybody else there, ``apt-get download`` into a cache folder and ``dpkg -x``, which
changes nothing on the system. ``HADAR_SLURM=unpacked`` forces the last, ``HADAR_SLURM=system`` the first.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.cluster import place
from slurm_hadar.errors import ClusterError

__all__ = ["SlurmInstall", "cache_directory", "ensure", "find_on_path"]

DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
CLIENTS = ("sbatch", "scontrol", "scancel", "sinfo", "squeue", "srun")
ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "liblua5.1-0")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "mariadb-client-core")
# Libraries these packages need and that a system without Slurm often lacks; the rest is found by asking apt.
_ALWAYS_UNPACK = ("munge", "libmunge2", "libhwloc15")
_ALWAYS_UNPACK_ACCOUNTING = ("libmariadb3", "mariadb-common", "mysql-common")
_TIMEOUT_S = 600.0  # of one command of apt or dpkg
_MANUAL = "install Slurm's slurmctld, slurmd and client commands with your system's package manager"


@dataclass(frozen=True, slots=True)
class SlurmInstall:
    """Where everything is.

    programs: absolute path by name. search: folders to put before those of PATH and LD_LIBRARY_PATH, for daemons and
    clients alike; empty for an installed Slurm. plugin_directory: set only where the built-in one is wrong (unpacked).
    version: (major, minor), such as (22, 5). root: the folder of an unpacked installation.
    """

    programs: Mapping[str, str]
    version: tuple[int, int]
    search: Mapping[str, str] = field(default_factory=dict)
    plugin_directory: str | None = None
    root: Path | None = None

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """What to add to the environment ``base`` (this process's by default)."""
        base = os.environ if base is None else base
        return {k: os.pathsep.join([v, base[k]]) if base.get(k) else v for k, v in self.search.items()}

    def program(self, name: str) -> str:
        """Absolute path of a daemon or client. Raises ClusterError where this installation has none."""
        try:
            return self.programs[name]
        except KeyError:
            raise ClusterError(f"{name} is missing; {_MANUAL}") from None


def ensure(mode: str | None = None, *, accounting: bool = False) -> SlurmInstall:
    """Find Slurm, or get it. ``mode``: auto, system or unpacked; None takes $HADAR_SLURM, else auto.

    Raises ClusterError in one line when it is not there and cannot be had.
    """
    mode = mode or os.environ.get("HADAR_SLURM") or "auto"
    if mode not in ("auto", "system", "unpacked"):
        raise ClusterError(f"HADAR_SLURM={mode}: must be auto, system or unpacked")
    if mode != "unpacked":
        found = find_on_path(accounting=accounting)
        if found:
            return found
        if mode == "system":
            raise ClusterError(f"Slurm is not installed ({', '.join(_missing(accounting))}); {_MANUAL}")
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise ClusterError(f"Slurm is not installed and this is no Debian or Ubuntu system; {_MANUAL}")
    if mode == "auto" and os.geteuid() == 0:
        return _install_as_root(accounting)
    return _unpack(accounting)


def _wanted(accounting: bool) -> tuple[str, ...]:
    return DAEMONS + CLIENTS + (ACCOUNTING if accounting else ())


def _search_path() -> str:
    # daemons live in /usr/sbin, which a normal user's PATH often lacks
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/usr/bin"])


def _missing(accounting: bool) -> list[str]:
    return [name for name in _wanted(accounting) if not shutil.which(name, path=_search_path())]


def find_on_path(*, accounting: bool = False) -> SlurmInstall | None:
    """The installed Slurm, or None where any needed program is missing."""
    programs = {name: shutil.which(name, path=_search_path()) for name in _wanted(accounting)}
    present = {name: path for name, path in programs.items() if path}
    if len(present) < len(programs):
        return None
    if accounting and not _has_mysql_plugin():
        return None
    present |= {n: p for n in ("sacct", "sdiag", "sshare") if (p := shutil.which(n, path=_search_path()))}
    return SlurmInstall(present, _version(present["slurmctld"], {}))


def _has_mysql_plugin() -> bool:
    places = [*Path("/usr/lib").glob("*/slurm-wlm"), *Path("/usr/lib").glob("*/slurm"), Path("/usr/lib64/slurm")]
    return any((place / "accounting_storage_mysql.so").exists() for place in places)


def _version(slurmctld: str, env: Mapping[str, str]) -> tuple[int, int]:
    done = _run([slurmctld, "-V"], env=env)
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if done.returncode or not match:
        raise ClusterError(f"{slurmctld} -V does not tell its version: {_last_line(done)}")
    return int(match[1]), int(match[2])


def _run(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(env or {})}
    try:
        return subprocess.run(
            argv,
            env=environment,
            cwd=cwd,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(argv[:3])} did not end within {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise ClusterError(f"{argv[0]} cannot be run: {error.strerror}") from None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E:")]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


# ---------------------------------------------------------------------------------------------------- root: apt-get


def _install_as_root(accounting: bool) -> SlurmInstall:
    packages = PACKAGES + (ACCOUNTING_PACKAGES if accounting else ())
    _run(["apt-get", "update"])  # a stale mirror is no reason to stop: what counts is whether the install works
    with _services_kept_down():
        # a fresh machine may be at its unattended upgrades, and two clusters may be started at once
        done = _run(["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", *packages])
    if done.returncode:
        raise ClusterError(f"apt-get install of Slurm failed: {_last_line(done)}")
    found = find_on_path(accounting=accounting)
    if not found:
        raise ClusterError(f"after apt-get install still missing: {', '.join(_missing(accounting))}")
    return found


@contextmanager
def _services_kept_down() -> Iterator[None]:
    """Keep maintainer scripts from starting the daemons they install, now and at the next boot.

    ``policy-rc.d`` is Debian's own switch for this; an administrator's existing one is left as it is. Units that were
    not there before are disabled, since the private cluster starts its own daemons.
    """
    policy = Path("/usr/sbin/policy-rc.d")
    before = _units()
    mine = False
    try:
        descriptor = os.open(policy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
        os.write(descriptor, b"#!/bin/sh\n# written by slurm_hadar while it installs packages\nexit 101\n")
        os.close(descriptor)
        mine = True
    except FileExistsError:
        pass
    try:
        yield
    finally:
        if mine:
            policy.unlink(missing_ok=True)
        new = sorted(_units() - before)
        if new and Path("/run/systemd/system").exists():
            _run(["systemctl", "disable", "--now", *new])


def _units() -> set[str]:
    names = ("slurmctld", "slurmd", "slurmdbd", "munge", "mariadb")
    places = (Path("/lib/systemd/system"), Path("/usr/lib/systemd/system"))
    return {f"{name}.service" for name in names if any((place / f"{name}.service").exists() for place in places)}


# ------------------------------------------------------------------------------------------- anybody: download, unpack


def cache_directory() -> Path:
    """Where unpacked packages are kept: $HADAR_CACHE, else the user's cache folder, else one in /tmp."""
    if explicit := os.environ.get("HADAR_CACHE"):
        return Path(explicit).absolute()
    if folder := place.user_folder("XDG_CACHE_HOME", ".cache"):
        return folder / "slurm_hadar"
    return place.temporary_base() / "cache"


def _unpack(accounting: bool) -> SlurmInstall:
    cache = cache_directory()
    root = cache / ("slurm-accounting" if accounting else "slurm")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two clusters starting at once unpack once
            if not root.exists():
                _download_into(cache, root, accounting)
    except OSError as error:
        raise ClusterError(f"{cache}: {error.strerror}; set HADAR_CACHE to a writable folder") from None
    return _unpacked(root, accounting)


def _download_into(cache: Path, root: Path, accounting: bool) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as scratch:
        debs, tree = Path(scratch) / "debs", Path(scratch) / "tree"
        debs.mkdir()
        tree.mkdir()
        _download(cache, debs, accounting)
        for deb in sorted(debs.glob("*.deb")):
            done = _run(["dpkg", "-x", str(deb), str(tree)])
            if done.returncode:
                raise ClusterError(f"dpkg -x {deb.name} failed: {_last_line(done)}")
        _link_programs(tree)
        # appears whole or not at all, so an interrupted download is never taken for an installation
        tree.chmod(0o755)
        tree.rename(root)


def _download(cache: Path, debs: Path, accounting: bool) -> None:
    packages = PACKAGES + (ACCOUNTING_PACKAGES if accounting else ())
    always = packages + _ALWAYS_UNPACK + (_ALWAYS_UNPACK_ACCOUNTING if accounting else ())
    done = _fetch([], packages, always, debs)
    if done.returncode == 0:
        return
    # the system's package lists are missing or stale: keep lists of our own, which needs no rights
    own = _own_apt_state(cache)
    updated = _run(["apt-get", *own, "update"])
    done = _fetch(own, packages, always, debs)
    if done.returncode:
        reason = _last_line(updated) if updated.returncode else _last_line(done)
        raise ClusterError(f"Slurm's packages cannot be downloaded ({reason}); {_MANUAL}")


def _fetch(
    options: Sequence[str], packages: Sequence[str], always: Sequence[str], debs: Path
) -> subprocess.CompletedProcess[str]:
    """``apt-get download`` of ``always`` and of whatever else installing ``packages`` would bring here."""
    plan = _run(
        ["apt-get", *options, "-o", "Debug::NoLocking=1", "-s", "--no-install-recommends", "install", *packages]
    )
    if plan.returncode:
        return plan
    extra = re.findall(r"^Inst (\S+)", plan.stdout, re.MULTILINE)
    return _run(["apt-get", *options, "download", *dict.fromkeys([*always, *extra])], cwd=debs)


def _own_apt_state(cache: Path) -> list[str]:
    state = cache / "apt"
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    return [
        "-o", f"Dir::State={state}", "-o", f"Dir::State::lists={state}/lists", "-o", f"Dir::Cache={state}",
        "-o", "Dir::State::status=/var/lib/dpkg/status", "-o", f"APT::Sandbox::User={_user_for_apt()}",
    ]  # fmt: skip


def _user_for_apt() -> str:
    # as root apt drops to _apt, which may not read a cache folder below /root
    return "root" if os.geteuid() == 0 else ""


def _link_programs(tree: Path) -> None:
    """One bin folder with the names Slurm's own documentation uses; Debian's alternatives call them ``*-wlm``."""
    bin_directory = tree / "bin"
    bin_directory.mkdir(exist_ok=True)
    for folder in ("usr/bin", "usr/sbin"):
        for program in sorted((tree / folder).glob("*")):
            link = bin_directory / program.name.removesuffix("-wlm")
            if not link.exists():
                link.symlink_to(os.path.relpath(program, bin_directory))


def _unpacked(root: Path, accounting: bool) -> SlurmInstall:
    libraries = [str(p) for p in sorted((root / "usr/lib").glob("*-linux-*"))]
    plugins = next((f"{p}/slurm-wlm" for p in libraries if Path(p, "slurm-wlm").is_dir()), None)
    if plugins is None:
        raise ClusterError(f"{root} is not a complete unpacked Slurm; remove it and try again")
    search = {"PATH": str(root / "bin"), "LD_LIBRARY_PATH": os.pathsep.join([plugins, *libraries])}
    programs = {p.name: str(p) for p in (root / "bin").iterdir()}
    missing = [name for name in _wanted(accounting) if name not in programs]
    if missing:
        raise ClusterError(f"{root} lacks {', '.join(missing)}; remove it and try again")
    return SlurmInstall(programs, _version(programs["slurmctld"], search), search, plugins, root)

"""What this host is like, as far as the controller depends on it; asked once, changing nothing."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import platform
import re
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.cluster import wrappers
from slurm_hadar.comment import is_ours
from slurm_hadar.config import Config
from slurm_hadar.controller.agents.channel import KEY_FILE as CHANNEL_KEY
from slurm_hadar.controller.agents.notes import KEY_FILE as NOTES_KEY
from slurm_hadar.controller.safety.lock import LOCK_FILE, holder
from slurm_hadar.controller.setup import channel_address, channel_file
from slurm_hadar.controller.state_dir import JOURNAL, chosen_state_dir, file_fault, full, private_cluster
from slurm_hadar.errors import ClusterError, ConfigError, SlurmError, StoreError
from slurm_hadar.policies import registry
from slurm_hadar.slurm.backend.pyslurm import probe
from slurm_hadar.slurm.here import daemons_here
from slurm_hadar.slurm.survey import NOT_ASKED, Survey, Unknown, is_user

__all__ = ["Host", "inspect_host"]

_MOST_DIRS = 50
_DIRS_S = 10.0
_LOADED = re.compile(r"""^\s*dofile\s*\(?\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Host:
    """Facts about this host.

    Parameters
    ----------
    config_error: why the configuration cannot be read; ``config`` is then the default one.
    policy_error: why its policy cannot be made. plugin_errors: policy plug-ins that cannot be used.
    packages: packages that are missing or too old, as ``NAME (has 1.0, needs 2.0)``; Unknown without an installation.
    slurmctld: hosts of slurmctld, as Slurm calls them, that are this one.
    state_dir: where journal and lock shall live. state_fault: why it cannot. state_fs: type of its file system.
    state_files: what lies there that this account may not use, each with the reason.
    lock_holder: who holds the controller's lock, empty for nobody.
    channel_bind, channel_host, channel_file: where jobs report to. channel_fault: why the file cannot be written.
    found_by_jobs: whether jobs find that file without being told. host_addresses: what ``channel_host`` resolves to.
    port_fault: why a fixed port cannot be had.
    no_users: names of ``controller.users`` that this host does not know.
    metrics_faults: why what ``[metrics]`` asks for cannot be had. hook_fault: why ``hooks.moved`` cannot be run.
    pyslurm: why pyslurm cannot be used; empty if it can. pyslurm_version: None if it is not installed.
    private: this is a private cluster, all on one machine.
    job_submit: the site's job_submit.lua, or what it loads of ours; own_script: ours. wrappers: the folder where that
        is.
    work_dirs: {work directory of a steered job: whether it is seen from here}.
    """

    config: Config
    config_error: str = ""
    policy_error: str = ""
    plugin_errors: tuple[str, ...] = ()
    python: str = ""
    packages: tuple[str, ...] | Unknown = ()
    slurmctld: frozenset[str] | Unknown = frozenset()
    state_dir: Path = Path()
    state_fault: str = ""
    state_fs: str | Unknown = ""
    state_files: Mapping[Path, str] = field(default_factory=dict)
    lock_holder: str | Unknown = ""
    channel_bind: str = ""
    channel_host: str = ""
    host_addresses: tuple[str, ...] | Unknown = ()
    channel_file: Path = Path()
    channel_fault: str = ""
    found_by_jobs: bool = True
    port_fault: str = ""
    no_users: tuple[str, ...] = ()
    metrics_faults: tuple[str, ...] = ()
    hook_fault: str = ""
    pyslurm: str = ""
    pyslurm_version: str | None = None
    private: bool = False
    slurm: Survey | Unknown = NOT_ASKED
    job_submit: str | Unknown = NOT_ASKED
    own_script: str | Unknown = NOT_ASKED
    wrappers: str = "wrappers"
    work_dirs: Mapping[str, bool] | Unknown = field(default_factory=dict)


def inspect_host(config: Config, config_error: str, slurm: Survey | Unknown) -> Host:
    """Find out all of it; what cannot be found out is Unknown, never an exception."""
    directory = chosen_state_dir(config)
    bind, host = channel_address(config)
    file = channel_file(config, directory)
    lock = _lock(directory, config, slurm)
    return Host(
        config=config,
        config_error=config_error,
        policy_error=_policy_error(config),
        plugin_errors=registry.problems(),
        python=platform.python_version(),
        packages=_packages(),
        slurmctld=_slurmctld(slurm),
        state_dir=directory,
        state_fault=_no_room(directory),
        state_fs=_file_system(directory),
        state_files=_closed_files(directory),
        lock_holder=lock,
        channel_bind=bind,
        channel_host=host,
        host_addresses=_addresses(host),
        channel_file=file,
        channel_fault=_no_room(file.parent) if config.channel.enabled else "",
        found_by_jobs=config.channel.file is not None or file.parent != directory,
        port_fault=_port_fault(bind) if config.channel.enabled and lock == "" else "",
        no_users=tuple(name for name in config.controller.users if not is_user(name)),
        metrics_faults=_metrics_faults(config, lock == ""),
        hook_fault=_hook_fault(config.hooks.moved),
        pyslurm=_pyslurm(config, slurm),
        pyslurm_version=_installed("pyslurm"),
        private=private_cluster() is not None,
        slurm=slurm,
        job_submit=_job_submit(slurm),
        own_script=_own_script(),
        wrappers=_wrappers(),
        work_dirs=_work_dirs(slurm),
    )


def _slurmctld(slurm: Survey | Unknown) -> frozenset[str] | Unknown:
    if isinstance(slurm, Unknown) or isinstance(slurm.daemons, Unknown):
        return frozenset()
    try:
        return frozenset(d.host for d in daemons_here(slurm.daemons))
    except SlurmError as error:
        return Unknown(str(error))


def _policy_error(config: Config) -> str:
    try:
        registry.get(config.policy.name, **config.policy.params)
    except ConfigError as error:
        return str(error)
    return ""


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> tuple[str, ...] | Unknown:
    """What the installation's own list of needs is not met by."""
    needs = []
    try:
        needs = importlib.metadata.requires("slurm_hadar") or []
    except importlib.metadata.PackageNotFoundError:
        return Unknown("slurm_hadar is run from a folder, not installed, so its needs are not on record")
    wrong = []
    for need in needs:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)(?:,.*)?", need)
        if match is None:  # an extra, or another form
            continue
        has = _installed(match[1])
        if has is None or _numbers(has) < _numbers(match[2]):
            wrong.append(f"{match[1]} ({'missing' if has is None else f'has {has}'}, needs {match[2]})")
    return tuple(wrong)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _no_room(directory: Path) -> str:
    """Why nothing can be written in ``directory``, or in the nearest one above where it would be made."""
    for place in (directory.absolute(), *directory.absolute().parents):
        try:
            mode = place.stat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:  # hidden from this user, or not below a directory at all
            return f"{place}: {error.strerror}"
        if not stat.S_ISDIR(mode):
            return f"{place} is not a directory"
        if not os.access(place, os.W_OK | os.X_OK):
            return f"{place} is not writable"
        return f"no room left in {place}" if full(place) else ""
    return f"{directory} has no directory above it"


def _closed_files(directory: Path) -> dict[Path, str]:
    """Those of the state that are there, and that this account may not read and write, each with the reason."""
    names = (LOCK_FILE, JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", CHANNEL_KEY, NOTES_KEY)
    return {path: fault for path in (directory / name for name in names) if (fault := file_fault(path))}


def _file_system(directory: Path) -> str | Unknown:
    """The type of the file system that the directory is on, or would be made on."""
    try:
        mounts = Path("/proc/mounts").read_text()
    except OSError as error:
        return Unknown(f"/proc/mounts cannot be read: {error.strerror}")
    points = {_unescaped(line.split()[1]): line.split()[2] for line in mounts.splitlines() if len(line.split()) > 2}
    real = Path(os.path.realpath(directory))  # a link may lead to a file server
    for place in (real, *real.parents):
        if str(place) in points:
            return points[str(place)]
    return Unknown(f"/proc/mounts has no mount of {directory}")


def _unescaped(path: str) -> str:
    """As the kernel means it: blanks and backslashes stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _lock(directory: Path, config: Config, slurm: Survey | Unknown) -> str | Unknown:
    if isinstance(slurm, Unknown):
        return Unknown("which cluster this is, is not known")
    try:
        return holder(directory, slurm.identity, config.controller.users)
    except StoreError as error:
        return Unknown(str(error))


def _addresses(host: str) -> tuple[str, ...] | Unknown:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Unknown(f"{host} does not resolve: {getattr(error, 'strerror', None) or error}")
    return tuple(sorted({str(entry[4][0]) for entry in found}))


def _port_fault(bind: str) -> str:
    """Why a fixed port cannot be listened on; not tried where it is chosen freely or on an interface by its name."""
    match = re.fullmatch(r"tcp://(.+):(\d+)", bind)
    if match is None:
        return ""
    address = "" if match[1] == "*" else match[1].strip("[]")
    try:
        ipaddress.ip_address(address or "0.0.0.0")
    except ValueError:
        return ""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, int(match[2])))
        except (OSError, OverflowError) as error:
            return f"{bind}: {getattr(error, 'strerror', None) or error}"
    return ""


def _metrics_faults(config: Config, free: bool) -> tuple[str, ...]:
    """``free``: no controller runs here, which would hold the port itself."""
    listen, textfile = config.metrics.listen, config.metrics.textfile
    found = []
    if listen and free and (fault := _port_fault(f"tcp://{listen}")):
        found.append(f"metrics.listen: {fault.removeprefix('tcp://')}")
    if textfile is not None and not textfile.parent.is_dir():
        found.append(f"metrics.textfile: {textfile.parent} is no directory")
    elif textfile is not None and (fault := _no_room(textfile.parent)):
        found.append(f"metrics.textfile: {fault}")
    return tuple(found)


def _hook_fault(command: str) -> str:
    program = next(iter(shlex.split(command)), "")
    return f"{program} is no program that may be run here" if program and shutil.which(program) is None else ""


def _pyslurm(config: Config, slurm: Survey | Unknown) -> str:
    """Not tried where it is not to be used or can have nothing to talk to: a trial may take long."""
    if config.slurm.backend == "cli":
        return "slurm.backend = cli, so it was not tried"
    if isinstance(slurm, Unknown):
        return "not tried without a Slurm"
    return probe() or ""


def _job_submit(slurm: Survey | Unknown) -> str | Unknown:
    """The text of the script beside slurmctld's slurm.conf, where this host has it."""
    if isinstance(slurm, Unknown):
        return Unknown(slurm.why)
    conf = slurm.settings.get("SLURM_CONF", "")
    if not conf:
        return Unknown("scontrol show config names no SLURM_CONF")
    path = Path(conf).with_name("job_submit.lua")
    try:
        text = path.read_text(errors="replace")
        loads = () if "hadar_parse" in text else _LOADED.finditer(text)
        loaded = ((path.parent / call[1]).read_text(errors="replace") for call in loads)
        return next((each for each in loaded if "hadar_parse" in each), text)
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")


def _wrappers() -> str:
    try:
        return str(wrappers.find("job_submit.lua").parent)
    except ClusterError:
        return Host.wrappers


def _own_script() -> str | Unknown:
    try:
        return wrappers.find("job_submit.lua").read_text()
    except (ClusterError, OSError) as error:
        return Unknown(str(error))


def _work_dirs(slurm: Survey | Unknown) -> Mapping[str, bool] | Unknown:
    """Asked in a process of its own: a file server that is away would hang this one."""
    if isinstance(slurm, Unknown) or isinstance(slurm.state, Unknown):
        return Unknown("the queue could not be read")
    jobs = [j for j in slurm.state.jobs if j.state.active and is_ours(j.comment)]
    names = sorted({j.work_dir for j in jobs if j.work_dir.startswith("/")})[:_MOST_DIRS]
    if not names:
        return {}
    script = 'for d; do if [ -d "$d" ] && [ -x "$d" ]; then echo yes; else echo no; fi; done'
    try:
        done = subprocess.run(
            ["sh", "-c", script, "sh", *names], capture_output=True, text=True, timeout=_DIRS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Unknown(f"looking for {names[0]} and others took more than {_DIRS_S:g} s; is a file server away?")
    except OSError as error:
        return Unknown(f"sh cannot be run: {error.strerror}")
    return dict(zip(names, (word == "yes" for word in done.stdout.split()), strict=False))

"""Where private clusters live, and the layout of one cluster's folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_hadar import home
from slurm_hadar.errors import ClusterError
from slurm_hadar.scratch import LONGEST_PATH

__all__ = [
    "STATE_FILE",
    "check_directory",
    "clear",
    "default_directory",
    "locked",
    "make_folders",
    "read_state",
    "wipe",
    "write_state",
]

STATE_FILE = "cluster.json"
FOLDERS = ("etc", "state", "spool", "log", "run", "dev", "sql")


def default_directory(name: str) -> Path:
    """Root's clusters lie in /var/lib, where other users' jobs can read the configuration; a user's below their state
    folder, or in one of /tmp named after the user where there is no usable home folder.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/slurm_hadar/clusters") / name
    if home := user_folder("XDG_STATE_HOME", ".local/state"):
        return home / "slurm_hadar/clusters" / name
    return temporary_base() / "clusters" / name


def temporary_base() -> Path:
    """This user's folder in /tmp, made if need be.

    Raises ClusterError where somebody else has taken its predictable name: whoever owns it could swap what we run.
    """
    base = Path(tempfile.gettempdir()) / f"slurm_hadar-{os.geteuid()}"
    try:
        base.mkdir(mode=0o755, exist_ok=True)
        owner = base.lstat()
    except OSError as error:
        raise ClusterError(f"{base}: {error.strerror}; set HOME, or use --dir") from None
    if owner.st_uid != os.geteuid() or not stat.S_ISDIR(owner.st_mode):
        raise ClusterError(f"{base} belongs to another user; set HOME, or use --dir")
    return base


def user_folder(variable: str, below_home: str) -> Path | None:
    """The user's folder by the XDG variable or below the home folder; None where it cannot be written."""
    folder = home.user_folder(variable, below_home)
    # pathlib raises for what lies in a folder that this user may not look into
    existing = next((p for p in (folder, *folder.parents) if os.path.exists(p)), Path("/"))  # noqa: PTH110
    usable = folder.is_absolute() and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return folder if usable else None


def check_directory(directory: Path, node_names: Sequence[str]) -> None:
    """Refuse a folder Slurm cannot work in. Raises ClusterError naming the folder and the fix."""
    bad = sorted({c for c in str(directory) if c.isspace() or c in "#%,[]=\"'\\"})
    if bad:
        raise ClusterError(f"{str(directory)!r}: Slurm's configuration cannot hold a path with {bad[0]!r}; use --dir")
    # the longest socket is slurmstepd's, spool/NODE/NODE_JOBID.STEPID with numbers of 10 digits
    longest = max(len(os.fsencode(f"{directory}/spool/{n}/{n}_4294967295.4294967295")) for n in node_names)
    if longest > LONGEST_PATH:
        raise ClusterError(
            f"{directory}: the path is {longest - LONGEST_PATH} bytes too long for Slurm's unix sockets; "
            "use a shorter --dir"
        )


@contextlib.contextmanager
def locked(directory: Path, *, create: bool) -> Iterator[None]:
    """Hold the cluster's folder against another ``up`` or ``down``; the kernel drops the lock when we end.

    Raises ClusterError where it cannot be made, read or written, or is busy.
    """
    try:
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ClusterError(f"{directory}: {error.strerror}; choose another folder with --dir") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"{directory}: another hadar cluster up or down is at work there; wait for it") from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ClusterError(f"{directory}: no permission to write; choose another folder with --dir")
        yield
    finally:
        os.close(descriptor)


def refuse_foreign(directory: Path) -> None:
    """Refuse a folder that holds somebody's files: others may look into it from now on, and ``down`` removes what lies
    there."""
    names = sorted(p.name for p in directory.iterdir())
    if names and STATE_FILE not in names and names != [f".{STATE_FILE}"]:
        raise ClusterError(f"{directory}: holds other files ({names[0]}); choose an empty or new folder with --dir")


def make_folders(directory: Path, node_names: Sequence[str], gpus: int) -> None:
    """Create the layout: configuration, state, spool per node, logs, pid files and the fake GPU devices."""
    for name in FOLDERS:
        (directory / name).mkdir(mode=0o755, exist_ok=True)
    for node in node_names:
        (directory / "spool" / node).mkdir(mode=0o755, exist_ok=True)
    for index in range(gpus):
        link = directory / "dev" / f"nvidia{index}"
        if not link.is_symlink():
            link.symlink_to("/dev/null")


def clear(directory: Path) -> None:
    """Remove what an earlier ``up`` made, and let others look into the folder. It stays as it is, since whoever has
    locked it holds this very one. Raises ClusterError."""
    _empty(directory)
    try:
        directory.chmod(0o755)
    except OSError as error:
        raise ClusterError(f"{directory}: {error.strerror}; choose another folder with --dir") from None


def wipe(directory: Path) -> None:
    """Remove what ``up`` made, and the folder itself if nothing else is in it."""
    _empty(directory)
    with contextlib.suppress(OSError):
        directory.rmdir()


def _empty(directory: Path) -> None:
    for name in FOLDERS:
        # a job may have made its own spool entries unreadable; what cannot be removed shows in the rmdir below
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (f".{STATE_FILE}", STATE_FILE):
        (directory / name).unlink(missing_ok=True)


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Write the cluster's state file whole or not at all."""
    temporary = directory / f".{STATE_FILE}"
    temporary.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    temporary.replace(directory / STATE_FILE)


def read_state(directory: Path) -> dict[str, Any]:
    """The cluster's state file. Raises ClusterError where there is no cluster."""
    path = directory / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ClusterError(f"no private cluster in {directory}; start one with: hadar cluster up") from None
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path} cannot be read ({error}); clear it with: hadar cluster down") from None
    if not isinstance(state, dict) or state.get("version") != 1:
        raise ClusterError(f"{path} is of another version of slurm_hadar; clear it with: hadar cluster down")
    return state

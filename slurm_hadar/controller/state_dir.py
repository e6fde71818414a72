"""The directory of a controller's state, and the names of what lies in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.errors import StoreError
from slurm_hadar.home import user_folder
from slurm_hadar.slurm.survey import name_of

__all__ = ["JOURNAL", "PREDICTOR", "chosen_state_dir", "file_fault", "full", "private_cluster", "state_dir"]

JOURNAL = "journal.db"
PREDICTOR = "predictor"
CLUSTER_FILE = "hadar-cluster.json"
_LITTLE_ROOM = 1 << 16  # bytes: SQLite's shared memory takes half of it


def private_cluster() -> Path | None:
    """The configuration directory of the private cluster that SLURM_CONF points at, if it is one."""
    conf = os.environ.get("SLURM_CONF")
    if conf and (Path(conf).parent / CLUSTER_FILE).is_file():
        return Path(conf).parent
    return None


def chosen_state_dir(config: Config) -> Path:
    """Where journal, keys and lock shall live, whether or not it exists."""
    if config.controller.state_dir is not None:
        return config.controller.state_dir
    private = private_cluster()
    if private is not None and os.access(private, os.W_OK):
        return private / "hadar"
    if os.environ.get("STATE_DIRECTORY"):  # of systemd's StateDirectory=
        return Path(os.environ["STATE_DIRECTORY"].split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/slurm-hadar")
    return user_folder("XDG_STATE_HOME", ".local/state") / "slurm-hadar"


def state_dir(config: Config) -> Path:
    """Where journal, keys and lock live. Raises StoreError if it cannot be made."""
    chosen = chosen_state_dir(config)
    try:
        chosen.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"state directory {chosen} cannot be made: {error.strerror}; set controller.state_dir"
        ) from None
    return chosen


def file_fault(path: Path) -> str:
    """Why this account may not read and write a file of the state; empty where it may, or where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        return ""
    return (
        f"{path} is of user {name_of(found.st_uid)} ({stat.filemode(found.st_mode)}), and user {name_of(os.geteuid())} "
        f"may not read and write it"
    )


def full(directory: Path) -> bool:
    """Whether the file system there has no room left for a journal; False where that cannot be told."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _LITTLE_ROOM

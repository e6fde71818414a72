"""How a broker stands: asked over its socket, without joining."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.wire import credentials, decoded, encoded
from slurm_hadar.sharing.sizes import MOST_BYTES

__all__ = [
    "COMMON",
    "FOLDER",
    "SOCKET",
    "NobodyServes",
    "give_way",
    "own_folder",
    "place_of",
    "sockets",
    "status_of",
    "trusted",
]

#: Where brokers that nobody has given a path have their sockets: in folders of their user alone.
FOLDER = f"hadar-share-{os.getuid()}-"
SOCKET = "gpu"
#: Where an administrator's broker for the jobs of all users has its.
COMMON = Path("/run/hadar-share")
_ANSWER_S = 5.0


def own_folder(environ: Mapping[str, str]) -> Path:
    """Where brokers that jobs of Slurm keep up have their sockets. Not in ``TMPDIR``, which may be each job's own."""
    return Path(environ.get("HADAR_SHARE_DIR") or f"/tmp/{FOLDER}slurm")


def place_of(path: Path) -> int | None:
    """Which socket (or file) is there now: another broker's is another one. None: none is."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


class NobodyServes(ChannelError):
    """The socket is one that a broker which was killed has left."""


def trusted(uid: int) -> bool:
    """Whether this user's jobs take turns by the word of that user's broker: their own, or the administrator's."""
    return uid in {os.getuid(), 0}


def sockets() -> list[Path]:
    """Those of this machine's brokers that this user may ask and that nobody has given a path."""
    folders = {own_folder(os.environ), COMMON, *Path(tempfile.gettempdir()).glob(f"{FOLDER}*")}
    there = (folder for folder in folders if _of_the_trusted(folder))
    return sorted(path for folder in there for path in folder.iterdir() if path.is_socket())


def _of_the_trusted(folder: Path) -> bool:
    """Without following what others may have put there: their link may lead where this user cannot look."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and trusted(found.st_uid)


@contextmanager
def _told(path: Path, message: bytes) -> Iterator[socket.socket]:
    """Tell the broker there something, and hear its answer. Raises ChannelError, also for what fails within."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(_ANSWER_S)
        try:
            sock.connect(str(path))
            if not trusted(uid := credentials(sock)[1]):
                raise ChannelError(f"the broker at {path} is one of user {uid}")
            sock.sendall(message)
            yield sock
        except ConnectionRefusedError as error:
            raise NobodyServes(f"no broker answers at {path}: {error.strerror}") from None
        except OSError as error:
            raise ChannelError(f"no broker answers at {path}: {error.strerror or error}") from None


def give_way(path: Path, job: str, share: float, for_s: float) -> None:
    """Let the sessions of a job of this user's have this share of the turns beside another, 0 to a half (which ends
    it), for at most a minute. Raises ChannelError where there is no broker."""
    with _told(path, encoded("give_way", job=job, share=share, for_s=for_s)):
        pass  # nothing is answered


def status_of(path: Path) -> dict[str, Any]:
    """What the broker says: ``policy``, ``memory_bytes`` (None: not counted), ``reserved_bytes``, ``lanes`` and
    ``sessions``, with times in seconds. Raises ChannelError."""
    with _told(path, encoded("status")) as sock, sock.makefile("rb") as lines:
        line = lines.readline()
    said: dict[str, Any] = decoded(line) if line.endswith(b"\n") else {"reason": "it has hung up"}
    if said.pop("op", "") != "status":
        raise ChannelError(f"the broker at {path} does not say how it stands: {said.get('reason')}")
    if said.get("memory_bytes") == MOST_BYTES:
        said["memory_bytes"] = None
    return said

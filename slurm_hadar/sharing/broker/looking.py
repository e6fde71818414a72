"""How a broker stands: asked over its socket, without joining."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.wire import credentials, decoded, encoded

__all__ = ["FOLDER", "SOCKET", "own_sockets", "status_of"]

#: Where brokers that nobody has given a path have their sockets: a folder each, of their user alone.
FOLDER = f"hadar-share-{os.getuid()}-"
SOCKET = "gpu"
_ANSWER_S = 5.0


def own_sockets() -> list[Path]:
    """Those of this user's brokers that nobody has given a path, in this machine's folder for temporary files."""
    folders = (
        folder for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*") if folder.lstat().st_uid == os.getuid()
    )
    return sorted(path for folder in folders if (path := folder / SOCKET).is_socket())


def status_of(path: Path) -> dict[str, Any]:
    """What the broker says: ``policy``, ``memory_bytes``, ``reserved_bytes``, ``lanes`` and ``sessions``, with times in
    seconds. Raises ChannelError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(_ANSWER_S)
        try:
            sock.connect(str(path))
            if (uid := credentials(sock)[1]) != os.getuid():
                raise ChannelError(f"the broker at {path} is one of user {uid}")
            sock.sendall(encoded("status"))
            with sock.makefile("rb") as lines:
                line = lines.readline()
        except OSError as error:
            raise ChannelError(f"no broker answers at {path}: {error.strerror or error}") from None
    said = decoded(line) if line.endswith(b"\n") else {"reason": "it has hung up"}
    if said.pop("op", "") != "status":
        raise ChannelError(f"the broker at {path} does not say how it stands: {said.get('reason')}")
    return said

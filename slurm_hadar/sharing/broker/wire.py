"""What passes between a job and a broker: a JSON object a line, each of at most :data:`LONGEST` bytes.

A job says ``join`` (``label``, ``persistent_bytes``, ``ephemeral_bytes``, ``total_s``, ``group``, ``can_keep``,
``mark``), ``want``, ``done`` and ``freed``; it is told ``admitted`` (with the file of
:mod:`~slurm_hadar.sharing.broker.progress`), ``turn``, ``recall``, ``keep``, ``free`` or ``refused`` (``reason``). Its
end is the end of its connection. Who asks for ``status`` need not have joined; the answer may be longer. Nor need who
says ``give_way`` (``job``, ``share``, ``for_s``), for all sessions of a job of its user's; there is no answer.
"""

from __future__ import annotations

import json
import socket
import struct
from functools import cache
from typing import Any

from slurm_hadar.errors import ChannelError

__all__ = ["LONGEST", "Lines", "credentials", "decoded", "encoded"]

LONGEST = 4096
_CREDENTIALS = struct.Struct("3i")


def credentials(sock: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a Unix socket, as the kernel has noted them (SO_PEERCRED, unix(7))."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def encoded(op: str, **values: Any) -> bytes:
    """One line."""
    return json.dumps({"op": op, **values}).encode() + b"\n" if values else _line(op)


@cache
def _line(op: str) -> bytes:
    return json.dumps({"op": op}).encode() + b"\n"


#: What is said at each turn is not read as JSON: that would be a tenth of a hand-over.
_OFTEN = {_line(op)[:-1]: op for op in ("want", "done", "turn", "recall")}


def decoded(line: bytes) -> dict[str, Any]:
    """What a line says; its ``op`` is a text. Raises ChannelError."""
    if (op := _OFTEN.get(line)) is not None:
        return {"op": op}
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise ChannelError("is no JSON") from None
    if not isinstance(said, dict) or not isinstance(said.get("op"), str):
        raise ChannelError("is no object with an op")
    return said


class Lines:
    """Bytes in, whole lines out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete. Raises ChannelError for one that is too long."""
        if not self._rest and 0 < len(data) == data.find(b"\n") + 1 <= LONGEST:  # as at each turn
            return [data[:-1]]
        whole = self._rest + data
        *lines, self._rest = whole.split(b"\n")
        if len(whole) > LONGEST and any(len(line) > LONGEST for line in (*lines, self._rest)):
            raise ChannelError(f"is longer than {LONGEST} bytes")
        return lines

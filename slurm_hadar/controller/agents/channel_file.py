"""The file that tells jobs where the controller listens, and what is written beside it."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

import zmq

from slurm_hadar.errors import ChannelError
from slurm_hadar.graphs.network import Network
from slurm_hadar.messages import ChannelInfo

__all__ = ["ChannelFile", "announce", "leave_network", "replace_file"]

log = logging.getLogger(__name__)
_ANSWERS_WITHIN_MS = 1000


class ChannelFile:
    """Tells jobs of one controller, the one that listens by ``info``.

    There is one file for all jobs, so controllers of different users must not write it by turns: who finds another one
    in it that answers leaves it there, until that one has ended.
    """

    def __init__(self, path: Path, info: ChannelInfo) -> None:
        self.path = path
        self.info = info
        self._said = ""

    def write(self) -> None:
        """Whatever is there. Raises ChannelError if it cannot be written."""
        announce(self.path, self.info)
        self._said = ""

    def claim(self) -> None:
        """Write it, unless another controller's is there that answers. Raises ChannelError if it cannot be written."""
        if not self._left_to(self._found()):
            self.write()

    def look_after(self) -> None:
        """Write it again if it is not this controller's any more: jobs that start then would report to nobody. Told
        once in the log; nothing is raised."""
        found = self._found()
        if found == self.info:
            self._said = ""
            return
        if self._left_to(found):
            return
        was = "was removed, or cannot be read"
        if found is not None:
            was = (
                f"named {found.address}, where no other controller answers" if found.listens else "named no controller"
            )
        try:
            self.write()
        except ChannelError as error:  # jobs leave word in their directories then; tried again each round
            self._say(f"jobs cannot be told to report here: {error}")
        else:
            log.warning("channel file %s %s; written again: jobs report here", self.path, was)

    def _found(self) -> ChannelInfo | None:
        with contextlib.suppress(OSError, ChannelError):
            return ChannelInfo.from_json(self.path.read_bytes())
        return None

    def _left_to(self, found: ChannelInfo | None) -> bool:
        """Whether the file is another controller's. One with the same key is this one's predecessor."""
        if found is None or found.public_key == self.info.public_key or not _answers(found):
            return False
        self._say(
            f"channel file {self.path} names another controller, which answers at {found.address}; jobs report there. "
            "Give this one a channel.file of its own, and its users' jobs HADAR_CHANNEL"
        )
        return True

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self._said = text


def announce(file: Path, info: ChannelInfo) -> None:
    """Write the channel file, which tells jobs that there is a controller and where it listens, if it does."""
    replace_file(file, info.to_json(), 0o644)


def leave_network(file: Path, network: Network) -> None:
    """Write beside the channel file how fast the links are: what the ranks of jobs with a graph are placed by."""
    replace_file(file.with_name(Network.FILE), network.to_json(), 0o644)


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write a file so that readers see the old or the new text, never half of one."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)
            Path(temporary).chmod(mode)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)  # it is tried again each round
            raise
    except OSError as error:
        raise ChannelError(f"cannot write {path}: {error.strerror}") from None


def _answers(info: ChannelInfo) -> bool:
    """Whether somebody listens there who has the secret key: another program at an old address is no controller."""
    if not info.listens:
        return False
    context = zmq.Context()
    one = context.socket(zmq.DEALER)
    try:
        public, one.curve_secretkey = zmq.curve_keypair()
        one.curve_publickey, one.curve_serverkey = public, info.public_key.encode()
        shaken = one.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        one.connect(info.address)
        return bool(shaken.poll(_ANSWERS_WITHIN_MS))
    except (zmq.ZMQError, ValueError):  # no address, or no key
        return False
    finally:
        with contextlib.suppress(zmq.ZMQError):
            one.disable_monitor()
        context.destroy(linger=0)

"""The broker of a GPU that jobs of Slurm share: where it is, and who keeps it up.

Slurm gives shards of a GPU (``--gres=shard:N``) and fences nobody. Each job that has some keeps a broker in reserve:
the first to come serves, the others look every :data:`LOOK_S` whether its place is free. So the broker needs nobody to
start it, ends with the last job, and where it dies, or its job ends, the next one is there before sessions give up. One
that stands still, since Slurm has suspended its job, is deposed after :data:`STILL_S`.
What runs beside a job belongs to it, and Slurm ends it with the job: a broker that stayed behind would be killed, or
would hold a job up that is over.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import ChannelError, ConfigError
from slurm_hadar.joblog import say
from slurm_hadar.scratch import LONGEST_PATH
from slurm_hadar.sharing.broker.place import depose, stands_still
from slurm_hadar.sharing.broker.queries import COMMON, own_folder
from slurm_hadar.sharing.broker.server import Broker
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.declared import memory_of, policy_of, seconds_of

__all__ = ["LOOK_S", "STILL_S", "Post", "stand_by", "post_of"]

LOOK_S = 0.2
STILL_S = 2.0
_ODD = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Post:
    """A GPU's broker: its socket, and the rules by which this job would serve it; None where an administrator's does
    (``hadar share broker --users all``)."""

    path: Path
    rules: Rules | None
    limits: Limits


def post_of(environ: Mapping[str, str]) -> Post:
    """The broker of the GPU that this task has shards of.

    ``HADAR_SHARE_POLICY``, ``HADAR_SHARE_MEMORY`` and ``HADAR_SHARE_KILL_AFTER`` are as the options of ``hadar share
    broker``; what the job says counts whose broker serves. Raises ConfigError.
    """
    gpus = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or environ.get("CUDA_VISIBLE_DEVICES", "")
    if not gpus or "," in gpus:
        raise ConfigError(f"this task has shards of the GPUs {gpus or '(none)'}, and takes turns on one only")
    words = (environ.get("SLURM_CLUSTER_NAME", ""), environ.get("SLURMD_NODENAME", ""), f"gpu{gpus}")
    name = _ODD.sub("_", "-".join(word for word in words if word))
    if (common := COMMON / name).is_socket() and not _was_killed(common):
        return Post(common, None, Limits())
    path = _made(own_folder(environ)) / name
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"{path} is too long for a socket's path: set HADAR_SHARE_DIR to a shorter folder")
    rules = Rules(policy_of(environ), memory_of(environ))
    return Post(path, rules, Limits(linger_s=None, kill_s=seconds_of(environ, "HADAR_SHARE_KILL_AFTER")))


def _was_killed(path: Path) -> bool:
    """Whether the broker there has left its socket and its lock behind, and does not come back soon."""
    until = time.monotonic() + STILL_S
    while Path(f"{path}.lock").exists() and _refuses(path):
        if time.monotonic() >= until:
            say(f"the administrator's broker at {path} was killed: this user's jobs take turns by one of their own")
            return True
        time.sleep(LOOK_S)
    return False


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        return sock.connect_ex(str(path)) == errno.ECONNREFUSED


def _made(folder: Path) -> Path:
    """The user's own, or nobody's: who could write there could take the socket's place."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{folder} is not a folder of this user alone: set HADAR_SHARE_DIR to one that is")
    return folder


def stand_by(post: Post, until: int, say: Callable[[str], None]) -> None:
    """Serve, now or when whoever does ends, until the descriptor ``until`` is readable."""
    assert post.rules is not None
    wait_s, still_s = 0.0, 0.0
    while not select.select([until], [], [], wait_s)[0]:
        wait_s = LOOK_S
        try:
            broker = Broker(post.path, post.rules, post.limits, say)
        except ChannelError:  # another one serves
            still_s = still_s + LOOK_S if stands_still(post.path) else 0.0
            if still_s >= STILL_S:
                say("the broker of this GPU stands still, as where its job is suspended: this job serves it now")
                depose(post.path)
            continue
        still_s = 0.0
        try:
            broker.serve(until)
        finally:
            broker.close()

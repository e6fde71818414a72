"""A task that has shards of a GPU takes turns on it: its environment, and the broker that it keeps in reserve."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from slurm_hadar import messages
from slurm_hadar.errors import HadarError
from slurm_hadar.joblog import say
from slurm_hadar.runtime.inject import INJECT

if TYPE_CHECKING:
    from slurm_hadar.sharing.standby import Post

__all__ = ["Reserve", "has_shards", "join_in"]

FAILED = 1


def has_shards(environ: Mapping[str, str]) -> bool:
    """Whether a job or step was given a part of a GPU."""
    return environ.get("SLURM_SHARDS_ON_NODE", "0") not in ("", "0")


def join_in(environ: MutableMapping[str, str]) -> Post | None:
    """The broker that the task has to keep up; None if there is none: it has no shards, an administrator's broker
    serves its GPU, or it takes no turns, for a reason that is said. ``environ`` becomes the command's."""
    if not has_shards(environ) or environ.get("HADAR_SHARE"):
        return None
    from slurm_hadar.sharing.standby import post_of  # what other tasks need not load

    try:
        post = post_of(environ)
    except HadarError as error:
        say(f"{error}; it runs as if the GPU were its own")
        return None
    environ["HADAR_SHARE"] = str(post.path)
    job, name = environ.get("HADAR_JOB_ID", "?"), environ.get("SLURM_JOB_NAME", "")
    environ.setdefault("HADAR_SHARE_LABEL", f"job {job} {name}".strip())
    messages.note_set(environ, ("HADAR_SHARE", "HADAR_SHARE_LABEL"))
    hooks = [str(INJECT), *(path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(INJECT))]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, hooks))
    return post if post.rules is not None else None


class Reserve:
    """The process that serves the GPU's broker when its turn comes. It ends with this one, or at :meth:`dismiss`.

    Signals are for the command: a job that saves at SIGTERM takes its turns until it has.
    """

    def __init__(self, post: Post, signals: Iterable[int]) -> None:
        read_end, write_end = os.pipe()
        self._pipe: int | None = write_end
        self.pid = os.fork()
        if self.pid:
            os.close(read_end)
            return
        code = FAILED
        try:
            from slurm_hadar.sharing.standby import stand_by

            os.close(write_end)
            for number in signals:
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            stand_by(post, read_end, say)
            code = 0
        except Exception as error:
            say(f"this task can serve no broker: {error}")
        finally:
            os._exit(code)

    def dismiss(self) -> None:
        """Leave the broker's place to another job."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

"""Which training has used a job's checkpoints last: one of another program must not go on from them unnoticed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from slurm_hadar.errors import CheckpointError
from slurm_hadar.procstat import stat_of

__all__ = ["NOTE", "Follows", "Trained", "follows"]

NOTE = "training"


@dataclass(frozen=True, slots=True)
class Trained:
    """A training's note in its directory of checkpoints: in which run of the job, by which command and process, and
    whether it came to its end. ``born``: when the process was started, in ticks since the host's boot."""

    generation: int
    words: list[str]
    host: str
    pid: int
    born: str | None
    ended: bool = False

    @classmethod
    def here(cls, generation: int) -> Trained:
        """Of this process."""
        return cls(generation, list(sys.argv), socket.gethostname(), os.getpid(), _born(os.getpid()))

    @classmethod
    def read(cls, directory: Path) -> Trained | None:
        """None where nobody has noted anything that can be read."""
        try:
            found = cls(**json.loads((directory / NOTE).read_text()))
            return found if all(isinstance(word, str) for word in found.words) else None
        except (OSError, ValueError, TypeError):
            return None

    def write(self, directory: Path) -> None:
        """Raises OSError."""
        temporary = directory / f".{NOTE}-{os.getpid()}"
        temporary.write_text(json.dumps(asdict(self)) + "\n")
        temporary.replace(directory / NOTE)

    def end(self, directory: Path) -> None:
        """It came to its end; what cannot be noted is of no importance then."""
        with contextlib.suppress(OSError):
            replace(self, ended=True).write(directory)

    @property
    def program(self) -> str:
        """The script's name: its path may be another in each run."""
        return Path(self.words[0]).name if self.words else ""

    @property
    def command(self) -> str:
        """The script by its name alone, and its arguments, as a shell reads them."""
        return shlex.join([self.program, *self.words[1:]])

    @property
    def alive(self) -> bool:
        """Whether its process is there, as far as that can be seen from here."""
        return self.host == socket.gethostname() and self.born is not None and _born(self.pid) == self.born


@dataclass(frozen=True, slots=True)
class Follows:
    """Another training whose checkpoints these are: ``who`` in words, of which trainings of one ``whole`` it was one,
    and whether it came to its end."""

    who: str
    whole: str
    ended: bool

    @property
    def advice(self) -> str:
        """How the trainings are kept apart, as the end of a sentence."""
        return f"give each training of {self.whole} a name: train(..., name='fold-2'), or name= of the callback"


def follows(last: Trained | None, mine: Trained) -> Follows | None:
    """Whether this training follows another one, by what that has noted (our definition).

    In one run of a job: one with other arguments, or one that has ended; the same command once more after a failure is
    the same training. In a later run: one of another program, since arguments may hold a time or the number of the run.
    A process that has executed another command is another training, too; those of one command are told apart elsewhere.
    Raises CheckpointError where the other one is running, or is of another program in the same run.
    """
    same = last is not None and (last.host, last.pid, last.born) == (mine.host, mine.pid, mine.born)
    if last is None or (same and last.words == mine.words):
        return None
    if last.generation != mine.generation:
        earlier = Follows(f"{last.program} in an earlier run of this job", "this job", ended=False)
        return earlier if last.program != mine.program else None
    found = Follows(f"another training of this job ({last.command})", "this job", last.ended)
    if last.alive and not same:
        raise CheckpointError(
            f"{found.who} is running, process {last.pid}, and saves to the same place; {found.advice}"
        )
    if last.program != mine.program:
        raise CheckpointError(f"the checkpoints here are those of {found.who}; {found.advice}")
    if last.words == mine.words:
        return replace(found, ended=False) if last.ended else None
    return found


def _born(pid: int) -> str | None:
    try:
        return str(stat_of(pid).began)
    except OSError:
        return None

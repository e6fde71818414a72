"""Every error the package raises on purpose, so that each reaches a user as one clear line.

::

    HadarError
    ├── ConfigError             a setting is unknown, of the wrong type or impossible
    ├── CommentError            a job's ``hadar:`` comment breaks the grammar
    ├── TraceError              a trace, table or other data file cannot be read
    ├── GraphError              a job's graph or the cluster's topology cannot be read or is impossible
    ├── PolicyError             a policy returned a plan that breaks its contract
    ├── PredictionError         a history teaches too little, or a stored predictor cannot be used
    ├── StoreError              the local database cannot be used
    ├── ControllerRunning       another controller holds this scope
    ├── ClusterError            the private Slurm cluster cannot be started or found
    ├── CheckpointError         a checkpoint is truncated, foreign or cannot be written
    ├── ChannelError            a message between job and controller is not acceptable
    ├── AllocationLost          Slurm has ended the job that this runs in, or started it anew
    ├── JobFailed               a submitted function did not return in its job
    ├── ServingError            a model server refused a request, or cannot be asked
    └── SlurmError              Slurm could not be asked or did not obey
        ├── SlurmUnavailable    slurmctld is away, or a call ran into its time limit
        │   └── SlurmSilent     the latter: whether it was done is not known
        ├── SlurmHidden         this user may not see the nodes, or the queue
        ├── SlurmParseError     Slurm's answer is cut short or not understood
        └── SlurmRejected       Slurm refused a write

The command line turns any :class:`HadarError` into its message and exit code 1; anything else is a defect.
"""

import sqlite3
from collections.abc import Sequence

_LONGEST_REASON = 1000


class HadarError(Exception):
    """Base of all expected errors; ``str(error)`` is one line that names the thing and the fix.

    What it quotes may be anything that a user has typed: line ends and what steers a terminal are shown by their names.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class ConfigError(HadarError):
    """A configuration value is unknown, of the wrong type or impossible. ``more`` has a line for each further fault."""

    def __init__(self, message: str, more: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.more = tuple(HadarError(line) for line in more)


class CommentError(HadarError):
    """A job's ``hadar:`` comment breaks the grammar of :mod:`slurm_hadar.comment`."""


class TraceError(HadarError):
    """A data file (trace, throughput table) is broken; the message names file, line and field."""


class GraphError(HadarError):
    """A job's graph or the cluster's topology is impossible, or its text cannot be read; the message names the part."""


class PolicyError(HadarError):
    """A policy's plan breaks the contract every policy must keep; nothing of it is carried out."""


class PredictionError(HadarError):
    """A history is unusable or too short to learn from, or a stored predictor is damaged or foreign."""


#: What SQLite says of a quota that is used up: of a disk that is full it says so.
_NOT_WRITTEN = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)


class StoreError(HadarError):
    """The local database cannot be opened, read or written.

    ``passes`` says that this may mend itself without the process being started again: the disk is full, or another
    process is at work on the file.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes

    @classmethod
    def of(cls, what: str, error: sqlite3.Error) -> "StoreError":
        """What SQLite says, after ``what`` could not be done."""
        code = getattr(error, "sqlite_errorcode", None)  # absent where Python's module itself found the fault
        if code in _NOT_WRITTEN:
            return cls(f"{what}: it cannot be written to ({error}): is a quota used up?", passes=True)
        passing = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return cls(f"{what}: {error}", passes=code is not None and code & 0xFF in passing)


class ControllerRunning(HadarError):
    """Another controller already acts on the same scope."""


class ClusterError(HadarError):
    """The private Slurm cluster cannot be installed, started, found or stopped."""


class CheckpointError(HadarError):
    """A checkpoint cannot be written, or what is there is truncated or belongs to another job."""


class ChannelError(HadarError):
    """A message between a job and the controller has a wrong token, shape, size or order."""


class AllocationLost(HadarError):
    """The Slurm job that this runs in is over, or was started anew: whatever is started now would be in its way."""


class JobFailed(HadarError):
    """A job that was submitted as a function ended without its result. ``state`` is Slurm's word for how; ``output``
    the traceback of the job, or the end of what it wrote to stderr, which is shown after the message."""

    def __init__(self, message: str, state: str, output: str = "") -> None:
        super().__init__(message)
        self.state = state
        self.output = output

    def __str__(self) -> str:
        return super().__str__() + (f"\n{self.output.rstrip()}" if self.output.strip() else "")


class ServingError(HadarError):
    """A model server refused a request, or could not be asked. ``status``: of HTTP; 0: there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SlurmError(HadarError):
    """Slurm could not be asked, or did not do what it was asked to do.

    Parameters
    ----------
    message: one line for the user.
    command: the command line or call that failed, if one did.
    job_id: the job concerned, if the failure is about one.
    """

    def __init__(self, message: str, *, command: str | None = None, job_id: str | None = None) -> None:
        super().__init__(message)
        self.command = command
        self.job_id = job_id


class SlurmHidden(SlurmError):
    """Slurm answers, and does not show this user what was asked for (``PrivateData``)."""


class SlurmUnavailable(SlurmError):
    """slurmctld does not answer, or the call exceeded its time limit: what a write has changed is not known."""


class SlurmSilent(SlurmUnavailable):
    """The call exceeded its time limit."""


class SlurmParseError(SlurmError):
    """Slurm's answer is cut short or has a shape this version does not know."""


class SlurmRejected(SlurmError):
    """Slurm refused a write and said why."""


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line; of what is not ours only the begin."""
    if isinstance(error, HadarError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:_LONGEST_REASON]}"


def whereabouts(error: BaseException) -> str:
    """File and line where an error was raised, for the log."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"

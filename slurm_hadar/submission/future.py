"""``slurm_hadar.submit``: a Python function as a job, in the manner of submitit and of ``concurrent.futures``."""

from __future__ import annotations

import functools
import os
import pickle
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.comment import compose
from slurm_hadar.errors import CommentError, HadarError, JobFailed, SlurmError, SlurmUnavailable
from slurm_hadar.joblog import say
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.parsing import job_state
from slurm_hadar.slurm.shown import accounted
from slurm_hadar.submission.files import CALL, make_folder, read_file, write_file
from slurm_hadar.submission.run import STARTED, dumps, pickler
from slurm_hadar.submission.sbatch import as_options, given, sbatch

__all__ = ["Job", "submit"]

_ASK_S = 2.0  # Slurm is asked about all jobs of this process at once, and not more often
_FILES_S = 60.0  # a shared file system may show what a job wrote only so long after its end
_POLL_S = 0.2
_GONE = "GONE"
_RESULT = re.compile(r"result-(\d{1,9})-(\d{1,9})\.pickle")
_NOT_TAKEN = ("array", "wrap", "comment", "gres", "wait", "test_only")  # all have another way here, or none


def submit(
    function: Callable[..., Any],
    /,
    *args: Any,
    gpus: int = 1,
    steps: int | None = None,
    model: str | None = None,
    batch: int | None = None,
    comment: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] = ".",
    **options: Any,
) -> Job:
    """Submit ``function(*args)`` as a job that the scheduler may place and move; returns at once.

    The function is called anew in each run of the job: a training that shall go on after a move resumes by
    :func:`slurm_hadar.train`. Each task calls it (one on each node, unless ``ntasks`` or the like asks for more); the
    result is that of the first task of the last run.

    Parameters
    ----------
    args: what it is called with; for keywords take :func:`functools.partial`.
    gpus: how many, of any type, on each node.
    steps, model, batch: what the scheduler may know of the training, as in the job's comment.
    comment: further keys of the comment, such as ``{"types": ["v100", "a100"], "mem": "32g", "retry": 2}``.
    folder: a directory that the nodes see too; files go to ``.hadar`` in it, which only this user may enter.
    options: sbatch's, such as ``time="2:00:00"``, ``cpus_per_task=4``, ``mem="16G"``, ``job_name="x"``; not ``wait``,
        for which there is :meth:`Job.result`, ``test_only`` or ``array``.

    Raises CommentError, SlurmError in sbatch's words, and HadarError where the function cannot be pickled.
    """
    if wrong := sorted(set(options) & set(_NOT_TAKEN)):
        raise HadarError(f"{wrong[0]} cannot be given to slurm_hadar.submit; see its documentation for what can")
    known = {"steps": steps, "model": model, "batch": batch, **(comment or {})}
    words = [*as_options(options), f"--comment={compose(known)}"]
    if gpus < 0:
        raise CommentError(f"gpus={gpus} must be 0 or more")
    packed = _packed(function, args)
    home = make_folder(Path(folder).resolve())
    write_file(home, CALL, dumps(([str(Path(p).resolve()) for p in sys.path], packed)))
    escaped = str(home).replace("%", "%%")  # sbatch puts the job's id and the like for %j
    words += [f"--gres=gpu:{gpus}"] if gpus else []
    words += [] if given(words, "output") else [f"--output={escaped}/stdout"]
    words += [] if given(words, "error") else [f"--error={escaped}/stderr"]
    name = getattr(function, "__name__", type(function).__name__).strip("<>")
    try:
        job_id = sbatch(words, [sys.executable, "-P", "-m", "slurm_hadar.submission.run", str(home)], name)
    except SlurmError:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return Job(job_id, home)


class Job:
    """A submitted function: its state and, in the end, its result. ``Job(job_id, folder)`` finds it again from another
    process of the same user."""

    def __init__(self, job_id: str, folder: str | os.PathLike[str]) -> None:
        self.job_id = job_id
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Job({self.job_id!r}, {str(self.folder)!r})"

    @property
    def state(self) -> str:
        """Slurm's word, such as PENDING, RUNNING, COMPLETED or FAILED; GONE where Slurm does not know the job any more.
        Raises SlurmError."""
        return _SLURM.state(self.job_id)

    def done(self) -> bool:
        """Whether it is over, well or not, and will not run again by itself. Raises SlurmError."""
        state = self.state
        return state == _GONE or not job_state(state, self.job_id).active

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and return what the function returned.

        Raises what it raised, with the text of its traceback as the cause; JobFailed for a job that ended otherwise
        (cancelled, out of time or memory, killed); TimeoutError after ``timeout`` seconds; SlurmError.
        """
        self._wait(timeout)
        kind, content, text = self._outcome()
        if kind == "value":
            return content
        if content is None:
            raise JobFailed(
                f"job {self.job_id}: the function raised an exception that cannot be pickled", "FAILED", text
            )
        raise content from JobFailed(f"job {self.job_id}: raised in the job", "FAILED", text)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What :meth:`result` would raise once the job is over; None if it returns. Raises TimeoutError, SlurmError."""
        self._wait(timeout)
        try:
            self.result(0.0)
        except SlurmError:
            raise
        except Exception as error:
            return error
        return None

    def stdout(self) -> str:
        """What the job has written so far, over all its runs; "" if nothing yet."""
        return self._text("stdout")

    def stderr(self) -> str:
        """The same of what went to stderr."""
        return self._text("stderr")

    def cancel(self) -> None:
        """End the job, or take it out of the queue. One that is over is no error. Raises SlurmError."""
        (answer,) = CliBackend().cancel([self.job_id])
        _SLURM.forget()
        if answer.error is not None and not answer.overtaken:
            raise SlurmError(f"job {self.job_id} cannot be cancelled: {answer.error}", job_id=self.job_id)

    def _text(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        told = False
        while True:
            try:
                if self.done():
                    return
                state = self.state
            except SlurmUnavailable as error:  # it is restarted, say, and the job goes on
                state = "not known"
                if not told:
                    say(f"{error}; still waiting for job {self.job_id}")
                    told = True
            left_s = _ASK_S if until is None else until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {self.job_id} is {state} after {timeout:g} s")
            time.sleep(min(_POLL_S, left_s))

    def _outcome(self) -> tuple[str, Any, str]:
        """What the tasks of the last run have left: of the first one that raised, else of the first. Raises JobFailed
        where they left nothing, or the job was ended from outside."""
        state = self.state
        if state not in ("COMPLETED", "FAILED", _GONE):
            raise self._failed(state)
        until = time.monotonic() + (_FILES_S if state == "COMPLETED" else _ASK_S)
        while True:
            found: list[tuple[str, Any, str]] = [read_file(self.folder, name) for name in self._last_results()]
            if error := next((one for one in found if one[0] == "error"), None):
                return error
            if found and all(kind != STARTED for kind, _, _ in found):
                return found[0]
            if time.monotonic() > until:
                raise self._failed(state)
            time.sleep(_POLL_S)

    def _last_results(self) -> list[str]:
        """Names of the files that the last run has left, in order of its tasks."""
        matches = (_RESULT.fullmatch(path.name) for path in self.folder.iterdir())
        found = [(int(m[1]), int(m[2]), m[0]) for m in matches if m]
        last = max((run for run, _, _ in found), default=0)
        return [name for run, _, name in sorted(found) if run == last]

    def _failed(self, state: str) -> JobFailed:
        why = _ENDINGS.get(state, f"ended as {state}")
        if state == "COMPLETED":
            why = f"ended well, but left no result in {self.folder}: did the function end the process (sys.exit)?"
        return JobFailed(f"job {self.job_id} {why}", state, self.stderr()[-4000:])


_ENDINGS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit; requeue_on_timeout=yes in its comment lets a training go on in another run",
    "OUT_OF_MEMORY": "had not enough memory on its node; ask for more with mem= (of sbatch)",
    "NODE_FAIL": "lost its node",
    "FAILED": "failed before the function could return or raise; what it wrote is in stderr()",
    _GONE: "is not known to Slurm any more, and has left no result",
}


class _Slurm:
    """What state all jobs of this user are in, asked for at most every two seconds, whoever wants to know."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = -_ASK_S
        self._states: dict[str, str] = {}

    def state(self, job_id: str) -> str:
        with self._lock:
            if time.monotonic() - self._asked >= _ASK_S or job_id not in self._states:
                self._ask()
            if job_id not in self._states:
                try:
                    told = accounted(CliBackend(retries=0).ask, job_id)
                except SlurmUnavailable:  # slurmdbd: that slurmctld has forgotten the job is known, and it is over
                    return _GONE
                self._states[job_id] = told[-1].state if told else _GONE
            return self._states[job_id]

    def forget(self) -> None:
        with self._lock:
            self._asked = -_ASK_S

    def _ask(self) -> None:
        text = CliBackend().ask("squeue", "--local", "--me", "-h", "-t", "all", "-O", "JobID:24,State:24")
        self._states = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2)
        self._asked = time.monotonic()


_SLURM = _Slurm()


def _packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    if pickler() is pickle and getattr(inner, "__module__", "") == "__main__":
        raise HadarError(
            f"{name} is defined in the program itself, where the job cannot find it: "
            "pip install 'slurm_hadar[submit]' (cloudpickle), or put it into a module of its own"
        )
    try:
        return dumps((function, args))
    except Exception as error:
        raise HadarError(f"{name} and what it is called with cannot be pickled: {error}") from None

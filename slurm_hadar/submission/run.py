"""``python -m slurm_hadar.submission.run FOLDER``: what a job runs that was submitted as a function.

Each task of the job calls the function, in each run of the job; what it returned, or raised, is left in the folder by
number of the run and of the task.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from slurm_hadar import messages
from slurm_hadar.errors import HadarError
from slurm_hadar.joblog import say
from slurm_hadar.submission.files import CALL, read_file, write_file

__all__ = ["STARTED", "dumps", "main", "pickler", "result_name"]

STARTED = "started"  # what a run is that has left nothing else


def main() -> int:
    """1 if the function raised, which makes the job FAILED."""
    if len(sys.argv) != 2:
        say("this runs what slurm_hadar.submit has submitted; call that")
        return 2
    folder = Path(sys.argv[1])
    try:
        path, packed = read_file(folder, CALL)
    except (OSError, HadarError) as error:
        say(f"the call cannot be read: {error}")
        return 1
    sys.path += [entry for entry in path if entry not in sys.path]  # where the submitting program finds its modules
    name = result_name(messages.restart_count(os.environ), int(os.environ.get("SLURM_PROCID", "0")))
    write_file(folder, name, dumps((STARTED, None, "")))
    try:
        function, arguments = pickle.loads(packed)
        value = function(*arguments)
        text = _dumps_result(value)
    except Exception as error:
        traceback.print_exc()
        write_file(folder, name, _failure(error))
        return 1
    write_file(folder, name, text)
    return 0


def result_name(run: int, task: int) -> str:
    """Of the file in which the task of this run, counted from 0, leaves what became of it."""
    return f"result-{run}-{task}.pickle"


def dumps(content: Any) -> bytes:
    """Pickled; by cloudpickle, where it is installed, which takes functions of a notebook, lambdas and closures too.
    Raises whatever pickling raises."""
    packed: bytes = pickler().dumps(content)
    return packed


def pickler() -> ModuleType:
    """cloudpickle, or the standard library's where that is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _dumps_result(value: Any) -> bytes:
    try:
        return dumps(("value", value, ""))
    except Exception as error:
        raise HadarError(f"what the function returned, a {type(value).__name__}, cannot be pickled: {error}") from None


def _failure(error: Exception) -> bytes:
    """The exception with the text of its traceback; the text alone where the exception does not survive pickling."""
    text = "".join(traceback.format_exception(error))
    try:
        packed = dumps(("error", error, text))
        pickle.loads(packed)
    except Exception:
        return dumps(("error", None, text))
    return packed


if __name__ == "__main__":
    sys.exit(main())

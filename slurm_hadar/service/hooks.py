"""Programs of the site that are told when a job was moved or stopped. They never hold up a round."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Mapping

from slurm_hadar.config import HooksSection

__all__ = ["HookRunner"]

log = logging.getLogger(__name__)
MOST_WAITING = 1000
_OUTPUT_BYTES = 500


class HookRunner:
    """Runs ``hooks.moved`` once per call, beside the controller, at most ``hooks.at_once`` at a time.

    Each run is a process group of its own with the environment of the controller and the variables of :meth:`run`; its
    stdin is empty, what it prints is logged if it fails. ``outcomes`` counts ok, failed, timeout and dropped.
    """

    def __init__(self, settings: HooksSection) -> None:
        self.settings = settings
        self.outcomes: Counter[str] = Counter()
        self._tasks: deque[tuple[list[str], Mapping[str, str]]] = deque()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._workers = 0
        self._changed = threading.Condition()
        self._closing = False

    def run(self, variables: Mapping[str, str]) -> None:
        """Run the command soon, with ``variables`` (HADAR_JOB_ID and so on) in its environment. Returns at once."""
        words = shlex.split(self.settings.moved)
        if not words:
            return
        with self._changed:
            if self._closing or len(self._tasks) >= MOST_WAITING:
                self.outcomes["dropped"] += 1
                if self.outcomes["dropped"] % 100 == 1:
                    log.warning("hooks.moved: more than %d runs would wait; some are dropped", MOST_WAITING)
                return
            self._tasks.append((words, dict(variables)))
            if self._workers < self.settings.at_once:
                self._workers += 1
                threading.Thread(target=self._work, name="hook", daemon=True).start()

    def close(self, wait_s: float) -> None:
        """Take no more; give those that run and wait ``wait_s`` seconds, then end them."""
        with self._changed:
            self._closing = True
            if self._changed.wait_for(lambda: self._workers == 0, wait_s):
                return
            log.warning("hooks.moved: %d runs are ended, %d not begun", len(self._running), len(self._tasks))
            self._tasks.clear()
            for process in self._running:
                _end(process)
            self._changed.wait_for(lambda: self._workers == 0, 5.0)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._tasks or self._workers > self.settings.at_once:
                    self._workers -= 1
                    self._changed.notify_all()
                    return
                words, variables = self._tasks.popleft()
            try:
                outcome, detail = self._once(words, variables)
            except OSError as error:  # no such program, or no place for what it prints
                outcome, detail = "failed", f"cannot be run: {error.strerror or error}"
            with self._changed:
                self.outcomes[outcome] += 1
            if outcome != "ok":
                job_id = variables.get("HADAR_JOB_ID", "")
                log.warning("hook %s for job %s: %s", words[0], job_id, detail, extra={"job_id": job_id})

    def _once(self, words: list[str], variables: Mapping[str, str]) -> tuple[str, str]:
        """Run it; returns what became of it, and in words. Raises OSError where it cannot be run."""
        # into a file: a pipe would be kept open by what the program leaves running
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
                start_new_session=True,
            )
            with self._changed:
                self._running.add(process)
            try:
                process.wait(timeout=self.settings.timeout_s)
            except subprocess.TimeoutExpired:
                _end(process)
                process.wait()
                return "timeout", f"did not end within hooks.timeout_s = {self.settings.timeout_s:g}"
            finally:
                with self._changed:
                    self._running.discard(process)
            if process.returncode == 0:
                return "ok", ""
            output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            said = " ".join(output.read().decode("utf-8", "replace").split())
        return "failed", f"ended with {process.returncode}" + (f": {said}" if said else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it runs as another user, as by sudo
        return

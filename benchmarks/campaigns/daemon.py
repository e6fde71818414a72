"""A controller that is started again when it ends, and a record of what it sends to Slurm."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SHIM", "Daemon"]

RESTART_S = 1.0
# Stands before scontrol and scancel on the controller's PATH, and keeps what was sent before it is sent. scontrol reads
# the controller's clock (now+20), so it gets the same wrong time.
SHIM = """#!/bin/sh
{clock}
if [ "{name}" = scontrol ] && [ $# -gt 0 ]; then exec {real} "$@"; fi
part=$(mktemp {folder}/{name}.XXXXXX)
if [ "{name}" = scontrol ]; then cat > $part; else echo "$*" > $part; fi
mv $part $part.sent
if [ "{name}" = scontrol ]; then exec {real} < $part.sent; fi
exec {real} "$@"
"""


@dataclass
class Daemon:
    """``hadar run`` under a supervisor that starts it again, as systemd would.

    ``ends`` are the ends that it came to by itself: (when, exit code).
    """

    command: list[str]
    env: dict[str, str]
    log: Path
    ends: list[tuple[float, int]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _wanted: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def keep_up(self) -> None:
        """Start it where it should run and does not."""
        with self._lock:
            if self._process is not None and (code := self._process.poll()) is not None:
                self.ends.append((time.time(), code))
                self._process = None
            due = not self.ends or time.time() - self.ends[-1][0] > RESTART_S
            if self._wanted and self._process is None and due:
                with self.log.open("ab") as log:
                    self._process = subprocess.Popen(self.command, env=self.env, stdout=log, stderr=log)
                self.starts.append(time.time())

    def kill(self) -> None:
        """SIGKILL, and not started again until :meth:`revive`."""
        with self._lock:
            self._wanted = False
            if self._process is not None:
                if self._process.poll() is None:
                    self._process.kill()
                    self._process.wait()
                else:
                    self.ends.append((time.time(), self._process.returncode))
                self._process = None

    def revive(self) -> None:
        with self._lock:
            self._wanted = True
        self.keep_up()

    def send(self, signum: signal.Signals) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signum)

    def wait_running(self, seconds: float = 8.0) -> None:
        """Wait until it has run for so long: one that has just been started does not mind signals yet."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline and (self.pid is None or time.time() - self.starts[-1] < seconds):
            self.keep_up()
            time.sleep(0.2)

    def stop(self, patience_s: float = 60.0) -> int | None:
        """End it in good order; its exit code, None if it was not there or had to be killed."""
        with self._lock:
            self._wanted = False
            process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return None
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

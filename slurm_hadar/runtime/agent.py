"""The process that Slurm starts in each task: runs the user's command and, beside it, the reporter.

``python -m slurm_hadar.runtime.agent -- command [argument ...]``

Kept small on purpose, since the task lives and dies with it: it starts the command in a session of its own, passes
signals on, and ends as the command ended. Everything that may fail (sockets, files, the controller) happens in the
reporter, a separate process whose death changes nothing for the training.

SIGUSR2 is the controller's wish for a checkpoint. It goes to the reporter and does nothing to the command, which is
started with it ignored: a program that does not expect it would die of it, and where Slurm tracks processes by
``proctrack/linuxproc`` it signals the whole tree of a task, sessions or not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from slurm_hadar import messages, scratch
from slurm_hadar.joblog import say
from slurm_hadar.runtime.inject import INJECT
from slurm_hadar.runtime.launch.nested import watched_path
from slurm_hadar.runtime.launch.processes import end_like, slurm_signals_everyone, start
from slurm_hadar.runtime.launch.turns import FAILED, Reserve, has_shards, join_in

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGCONT,
    signal.SIGXCPU,
)
WATCHED = {*FORWARDED, signal.SIGUSR2, signal.SIGCHLD}
LOOK_EVERY_S = 1.0
FAREWELL_S = 2.0
TRAINING_S = 60.0  # beyond Slurm's KillWait (30 s by default)
SAVE, END, BYE = b"save\n", b"end\n", b"bye %d %d\n"


def main(argv: list[str] | None = None) -> int:
    """Run the command of ``argv``; does not return if the command was ended by a signal."""
    command = list(sys.argv[1:] if argv is None else argv)
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("usage: python -m slurm_hadar.runtime.agent -- command [argument ...]", file=sys.stderr)
        return 2
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    run_dir = None if os.environ.get("HADAR_UNHEARD") else _make_run_dir()
    try:
        status = _Task(command, run_dir).run()
    finally:
        if run_dir is not None:
            shutil.rmtree(run_dir, ignore_errors=True)
    return end_like(status)


class _Task:
    """The command, its reporter, and the loop that waits for signals and for the command's end."""

    def __init__(self, command: list[str], run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._reporter: int | None = None
        self._pipe: int | None = None
        self._reporter_may_start = run_dir is not None
        self._everyone_is_signalled = slurm_signals_everyone()
        self._told_to_end = False
        self._environ = _environ_of(run_dir)
        self._post = join_in(self._environ)
        self._reserve: Reserve | None = None
        self._stand_by()
        # dies with this: where Slurm tracks processes by parents it would else go on beside the job's next run
        self._child = start(lambda: _become(command, self._environ))

    def run(self) -> int:
        """Wait for the command; returns its wait status."""
        if _is_first_task():
            self._start_reporter()
        while True:
            looks = self._reporter_may_start or (self._post is not None and self._reserve is None)
            got = signal.sigtimedwait(WATCHED, LOOK_EVERY_S if looks else 3600.0)
            if got is None:
                self._look_for_training()
                self._stand_by()
            elif got.si_signo == signal.SIGCHLD:
                status = self._reap()
                if status is not None:
                    self._end_training(status)
                    self._await_training()
                    self._end(_shell_code(status))
                    return status
            elif got.si_signo == signal.SIGUSR2:
                self._look_for_training()
                self._tell_reporter(SAVE)
            else:
                if got.si_signo == signal.SIGTERM:
                    self._told_to_end = True
                    self._tell_reporter(END)
                self._pass_on(got)

    def _pass_on(self, got: signal.struct_siginfo) -> None:
        if not (self._everyone_is_signalled and got.si_pid == os.getppid()):
            _signal_group(self._child, got.si_signo)

    def _end_training(self, status: int) -> None:
        """SIGUSR1 is a training's wish to save, but ends a shell, or torchrun, that has started it."""
        if os.waitstatus_to_exitcode(status) == -signal.SIGUSR1:
            self._told_to_end = True
            for training in self._trainings():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(training, signal.SIGTERM)

    def _await_training(self) -> None:
        """Told to end, a command may be gone before the training that it has started (a shell, or ``mp.spawn``) has
        saved: Slurm kills what is left when this process ends."""
        deadline = time.monotonic() + TRAINING_S
        while self._told_to_end and self._trainings() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _trainings(self) -> list[int]:
        pages = self._run_dir.glob("*.map") if self._run_dir is not None else ()
        return [int(page.stem) for page in pages if Path("/proc", page.stem).exists()]

    def _end(self, code: int) -> None:
        """Say goodbye; where the owner has asked for it, a command that failed by itself is run again."""
        number = 0
        if os.environ.get("HADAR_RETRY") and not self._told_to_end:
            from slurm_hadar.runtime.launch import retry

            number = retry.claim(code)
        self._tell_reporter(BYE % (code, number))
        self._await_helpers()
        if number:
            retry.put_back()

    def _reap(self) -> int | None:
        """Collect every ended child; returns the command's status once it has ended."""
        result = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return result
            if pid == 0:
                return result
            if pid == self._child:
                result = status
            elif pid == self._reporter:
                self._reporter = None
            elif self._reserve is not None and pid == self._reserve.pid:
                self._reserve.dismiss()
                self._reserve = None
                if os.waitstatus_to_exitcode(status) == FAILED:  # so would the next one
                    self._post = None

    def _stand_by(self) -> None:
        """Keep a broker in reserve where the task takes turns; one that has died is followed by another."""
        if self._post is not None and self._reserve is None:
            self._reserve = Reserve(self._post, WATCHED)

    def _look_for_training(self) -> None:
        """Only the task that sees the training's rank 0 reports; with torchrun that need not be the first one."""
        if self._reporter_may_start and self._run_dir is not None and any(self._run_dir.glob("*.map")):
            self._start_reporter()

    def _start_reporter(self) -> None:
        """Fork rather than exec: shares the interpreter's memory, and needs no second start."""
        if not self._reporter_may_start or self._run_dir is None:
            return
        self._reporter_may_start = False
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(write_end)
                for number in (*FORWARDED, signal.SIGUSR2):  # for the command, or the agent; this ends by the pipe
                    signal.signal(number, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
                from slurm_hadar.runtime import reporter

                reporter.main(
                    read_end, self._run_dir, self._environ.get("HADAR_SHARE") if has_shards(os.environ) else None
                )
                code = 0
            except Exception as error:
                say(f"no more reports from this task: {error}")
            finally:
                os._exit(code)
        os.close(read_end)
        os.set_blocking(write_end, False)
        self._reporter, self._pipe = pid, write_end

    def _tell_reporter(self, line: bytes) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, line)
        except OSError:  # the reporter is gone (SIGPIPE is ignored by Python); the training goes on
            os.close(self._pipe)
            self._pipe = None

    def _await_helpers(self) -> None:
        """Give the reporter a moment for its last message, and the broker one to leave its place; then end them."""
        if self._reserve is not None:
            self._reserve.dismiss()
        deadline = time.monotonic() + FAREWELL_S
        while self._helpers() and time.monotonic() < deadline:
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)
            self._reap()
        for pid in self._helpers():
            os.kill(pid, signal.SIGKILL)
        self._reap()

    def _helpers(self) -> list[int]:
        return [pid for pid in (self._reporter, getattr(self._reserve, "pid", None)) if pid is not None]


def _environ_of(run_dir: Path | None) -> dict[str, str]:
    """The command's."""
    environ = dict(os.environ)
    if run_dir is not None:
        environ["HADAR_RUN_DIR"] = str(run_dir)
        messages.note_set(environ, ("HADAR_RUN_DIR",))
        if (watched := watched_path(run_dir, environ)) is not None:
            environ["PATH"] = watched
        environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(INJECT), environ.get("PYTHONPATH", "")) if p)
    return environ


def _become(command: list[str], environ: dict[str, str]) -> int:
    """The command, with default signal handling but for SIGUSR2; returns only if it cannot be run."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two; a command expects the default
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        os.execvpe(command[0], command, environ)
    except OSError as error:
        say(f"cannot run {command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _is_first_task() -> bool:
    return os.environ.get("SLURM_PROCID", "0") == "0"


def _make_run_dir() -> Path | None:
    """A directory on the node itself for the shared pages; None (nothing is measured) if there is no room for it."""
    try:
        return scratch.make(f"hadar-{os.environ.get('SLURM_JOB_ID', 'x')}-")
    except OSError as error:
        say(f"this task is not measured: {error}")
        return None


def _signal_group(pid: int, number: int) -> None:
    """Slurm signals the process group of a task, so this does too; a child that has no group yet alone."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            send(pid, number)
            return


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

"""Tells the controller how the training gets on, and hands its orders to the training.

Runs beside the command, forked by :mod:`slurm_hadar.runtime.agent`. Reads the pages that the training processes of this
node share (:mod:`slurm_hadar.runtime.inject._hadar_progress`), once a second unless something is being waited for.
Nothing here can hold up the training: the pages are read without locks, messages are sent without waiting, and what
cannot be sent is appended to the job's spool file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_hadar import messages, scratch
from slurm_hadar.errors import ChannelError, CheckpointError
from slurm_hadar.forks import PeriodPlan
from slurm_hadar.joblog import say
from slurm_hadar.messages import Order, Report
from slurm_hadar.procstat import stat_of
from slurm_hadar.runtime.company import Company, GivesWay
from slurm_hadar.runtime.connection import BUSY_TICK_S, Connection
from slurm_hadar.runtime.forks.meeting import write_plan
from slurm_hadar.runtime.inject import _hadar_progress as shared
from slurm_hadar.runtime.launch import own
from slurm_hadar.runtime.launch.reports import vouch_later

TICK_S = 1.0
QUIET_S = 10.0
WINDOW_S = 10.0
STOPPED_S = 5.0
REMIND_S = 600.0


def main(pipe: int, run_dir: Path, broker: str | None = None) -> None:
    """Report until the agent says bye or goes away. ``pipe`` brings the agent's lines; ``broker`` is the socket of that
    of a GPU which the task shares."""
    scratch.remove_abandoned("hadar-")  # those of tasks that were killed outright, with their agents
    reporter = Reporter(run_dir, broker)
    if os.environ.get("SLURM_PROCID", "0") == "0" and {"HADAR_JOB_ID", "HADAR_JOB_DIR"} <= os.environ.keys():
        threading.Thread(target=vouch_later, args=(os.environ,), daemon=True).start()
    try:
        while reporter.turn(pipe):
            pass
    finally:
        reporter.close()


class Meter:
    """Steps per second over the last window in which the training made steps; our definition.

    Holds (time, steps) of moments at which steps had changed: the rate is taken between such moments, so that a slow
    training is not measured by the clock of the reports. Pauses and saves start a new window, and so does a time in
    which this process did not look either: who suspends a job (``scontrol suspend``) stops both.
    """

    def __init__(self) -> None:
        self._moments: deque[tuple[float, int]] = deque()
        self._looked: float | None = None

    def look(self, now: float) -> None:
        """To be called each second or so."""
        if self._looked is not None and now - self._looked > STOPPED_S:
            self.restart()
        self._looked = now

    def restart(self) -> None:
        """Forget all that was seen."""
        self._moments.clear()

    def add(self, now: float, steps: int) -> None:
        """So many steps are done; fewer than before is another training, which begins anew."""
        moments = self._moments
        if moments and steps < moments[-1][1]:
            moments.clear()
        if not moments or steps > moments[-1][1]:
            moments.append((now, steps))
        while len(moments) > 3 and now - moments[1][0] > WINDOW_S:
            moments.popleft()

    def rate(self, now: float) -> float | None:
        """None until two changes were seen. A standstill of several steps' time lowers the rate."""
        if len(self._moments) < 2:
            return None
        (start, first), (end, last) = self._moments[0], self._moments[-1]
        per_step = (end - start) / (last - first)
        if now - end > max(3 * per_step, 3 * TICK_S):
            end = now
        return (last - first) / (end - start)


class Reporter:
    """One job's voice; see the module."""

    def __init__(self, run_dir: Path, broker: str | None = None) -> None:
        environ = os.environ
        directory = messages.job_dir(environ)
        job = messages.canonical_job_id(environ)
        if directory is None or job is None:
            raise ChannelError("not inside a Slurm job")
        self._run_dir = run_dir
        self._job = job
        self._restart = messages.restart_count(environ)
        self._token = own.read_token(directory)
        self._node = environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._step = messages.step_id(environ)
        self._connection = Connection(Path(environ.get("HADAR_SPOOL") or directory / messages.SPOOL_FILE))
        self._pages: dict[Path, shared.Page] = {}
        self._last: shared.Page | None = None  # of the training that was seen at work last
        self._meter = Meter()
        self._company = Company(broker, job)
        self._gives_way = GivesWay(broker, job)
        self._told_to_end = False
        self._seq = 0
        self._reported_at = 0.0
        self._reported: tuple[int, int] | None = None  # steps, and workers wanted
        self._saves = 0
        self._failures = 0
        self._read = b""
        self._plan_fault: float | None = None
        self._owed: tuple[str, float] | None = None  # asked to save before the training had begun: why, and the pause

    def turn(self, pipe: int) -> bool:
        """Wait for a tick, an order or the agent; then do what is due. False when it is time to go."""
        page = self._page()
        waiting = page is not None and page.words[shared.ASKED] > page.words[shared.ANSWERED]
        if self._connection.wait(pipe, BUSY_TICK_S if waiting else TICK_S):
            going_on = self._hear_agent(pipe)
            if not going_on:
                return False
        for order in self._connection.orders(self._job):
            self._obey(order)
        if self._gives_way.keep_up():
            self._meter.restart()
        self._meter.look(time.monotonic())
        page = self._page()
        if self._owed is not None and page is not None and page.words[shared.RESUMABLE]:
            self._ask_to_save(*self._owed)
        self._report_due(page)
        self._connection.keep_up(lambda: messages.encode(self._make("hello", self._page())))
        return True

    def close(self) -> None:
        self._connection.close()

    def _hear_agent(self, pipe: int) -> bool:
        """Lines from the agent: a wish to save (SIGUSR2), that it is told to end, or the command's end."""
        data = os.read(pipe, 4096)
        if not data:
            return False
        *lines, self._read = (self._read + data).split(b"\n")
        for line in lines:
            if line == b"save":
                self._ask_to_save("signal from the scheduler", 0.0)
            elif line == b"end":  # at once: what does not end in time is killed, and this with it
                self._told_to_end = True
                self._report("report", self._page())
            elif line.startswith(b"bye "):
                self._report_due(self._page())
                code, retry = map(int, line[4:].split())
                self._report("bye", self._page(), exit_code=code, retry=retry or None)
                return False
        return True

    def _obey(self, order: Order) -> None:
        page = self._page()
        if order.kind == "save":
            self._ask_to_save(order.why, order.pause_s)
        elif order.kind == "go_on":
            self._owed = None
            if page is not None:
                page.words[shared.GO_ON] += 1
        elif order.kind == "plan":
            self._pass_on(order.plan)
        elif order.kind == "turns" and self._gives_way.obey(order.share or 0.0, order.for_s or 0.0):
            self._meter.restart()  # a speed is of one share of the turns

    def _pass_on(self, plan: str) -> None:
        """Put the job tracker's plan where the copies of the forked job see it."""
        directory = os.environ.get("HADAR_FORK_DIR")
        if not directory:
            say("dropped a plan for a forked job: this job is not a copy of one")
            return
        try:
            write_plan(Path(directory), PeriodPlan.from_json(plan))
        except (ChannelError, CheckpointError) as error:
            say(f"dropped an order: {error}")
        except OSError as error:
            now = time.monotonic()
            if self._plan_fault is None or now - self._plan_fault > REMIND_S:  # each round may bring a plan
                self._plan_fault = now
                say(f"cannot write the plan of the forked job to {directory}: {error.strerror}")

    def _ask_to_save(self, why: str, pause_s: float) -> None:
        page = self._page()
        if page is None or not page.words[shared.RESUMABLE]:
            if page is not None and page.words[shared.STEPS] > 0:
                say(f"asked to save ({why}), but the training does not use slurm_hadar.train here: nothing is saved")
            else:  # one that is to resume may take minutes to load
                self._owed = why, pause_s
                say(f"asked to save ({why}): nothing is saved before a training with slurm_hadar.train has begun here")
            return
        self._owed = None
        page.seconds[shared.PAUSE_S] = pause_s
        page.words[shared.ASKED] += 1
        say(f"asked to save at step {page.words[shared.STEPS]}: {why}")

    def _report_due(self, page: shared.Page | None) -> None:
        """Report what is due: a finished save at once, progress at most every TICK_S, anything every QUIET_S."""
        if page is None:
            return
        now, steps = time.monotonic(), page.words[shared.STEPS]
        saves, failures = page.words[shared.SAVES], page.words[shared.FAILURES]
        if saves > self._saves:
            self._report("saved", page)
            self._meter.restart()
        elif failures > self._failures:
            self._meter.restart()
        self._saves, self._failures = saves, failures
        changed = self._company.changed()
        if changed:  # a speed is of one company, or of nobody's
            self._meter.restart()
        if steps > 0 and changed is not None:  # since the last look there may be another company
            self._meter.add(now, steps)
        due_s = TICK_S if _news(page) != self._reported and self._connection.live else QUIET_S
        if now - self._reported_at >= due_s:
            self._report("report", page)

    def _report(self, kind: str, page: shared.Page | None, **ending: int | None) -> None:
        self._reported_at = time.monotonic()
        self._reported = _news(page) if page is not None else None
        self._connection.send(messages.encode(self._make(kind, page, **ending)))

    def _make(
        self, kind: str, page: shared.Page | None, exit_code: int | None = None, retry: int | None = None
    ) -> Report:
        # microseconds as numbers: they grow across the several srun steps that one run of a job may have
        self._seq = max(self._seq + 1, time.time_ns() // 1000)
        known: dict[str, Any] = {} if page is None else self._facts(page)
        return Report(
            kind=kind,
            job=self._job,
            restart=self._restart,
            seq=self._seq,
            token=self._token,
            time=time.time(),
            node=self._node,
            exit_code=exit_code,
            retry=retry,
            step=self._step,
            told_to_end=self._told_to_end or None,
            **known,
        )

    def _facts(self, page: shared.Page) -> dict[str, Any]:
        words, seconds = page.words, page.seconds
        return {
            "steps": _known(words[shared.STEPS]),
            "total_steps": _known(words[shared.TOTAL]),
            "steps_per_s": self._meter.rate(time.monotonic()),
            "world": words[shared.WORLD],
            "resumable": bool(words[shared.RESUMABLE]),
            "saved_step": _known(words[shared.SAVED_STEP]),
            "generation": _known(words[shared.GENERATION]),
            "save_s": _known(seconds[shared.SAVE_S]),
            "stall_s": _known(seconds[shared.STALL_S]),
            "load_s": _known(seconds[shared.LOAD_S]),
            "consolidation": _known(words[shared.CONSOLIDATION]),
            "consolidated_steps": _known(words[shared.CONSOLIDATED]),
            "consolidate_s": _known(seconds[shared.CONSOLIDATE_S]),
            "closes": bool(words[shared.CLOSES]),
            "forgotten": words[shared.FORGOTTEN] or None,
            "wanted": words[shared.WANTED] or None,
            "beside": self._company.now,
            **self._company.needs,
            "memory_bytes": _peak_memory_bytes(words[shared.PID]),
        }

    def _page(self) -> shared.Page | None:
        """The page of the training: of the processes that are there one of the training API if there is one, else the
        one with most steps. Who has ended counts until another one has begun: it answers no wish to save."""
        for path in self._run_dir.glob("*.map"):
            if path not in self._pages:
                with contextlib.suppress(OSError, ValueError):  # being made this moment: next time
                    self._pages[path] = shared.Page(path)
        pages = [p for p in self._pages.values() if p.ready]
        if there := [p for p in pages if _is_there(p)]:
            before, self._last = self._last, _foremost(there)
            if before is not None and before not in there:
                self._meter.restart()  # its steps are not the other's
        self._put_away()
        return self._last or _foremost(pages)  # where processes have numbers of their own, none is seen to be there

    def _put_away(self) -> None:
        """The pages of those who have ended before: each is an open file, and a command may start ever new ones."""
        ended = [] if self._last is None else [p for p, page in self._pages.items() if page.ready and _is_gone(page)]
        for path in ended:
            if self._pages[path] is not self._last:
                del self._pages[path]
                with contextlib.suppress(OSError):
                    path.unlink()


def _foremost(pages: Sequence[shared.Page]) -> shared.Page | None:
    return max(pages, key=lambda p: (p.words[shared.RESUMABLE], p.words[shared.STEPS]), default=None)


def _is_there(page: shared.Page) -> bool:
    try:
        return stat_of(page.words[shared.PID]).state not in "ZX"
    except OSError:
        return False


def _is_gone(page: shared.Page) -> bool:
    return not Path("/proc", str(page.words[shared.PID])).exists()


def _news(page: shared.Page) -> tuple[int, int]:
    return page.words[shared.STEPS], page.words[shared.WANTED]


def _known(value: Any) -> Any:
    return None if value < 0 else value


def _peak_memory_bytes(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None

"""Doing the faults, and undoing them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos.post import send_bad_messages
from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.stage import Stage
from slurm_hadar.cluster import processes
from slurm_hadar.cluster.processes import Process
from slurm_hadar.errors import ClusterError

__all__ = ["SET_ASIDE", "Injector"]

Deed = tuple[str | None, Callable[[], None] | None]
"""What was done, None if there was nothing to hit; and how it is undone, None if that is not to be."""
AGENT = "slurm_hadar.runtime.agent import main"
PROGRAMS = ("benchmarks.chaos.chain", "benchmarks.chaos.training")
REFUSED = "another controller"
SET_ASIDE = ".before-"  # what hadar-srun took for an earlier job's


class Injector:
    """Carries out faults on a stage. ``done`` says what was really done, with the moment; ``spans`` how long which
    part was broken: (kind, from, to); ``problems`` what the faults themselves have found to be wrong."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.done: list[tuple[float, str, str]] = []
        self.spans: list[tuple[str, float, float]] = []
        self.problems: list[str] = []
        self.skipped: list[str] = []
        self.cuts: list[float] = []
        self.messages = 0

    def begin(self, fault: Fault) -> Callable[[], None] | None:
        """Do it; returns how it is undone, None if there is nothing to undo or it could not be done."""
        act = getattr(self, "_" + fault.kind.replace("-", "_"))
        began = time.time()
        try:
            detail, undo = act(fault, random.Random(fault.number))
        except ClusterError as error:  # such as a daemon that is not there at this moment
            self.skipped.append(f"{fault.kind}: {error}")
            return None
        if detail is None:
            self.skipped.append(f"{fault.kind}: nothing there to hit")
            return None
        self.done.append((began, fault.kind, detail))
        if undo is None:
            self.spans.append((fault.kind, began, time.time()))
            return None

        def mend() -> None:
            undo()
            self.spans.append((fault.kind, began, time.time()))

        return mend

    # The controller

    def _kill_controller(self, _fault: Fault, _rng: random.Random) -> Deed:
        self._stage.daemon.kill()
        return "SIGKILL", self._stage.daemon.revive

    def _freeze_controller(self, _fault: Fault, _rng: random.Random) -> Deed:
        self._stage.daemon.send(signal.SIGSTOP)
        return "SIGSTOP", lambda: self._stage.daemon.send(signal.SIGCONT)

    def _second_controller(self, _fault: Fault, _rng: random.Random) -> Deed:
        """One with the same memory, one with its own: both must be refused as long as the first one runs."""
        if self._stage.daemon.pid is None or time.time() - self._stage.daemon.starts[-1] < 5.0:
            return None, None
        other = self._stage.folder / "other-state"
        for state in (self._stage.state, other):
            command = self._stage.controller_command("--once", state=state)
            done = subprocess.run(
                command,
                env=self._stage.controller_environment(),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            away = "slurmctld does not answer" in done.stderr or "did not answer" in done.stderr
            if done.returncode != 1 or (REFUSED not in done.stderr and not away):
                said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
                self.problems.append(f"a second controller was not refused: exit {done.returncode}, {said[0]}")
        return "same state directory, and another one", None

    def _jump_clock(self, fault: Fault, _rng: random.Random) -> Deed:
        file = self._stage.faketime
        if file is None:
            return None, None
        file.write_text(f"{fault.way}\n")

        def back() -> None:
            file.write_text("+0\n")

        return f"{fault.way} s", back

    def _fill_state_disk(self, _fault: Fault, _rng: random.Random) -> Deed:
        return self._fill(self._stage.state)

    def _fill_job_disk(self, _fault: Fault, _rng: random.Random) -> Deed:
        return self._fill(self._stage.work)

    def _fill(self, folder: Path) -> Deed:
        if not self._stage.real_disks:
            return None, None
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        return "no space left", lambda: ballast.unlink(missing_ok=True)

    def _cut_journal_stopped(self, fault: Fault, rng: random.Random) -> Deed:
        self._stage.daemon.kill()
        damage(self._stage.state / "journal.db", fault.way, rng)

        def revive() -> None:
            self.cuts.append(time.time())
            self._stage.daemon.revive()

        return fault.way, revive

    def _cut_journal_running(self, fault: Fault, rng: random.Random) -> Deed:
        """Damaged under the running controller, which may notice at once, later, or when it is started again."""
        damage(self._stage.state / "journal.db", fault.way, rng)

        def again() -> None:
            self._stage.daemon.kill()
            self.cuts.append(time.time())
            self._stage.daemon.revive()

        return fault.way, again

    # Jobs

    def _kill_agent(self, _fault: Fault, rng: random.Random) -> Deed:
        return self._kill(rng, agents(self._stage)), None

    def _kill_reporter(self, _fault: Fault, rng: random.Random) -> Deed:
        every = {p.pid for p in agents(self._stage)}
        reporters = [p for p in self._stage.cluster.processes() if is_agent(p) and p.parent in every]
        return self._kill(rng, reporters), None

    def _kill_training(self, _fault: Fault, rng: random.Random) -> Deed:
        found = [p for p in self._stage.cluster.processes() if p.argv[1:2] == ("-m",) and p.argv[2] in PROGRAMS]
        return self._kill(rng, found), None

    def _kill(self, rng: random.Random, found: list[Process]) -> str | None:
        if not found:
            return None
        victim = rng.choice(found)
        processes.send(victim, signal.SIGKILL)
        return f"process {victim.pid}: {' '.join(victim.argv[-6:])}"

    # Slurm

    def _kill_slurmctld(self, _fault: Fault, _rng: random.Random) -> Deed:
        self._stage.cluster.kill_slurmctld()
        return "SIGKILL", self._stage.cluster.start_slurmctld

    def _stop_slurmctld(self, _fault: Fault, _rng: random.Random) -> Deed:
        self._stage.cluster.stop_slurmctld()
        return "SIGTERM", self._stage.cluster.start_slurmctld

    def _freeze_slurmctld(self, _fault: Fault, _rng: random.Random) -> Deed:
        daemon = self._stage.cluster.daemon("slurmctld")
        if daemon is None:
            return None, None
        processes.send(daemon, signal.SIGSTOP)
        return "SIGSTOP", lambda: processes.send(daemon, signal.SIGCONT)

    def _node(self, fault: Fault) -> str:
        nodes = self._stage.cluster.nodes
        return nodes[fault.number % 4 % len(nodes)].name

    def _kill_slurmd(self, fault: Fault, _rng: random.Random) -> Deed:
        node = self._node(fault)
        self._stage.cluster.stop_slurmd(node)
        return node, lambda: self._stage.cluster.start_slurmd(node)

    def _drain_node(self, fault: Fault, _rng: random.Random) -> Deed:
        return self._set_node(self._node(fault), "DRAIN")

    def _lose_node(self, fault: Fault, _rng: random.Random) -> Deed:
        return self._set_node(self._node(fault), "DOWN")

    def _set_node(self, node: str, state: str) -> Deed:
        run, update = self._stage.cluster.run, ["scontrol", "update", f"NodeName={node}"]
        run([*update, f"State={state}", "Reason=chaos"], timeout_s=5.0)

        def back() -> None:
            """In a thread of its own: a slurmctld that stands still goes on only when it is its turn."""
            threading.Thread(target=resume, name="resume", daemon=True).start()

        def resume() -> None:
            for _ in range(60):
                with contextlib.suppress(ClusterError):
                    if run([*update, "State=RESUME"], check=False, timeout_s=20.0).returncode == 0:
                        return
                time.sleep(0.5)

        return f"{node} {state}", back

    # Messages

    def _cut_channel(self, _fault: Fault, _rng: random.Random) -> Deed:
        self._stage.proxy.cut()
        return "connections closed", self._stage.proxy.mend

    def _bad_messages(self, _fault: Fault, rng: random.Random) -> Deed:
        info = self._stage.proxy.target()
        if info is None or not info.listens:
            return None, None
        tokens = {}
        for file in self._stage.work.glob(".hadar/*/token"):
            if SET_ASIDE not in file.parent.name:
                tokens[file.parent.name] = file.read_text().strip()
        sent = send_bad_messages(info, tokens, rng)
        self.messages += sent
        return f"{sent} messages", None


def agents(stage: Stage) -> list[Process]:
    """The agents' main processes; their reporters are forks of them, with the same command line."""
    found = [p for p in stage.cluster.processes() if is_agent(p)]
    every = {p.pid for p in found}
    return [p for p in found if p.parent not in every]


def is_agent(process: Process) -> bool:
    """Whether this is an agent or its reporter; srun has the same words, but not in these places."""
    return process.argv[1:3] == ("-E", "-c") and AGENT in process.argv[3]


def damage(journal: Path, how: str, rng: random.Random) -> None:
    """Break the journal in one of the ways of :data:`benchmarks.chaos.schedule.DAMAGE`."""
    wal, shm = (journal.with_name(journal.name + end) for end in ("-wal", "-shm"))
    file = {"db": journal, "rows": journal, "wal": wal, "shm": shm}[how.split("-")[1]]
    if not file.exists():
        return
    size = file.stat().st_size
    if how.startswith("empty"):
        os.truncate(file, 0)
    elif how.startswith("truncate"):
        os.truncate(file, rng.randrange(size) if size else 0)
    elif how == "garble-rows":
        _garble_text(file, rng)
    elif size:
        with file.open("r+b") as stream:
            for _ in range(4):
                stream.seek(rng.randrange(size))
                stream.write(rng.randbytes(64))


def _garble_text(file: Path, rng: random.Random) -> None:
    """Letters within rows, which no check of the database's structure can find."""
    content = bytearray(file.read_bytes())
    spots = [i for i, byte in enumerate(content) if byte in b'{}":,']
    for spot in rng.sample(spots, min(len(spots), 40)):
        content[spot] = rng.choice(b"x#~")
    with file.open("r+b") as stream:
        stream.write(content)

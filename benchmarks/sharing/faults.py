"""What goes wrong around a broker: jobs and the broker itself killed, words that are none, people who are not its user.

    python -m benchmarks.sharing.faults [--faults 200] [--seed 1] [--json FILE]

Three plain processes take short turns for ever while one fault after the other is done to them and to their broker.
After each fault the campaign waits until every job has had a turn again; one that has not within 60 s is *stuck*. A
turn is *lost* where all wait and nobody has it: it shows as all jobs stuck. Whether two turns overlapped is read from
what the jobs wrote; a broker's death is left out, since who was in its turn goes on with it while the next broker
begins. A connection of another user needs root, and is left out without it. Exits with 1 if anything was found.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.queries import status_of

JOB = """
import os, sys, time
from pathlib import Path
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.lanes import Demand
session = Session(Path(sys.argv[1]), Work(Demand(10, 50), label=sys.argv[2], can_keep=True), return_s=60)
given_back = open(sys.argv[2] + ".given-back", "ab", buffering=0)
session.free = lambda: given_back.write(b".")  # what it kept: whoever joins and is gone needs it
with open(sys.argv[2], "a", buffering=1) as log:
    while True:
        with session.iteration():
            begin = time.monotonic()
            time.sleep(0.002)
            log.write(f"{begin} {time.monotonic()}\\n")
            assert not session.alone
"""
STUCK_S = 60.0
NOBODY = 65534
STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.settimeout(20)
try:
    sock.connect(sys.argv[1])
    sock.sendall(b'{{"op": "status"}}\\n')
    sys.exit(1 if sock.recv(1) else 0)
except (ConnectionError, PermissionError):
    sys.exit(0)
"""


class Stage:
    """A broker, three jobs, and what is done to them."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self._folder, self._draw = folder, draw
        self.path = folder / "s"
        self.outages: list[tuple[float, float]] = []
        self.answered = 0
        self._broker = self._new_broker()
        self._started = 0
        self._jobs: dict[Path, subprocess.Popen[bytes]] = {}
        for _ in range(3):
            self._new_job()

    def faults(self) -> dict[str, Callable[[], None]]:
        """All that can be done, by name."""
        found = {"job killed": self._kill_job, "job stopped": self._stop_job, "broker killed": self._kill_broker,
                 "garbage": self._garbage, "half a join": self._half, "joined and gone": self._gone}  # fmt: skip
        return found | ({"another user": self._stranger} if os.getuid() == 0 else {})

    def stuck(self) -> list[str]:
        """Jobs that have no new turn within STUCK_S."""
        before = {log: len(turns(log)) for log in self._jobs}
        until = time.monotonic() + STUCK_S
        waiting = set(before)
        while waiting and time.monotonic() < until:
            time.sleep(0.02)
            waiting = {log for log in waiting if len(turns(log)) <= before[log]}
        return sorted(log.name for log in waiting)

    def close(self) -> None:
        """End everything."""
        for process in (*self._jobs.values(), self._broker):
            process.kill()
            process.wait()

    def turns(self) -> list[list[tuple[float, float]]]:
        """Of each job that there was."""
        return [turns(self._folder / f"job-{number}") for number in range(1, self._started + 1)]

    def overlaps(self) -> int:
        """Turns that began before another one had ended."""
        merged = sorted(turn for one in self.turns() for turn in one)
        found, latest = 0, 0.0
        for begin, end in merged:
            outage = any(died - 1 <= begin <= back + 1 for died, back in self.outages)
            found += begin < latest and not outage
            latest = max(latest, end)
        return found

    def _new_broker(self) -> subprocess.Popen[bytes]:
        command = ["-m", "slurm_hadar.cli.main", "share", "broker", "--policy", "fair", "--memory", "1000"]
        broker = subprocess.Popen(
            [sys.executable, *command, "--socket", str(self.path), "--linger", "1000"], stderr=subprocess.DEVNULL
        )
        while True:
            try:
                status_of(self.path)
                return broker
            except ChannelError:
                time.sleep(0.02)

    def _new_job(self) -> None:
        self._started += 1
        log = self._folder / f"job-{self._started}"
        log.touch()
        self._jobs[log] = subprocess.Popen([sys.executable, "-c", JOB, str(self.path), str(log)])

    def _kill_job(self) -> None:
        log = self._draw.choice(sorted(self._jobs))
        job = self._jobs.pop(log)
        job.kill()
        job.wait()
        self._new_job()

    def _stop_job(self) -> None:
        """For a moment, perhaps in its turn."""
        job = self._jobs[self._draw.choice(sorted(self._jobs))]
        job.send_signal(19)
        time.sleep(0.2)
        job.send_signal(18)

    def _kill_broker(self) -> None:
        died = time.monotonic()
        self._broker.kill()
        self._broker.wait()
        self._broker = self._new_broker()
        self.outages.append((died, time.monotonic()))

    def _send(self, data: bytes, read: bool) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(20)
            sock.connect(str(self.path))
            try:
                sock.sendall(data)
                if read and sock.recv(1):
                    self.answered += 1
            except ConnectionError:
                self.answered += 1

    def _garbage(self) -> None:
        self._send(self._draw.randbytes(self._draw.choice([1, 100, 10_000])) + b"\n", read=True)

    def _half(self) -> None:
        self._send(b'{"op": "join", "persistent_bytes": 10, "ephe', read=False)

    def _gone(self) -> None:
        """With its turn asked for, and perhaps had."""
        self._send(b'{"op": "join", "persistent_bytes": 10, "ephemeral_bytes": 900}\n', read=True)
        self._send(b'{"op": "join", "persistent_bytes": 1, "ephemeral_bytes": 9}\n{"op": "want"}\n', read=True)

    def _stranger(self) -> None:
        """Whom the file's mode would let in: the kernel's word is what keeps it out."""
        self._folder.chmod(0o755)
        self.path.chmod(0o777)
        done = subprocess.run([sys.executable, "-c", STRANGER.format(nobody=NOBODY), str(self.path)], check=False)
        if done.returncode:
            raise SystemExit("another user was answered")


def turns(log: Path) -> list[tuple[float, float]]:
    """Begin and end; a line that a kill has cut is none."""
    lines = log.read_text().split("\n")[:-1]
    return [(float(begin), float(end)) for begin, end in map(str.split, lines)]


def campaign(faults: int, seed: int) -> dict[str, Any]:
    """What was done, and what was found."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        stage = Stage(Path(folder), draw)
        try:
            found: list[dict[str, Any]] = []
            done: Counter[str] = Counter()
            assert not stage.stuck(), "the jobs do not start"
            for _ in range(faults):
                name, fault = draw.choice(sorted(stage.faults().items()))
                fault()
                done[name] += 1
                if stuck := stage.stuck():
                    found.append({"after": name, "stuck": stuck, "broker": status_of(stage.path)})
            sessions = len(status_of(stage.path)["sessions"])
        finally:
            stage.close()
        return {
            "faults": dict(sorted(done.items())),
            "stuck": found,
            "lost_turns": sum(len(one["stuck"]) == 3 for one in found),
            "overlaps": stage.overlaps(),
            "sessions_left": sessions,
            "turns": sum(map(len, stage.turns())),
            "memory_given_back": sum(kept.stat().st_size for kept in Path(folder).glob("*.given-back")),
        }


@click.command()
@click.option("--faults", default=200, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(faults: int, seed: int, file: Path | None) -> None:
    """Do faults, and count what comes of them."""
    found = campaign(faults, seed)
    text = json.dumps(found, indent=1)
    click.echo(text)
    if file is not None:
        file.write_text(text + "\n")
    sys.exit(bool(found["stuck"] or found["overlaps"] or found["sessions_left"] != 3))


if __name__ == "__main__":
    main()

"""One episode: a cluster, jobs, a controller, faults, and the verdict."""

from __future__ import annotations

import heapq
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.campaigns.episodes import scratch
from benchmarks.campaigns.sent import check_log, unexplained
from benchmarks.chaos.inject import Injector
from benchmarks.chaos.jobs import submit_all
from benchmarks.chaos.schedule import KINDS, Fault, draw
from benchmarks.chaos.stage import Stage
from benchmarks.chaos.watch import Watch, check_end, steps_counted_twice
from slurm_hadar.cluster import processes
from slurm_hadar.errors import SlurmError

__all__ = ["Episode", "Plan", "play"]

PATIENCE_S = 240.0
LEAVE_S = 20.0


@dataclass(frozen=True)
class Plan:
    """What an episode is made of, a function of its seed."""

    seed: int
    policy: str
    faults: tuple[Fault, ...]
    seconds: float
    chains: int
    trainings: int
    copies: int
    nap_s: float = 0.08

    @classmethod
    def of(cls, seed: int, seconds: float = 90.0, faults: int = 14, kinds: tuple[str, ...] = tuple(KINDS)) -> Plan:
        """Policies in turn: random moves all the time, Hadar, and HadarE with a forked job."""
        policy = ("shuffle", "hadar", "shuffle", "hadare")[seed % 4]
        copies = 3 if policy == "hadare" else 0
        trainings = 1 if copies else 2
        return cls(seed, policy, draw(seed, seconds, faults, kinds), seconds, 10, trainings, copies)


@dataclass
class Episode:
    """What came of it. ``problems`` are violations of what must hold; ``injected`` counts faults by kind."""

    seed: int
    policy: str
    problems: list[str] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    looks: int = 0
    changes: int = 0
    jobs: int = 0
    completed: int = 0
    restarts: int = 0
    again: int = 0
    controller_starts: int = 0
    controller_ends: list[int] = field(default_factory=list)
    messages: int = 0
    small_disks: bool = True
    fake_clock: bool = True
    kept: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "injected": dict(sorted(self.injected.items()))}


def play(plan: Plan, say: Callable[[str], None], keep: Path | None = None) -> Episode:
    """Play one episode. Where something did not hold, its folder is kept below ``keep`` to be looked at."""
    began = time.monotonic()
    episode = Episode(plan.seed, plan.policy)
    with scratch("hch-") as folder, Stage(folder, plan.policy) as stage:
        _play(stage, plan, episode, say)
        if episode.problems and keep is not None:
            episode.kept = str(_keep(stage, keep / f"seed-{plan.seed}"))
    episode.seconds = time.monotonic() - began
    return episode


def _play(stage: Stage, plan: Plan, episode: Episode, say: Callable[[str], None]) -> None:
    plain, forked = submit_all(stage, plan.seed, plan.chains, plan.trainings, plan.copies, plan.nap_s)
    # saved now: what follows is about what we lose, not about jobs of which slurmctld has not yet written down a word
    stage.cluster.stop_slurmctld()
    stage.cluster.start_slurmctld()
    watch, injector = Watch(stage), Injector(stage)
    stage.daemon.keep_up()
    watch.start()
    try:
        _inject(injector, plan.faults, say)
        _await_end(stage, say)
    finally:
        watch.stop()
    stage.daemon.wait_running()
    code = stage.daemon.stop()
    end = check_end(stage, injector, plain, forked)
    changes, untold = unexplained(stage.sent, stage.state, max(injector.cuts, default=0.0))
    episode.problems += [*watch.problems, *injector.problems, *end.problems, *untold, *check_log(stage.log)]
    episode.problems += steps_counted_twice(stage, plain)
    episode.problems += _left_behind(stage)
    if code not in (0, None, -signal.SIGTERM):  # by the signal itself where it had only just begun to start
        episode.problems.append(f"the controller ended with {code} when it was told to end")
    episode.injected = Counter(kind for _, kind, _ in injector.done)
    episode.skipped = injector.skipped
    episode.looks, episode.changes = watch.looks, changes
    episode.jobs, episode.completed = len(plain) + len(forked), end.completed
    episode.restarts, episode.again = end.restarts, end.again
    episode.controller_starts = len(stage.daemon.starts)
    episode.controller_ends = [c for _, c in stage.daemon.ends]
    episode.messages = injector.messages
    episode.small_disks, episode.fake_clock = stage.real_disks, stage.faketime is not None


def _inject(injector: Injector, faults: tuple[Fault, ...], say: Callable[[str], None]) -> None:
    """All faults at their times; undone at theirs, in order of time."""
    zero = time.monotonic()
    todo: list[tuple[float, int, Fault | None, Callable[[], None] | None]] = []
    for number, planned in enumerate(faults):
        heapq.heappush(todo, (planned.at_s, number, planned, None))
    count = len(faults)
    try:
        while todo:
            at, _, fault, mend = heapq.heappop(todo)
            time.sleep(max(0.0, zero + at - time.monotonic()))
            if mend is not None:
                mend()
            elif fault is not None:
                say(f"  {fault}")
                undo = injector.begin(fault)
                if undo is not None:
                    count += 1
                    heapq.heappush(todo, (time.monotonic() - zero + fault.for_s, count, None, undo))
    finally:
        for *_, mend in todo:
            if mend is not None:
                mend()


def _await_end(stage: Stage, say: Callable[[str], None]) -> None:
    """Until the queue is empty, or patience is over."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            jobs = stage.backend.read_jobs()
        except SlurmError:
            jobs = ()
        if jobs and not any(j.state.active for j in jobs):
            return
        time.sleep(0.5)
    say("  not all jobs have ended in time")


def _left_behind(stage: Stage) -> list[str]:
    """Programs of jobs that go on although all jobs are over."""
    deadline = time.monotonic() + LEAVE_S
    while True:
        programs = [p for p in stage.cluster.processes() if not p.daemon and p.name.startswith("python")]
        if not programs:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(0.3)
    for program in programs:
        processes.send(program, signal.SIGKILL)
    return [f"process {p.pid} of a job goes on after its end: {' '.join(p.argv[1:8])[:150]}" for p in programs]


def _keep(stage: Stage, place: Path) -> Path:
    """Logs, journal, what was sent and what the jobs said, without the disks' ballast."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for part in ("out", "sent", "state", "work"):
        shutil.copytree(stage.folder / part, place / part, ignore=shutil.ignore_patterns("ballast"), dirs_exist_ok=True)
    shutil.copytree(stage.folder / "c" / "log", place / "slurm-log")
    for file in ("controller.log",):
        if (stage.folder / file).exists():
            shutil.copy(stage.folder / file, place / file)
    return place

"""One episode: a cluster, honest and hostile users, a controller, and the verdict."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attack.deeds import Deeds
from benchmarks.attack.honest import Honest
from benchmarks.attack.people import HOSTILE
from benchmarks.attack.stage import REGIMES, Stage
from benchmarks.attack.watch import Watch, check_honest, check_words
from benchmarks.campaigns.episodes import scratch
from slurm_hadar.errors import SlurmError

__all__ = ["Episode", "Plan", "play"]

PATIENCE_S = 240.0


@dataclass(frozen=True)
class Plan:
    """What an episode is made of, a function of its seed: whose rights, which policy, with or without the plug-in."""

    seed: int
    regime: str
    policy: str
    plugins: bool
    seconds: float
    every_s: float = 0.4
    chains: int = 2

    @classmethod
    def of(cls, seed: int, seconds: float = 120.0) -> Plan:
        # not fifo, whose order is strict: who waits for a whole node keeps it from those behind
        policy = ("hadar", "gavel_las", "tiresias")[seed // 4 % 3]
        return cls(seed, REGIMES[seed % 2], policy, seed // 2 % 2 == 1, seconds)


@dataclass
class Episode:
    """What came of it. ``problems`` are violations of what must hold; ``deeds`` counts hostile actions by kind, and
    ``refused`` those that Slurm refused; ``longest_wait_s`` is how long an honest job waited beside a free GPU, and
    ``kept_looks`` how often one was seen to wait beside GPUs that Slurm itself keeps for a job that is left to it."""

    seed: int
    regime: str
    policy: str
    plugins: bool
    as_itself: bool = True
    problems: list[str] = field(default_factory=list)
    deeds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    looks: int = 0
    misses: int = 0
    kept_looks: int = 0
    changes: int = 0
    messages: int = 0
    honest: int = 0
    longest_wait_s: float = 0.0
    controller_starts: int = 0
    kept: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "deeds": dict(sorted(self.deeds.items())),
            "refused": dict(sorted(self.refused.items())),
        }


def play(plan: Plan, say: Callable[[str], None], keep: Path | None = None) -> Episode:
    """Play one episode. Where something did not hold, its folder is kept below ``keep`` to be looked at."""
    began = time.monotonic()
    episode = Episode(plan.seed, plan.regime, plan.policy, plan.plugins)
    with scratch("hat-") as folder, Stage(folder, plan.regime, plan.policy, plan.plugins) as stage:
        _play(stage, plan, episode, say)
        if episode.problems and keep is not None:
            episode.kept = str(_keep(stage, keep / f"seed-{plan.seed}"))
    episode.seconds = time.monotonic() - began
    return episode


def _play(stage: Stage, plan: Plan, episode: Episode, say: Callable[[str], None]) -> None:
    honest = Honest(stage, random.Random(f"{plan.seed}/honest"))
    deeds = Deeds(stage, random.Random(f"{plan.seed}/deeds"), lambda: honest.ids)
    watch = Watch(stage, honest, deeds)
    for _ in range(plan.chains):
        honest.submit_chain(150)
    stage.daemon.keep_up()
    watch.start()
    until = time.monotonic() + plan.seconds
    others = threading.Thread(target=honest.come, args=(until, plan.seconds / 25), name="honest", daemon=True)
    others.start()
    try:
        deeds.go_on(until, plan.every_s)
        others.join(60.0)
        _tidy(stage, deeds)
        _await_end(stage, honest, say)
    finally:
        watch.stop()
    stage.daemon.wait_running()
    code = stage.daemon.stop()
    changes, words = check_words(stage)
    episode.problems += [*watch.problems, *check_honest(stage, honest), *words]
    if code not in (0, None, -signal.SIGTERM):
        episode.problems.append(f"the controller ended with {code} when it was told to end")
    episode.as_itself = stage.as_itself
    episode.deeds, episode.refused, episode.messages = deeds.done, deeds.refused, deeds.messages
    episode.looks, episode.misses, episode.changes = watch.looks, watch.misses, changes
    episode.kept_looks = watch.kept
    episode.honest = len(honest.ids)
    episode.longest_wait_s = round(max(watch.waits.values(), default=0.0), 1)
    episode.controller_starts = len(stage.daemon.starts)


def _tidy(stage: Stage, deeds: Deeds) -> None:
    """The hostile users leave."""
    deeds.resume_all()
    for user in HOSTILE:
        stage.run_as("root", "scancel", "-u", user)
        stage.run_as("root", "scancel", "--signal=KILL", "--full", "-u", user)


def _await_end(stage: Stage, honest: Honest, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(SlurmError):
            jobs = stage.backend.read_jobs()
            if not any(j.state.active for j in jobs if j.job_id in honest.ids):
                return
        time.sleep(0.5)
    say("  not all honest jobs have ended in time")


def _keep(stage: Stage, place: Path) -> Path:
    """Logs, journal and what was sent."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for part in ("sent", "state"):
        shutil.copytree(stage.folder / part, place / part, ignore_dangling_symlinks=True)
    shutil.copytree(stage.folder / "c" / "log", place / "slurm-log")
    shutil.copy(stage.folder / "controller.log", place / "controller.log")
    for user, home in stage.work.items():
        (place / user).mkdir()
        for file in home.glob("*.out"):
            shutil.copy(file, place / user / file.name)
    return place

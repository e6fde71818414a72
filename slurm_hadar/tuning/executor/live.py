"""A trial as the executor sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from slurm_hadar.tuning.allocation.gpus import Place
from slurm_hadar.tuning.allocation.widths import Grant
from slurm_hadar.tuning.executor.meter import Meter

__all__ = ["Live", "Stage", "Why"]


class Stage(Enum):
    """WAITING: for GPUs. RUNNING: it has some, or is about to. AT_RUNG: it has come as far as it was to, and has no
    process. ENDED: Optuna knows how."""

    WAITING = auto()
    RUNNING = auto()
    AT_RUNG = auto()
    ENDED = auto()


class Why(Enum):
    """Why a process was told to end. LOST: its GPUs are not ours any more, as of a node that has died."""

    RESIZE = auto()
    RUNG = auto()
    STOP = auto()
    TIME = auto()
    LOST = auto()


@dataclass
class Live:
    """``until``: the step of the report at which it has come to its rung; None: it runs to its own end.

    ``onward``: asked there whether it goes on at once (:class:`slurm_hadar.tuning.executor.group.Leg`).
    ``process``: of the run under way (trial, run). ``at``: the GPUs that the run is on, ``grant`` as what.
    ``run``: how often it has been started. ``crashes``: ends that nobody asked for, since it last made progress.
    """

    number: int
    until: int | None = None
    onward: Callable[[int, int], int | None] | None = None
    stage: Stage = Stage.WAITING
    meter: Meter = field(default_factory=Meter)
    run: int = -1
    process: tuple[int, int] | None = None
    at: tuple[Place, ...] = ()
    grant: Grant | None = None
    why: Why | None = None
    asked_s: float = 0.0  # when it was told to end
    outcome: dict[str, Any] | None = None
    outcome_s: float = 0.0  # when it was told
    overdue: bool = False  # it was told long ago, and the process was ended
    sender: bytes | None = None
    step: str | None = None  # Slurm's
    crashes: int = 0
    steps_at_crash: int = 0
    value: float | None = None
    started_s: float = 0.0
    ran_s: float = 0.0
    resize_from_s: float | None = None  # a resize is under way since then
    first_steps: int | None = None  # of the run under way, as it told them first
    asked: set[str] = field(default_factory=set)  # parameters, by the run under way
    saves_asked: int = 0  # of the run under way: saves after which it goes on
    saves_answered: int = 0

    @property
    def name(self) -> str:
        """As the allocator calls it."""
        return str(self.number)

    @property
    def active(self) -> bool:
        """Whether it has a GPU, or waits for one."""
        return self.stage in (Stage.WAITING, Stage.RUNNING)

    @property
    def saving(self) -> bool:
        """Whether its process has yet to save what it was told to, and can."""
        return self.process is not None and self.meter.resumable and self.saves_answered < self.saves_asked

    @property
    def goal(self) -> int | None:
        """The report by which its length is judged; None: its own end, also of one that most likely goes on."""
        return None if self.onward is not None else self.until

    def running_s(self) -> float:
        """Seconds with a process, in all of this tuner's time."""
        return self.ran_s + (time.monotonic() - self.started_s if self.process is not None else 0.0)

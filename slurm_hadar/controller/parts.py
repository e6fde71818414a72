"""What a controller of a live Slurm works with."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.channel_file import ChannelFile
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.callbacks import LoopCallbacks
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.journal.best_effort import BestEffort
from slurm_hadar.controller.prediction.forecasts import Forecaster
from slurm_hadar.controller.prediction.training import Trainer
from slurm_hadar.controller.safety.leadership import Leadership
from slurm_hadar.slurm.backend.base import Backend

__all__ = ["Parts"]


@dataclass
class Parts:
    """All that is not its configuration and its policy.

    ``backend``: how to talk to Slurm. ``journal``: what is remembered. ``book`` and ``channel``: reports of jobs;
    without a channel they leave files. ``channel_file``: what each round sees to, as jobs find the channel by it;
    None = nobody does. ``forecaster`` and ``trainer`` say how long jobs will be, and learn it; None = nobody does.
    ``callbacks`` are told of what the controller does. ``best_effort``: where a journal that cannot be written is
    complained of. ``leadership``: whether this host may act; None = it always may. ``seal``: of the notes in jobs'
    comments; the default one ends with this process. ``once``: no other round follows in this process.
    """

    backend: Backend
    journal: Journal
    book: ReportBook = field(default_factory=ReportBook)
    channel: Channel | None = None
    channel_file: ChannelFile | None = None
    forecaster: Forecaster | None = None
    trainer: Trainer | None = None
    callbacks: LoopCallbacks = field(default_factory=LoopCallbacks)
    best_effort: BestEffort = field(default_factory=BestEffort)
    leadership: Leadership | None = None
    seal: Seal = field(default_factory=Seal)
    once: bool = False

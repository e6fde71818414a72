"""A controller over a Slurm in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.config import Config, load
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.loop import Controller
from slurm_hadar.controller.reports import ReportBook
from slurm_hadar.policies import registry
from slurm_hadar.testing.fake_slurm import FakeSlurm

FAST = ("controller.mode=act", "controller.round_s=2", "guard.min_run_s=0", "jobs.start_timeout_s=3",
        "jobs.ack_timeout_s=1", "jobs.end_timeout_s=3", "jobs.restart_cost_s=1")  # fmt: skip


class Bench:
    """A cluster in memory, its controller, and what they share."""

    def __init__(self, nodes: dict[str, tuple[str, int]], settings: tuple[str, ...], journal: Journal) -> None:
        self.slurm = FakeSlurm(nodes)
        self.settings = settings
        self.journal = journal
        self.book = ReportBook()
        self.controller = self.new_controller()

    def config(self, *settings: str) -> Config:
        return load(None, [*FAST, *self.settings, *settings])

    def new_controller(self, *settings: str, policy: Any = None, channel: Any = None) -> Controller:
        """Another controller on the same cluster and memory, as after a restart."""
        config = self.config(*settings)
        chosen = policy or registry.get(config.policy.name, **config.policy.params)
        return Controller(self.slurm, chosen, config, self.journal, self.book, channel)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Make a Bench: ``bench({"v100-1": ("v100", 2)}, "section.key=value")``."""

    def make(nodes: dict[str, tuple[str, int]] | None = None, *settings: str) -> Bench:
        return Bench(nodes or {"v100-1": ("v100", 2), "k80-1": ("k80", 2)}, settings, Journal(":memory:"))

    return make

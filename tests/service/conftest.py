"""A service over a Slurm in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import Config, load
from slurm_hadar.controller import setup
from slurm_hadar.controller.loop import RoundResult
from slurm_hadar.service import logs
from slurm_hadar.service.service import Service
from slurm_hadar.slurm.state import Daemon
from slurm_hadar.testing.fake_slurm import FakeSlurm

FAST = ("controller.mode=act", "controller.round_s=2", "guard.min_run_s=0", "jobs.start_timeout_s=3",
        "jobs.ack_timeout_s=1", "jobs.end_timeout_s=3", "channel.enabled=false", "predict.retrain_s=0")  # fmt: skip
MODEL = "hadar:model=resnet18,batch=64,steps=20000"


class Site:
    """A cluster in memory, its configuration file, and services that run by it."""

    def __init__(self, folder: Path) -> None:
        self.slurm = FakeSlurm({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
        self.folder, self.state, self.file = folder, folder / "state", folder / "config.toml"
        self.daemons: tuple[Daemon, ...] = ()
        self.slurm.identity = lambda: str(folder)  # type: ignore[method-assign]  # tests run beside each other
        self.slurm.daemons = lambda: self.daemons  # type: ignore[method-assign]
        self.file.write_text("")
        self.rounds: list[RoundResult[Any]] = []

    def config(self, *settings: str) -> Config:
        own = (f"controller.state_dir={self.state}", f"channel.file={self.folder / 'hadar-channel.json'}")
        return load(self.file, [*FAST, *own, *settings])

    def service(self, *settings: str, once: bool = False) -> Service:
        return Service(self.config(*settings), lambda: self.config(*settings), self.rounds.append, once=once)

    def audit(self) -> list[dict[str, Any]]:
        """Every line of the audit log."""
        return [json.loads(line) for line in (self.state / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A cluster in memory instead of the one that is configured."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    made = Site(tmp_path)
    monkeypatch.setattr(setup, "choose", lambda *_: made.slurm)
    # pytest's own handlers stay
    monkeypatch.setattr(logs, "configure", lambda section, _quiet=False: logs.LogFormatter(section))
    yield made


@pytest.fixture
def metrics_of() -> Callable[[Service], Callable[..., float | None]]:
    """A service's figures: ``metrics_of(service)("hadar_rounds_total", result="done")``."""

    def of(service: Service) -> Callable[..., float | None]:
        return lambda name, **labels: service._metrics.registry.get_sample_value(name, labels)  # noqa: SLF001 a service's figures

    return of
